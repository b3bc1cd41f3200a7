"""Advice for all that durations come from, and records that name code of somebody else."""

import json
import shlex

import numpy as np
import pytest

import launch
from experiments import config_files, kinds, prepare
from experiments.advice import advise, grids, page, play, ranking, sources, trained, verdict, weigh
from experiments.config_files import override
from stragglers import delays, processes
from stragglers.rule import Setting, whole
from stragglers.rules import RULES
from tests import launcher, planned

LAW = "persistent(law=jitter(mean=0.02, sigma=0.05), factors={0: 3.0})"  # hardly spread


@pytest.fixture
def here(tmp_path, monkeypatch):
    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def call(monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


@pytest.fixture
def quick(monkeypatch):
    """Little is played: few rounds, and few values of every parameter."""
    monkeypatch.setattr(play, "ROUNDS", 20)
    monkeypatch.setattr(play, "REPEATS", 2)
    kept = {
        name: (lambda scale, made=made: made(scale)[:: max(1, len(made(scale)) - 1)], also)
        for name, (made, also) in grids.GRIDS.items()
    }
    monkeypatch.setattr(grids, "GRIDS", kept)


def write_trace(path, workers=3, rounds=40, names="node{}", column="batch_time", **more):
    """Worker 0 is three times slower; more: further columns, by worker and round."""
    rng = np.random.default_rng(0)
    lines = [",".join(["worker", "time", column, *more])]
    for round_ in range(rounds):
        for i in range(workers):
            seconds = 0.02 * (3 if i == 0 else 1) * rng.uniform(0.95, 1.05)
            others = [f"{make(i, round_, seconds)}" for make in more.values()]
            lines.append(",".join([names.format(9 + i), f"{round_}", f"{seconds:.6f}", *others]))
    path.write_text("\n".join(lines) + "\n")


def record(place, mini_batches, **changes):
    """A workdir as a run leaves it, with what the advice reads."""
    config = override(config_files.read("config.py:workers=3").config, {
        "mini_batches": mini_batches, "wait": "barrier", "delay": LAW, **changes,
    })  # fmt: skip
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config.to_dict()))
    law = processes.persistent(delays.jitter(0.02, 0.05), {0: 3.0})
    setting = Setting(law, 3, mini_batches, 0)
    schedule = whole(RULES["barrier"](setting), 40)
    schedule.save(place / "schedule.npz")


SOURCES = ["trace.csv", "run", "run/schedule.npz", LAW, "deterministic(value=0.02)"]


@pytest.mark.parametrize("mini_batches", [1, 2, 8])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.slow
def test_every_source_is_advised_on_for_any_number_of_mini_batches(
    here, call, quick, source, mini_batches
):
    write_trace(here / "trace.csv")
    record(here / "run", mini_batches)
    flags = ["--config=config.py:workers=3", f"--config.mini_batches={mini_batches}"]
    flags += ["--config.wait=barrier"]
    code, out, err = call(
        f"--advise={source}", *(flags if source != "run" else []), "--no_training", "--workdir=a"
    )
    assert code == 0, err
    assert "\nadvice: " in out and "…" not in out
    written = json.loads((here / "a" / advise.ADVICE).read_text())
    assert len(written["rules"]) >= 10 and written["reference"] == "barrier"
    rates = {rule["wait"]: rule["samples_per_second"] for rule in written["rules"]}
    advised = written["rules"][0]["wait"]
    assert rates[advised] >= rates["barrier"] / (1 + ranking.MARGIN)
    assert all(name in out for name in rates)
    if source == "trace.csv":
        assert "node9 (" in out and "node10" in (here / "a" / page.PAGE).read_text()
    command = shlex.split(next(line for line in out.splitlines() if line.startswith("command: ")))
    assert command[1] == "python"
    code, _, err = call(*command[3:])
    assert code == 0, err
    assert launcher.summary(here / command[-1].removeprefix("--workdir="))["updates"] > 0


@pytest.mark.parametrize("runtime", ["mesh", "actors"])
def test_a_rule_that_a_runtime_does_not_know_is_run_in_the_simulator(here, runtime):
    record(here / "run", 1, runtime=runtime, delay="none", draw="round")
    source = sources.read("run", None, ["python", "launch.py"])
    arm = override(sources.as_simulated(source.config), {"wait": "first_finisher"})
    rules = {"mesh": "k_async(k=1)", "actors": "deadline(seconds=0.1)"}
    flags = {}
    for wait in (rules[runtime], {"mesh": "barrier", "actors": "k_async(k=1)"}[runtime]):
        arm = override(arm, {"wait": wait})
        prepared = prepare.prepare(arm)
        played = next(play.repeats(arm, prepared, source.measured, 1))
        one = ranking.Contender(arm, prepared, played, (ranking.costs(played),))
        decided = verdict.Verdict([one], True, "", [one])
        advice = weigh.Advice(source, 1.0, [one], [one], one, [], {}, decided, [], {})
        flags[wait] = page.command(advice, here / "a")
    beyond, known = flags.values()
    assert "--config.runtime=simulate" in beyond
    assert f"--config.delay=trace(path='{here}/a/{trained.DURATIONS}')" in beyond
    assert not any(one.startswith(("--config.runtime", "--config.delay")) for one in known)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize(
    "source",
    ["trace.csv", "spells(law=trace(path='trace.csv'), mini_batches=2)", "run", "run/schedule.npz"],
)
def test_other_workers_than_the_config_has_are_refused(here, call, source, workers):
    write_trace(here / "trace.csv")
    record(here / "run", 1)
    before = launcher.files(here)
    code, _, err = call(
        f"--advise={source}", f"--config=config.py:workers={workers}", "--no_training"
    )
    assert code == 2 and err.count("\n") == 1
    assert f"has 3 workers, the config asks for {workers}; give --config.workers=3" in err
    assert launcher.files(here) == before


