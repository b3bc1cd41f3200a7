"""Bad input of any kind: one sentence, exit code 2, nothing written or compiled."""

import importlib.util
import os
import shutil
from types import SimpleNamespace

import pytest

from experiments import prepare, sweep
from tests import launcher
from tests.compilations import compilations
from tests.launcher import files, refused, start
from tests.refusals import sentence


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "leaves.py").write_text("import sys\ndef get_config():\n    sys.exit(0)\n")
    (tmp_path / "nameless.py").write_text(
        "from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict()\n"
    )
    return launcher.directory(tmp_path, monkeypatch)


OK = ("--config=config.py", "--workdir=out")


def config(*changes):
    return (*OK, *(f"--config.{change}" for change in changes))


def of(file, *more):
    return (f"--config={file}", "--workdir=out", *more)


JOIN = (*OK, "--num_processes=2", "--process_id=0")
# One row per kind of refusal.
BAD = [
    # flags
    (("--workdir=out",), "--config is missing"),
    (("--config=config.py", "--workdir="), "--workdir is missing"),
    ((*OK, "--sed=3"), "Unknown command line flag 'sed'"),
    ((*OK, "extra"), "unexpected argument 'extra'"),
    ((*OK, "--seeds=0"), "--seeds=0: 0 is not a positive integer"),
    ((*OK, "--checkpoint_seconds=nan"), "--checkpoint_seconds=nan"),
    (config("foo=1"), "the config has no entry 'foo'; known entries: algorithm"),
    (config("seconds=nan"), "config.seconds must be a positive number, got nan"),
    (config("seconds=1" + 400 * "0"), "config.seconds must be a positive number"),
    (("--report=out", "--restarts=1"), "only writes the report again; leave out --restarts"),
    (config("optimizer.learning_rate=x"), "learning_rate must be a number, got 'x'"),
    ((*OK, "--executor=ray", "--ray=cpus=x"), "cannot read 'cpus=x' in --ray; write cpus=NUMBER"),
    ((*OK, "--slurm=partition=gpu"), "--slurm belongs to --executor=slurm; give both"),
    ((*OK, "--executor=slurm"), "finds no sbatch; start it where jobs are submitted"),
    ((*OK, "--loggers=wandb"), "run pip install wandb or leave out --loggers"),
    ((*OK, "--num_processes=2"), "give all three"),
    ((*JOIN, "--jobs=2"), "--num_processes is for one arm on many machines; leave out --jobs"),
    ((*OK, "--arm=", "--jobs=2"), "--arm runs arms in this process; leave out --jobs"),
    (("--report=empty", "--workdir=out", "--sweep"),
     "--report only writes the report again; leave out --workdir, --sweep"),
    (("--watch=other", "--report=other"), "--watch only shows a page; leave out --report"),
    (("--watch=missing",), "there is no workdir missing; give the --workdir of a launch"),
    (("--watch=empty",), "empty holds no records of runs, and nobody is at work there; give"),
    (("--report=other", "--config.seed=1"), "leave out --config.seed"),
    (("--report=other", "--explain_compression"), "leave out --explain_compression"),
    (("--report=other", "--num_processes=2"), "the report again; leave out --num_processes"),
    ((*OK, "--cluster=auto", "--config.runtime=mseh"), "unknown name 'mseh'; did you mean 'mesh'?"),
    ((*OK, "--dry_run", "--print_commands"), "and runs nothing; leave out --print_commands"),
    (("--port=80",), "--port belongs to --watch; give both or neither"),
    ((*OK, "--paper"), "--paper belongs to --report; give both or neither"),
    (("--report=missing",), "missing holds no records of runs; give the --workdir of some"),
    # the file of the config
    (of("none.py", "--config.seed=1"), "no file 'none.py'; give the path of a config"),
    (of("syntax.py"), "SyntaxError: invalid syntax"),
    (of("raises.py"), "KeyError: 'nothing'; correct raises.py"),
    (of("empty.py"), "has no attribute 'get_config'; correct empty.py"),
    (of("nothing.py"), "get_config() gave NoneType; return a ConfigDict"),
    (of("trace.csv"), "trace.csv: a config is a Python file"),
    (of("exits.py"), "exits.py ends the program (sys.exit)"),
    (of("leaves.py"), "get_config() of leaves.py ends the program"),
    (of("nameless.py"), "config.name is missing"),
    # the workdir
    (("--config=config.py", "--workdir=file/out"), "file is not a directory; choose another --wo"),
    (("--config=config.py", "--workdir=other"), "holds a run with another config, which differs"),
    (("--config=config.py", "--workdir=sweep_of_others"), "such as a sweep's"),
    (("--config=config.py", "--workdir=closed/out"), "closed is not writable; choose another"),
    (of("configs/goodput.py", "--seeds=2"), "is an analysis, without arms"),
    # sweeps
    (of("no_sweep.py", "--sweep"), "no_sweep.py has no sweep()"),
    (of("bad_arm.py", "--sweep"), "local_sgd/bad: algorithm 'local_sgd'"),
    ((*OK, "--seeds=1000000000"), "1 arms with --seeds=1000000000 are 1000000000 runs"),
    # parts; the sentences themselves are checked where they are made
    (config("algorithm={'name': {'name': 'x'}}"), "algorithm: "),
    (config("wait=deadline(seconds=" + 100_000 * "-"), "cannot read the part"),
    (config("wait=deadline(seconds=300ms)"), "with durations in seconds and no unit"),
    (config("wait=" + 100_000 * "a"), "wait: unknown name"),
    (config("delay=builtins:max(seconds=1)"), "has no parameters that can be read"),
    (config("wait=replay(path='none.npz')"), "none.npz has no updates; give the schedule"),
    (config("delay=deterministic(value=-1e999)"), "'value' must be finite"),
    # workers and devices that there are not
    (config("workers=257"), "cannot share 256 samples among workers=257"),
    (config("runtime=mesh", "workers=9"), "set config.workers=8 or, on CPU, XLA_"),
    (config("devices=99999", "workers=99999"), "an arm asks for 99999 devices"),
    (config("delay=persistent(law=exponential(scale=0.02), factors={99: 2})"), "names worker 99"),
    (config("delay=spells(law=persistent(law=exponential(scale=0.02), factors=[1, 1, 4]), "
            "mini_batches=4)"), "names worker 2, but there are 2 workers, from 0 to 1"),
    # more memory than there is, and numbers beyond devices, clocks and sense
    (config("mini_batches=2147483647", "batch_size=2147483647"), "takes at least 1.84e+07 TB"),
    (config("task=synthetic_logistic(samples=256, dimension=99999999999)"), "more memory than"),
    (config("mini_batches=99999999999"), "config.mini_batches must be below 2**31"),
    (config("evaluate_every=1e-12"), "a number of seconds, 1e-06 or more, got 1e-12"),
    (config("delay=deterministic(value=1e-300)"), "usually takes 1e-300 s, which a clock"),
    (config("delay=deterministic(value=1e-8)", "seconds=1e9", "updates=2147483647",
            "mini_batches=100000000", "batch_size=1"), "cannot tell from nothing"),
    (config("delay=markov(law=deterministic(value=0.02), factor=4.0, mean_normal=1e-7, "
            "mean_slow=1e-7)"), "would see more than 1000 sojourns"),
    ((*config("seed=4294967295"), "--seeds=2"), "config.seed must be below 2**32"),
    (config("task=synthetic_logistic(samples=256, dimension=8, seed=4294967296)"), "below 2**32"),
]  # fmt: skip


