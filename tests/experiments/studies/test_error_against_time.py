"""Final losses over learning rates."""

import math

from matplotlib import image

from experiments.reports.figure import COLOURS
from experiments.studies import error_against_time


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
