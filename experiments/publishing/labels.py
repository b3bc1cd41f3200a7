"""Labels beside points, each where it covers nothing and is nearest to its own point."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

DIRECTIONS = ((1, 1), (1, 0), (-1, 0), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1))
DISTANCES = (4, 9, 15, 22, 30)  # pt
LED = 9  # pt, beyond which a thin line leads from a label to its point
MARKER, DOT = 7, 3  # pt


def beside(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    colours: Sequence[str],
    dots: Sequence[tuple[float, float]] = (),
    fontsize: float = 7,
) -> list[Annotation]:
    """Write each text beside its point, as near as the points, the dots and other labels let it.

    Everything else must have been drawn, as the places are sought in pixels. A label that finds no
    free place stands at the first one.
    """
    axes.figure.draw_without_rendering()
    scale = axes.figure.dpi / 72  # pixels of a point
    pixels = axes.transData.transform(points)
    sizes = [MARKER] * len(points) + [DOT] * len(dots)
    taken = [
        _box(pixel, scale * size, scale * size)
        for pixel, size in zip(axes.transData.transform([*points, *dots]), sizes, strict=True)
    ]
    written = []
    for n, (point, text, colour) in enumerate(zip(points, texts, colours, strict=True)):
        look = {"fontsize": fontsize, "color": colour, "ha": "center", "va": "center"}
        label = axes.annotate(text, point, (0, 0), textcoords="offset points", **look)
        size = label.get_window_extent()
        places = list(_places(size.width / scale, size.height / scale))
        middles = [pixels[n] + scale * np.array(offset) for offset, _ in places]
        boxes = [_box(middle, size.width, size.height) for middle in middles]
        free = [
            place
            for place, box in enumerate(boxes)
            if _within(box, axes.bbox) and not any(map(box.overlaps, taken))
        ]
        own = [
            place for place in free if np.linalg.norm(pixels - middles[place], axis=1).argmin() == n
        ]
        chosen = [*own, *free, 0][0]
        offset, distance = places[chosen]
        label.set_position(offset)
        if distance > LED:
            line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5}
            axes.annotate("", point, offset, textcoords="offset points", arrowprops=line)
        taken.append(boxes[chosen])
        written.append(label)
    return written


def _places(width: float, height: float) -> Iterator[tuple[tuple[float, float], float]]:
    """Offsets of a label's middle from its point, in pt, each with its distance."""
    for distance, (right, up) in product(DISTANCES, DIRECTIONS):
        yield (right * (distance + width / 2), up * (distance + height / 2)), distance


def _box(middle: Sequence[float], width: float, height: float) -> Bbox:
    return Bbox.from_bounds(middle[0] - width / 2, middle[1] - height / 2, width, height)


def _within(box: Bbox, outer: Bbox) -> bool:
    return outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1
