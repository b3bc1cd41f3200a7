"""Labels beside points cover nothing, and each belongs to the point that is nearest."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.publishing import gallery, labels, published, quoted


def axes_of(points):
    axes = Figure(figsize=(4, 3), dpi=100, layout="constrained").subplots()
    axes.plot(*np.transpose(points), "o", markersize=labels.MARKER)
    axes.set(xlim=(0, 10), ylim=(0, 10))
    return axes


def overlapping(written) -> list[tuple[str, str]]:
    boxes = {label.get_text(): label.get_window_extent() for label in written}
    pairs = combinations(boxes, 2)
    return [(one, other) for one, other in pairs if boxes[one].overlaps(boxes[other])]


def nearest(written, axes, points) -> list[int]:
    """The point that is nearest to each label."""
    pixels = axes.transData.transform(points)
    extents = [label.get_window_extent() for label in written]
    middles = [((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in extents]
    return [int(np.linalg.norm(pixels - middle, axis=1).argmin()) for middle in middles]


def test_a_label_alone_stands_at_the_upper_right_of_its_point():
    axes = axes_of([(5, 5)])
    (label,) = labels.beside(axes, [(5, 5)], ["1"], ["black"])
    box = label.get_window_extent()
    x, y = axes.transData.transform((5, 5))
    gap = labels.DISTANCES[0] * 100 / 72
    assert abs(box.x0 - x - gap) < 1.5 and abs(box.y0 - y - gap) < 1.5


def test_labels_of_points_in_a_heap_do_not_overlap_and_lie_within_the_axes():
    points = [(9.9, 9.9), (9.9, 9.6), (9.9, 9.3), (9.6, 9.9), (5, 5), (5.1, 5), (5, 5.2)]
    axes = axes_of(points)
    written = labels.beside(axes, points, list("abcdefg"), ["black"] * 7, dots=[(5.3, 5.3)])
    assert [label.get_text() for label in written] == list("abcdefg")
    assert overlapping(written) == []
    pixels = axes.transData.transform([*points, (5.3, 5.3)])
    for label in written:
        box = label.get_window_extent()
        assert not any(box.contains(*pixel) for pixel in pixels)
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and box.y1 <= axes.bbox.y1


@pytest.mark.slow
def test_of_the_gallery_no_two_labels_overlap_and_no_two_points_look_alike():
    for exhibit in gallery.EXHIBITS:
        if exhibit.up is None:
            continue
        canvas = gallery.draw(exhibit, quoted.arms(published.record(exhibit.record)))
        (axes,) = canvas.axes
        points = [line for line in axes.lines if line.get_marker() != "."]
        looks = [(line.get_color(), line.get_marker()) for line in points]
        assert len(set(looks)) == len(looks)
        canvas.draw_without_rendering()
        written = [text for text in axes.texts if text.get_text()]
        assert [text.get_text() for text in written] == [f"{n + 1}" for n in range(len(points))]
        assert overlapping(written) == []
        places = [line.get_xydata()[0] for line in points]
        assert nearest(written, axes, places) == list(range(len(points)))
