import json
import pathlib

import pytest

from configs import runtime_analysis
from experiments.papers import slow_and_stale as paper
from tests import launcher

FILE = runtime_analysis.__file__
BRIEF = (
    f"--config={FILE}",
    "--workdir=out",
    "--config.workers=(8,)",
    "--config.pushes=1000",
    "--config.share=0.25",
)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the launcher in this process, in an empty directory: flags -> (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    return launcher.caller(monkeypatch, capsys)


def test_simulations_lie_where_theory_allows(call):
    code, out, err = call(*BRIEF)
    assert code == 0 and err == "" and "seconds per update by workers" in out
    place = pathlib.Path("out")
    assert {path.name for path in place.iterdir()} == {
        "config.json", "summary.json", "figure.png", "report.json",
    }  # fmt: skip
    assert (place / "figure.png").read_bytes().startswith(b"\x89PNG")
    points = json.loads((place / "summary.json").read_text())["points"]
    assert len(points) == 2 * 3 * 4  # values of k, laws, protocols
    for point in points:
        assert point["error"] < 0.1, point
    known = {(p["delay"], p["rule"], p["k"]): p for p in points}
    # Of 8 workers and 4 gradients: H_8 - H_4, and 4 / 8 with a mean of one second.
    assert known["exponential", "k_sync", 4]["low"] == pytest.approx(0.6345, abs=1e-4)
    assert known["pareto", "k_batch_async", 4]["high"] == pytest.approx(0.5)
    bounds = known["shifted_exponential", "k_async", 4]
    assert bounds["low"] == pytest.approx(0.5) and bounds["high"] == pytest.approx(0.8173, abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--config.k=9",), "config.k must be a whole number from 1 to 8, the fewest workers"),
        (("--config.share=0.0",), "config.share must be a share above 0 and up to 1, got 0.0"),
        (("--config.workers=(0,8)",), "config.workers must be positive whole numbers, got"),
        (("--config.pushes=0",), "config.pushes must be a positive whole number, got 0"),
        (("--config.delays.pareto=pareto(minimum=1,shape=1)",), "an iid law with a mean"),
        (("--config.delays.pareto=paret",), "unknown name 'paret'"),
        (("--sweep",), "is an analysis, without arms and without training; leave out --sweep"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(call, tmp_path, flags, words):
    code, out, err = call(*BRIEF, *flags)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err, err
    assert not list(tmp_path.iterdir())


def test_a_missing_entry_is_refused():
    config = runtime_analysis.get_config()
    del config["share"]
    with pytest.raises(ValueError, match="share is missing; set it to "):
        paper.analyse(config)
