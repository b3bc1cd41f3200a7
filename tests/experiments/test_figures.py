import numpy as np
import pytest
from PIL import Image

from experiments import figures as figure


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


def test_losses_without_a_logarithm_are_left_out():
    records_ = run(1.0)
    records_[3]["train_loss"] = None
    records_[4]["train_loss"] = 0.0
    curve = figure.mean_curve([records_], "samples")
    assert len(curve.x) == 9 and np.all(curve.mean > 0)


@pytest.mark.parametrize("target", [0.1, None])
def test_the_figure_is_a_png_1200_pixels_wide(tmp_path, target):
    curves = [
        ("a/blocking", [run(0.1), run(0.12)]),
        ("a/nonblocking", [run(0.3)]),
        ("b", [run(0.2)]),
        ("diverged", [[{"seconds": 0.0, "samples": 0, "train_loss": None}]]),
    ]
    path = tmp_path / "figure.png"
    figure.save(figure.draw(curves, target, "wall"), path)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.width == 1200


def test_a_method_has_one_colour_and_a_variant_one_line():
    lines = figure.styles(["a/x", "a/y", "b/x"])
    assert lines["a/x"]["color"] == lines["a/y"]["color"] != lines["b/x"]["color"]
    assert lines["a/x"]["linestyle"] == lines["b/x"]["linestyle"] != lines["a/y"]["linestyle"]


@pytest.mark.parametrize(
    "names",
    [
        [*(f"{i}/x{i}" for i in range(6)), "b/0", "b/5"],  # a sixth variant has a line of its own
        [f"swarm/{i}" for i in range(7)],  # more variants than kinds of lines
        [f"{i}" for i in range(16)],  # more methods than colours
    ],
)
def test_no_two_arms_have_the_same_line(names):
    lines = figure.styles(names)
    assert len({(line["color"], line["linestyle"]) for line in lines.values()}) == len(names)


def test_accuracies_have_an_arithmetic_mean_and_zeros():
    runs = [[{"seconds": t, "accuracy": a} for t, a in enumerate(run)] for run in ((0, 1), (0, 3))]
    curve = figure.mean_curve(runs, "seconds", "accuracy", (np.asarray, np.asarray))
    np.testing.assert_allclose(curve.mean, [0, 2])
    np.testing.assert_allclose(curve.high - curve.mean, [0, np.sqrt(2)])


def test_a_legend_of_long_names_has_one_column_and_of_short_ones_two():
    for name, columns in (("learning_rate=0.05/wait=deadline(seconds=0.3)", 1), ("a", 2)):
        lines = {f"{name}{n}": {"color": "black"} for n in range(4)}
        (legend,) = figure.canvas([figure.Plot("", "loss", "time [s]", False, {})], lines).legends
        assert legend._ncols == columns
