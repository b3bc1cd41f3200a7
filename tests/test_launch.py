import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from absl.testing import flagsaver

import launch

ROOT = pathlib.Path(launch.__file__).parent

CONFIG = """
from ml_collections import ConfigDict

from configs import arguments


def get_config(arg=None):
    a = arguments.parse(arg, workers=2, pace=0.02)
    c = ConfigDict()
    c.name, c.baseline, c.seed = "all_reduce/nonblocking", "all_reduce/blocking", 0
    c.task, c.split = "synthetic_logistic(samples=256, dimension=8)", "iid"
    c.runtime, c.devices, c.rounds_per_dispatch = "simulate", 1, 4
    c.workers, c.batch_size, c.mini_batches = a["workers"], 8, 2
    c.algorithm, c.graph = "all_reduce(collective=ring)", "ring"
    c.optimizer = ConfigDict({"name": "momentum", "decay": 0.9, "learning_rate": 0.5})
    c.wait, c.draw = "first_finisher", "mini_batch"
    c.delay, c.communication = f"exponential(scale={a['pace']})", 0.01
    c.seconds, c.updates, c.evaluate_every, c.target_loss = 2.0, 1000, 0.5, 0.6
    c.stop_at_target = False
    return c


def sweep():
    yield "all_reduce/blocking", {"wait": "barrier"}
    yield "dpsgd/nonblocking", {"algorithm": "dpsgd", "wait": "first_finisher"}
"""

compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
)


def files(place):
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def metrics(place):
    """The metrics of a run but for what the wall clock says."""
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in lines]


