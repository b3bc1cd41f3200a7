"""Error against time, and final losses over learning rates."""

import math

import pytest
from matplotlib import image

from experiments.reports.figure import COLOURS
from experiments.studies import error_against_time


@pytest.mark.slow
def test_final_losses_have_a_line_per_threshold_without_what_diverged(tmp_path):
    lines = {
        "fixed": {0.1: 0.8, 0.4: 0.75, 1.0: math.inf},
        "C = 0.1": {0.1: 0.81, 0.4: 0.76, 1.0: 1.1},
        "C = 1": {1.0: math.inf},
    }
    error_against_time.draw_final_losses(lines, 0.733, tmp_path / "lines.png")
    drawn = image.imread(tmp_path / "lines.png")
    assert drawn.shape[:2] == (630, 1050)
    colours = {tuple((255 * pixel[:3]).round().astype(int)) for row in drawn[::2] for pixel in row}
    wanted = [tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in COLOURS[:3]]
    assert [colour in colours for colour in wanted] == [True, True, False]


@pytest.mark.parametrize("level", [0.05, math.inf])
def test_every_line_has_the_level_of_its_own_noise_where_it_is_known(level, monkeypatch):
    drawn = []
    monkeypatch.setattr(error_against_time, "save", lambda canvas, path: drawn.append(canvas))
    run = [{"seconds": float(t), "train_loss": 0.7 + 2 / (t + 1)} for t in range(100)]
    rows = {"one rate": {"k_sync": {"K=1": [run], "K=2": [run]}, "k_async": {"K=1": [run]}}}
    levels = {"one rate": {"k_sync": {"K=1": level, "K=2": 0.02}, "k_async": {"K=1": 0.1}}}
    error_against_time.draw_error_against_time(rows, 1.0, 0.7, "unused", levels)
    error_against_time.draw_error_against_time(rows, 1.0, 0.7, "unused")
    found = [
        [
            (line.get_color(), float(line.get_ydata()[0]))
            for line in axes.lines
            if line.get_linestyle() == ":"
        ]
        for axes in drawn[0].axes
    ]
    of_first = [] if math.isinf(level) else [(COLOURS[0], level)]
    assert found == [[*of_first, (COLOURS[1], 0.02)], [(COLOURS[0], 0.1)]]
    labels = [[text.get_text() for text in canvas.legends[0].get_texts()] for canvas in drawn]
    assert labels[0] == ["K=1", "K=2", "target 1", "level of the noise without staleness"]
    assert labels[1] == labels[0][:-1]
    assert not any(line.get_linestyle() == ":" for axes in drawn[1].axes for line in axes.lines)