def test_fewer_samples_are_never_first():
    def contender(name, samples, predicted):
        costs = ranking.Costs(predicted, 0.0)
        played = play.Played({"name": name}, 1.0, samples, 0.0, None, None)
        return ranking.Contender(None, None, played, (costs,))

    own, small, better = contender("own", 10, 4), contender("small", 8, 1), contender("b", 12, 3)
    order = ranking.ranked([small, own, better], 1.0, own)
    assert [one.name for one in order] == ["b", "own", "small"]
    advice = verdict.predicted(order, 1.0, own)
    assert "1.20 times as many samples per second as own" in advice.reason
    assert [one.name for one in advice.close] == ["b"]
    assert "own, which is yours" in verdict.predicted(order[1:], 1.0, own).reason


# A factory of ours stands for the code of somebody else: it says that it was imported and called.
HOSTILE = """
from pathlib import Path

Path('imported').touch()


def law(path):
    Path(path).touch()
"""
PARTS = [
    {"delay": {"name": "hostile:law", "path": "called"}},
    {"delay": "hostile:law(path=called)"},
    {"delay": {"name": "persistent", "law": "hostile:law(path=called)", "factors": [1.0]}},
    {"task": {"name": "images", "source": "npy(folder='hostile:law')", "model": "mlp"}},
    {"task": {"name": "images", "source": {"name": "hostile:law", "path": "called"}}},
    {"algorithm": {"name": "chain", "*": [{"name": "hostile:law", "path": "called"}]}},
    {"optimizer": [{"name": "hostile:law", "path": "called"}]},
    {"communication": {"name": "hostile:law", "path": "called"}},
]


@pytest.fixture
def hostile(here, monkeypatch):
    (here / "hostile.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(launch.sys.modules, "hostile", raising=False)
    kinds._imported.cache_clear()
    return here


@pytest.mark.parametrize("changes", PARTS)
def test_a_record_names_no_code_to_the_advice(hostile, call, changes):
    record(hostile / "run", 1)
    there = json.loads((hostile / "run" / "config.json").read_text()) | changes
    (hostile / "run" / "config.json").write_text(json.dumps(there))
    for more in ([], ["--config=config.py:workers=3"], ["--trust=other"]):
        code, _, err = call("--advise=run", "--no_training", "--workdir=a", *more)
        assert code == 2 and err.count("\n") == 1
        assert "names code of the module 'hostile'" in err and "--trust=hostile" in err
    assert not (hostile / "imported").exists() and not (hostile / "called").exists()


@pytest.mark.parametrize(
    "more",
    [
        ["--trust=other,hostile"],
        ["--config=config.py:workers=3", "--config.delay=hostile:law(path=called)"],
        ["--rule=hostile:rule"],
    ],
)
def test_code_that_the_command_names_runs(hostile, call, more):
    record(hostile / "run", 1, delay={"name": "hostile:law", "path": "called"})
    assert "gives NoneType; let it return" in call("--advise=run", "--no_training", *more)[2]
    assert (hostile / "called").exists()


@pytest.mark.slow
def test_a_record_names_no_code_to_reports_or_runs(hostile, call):
    """Neither to the report of a run, nor to a command that goes on in its workdir."""
    flags = ["--config=config.py:workers=3", "--config.updates=3", "--workdir=run"]
    assert call(*flags)[0] == 0
    path = hostile / "run" / "config.json"
    good = json.loads(path.read_text())
    for changes in PARTS:
        path.write_text(json.dumps(good | changes))
        call("--report=run")
        code, _, err = call(*flags)
        assert code == 2 and "another config" in err
    (hostile / "run" / "summary.json").unlink()  # as if it had been cut off
    for changes in PARTS:
        path.write_text(json.dumps(good | changes))
        assert call(*flags)[0] == 2
    assert not (hostile / "imported").exists() and not (hostile / "called").exists()


class Marks:
    """An object whose pickle makes a file when it is loaded."""

    def __reduce__(self):
        return open, ("called", "w")


def test_arrays_of_a_record_are_data(here, call):
    planned.plan("barrier", delays.exponential(0.02), 3, 40).save(here / "good.npz")
    arrays = dict(np.load(here / "good.npz"))
    arrays["time"] = np.array([Marks()] * 40, object)
    np.savez(here / "bad.npz", **arrays)
    flags = ["--config=config.py:workers=3", "--workdir=w"]
    for more in (["--advise=bad.npz"], ["--config.wait=replay(path=bad.npz)"]):
        code, _, err = call(*flags, *more)
        assert code == 2 and "bad.npz" in err
    assert not (here / "called").exists()


def test_a_factory_whose_parameters_cannot_be_read_is_refused(here, call):
    flags = ["--config=config.py", "--workdir=w"]
    for name, entry in (("builtins:max(seconds=1)", "delay"), ("builtins:max", "algorithm")):
        code, _, err = call(*flags, f"--config.{entry}={name}")
        assert code == 2 and "has no parameters that can be read" in err and "wrap it in" in err