def summary(place):
    return json.loads((place / "summary.json").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with config.py and some broken inputs, to work in."""
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "no_sweep.py").write_text(CONFIG.partition("def sweep")[0])
    (tmp_path / "bad_arm.py").write_text(
        CONFIG + "    yield 'local_sgd/bad', {'algorithm': 'local_sgd(rate=1)'}\n"
    )
    (tmp_path / "syntax.py").write_text("def get_config(:\n")
    (tmp_path / "raises.py").write_text("def get_config():\n    return {}['nothing']\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "nothing.py").write_text("def get_config():\n    pass\n")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "trace.csv").write_text("worker,time\n0,1\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"seed": 3}\n')
    (tmp_path / "sweep_of_others").mkdir()
    (tmp_path / "sweep_of_others" / "summary.json").write_text('{"arms": []}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(here, monkeypatch, capsys):
    """Runs the launcher in this process: flags -> (exit code, stdout, stderr)."""

    def run(*flags):
        argv = ["launch.py", *flags]
        monkeypatch.setattr(sys, "argv", argv)  # where overrides of the config are looked up
        with flagsaver.flagsaver():
            try:
                launch.main(launch.parse(argv))
                code = 0
            except SystemExit as leaving:
                code = leaving.code
        return code, *capsys.readouterr()

    return run


def start(here, *flags, **environment):
    """Runs the launcher as people do, in a process of its own."""
    return subprocess.run(
        [sys.executable, ROOT / "launch.py", *flags],
        cwd=here,
        env=os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# --- bad input ---

OK = ("--config=config.py", "--workdir=out")
BAD = [
    # flags
    (("--workdir=out",), "--config is missing"),
    (("--config=", "--workdir=out"), "no file ''"),
    (("--config=config.py",), "--workdir is missing"),
    (("--config=config.py", "--workdir="), "--workdir is missing"),
    ((*OK, "--sed=3"), "Unknown command line flag 'sed'"),
    ((*OK, "extra"), "unexpected argument 'extra'"),
    ((*OK, "--seeds=0"), "--seeds=0: 0 is not a positive integer"),
    ((*OK, "--seeds=two"), "--seeds=two: "),
    ((*OK, "--config.foo=1"), "names no entry of the config: 'foo'"),
    ((*OK, "--config.optimizer.decy=1"), "names no entry of the config: 'decy'"),
    ((*OK, "--config.wait.name=barrier"), "names no entry of the config: "),
    ((*OK, "--config.workers=many"), "--config.workers=many: "),
    ((*OK, "--config.workers=2.5"), "--config.workers=2.5: "),
    ((*OK, "--config.seconds=long"), "--config.seconds=long: "),
    ((*OK, "--config.optimizer.learning_rate=x"), "--config.optimizer.learning_rate=x: "),
    (("--config.seed=1", *OK), "--config.seed=1 in argv before a value for --config"),
    # the file of the config
    (("--config=none.py", "--workdir=out"), "no file 'none.py'; give the path of a config"),
    (("--config=none.py", "--workdir=out", "--config.seed=1"), "no file 'none.py'"),
    (("--config=other", "--workdir=out"), "no file 'other'"),
    (("--config=syntax.py", "--workdir=out"), "SyntaxError: invalid syntax"),
    (("--config=raises.py", "--workdir=out"), "KeyError: 'nothing'; correct raises.py"),
    (("--config=empty.py", "--workdir=out"), "has no attribute 'get_config'; correct empty.py"),
    (("--config=nothing.py", "--workdir=out"), "get_config() gave NoneType; return a ConfigDict"),
    (("--config=trace.csv", "--workdir=out"), "correct trace.csv"),
    (("--config=config.py:wrokers=3", "--workdir=out"), "known arguments: workers, pace"),
    (("--config=config.py:workers=x", "--workdir=out"), "'workers' needs a value of type int"),
    (("--config=config.py:pace=-1", "--workdir=out"), "needs scale > 0, got scale=-1"),
    # the workdir
    (("--config=config.py", "--workdir=file"), "file is not a directory; choose another --workdir"),
    (("--config=config.py", "--workdir=file/out"), "file is not a directory"),
    (("--config=config.py", "--workdir=other"), "holds a run with another config, which differs"),
    (("--config=config.py", "--workdir=sweep_of_others"), "such as a sweep's"),
    (("--config=config.py", "--workdir=other", "--sweep"), "holds a single run"),
    (("--config=config.py", "--workdir=other", "--seeds=2", "--overwrite"), "holds a single run"),
    # sweeps
    (("--config=no_sweep.py", "--workdir=out", "--sweep"), "no_sweep.py has no sweep()"),
    (("--config=bad_arm.py", "--workdir=out", "--sweep"), "local_sgd/bad: algorithm 'local_sgd'"),
    ((*OK, "--sweep", "--config.graph=rings"), "dpsgd/nonblocking: graph: unknown name 'rings'"),
    # parts
    ((*OK, "--config.algorithm=reduce"), "algorithm: unknown name 'reduce'; known names: "),
    ((*OK, "--config.algorithm=dpsgd", "--config.graph=rings"), "known names: complete, "),
    ((*OK, "--config.wait=bariers"), "wait: unknown name 'bariers'; known names: "),
    ((*OK, "--config.wait=deadline"), "parameter 'seconds' is missing"),
    ((*OK, "--config.wait=barrier(leftover=drop)"), "unknown parameter 'leftover'; it takes: "),
    ((*OK, "--config.wait=barrier)"), "cannot read the part 'barrier)'"),
    ((*OK, "--config.wait=quorum(k=5)"), "needs 1 <= k <= 4 (workers x mini-batches), got k=5"),
    (
        (*OK, "--config.delay=uniform(low=1,high=2)", "--config.wait=deadline(seconds=0.5, "
         "in_flight=cut)"),
        "the quickest takes 1 s; set a later deadline",
    ),
    ((*OK, "--config.wait=neighbour_barrier"), "neither graph nor links"),
    ((*OK, "--config.task=digit"), "task: unknown name 'digit'; known names: "),
    ((*OK, "--config.task=digits(model=net)"), "model: unknown name 'net'; known names: "),
    ((*OK, "--config.split=idd"), "split: unknown name 'idd'; known names: "),
    ((*OK, "--config.delay=exponential(scale=0.0)"), "needs scale > 0, got scale=0.0"),
    ((*OK, "--config.delay=trace(path='none.csv')"), "trace: cannot read none.csv"),
    ((*OK, "--config.delay=trace(path='trace.csv')"), "trace.csv has no column 'batch_time'"),
    ((*OK, "--config.optimizer.name=sdg"), "optimizer: unknown name 'sdg'; known names: "),
    ((*OK, "--config.optimizer.learning_rate=0"), "learning_rate must be positive, got 0"),
    ((*OK, "--config.runtime=cluster"), "unknown name 'cluster'; known names: simulate, mesh"),
    (
        (*OK, "--config.algorithm=dpsgd", "--config.workers=4", "--config.graph=edge_list("
         "edges=[(0, 1), (2, 3)])"),
        "the graph of 4 workers falls into 2 components",
    ),
    (
        (*OK, "--config.algorithm=dpsgd", "--config.graph=geometric(radius=1e-9, seed=0)"),
        "the graph of 2 workers falls into 2 components",
    ),
    # numbers
    ((*OK, "--config.workers=0"), "config.workers must be a positive whole number, got 0"),
    ((*OK, "--config.workers=-2"), "config.workers must be a positive whole number, got -2"),
    ((*OK, "--config.workers=257"), "cannot share 256 samples among workers=257"),
    ((*OK, "--config.batch_size=0"), "config.batch_size must be a positive whole number, got 0"),
    ((*OK, "--config.mini_batches=0"), "config.mini_batches must be a positive whole number"),
    ((*OK, "--config.seconds=0"), "config.seconds must be a positive number, got 0"),
    ((*OK, "--config.seconds=inf"), "config.seconds must be a positive number, got inf"),
    ((*OK, "--config.evaluate_every=-1"), "config.evaluate_every must be a positive number"),
    ((*OK, "--config.communication=-0.1"), "config.communication must be a number, 0 or more"),
    ((*OK, "--config.target_loss=0"), "config.target_loss must be a positive number"),
    ((*OK, "--config.seed=-1"), "config.seed must be a whole number, 0 or more, got -1"),
    ((*OK, "--config.devices=3"), "cannot shard 2 workers over 3 of 8 devices"),
    ((*OK, "--config.runtime=mesh", "--config.workers=9"), "set config.workers=8 or, on CPU, XLA_"),
]  # fmt: skip


def is_one_sentence(stderr, words):
    return stderr.startswith("error: ") and stderr.count("\n") == 1 and words in stderr


@pytest.mark.parametrize(("flags", "words"), BAD)
def test_bad_input_is_answered_in_one_sentence(call, here, flags, words):
    before = files(here)
    compilations.clear()
    code, out, err = call(*flags)
    assert code == 2 and out == "" and is_one_sentence(err, words), err
    assert files(here) == before and not (here / "out").exists()
    assert not compilations


@pytest.mark.parametrize(
    ("flags", "words", "environment"),
    [
        ((*OK, "--config.foo=1"), "names no entry of the config: 'foo'", {}),
        (("--config=raises.py", "--workdir=out"), "KeyError: 'nothing'", {}),
        (("--config=bad_arm.py", "--workdir=out", "--sweep"), "local_sgd/bad: ", {}),
        (
            (*OK, "--config.runtime=mesh", "--config.workers=8"),
            "there are 6 devices but config.workers=8; set config.workers=6",
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=6"},
        ),
    ],
)
def test_so_it_is_in_a_process_of_its_own(here, flags, words, environment):
    before = files(here)
    ended = start(here, *flags, **environment)
    assert ended.returncode == 2 and ended.stdout == ""
    assert is_one_sentence(ended.stderr, words), ended.stderr
    assert files(here) == before


# --- runs ---

KEYS = {
    "name", "algorithm", "wait", "runtime", "workers", "seed", "updates", "samples", "clock",
    "seconds", "target_loss", "seconds_to_target", "train_loss", "test_loss", "test_accuracy",
    "consensus_distance", "bytes_per_worker", "idle_fraction", "staleness_mean", "wall_seconds",
}  # fmt: skip


def test_a_run_leaves_its_records(here):
    ended = start(here, "--config=config.py:workers=3", "--config.seed=4", "--workdir=a/run")
    assert ended.returncode == 0, ended.stderr
    assert "all_reduce/nonblocking seed 4: started" in ended.stdout
    assert "speed-up" in ended.stdout and "records: a/run" in ended.stdout
    run = here / "a" / "run"
    names = {path.name for path in run.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "summary.json", "schedule.npz", "figure.png"}
    config = json.loads((run / "config.json").read_text())
    assert config["workers"] == 3 and config["seed"] == 4 and config["optimizer"]["decay"] == 0.9
    assert [line["seconds"] for line in metrics(run)] == [0, 0.5, 1.0, 1.5, 2.0]
    told = summary(run)
    assert set(told) >= KEYS
    assert (told["algorithm"], told["wait"]) == ("all_reduce", "first_finisher")
    assert (told["workers"], told["seed"], told["clock"]) == (3, 4, "virtual")
    assert 0 < told["seconds_to_target"] < 2 and told["train_loss"] < 0.6
    assert (run / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_again_finds_its_work_done(call, here):
    code, first, err = call(*OK)
    assert code == 0 and err == ""
    told, lines = summary(here / "out"), metrics(here / "out")
    code, again, err = call(*OK)
    assert code == 0 and "already finished" in again and summary(here / "out") == told
    table = again.index(" arm ")
    assert again[table:] == first[first.index(" arm ") :]

    code, _, err = call(*OK, "--config.seconds=1")
    assert code == 2 and "seconds (2.0 there, 1.0 here)" in err
    assert summary(here / "out") == told

    code, out, _ = call(*OK, "--overwrite")
    assert code == 0 and "already finished" not in out
    assert summary(here / "out")["wall_seconds"] != told["wall_seconds"]
    assert metrics(here / "out") == lines  # the same seed, the same numbers


def test_a_sweep_has_a_directory_per_arm_and_seed(call, here):
    flags = ("--config=config.py:pace=0.04", "--sweep", "--seeds=2", "--workdir=out")
    code, _, err = call(*flags, "--config.wait=barrier", "--config.updates=5")
    assert code == 0 and err == ""
    out = here / "out"
    arms = ("all_reduce/blocking", "dpsgd/nonblocking")
    for arm in arms:
        for seed in (0, 1):
            told = summary(out / arm / f"seed_{seed}")
            assert (told["name"], told["seed"]) == (arm, seed)
            assert (told["wait"], told["updates"]) == ("barrier", 5)  # the user's, not the sweep's
            config = json.loads((out / arm / f"seed_{seed}" / "config.json").read_text())
            assert config["delay"] == "exponential(scale=0.04)"
    together = summary(out)["arms"]
    assert [(arm["name"], arm["seeds"]) for arm in together] == [(arm, [0, 1]) for arm in arms]
    assert {path.name for path in out.iterdir()} == {
        "all_reduce", "dpsgd", "summary.json", "figure.png"
    }  # fmt: skip


def test_a_mesh_gets_its_devices_and_the_simulator_replays_what_happened(call, here):
    budget = ("--config.updates=12", "--config.seconds=60")
    mesh = ("--config=config.py:pace=0.005", "--config.runtime=mesh", "--workdir=mesh")
    ended = start(here, *mesh, *budget)
    assert ended.returncode == 0, ended.stderr
    happened = summary(here / "mesh")
    assert (happened["clock"], happened["runtime"], happened["updates"]) == ("wall", "mesh", 12)
    replay = "--config.wait=replay(path='mesh/schedule.npz')"
    code, _, err = call(*OK, "--config.runtime=simulate", replay, *budget)
    assert code == 0, err
    replayed = summary(here / "out")
    assert (replayed["clock"], replayed["wait"]) == ("virtual", "replay")
    for exact in ("updates", "samples", "bytes_per_worker", "idle_fraction"):
        assert replayed[exact] == happened[exact]
    for rounded in ("train_loss", "test_loss", "test_accuracy"):
        assert replayed[rounded] == pytest.approx(happened[rounded], rel=1e-4)
