import json
import pathlib
import shlex
import sys

import pytest

from configs import nonblocking
from experiments import prepare, train
from experiments.papers import nonblocking as paper
from tests import launcher

FILE = f"{nonblocking.__file__}:analysis"
get_config = nonblocking.VARIANTS["analysis"].get_config
BRIEF = (
    f"--config={FILE}",
    "--workdir=out",
    "--config.rounds=40",
    "--config.rounds_in_time=5",
    "--config.workers=(2,8)",
    "--config.communication=(0.0,1.0)",
)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the launcher in this process, in an empty directory: flags -> (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    return launcher.caller(monkeypatch, capsys)


@pytest.mark.slow
def test_an_analysis_writes_its_numbers_and_its_figure_and_trains_nothing(call, monkeypatch):
    def forbidden(*_):
        raise AssertionError("an analysis trained")

    monkeypatch.setattr(train, "run", forbidden)
    code, out, err = call(*BRIEF)
    assert code == 0 and err == "" and "throughput gain by workers" in out
    place = pathlib.Path("out")
    assert {path.name for path in place.iterdir()} == {
        "config.json", "summary.json", "figure.png", "report.json",
    }  # fmt: skip
    assert json.loads((place / "report.json").read_text())["command"].startswith("python ")
    assert (place / "figure.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((place / "summary.json").read_text())
    assert len(written["by_workers"]) == len(written["by_communication"]) == 7 * 2
    for point in written["by_workers"]:
        assert point["communication"] == 0.5 and point["workers"] in (2, 8)
        assert point["error"] == pytest.approx(point["simulated"] / point["expected"] - 1)
    assert json.loads((place / "config.json").read_text())["rounds"] == 40

    assert call(*BRIEF)[0] == 0  # again, to the same numbers
    assert json.loads((place / "summary.json").read_text()) == written


def test_the_command_of_an_analysis_can_be_printed(call, tmp_path):
    code, out, _ = call(*BRIEF, "--print_commands")
    assert (
        code == 0
        and out == shlex.join([sys.executable, str(launcher.ROOT / "launch.py"), *BRIEF]) + "\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--sweep",), "is an analysis, without arms and without training; leave out --sweep"),
        (("--config.rounds=0",), "config.rounds must be a positive whole number, got 0"),
        (
            ("--config.wokers=3",),
            "the config has no entry 'wokers'; did you mean 'workers'? known entries: at_comm",
        ),
        (("--config.in_flight=wait",), "unknown in_flight='wait'"),
        (("--config.delays.pareto=pareto(shape=3)",), "parameter 'minimum' is missing"),
        (("--workdir=other",), "holds a run with another config"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(call, tmp_path, flags, words):
    (tmp_path / "other").mkdir()
    other = get_config().to_dict() | {"seed": 3}
    (tmp_path / "other" / "config.json").write_text(json.dumps(other))
    code, out, err = call(*BRIEF, *flags)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err, err
    assert {path.name for path in tmp_path.iterdir()} == {"other"}
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["config.json"]


def test_mini_batches_leave_a_nominal_round_at_a_second():
    config = get_config("mini_batches=4,workers=16,communication=1")
    assert (config.mini_batches, config.at_workers, config.at_communication) == (4, 16, 1.0)
    for name in ("exponential", "shifted_exponential", "pareto", "log_normal"):
        assert prepare.build_delay(config.delays[name]).mean() == pytest.approx(1 / 4)


def test_theory_and_simulation_agree():
    """Within the noise of 300 rounds; where nothing is random, exactly."""
    config = get_config()
    with config.unlocked():
        config.update(rounds=300, rounds_in_time=50, workers=(8,), communication=(0.0,))
    for axis in paper.analyse(config).summary.values():
        errors = {gain["delay"]: abs(gain["error"]) for gain in axis}
        assert errors.pop("slow_worker") < 1e-9
        assert errors.pop("slow_spells") < 0.4
        assert max(errors.values()) < 0.1
