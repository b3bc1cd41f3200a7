"""Whatever is wrong with a command: one sentence, exit code 2, nothing written or compiled."""

import importlib.util
import os
import shutil
from typing import NamedTuple

import jax
import pytest

from tests import launcher
from tests.launcher import files, start


@pytest.fixture
def here(tmp_path, monkeypatch):
    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def call(here, monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
)


OK = ("--config=config.py", "--workdir=out")
BAD = [
    # flags
    (("--workdir=out",), "--config is missing"),
    (("--config=", "--workdir=out"), "--config is missing"),
    (("--config=config.py",), "--workdir is missing"),
    (("--config=config.py", "--workdir="), "--workdir is missing"),
    ((*OK, "--sed=3"), "Unknown command line flag 'sed'"),
    ((*OK, "extra"), "unexpected argument 'extra'"),
    ((*OK, "--seeds=0"), "--seeds=0: 0 is not a positive integer"),
    ((*OK, "--seeds=two"), "--seeds=two: "),
    ((*OK, "--config.foo=1"), "the config has no entry 'foo'; known entries: algorithm"),
    ((*OK, "--config.optimizer.decy=1"), "optimizer 'momentum': unknown parameter 'decy'"),
    ((*OK, "--config.wait.x.y=barrier"), "the config has no entry 'wait.x.y'"),
    ((*OK, "--config.workers=many"), "must be a positive whole number, got 'many'"),
    ((*OK, "--config.workers=2.5"), "must be a positive whole number, got 2.5"),
    ((*OK, "--config.workers"), "must be a positive whole number, got True"),
    ((*OK, "--config.seconds=long"), "config.seconds must be a positive number, got 'long'"),
    ((*OK, "--config.optimizer.learning_rate=x"), "learning_rate must be a number, got 'x'"),
    ((*OK, "--jobs=0"), "--jobs=0: 0 is not a positive integer"),
    ((*OK, "--executor=cloud"), "--executor=cloud: value should be one of <local|slurm|ray>"),
    ((*OK, "--executor=slurm"), "finds no sbatch; start it where jobs are submitted, or use"),
    ((*OK, "--slurm=partition=gpu"), "--slurm has settings for --executor=slurm; give both"),
    ((*OK, "--loggers=neptune"), "unknown logger 'neptune'; known loggers: tensorboard, wandb"),
    ((*OK, "--loggers=wandb"), "run pip install wandb or leave out --loggers"),
    ((*OK, "--checkpoint_seconds=-1"), "--checkpoint_seconds=-1"),
    ((*OK, "--num_processes=0"), "--num_processes=0: 0 is not a positive integer"),
    ((*OK, "--num_processes=2"), "give all three"),
    ((*OK, "--num_processes=2", "--jobs=2"), "leave out --jobs and --executor"),
    ((*OK, "--arm=", "--jobs=2"), "--arm runs arms in this process; leave out --jobs"),
    (
        ("--report=empty", "--workdir=out", "--print_commands", "--sweep"),
        "--report only writes the report again; leave out --workdir, --print_commands, --sweep",
    ),
    (
        ("--watch=other", "--workdir=out", "--seeds=2"),
        "--watch only shows a page; leave out --workdir, --seeds",
    ),
    (("--watch=other", "--report=other"), "--watch only shows a page; leave out --report"),
    (("--watch=missing",), "there is no workdir missing; give the --workdir of a launch"),
    (("--watch=empty",), "empty holds no records of runs, and nobody is at work there; give"),
    (("--watch=other",), "nobody works on other any more, and 1 of its runs are not finished"),
    (("--port=80",), "--port belongs to --watch; give it, too"),
    (("--watch=other", "--port=65536"), "--port=65536"),
    ((*OK, "--paper"), "--paper belongs to --report; give it, too"),
    (("--report=missing",), "missing holds no records of runs; give the --workdir of some"),
    (("--report=empty",), "empty holds no records of runs"),
    # the file of the config
    (("--config=none.py", "--workdir=out"), "no file 'none.py'; give the path of a config"),
    (("--config=none.py", "--workdir=out", "--config.seed=1"), "no file 'none.py'"),
    (("--config=other", "--workdir=out"), "no file 'other'"),
    (("--config=syntax.py", "--workdir=out"), "SyntaxError: invalid syntax"),
    (("--config=raises.py", "--workdir=out"), "KeyError: 'nothing'; correct raises.py"),
    (("--config=empty.py", "--workdir=out"), "has no attribute 'get_config'; correct empty.py"),
    (("--config=nothing.py", "--workdir=out"), "get_config() gave NoneType; return a ConfigDict"),
    (("--config=trace.csv", "--workdir=out"), "trace.csv: a config is a Python file"),
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
    (("--config=config.py", "--workdir=closed/out"), "closed is not writable; choose another"),
    # sweeps
    ((*OK, "--sweep", "--arm=all_reduce"), "there is no arm 'all_reduce'; known arms: all_reduce/"),
    (("--config=no_sweep.py", "--workdir=out", "--sweep"), "no_sweep.py has no sweep()"),
    (("--config=bad_arm.py", "--workdir=out", "--sweep"), "local_sgd/bad: algorithm 'local_sgd'"),
    ((*OK, "--sweep", "--config.graph=rings"), "dpsgd/nonblocking: graph: unknown name 'rings'"),
    # parts and numbers; the sentences themselves are checked where they are made
    ((*OK, "--config.algorithm=reduce"), "unknown name 'reduce'; did you mean 's2_reducer'? known"),
    ((*OK, "--config.wait=barrier)"), "cannot read the part 'barrier)'"),
    ((*OK, "--config.delay=trace(path='none.csv')"), "trace: cannot read none.csv"),
    ((*OK, "--config.wait=replay(path='none.npz')"), "none.npz has no updates; give the schedule"),
    ((*OK, "--config.delay=trace(path='trace.csv')"), "trace.csv has no column 'batch_time'"),
    ((*OK, "--config.workers=0"), "config.workers must be a positive whole number, got 0"),
    ((*OK, "--config.workers=257"), "cannot share 256 samples among workers=257"),
    ((*OK, "--config.runtime=mesh", "--config.workers=9"), "set config.workers=8 or, on CPU, XLA_"),
]


