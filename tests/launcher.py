"""The launcher as people use it: in this process or in one of its own, on a tiny config."""

import json
import os
import pathlib
import subprocess
import sys

from absl.testing import flagsaver

import launch
from experiments import distributed, figures, sweep
from stragglers import delays
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

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

# Of a run of somebody else.
OTHER = {
    **{"name": "other", "seed": 3, "workers": 4, "runtime": "simulate", "task": "another"},
    **{"algorithm": "another", "wait": "another", "delay": "another", "optimizer": "another"},
}


def files(place):
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def metrics(place):
    """Return the metrics of a run but for what the wall clock says."""
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in lines]


def summary(place):
    return json.loads((place / "summary.json").read_text())


def directory(tmp_path, monkeypatch):
    """Return a directory with config.py and some broken inputs, to work in."""
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
    rule = RULES["barrier"](Setting(delays.deterministic(1.0), 2, 1, 0))
    whole(rule, 1).slice(0, 0).save(tmp_path / "none.npz")
    (tmp_path / "trace.csv").write_text("worker,time\n0,1\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(OTHER))
    (tmp_path / "sweep_of_others").mkdir()
    (tmp_path / "sweep_of_others" / "summary.json").write_text('{"arms": []}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "closed").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def caller(monkeypatch, capsys, drawn=False):
    """Return a launcher in this process: flags -> (exit code, stdout, stderr).

    drawn: whether its figures are drawn, for a test that looks at pictures; else they are made, and
    a file of each has its first bytes.
    """
    monkeypatch.setattr(sweep, "keep_programs", lambda: None)  # conftest.py keeps the small, too
    if not drawn:
        monkeypatch.setattr(figures, "png", lambda made, kind="png": b"\x89PNG\r\n\x1a\n")
    join = distributed.initialize

    def initialize(*given):
        if given != (None, None, None):  # to be refused: JAX, which has started, can join nobody
            join(*given)

    monkeypatch.setattr(distributed, "initialize", initialize)

    def run(*flags):
        argv = [str(ROOT / "launch.py"), *flags]
        monkeypatch.setattr(sys, "argv", argv)  # where overrides of the config are looked up
        with flagsaver.flagsaver():
            try:
                launch.main(launch.parse(argv))
                code = 0
            except SystemExit as leaving:
                code = leaving.code
        return code, *capsys.readouterr()

    return run


def refused(answer, words):
    """Check that a launch has answered in one sentence and printed nothing; return the sentence."""
    code, out, err = answer
    *slow, said = err.splitlines()
    assert (code, out) == (2, "") and said.startswith("error: ") and words in said, err
    assert all(line.endswith(" s so far") for line in slow), err
    return said


def program(*words, timeout=600, **environment):
    """Run Python with these words in our own folder to its end."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def begin(here, *flags, **environment):
    """Begin the launcher as people do, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, ROOT / "launch.py", *flags],
        cwd=here,
        env=os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(here, *flags, **environment):
    """Run the launcher as people do, in a process of its own, to its end."""
    process = begin(here, *flags, **environment)
    try:
        out, errors = process.communicate(timeout=600)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)
