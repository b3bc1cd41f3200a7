import io
import json

import pytest
from rich.console import Console

from comms import buckets
from configs import mg_wfbp
from experiments import analysis
from experiments.papers import mg_wfbp as paper

SCALE, PAPER = mg_wfbp.VARIANTS["scale"], mg_wfbp.VARIANTS["paper"]


def test_the_optimum_is_ahead_of_every_other_bucket_schedule_for_all_workers():
    config = SCALE.get_config()
    config.schedules = tuple(buckets.PLANNERS)
    curves = paper.scale(config).summary["curves"]
    # The slowest links come first: the networks have the order of their names.
    assert list(dict.fromkeys(curve["network"] for curve in curves)) == [
        "ethernet_10",
        "infiniband_56",
        "infiniband_100",
    ]
    seconds = {}
    for curve in curves:
        seconds.setdefault((curve["trace"], curve["network"]), {})[curve["schedule"]] = curve
    assert len(seconds) == 4 * 3
    for curves in seconds.values():
        assert curves["optimal"]["workers"] == [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
        for curve in curves.values():
            pairs = zip(curves["optimal"]["seconds"], curve["seconds"], strict=True)
            assert all(best <= other for best, other in pairs)


def test_arguments_of_the_simulation():
    config = SCALE.get_config("trace=vgg16,collective=double_binary_tree,at_workers=2048")
    assert config.traces == ("vgg16",) and config.collective == "double_binary_tree"
    assert config.at_workers == 2048
    with pytest.raises(ValueError, match="known arguments: trace, collective, at_workers"):
        SCALE.get_config("workers=4")


def test_the_simulation_writes_its_numbers_and_its_figure(tmp_path):
    config = SCALE.get_config("trace=googlenet")
    out = io.StringIO()
    analysis.write(SCALE.analyse(config), config, tmp_path / "out", Console(file=out))
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"config.json", "summary.json", "figure.png"}
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(written["curves"]) == 3 * 8 and len(written["curves"][0]["efficiency"]) == 10
    assert "scaling efficiency, 64 workers" in out.getvalue()


def test_published_runs_beside_the_model(tmp_path):
    config = PAPER.get_config()
    assert len(config.published) == 4 + 6 + 8
    assert sum(run.counted for run in config.published.values()) == 16  # K80 in two readings
    config.published = {name: run for name, run in config.published.items() if "GoogLe" in name}
    out = io.StringIO()
    analysis.write(PAPER.analyse(config), config, tmp_path / "out", Console(file=out))
    ratios = json.loads((tmp_path / "out" / "summary.json").read_text())["ratios"]
    over = {(ratio["workers"], ratio["baseline"]): ratio for ratio in ratios}
    # 1.20x over WFBP and 1.36x over a single all-reduce were published.
    for workers in (8, 16):
        assert over[workers, "wfbp"]["published"] == pytest.approx(1.20, abs=0.005)
        assert over[workers, "single"]["published"] == pytest.approx(1.36, abs=0.005)
    # Two workers per node come close to that.
    assert over[16, "wfbp"]["greedy"] == pytest.approx(1.20, abs=0.02)
    assert over[16, "single"]["greedy"] == pytest.approx(1.36, abs=0.09)
    assert over[16, "single"]["optimal"] > over[16, "single"]["greedy"]
    assert "K80 10GbE 16 GoogLeNet" in out.getvalue()


def test_the_papers_numbers_take_no_arguments():
    with pytest.raises(ValueError, match="'quick' is unknown"):
        PAPER.get_config("quick")