def is_one_sentence(stderr, words):
    return stderr.startswith("error: ") and stderr.count("\n") == 1 and words in stderr


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


@pytest.mark.parametrize(("flags", "words"), BAD)
@pytest.mark.usefixtures("without_extras")
def test_bad_input_is_answered_in_one_sentence(call, here, flags, words):
    before = files(here)
    compilations.clear()
    code, out, err = call(*flags)
    assert code == 2 and out == "" and is_one_sentence(err, words), err
    assert files(here) == before and not (here / "out").exists()
    assert not compilations


WIDE = ("--config.task=gaussians(model='mlp(hidden=(2000, 2000))', samples=64)",)


@pytest.mark.parametrize(
    ("free", "model", "words"),
    [
        (64, (), "Ray takes 84 MB of shared memory at least and /dev/shm has 67 MB free; make it"),
        (90, WIDE, "and /dev/shm has 94 MB free; set fewer workers or a smaller model, or make"),
    ],
)
def test_free_workers_without_shared_memory_are_refused(
    call, here, monkeypatch, free, model, words
):
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(free * 2**20))
    flags = ("--config.runtime=actors", "--config.wait=k_async(k=1)", "--config.workers=9")
    before = files(here)
    code, out, err = call(*OK, *flags, *model)
    assert code == 2 and out == "" and words in err, err
    assert "docker run --shm-size=1g" in err
    assert files(here) == before and not (here / "out").exists()


SLURM = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "here", "SLURM_PROCID": "0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words", "environment"),
    [
        ((*OK, "--config.foo=1"), "the config has no entry 'foo'; known entries: algorithm", {}),
        (
            (*OK, "--config.runtime=mesh", "--config.workers=8"),
            "there are 6 devices but config.workers=8; set config.workers=6",
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=6"},
        ),
        (OK, "correct JAX_PLATFORMS=cuda, or unset it", {"JAX_PLATFORMS": "cuda"}),
        (OK, "SLURM_NTASKS='two' in the environment", SLURM | {"SLURM_NTASKS": "two"}),
        (OK, "OMPI_COMM_WORLD_SIZE='x' in the environment", {"OMPI_COMM_WORLD_SIZE": "x"}),
    ],
)
def test_so_it_is_in_a_process_of_its_own(here, flags, words, environment):
    before = files(here)
    ended = start(here, *flags, **environment)
    assert ended.returncode == 2 and ended.stdout == ""
    assert is_one_sentence(ended.stderr, words), ended.stderr
    assert files(here) == before