@pytest.fixture
def without_extras(monkeypatch):
    """No package for logging, no Slurm, and a directory that cannot be written to."""
    find, access = importlib.util.find_spec, os.access
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name)
    )
    monkeypatch.setattr(
        os, "access", lambda place, mode: "closed" not in str(place) and access(place, mode)
    )
    monkeypatch.setattr("shutil.which", lambda name: None)


@pytest.mark.usefixtures("without_extras")
def test_bad_input_is_answered_in_one_sentence(call, here):
    before = files(here)
    compilations.clear()
    for flags, words in BAD:
        err = refused(call(*flags), words)
        assert len(err) < 6200 and max(map(len, err.split())) < 300
        assert not (here / "out").exists() and not compilations, words
    assert files(here) == before


WIDE = ("--config.task=gaussians(model='mlp(hidden=(2000, 2000))', samples=64)",)


@pytest.mark.parametrize(
    ("free", "model", "words"),
    [
        (64, (), "Ray takes 84 MB of shared memory at least and /dev/shm has 67 MB free; make it"),
        (90, WIDE, "and /dev/shm has 94 MB free; set fewer workers or a smaller model, or make"),
    ],
)
def test_workers_without_shared_memory_are_refused(call, here, monkeypatch, free, model, words):
    usage = SimpleNamespace(free=free * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    flags = config("runtime=actors", "wait=k_async(k=1)", "workers=9")
    err = refused(call(*flags, *model), words)
    assert "docker run --shm-size=1g" in err
    assert not (here / "out").exists()


SLURM = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "here", "SLURM_PROCID": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words", "environment"),
    [
        (OK, "correct JAX_PLATFORMS=cuda, or unset it", {"JAX_PLATFORMS": "cuda"}),
        (OK, "SLURM_NTASKS='two' in the environment", SLURM | {"SLURM_NTASKS": "two"}),
    ],
)
def test_so_it_is_in_a_process_of_its_own(here, flags, words, environment):
    before = files(here)
    ended = start(here, *flags, **environment)
    refused((ended.returncode, ended.stdout, ended.stderr), words)
    assert files(here) == before


def test_memory_is_counted_with_the_control_group(tmp_path, monkeypatch):
    assert prepare.free_memory() > 2**20
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 500000\n")
    monkeypatch.setattr(prepare, "CGROUP", tmp_path)
    assert prepare.free_memory() == 1_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert prepare.free_memory() > 2**20
    with pytest.raises(ValueError, match=r"x takes at least 1e\+06 TB of memory, and .* are free"):
        prepare.check_memory(1e18, "x", "lower it")


def test_long_work_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "PATIENCE", 0.01)
    arm = sweep.Arm("a/x", None)
    with sweep.patience() as on, on("checking arm 3 of 4,", arm):
        while "checking arm 3 of 4, a/x, 0 s so far" not in capsys.readouterr().err:
            pass
    with sentence("a/x: no such thing"), sweep.patience() as on, on("checking", arm):
        raise ValueError("no such thing")
