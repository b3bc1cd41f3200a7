"""Means of curves by hand, and lines that a reader can tell apart."""

import numpy as np
import pytest

from experiments import figures as figure
from experiments import timeline
from stragglers import delays
from stragglers.rule import Setting, whole
from stragglers.rules import RULES


def run(rate, end=10.0):
    return [
        {"seconds": t, "samples": int(100 * t), "train_loss": float(np.exp(-rate * t))}
        for t in np.linspace(0, end, 11)
    ]


def test_the_mean_curve_is_geometric_and_ends_with_the_shortest_run():
    curve = figure.mean_curve([run(1.0), run(3.0, end=5.0)], "seconds")
    assert curve.x[0] == 0 and curve.x[-1] == 5
    np.testing.assert_allclose(curve.mean, np.exp(-2 * curve.x))
    np.testing.assert_allclose(curve.high / curve.mean, np.exp(np.sqrt(2) * curve.x))
    np.testing.assert_allclose(curve.low * curve.high, curve.mean**2)
    lost = run(1.0)
    lost[3]["train_loss"], lost[4]["train_loss"] = None, 0.0  # neither has a logarithm
    curve = figure.mean_curve([lost], "samples")
    assert len(curve.x) == 9 and np.all(curve.mean > 0)
    runs = [[{"seconds": t, "accuracy": a} for t, a in enumerate(run)] for run in ((0, 1), (0, 3))]
    curve = figure.mean_curve(runs, "seconds", "accuracy", (np.asarray, np.asarray))
    np.testing.assert_allclose(curve.mean, [0, 2])
    np.testing.assert_allclose(curve.high - curve.mean, [0, np.sqrt(2)])


def test_a_method_has_one_colour_and_a_variant_one_line_and_no_two_arms_the_same():
    lines = figure.styles(["a/x", "a/y", "b/x"])
    assert lines["a/x"]["color"] == lines["a/y"]["color"] != lines["b/x"]["color"]
    assert lines["a/x"]["linestyle"] == lines["b/x"]["linestyle"] != lines["a/y"]["linestyle"]
    for names in (
        [*(f"{i}/x{i}" for i in range(6)), "b/0", "b/5"],  # a sixth variant has a line of its own
        [f"swarm/{i}" for i in range(7)],  # more variants than kinds of lines
        [f"{i}" for i in range(16)],  # more methods than colours
    ):
        lines = figure.styles(names).values()
        assert len({(line["color"], line["linestyle"]) for line in lines}) == len(names)


ARM = "optimizer=[clip(max_delta=0.1), sgd(learning_rate=0.1)]/wait=quorum(k=12, in_flight=cut)"
SCHEDULE = whole(RULES["barrier"](Setting(delays.exponential(1.0), 4, 2, seed=0)), 20)


@pytest.mark.parametrize("draw", [
    lambda: figure.draw([(ARM, [run(2.5)])], None, "virtual"),  # down to 1e-11
    lambda: figure.draw_strips([figure.Strip(ARM, timeline.stretches(SCHEDULE), workers=4)]),
])  # fmt: skip
def test_no_text_leaves_the_picture(draw):
    drawn = draw()
    drawn.canvas.draw()
    low, high = drawn.get_tightbbox().get_points()
    assert (low >= 0).all() and (high <= drawn.get_size_inches()).all()
