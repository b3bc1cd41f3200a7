import io

import pytest
from ml_collections import ConfigDict
from PIL import Image
from rich.console import Console

from comms import cost
from experiments.studies import bucket_scaling, study


def config(**changes):
    entries = {
        "traces": ("googlenet",),
        "batch": 8,
        "flops_per_second": 1e12,
        "collective": "ring",
        "workers": (4, 64),
        "at_workers": 64,
        "schedules": ("wfbp", "optimal", "dear"),
        "networks": {
            "fast": {"workers": 8, "alpha": 1e-4, "beta": 1e-10},
            "a_slow_one": {"workers": 16, "alpha": 9e-4, "beta": 7e-10},
        },
    }
    return ConfigDict(entries | changes)


@pytest.fixture(scope="module")
def curves():
    return bucket_scaling.simulate(config())


def test_links_are_those_of_the_measured_ring():
    alpha, beta = bucket_scaling.link({"workers": 16, "alpha": 9e-4, "beta": 7e-10})
    assert cost.ring(16, alpha, beta) == pytest.approx((9e-4, 7e-10))


def test_a_curve_for_every_combination_the_slowest_network_first(curves):
    assert [(c.network, c.schedule) for c in curves] == [
        (network, schedule)
        for network in ("a_slow_one", "fast")
        for schedule in ("wfbp", "optimal", "dear")
    ]
    for curve in curves:
        assert curve.trace == "googlenet" and curve.workers == [4, 64]
        assert all(0 < e <= 1 for e in curve.efficiency)
        expected = [n * e for n, e in zip(curve.workers, curve.efficiency, strict=True)]
        assert curve.speedup == pytest.approx(expected)


def test_trees_scale_better_than_rings(curves):
    tree = bucket_scaling.simulate(config(collective="double_binary_tree"))
    for ours, ring in zip(tree, curves, strict=True):
        assert ours.efficiency[-1] >= ring.efficiency[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"traces": ("alexnet",)}, "config.traces must be one or more of googlenet, "),
        ({"traces": ()}, ", got (); set config.traces"),
        ({"schedules": ("best",)}, ", got ('best',); set config.schedules"),
        (
            {"collective": "tree"},
            "one of ring, binary_tree, recursive_doubling, double_binary_tree, halving",
        ),
        ({"workers": (1, 64)}, "config.workers must be numbers above 1, got (1, 64)"),
        ({"at_workers": 5}, "config.at_workers must be one of config.workers, 4, 64, got 5;"),
        ({"batch": 0}, "config.batch must be a positive whole number, got 0"),
        (
            {"networks": {"x": {"workers": 1, "alpha": 1.0, "beta": 1.0}}},
            "config.networks.x.workers must be a number above 1, that of the measured",
        ),
        ({"traces": ("vgg16",), "flops_per_second": 0.0}, "needs flops_per_second > 0"),
        ({"workers": (6, 64), "collective": "halving_doubling"}, "6 workers are no power of two"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, words):
    base = {key: value for key, value in config().items() if key not in changes}
    with pytest.raises(ValueError) as caught:
        bucket_scaling.simulate(ConfigDict(base | changes))
    assert words in str(caught.value)


def test_the_table_fits_120_columns(curves):
    out = io.StringIO()
    study.show(Console(file=out), [bucket_scaling.table_of(curves, 64)])
    assert max(map(len, out.getvalue().splitlines())) <= 120 and "…" not in out.getvalue()
    shown = f"{100 * curves[1].efficiency[1]:.1f}"
    assert shown in next(line for line in out.getvalue().splitlines() if "a_slow_one" in line)


def test_the_figure_is_a_png_with_a_row_per_trace(curves, tmp_path):
    both = [*curves, *(curve._replace(trace="other") for curve in curves)]
    for given, height in ((curves, 495), (both, 810)):
        titles = {"fast": "a fast network", "a_slow_one": "a slow one"}
        bucket_scaling.draw_curves(given, titles, tmp_path / "figure.png")
        with Image.open(tmp_path / "figure.png") as image:
            assert image.format == "PNG" and image.size == (1500, height)
