"""Jobs without a Slurm, whose queue is played by a program of that name."""

import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs import base
from experiments import distributed, files, slurm
from experiments.slurm import Seen
from tests.waiting import until


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Set what a `squeue` prints and its exit code; it notes with what it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "squeue"

    def shows(text, code=0):
        stream = " >&2" if code else ""
        program.write_text(
            f'#!/bin/sh\necho "$@" > {folder}/called\ncat <<EOF{stream}\n{text}\nEOF\nexit {code}\n'
        )
        program.chmod(0o755)
        return folder / "called"

    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return shows


def test_the_queue_says_how_jobs_are_and_how_often_they_began_again(squeue):
    called = squeue("12_0      RUNNING      0\n12_1      PENDING      2")
    assert slurm.look(["12_0", "12_1"]) == {"12_0": Seen("RUNNING", 0), "12_1": Seen("PENDING", 2)}
    assert "--jobs=12,12" in called.read_text() and "--array" in called.read_text()
    squeue("slurm_load_jobs error: Unable to contact slurm controller", code=1)
    with pytest.raises(slurm.Silent, match="Unable to contact slurm controller"):
        slurm.look(["12_0"])


def test_a_job_that_the_queue_has_forgotten_has_ended(squeue, monkeypatch, capsys):
    monkeypatch.setattr(slurm, "SOONEST", 0.0)
    queue = slurm.Queue(["12_0", "12_1"])
    squeue("no answer", code=1)
    assert queue.seen("12_0") is None and queue.seen("12_0") is None
    said = capsys.readouterr().err
    assert said == "squeue fails (no answer); jobs go on, and this is asked again\n"
    squeue("12_0 CONFIGURING 0 None\n99_0 FAILED 0 None")
    found = until(lambda: queue.seen("12_0"))  # asked less often the longer it took to answer
    assert found == Seen("CONFIGURING", 0) and not found.ended
    assert queue.seen("12_1").ended and queue.seen("99_0") is None


def test_jobs_that_slurm_still_has_are_known_to_the_next_launch(squeue, tmp_path):
    assert slurm.under_way(tmp_path) == {}
    (tmp_path / "slurm").mkdir()
    jobs = {
        "12_0": {"arms": ["a", "b"], "tasks": 1},
        "12_1": {"arms": ["c"], "tasks": 2},
        "12_2": {"arms": ["d"], "tasks": 1},
    }
    (tmp_path / "slurm" / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    squeue("12_0 PENDING 0 Resources\n12_1 COMPLETED 0 None")
    assert slurm.under_way(tmp_path) == {"a": "12_0", "b": "12_0"}
    with pytest.raises(ValueError, match="Slurm still has job 12_0 of an earlier launch; give it"):
        slurm.refuse_to_overwrite(tmp_path)
    squeue("12_0 CANCELLED 0 None")
    slurm.refuse_to_overwrite(tmp_path)
    squeue("no answer", code=1)
    with pytest.raises(ValueError, match="may still run, so repeat the command when Slurm answers"):
        slurm.under_way(tmp_path)
    (tmp_path / "slurm" / "jobs.json").write_text('{"jobs": {"12_0": {"arms": "a"}}}')
    with pytest.raises(ValueError, match="when none of them is left in Slurm's queue, remove it"):
        slurm.under_way(tmp_path)


def test_wrong_settings_of_slurm_are_refused(monkeypatch):
    """So is a machine without submitit or Slurm."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    slurm.check("timeout_min=1,mem_gb=1.5,signal_delay_s=20,partition=gpu", 2)
    for settings, words in (
        ("partition", "cannot read 'partition' in --slurm; write name=value"),
        ("timeout_min=long", 'Parameter "timeout_min" expected type'),
        ("partion=gpu", "Unknown argument 'partion'"),
        ("timeout_min=1", "a job of 1 min is asked to end 90 s before"),
        ("time=1", "a job of 1 min is asked to end 90 s before"),
        ("signal_delay_s=soon", "signal_delay_s has to be whole seconds"),
    ):
        with pytest.raises(ValueError, match=words):
            slurm.check(settings)
    with pytest.raises(ValueError, match="array_parallelism is --jobs; give one of them"):
        slurm.check("array_parallelism=3", 2)
    alone = base.arm(runtime="simulate")
    with pytest.raises(ValueError, match="its workers live in one process, and there are 4"):
        slurm.check("tasks_per_node=4", configs=[alone])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match="finds no sbatch; start it where jobs are submitted"):
        slurm.check("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"run pip install submitit, or give .*print_commands"):
        slurm.check("")


# A run that ends at its next evaluation when it is asked to, and at once when it is asked twice.
RUN = """
import os, pathlib, signal, sys, time
place, asked = pathlib.Path(sys.argv[1]), []
signal.signal(signal.SIGHUP, lambda *_: asked.append(1))
(place / "begun").write_text(" ".join(sys.argv[2:]))
os.kill(os.getppid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)  # as Slurm tells all processes of a job
os.kill(os.getpid(), signal.SIGUSR2)
while not asked:
    time.sleep(0.02)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(0.25)
(place / "asked").write_text(str(len(asked)))
sys.exit(129)
"""


@pytest.mark.parametrize(("task", "code"), [("0", 129), ("1", 0)])
def test_a_run_is_asked_once_to_end_and_leaves_no_result(tmp_path, monkeypatch, task, code):
    monkeypatch.setenv("SLURM_PROCID", task)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as leaving:
            slurm.Command([sys.executable, "-c", RUN, str(tmp_path), "--seeds=2"])()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert leaving.value.code == code
    assert (tmp_path / "begun").read_text() == "--seeds=2"
    assert (tmp_path / "asked").read_text() == "1"


def test_a_job_that_slurm_has_queued_again_waits_for_who_still_trains(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(files, "LOCK_WAITS", 0.02)
    assert distributed.is_queued_again({"SLURM_RESTART_COUNT": "1"})
    assert not distributed.is_queued_again({"SLURM_RESTART_COUNT": "0"})
    path, order = tmp_path / files.RUN_LOCK, []
    with files.held(path):

        def wait():
            with files.held(path, waits=True):
                order.append("second")

        waiting = threading.Thread(target=wait)
        waiting.start()
        said = until(lambda: capsys.readouterr().err)
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]
    assert (said + capsys.readouterr().err).count("waiting: workdir") == 1


class Marks:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_result_in_a_workdir_is_data(tmp_path):
    submitted = Submitted(tmp_path, 1)
    submitted.results[0] = ("success", Marks(tmp_path / "mark"))
    said = slurm._Job(submitted, lambda name: Seen("FAILED")).poll()
    assert "and only data is read" in said and not (tmp_path / "mark").exists()


class Submitted:
    """A job as submitit knows it: results of its tasks, by their numbers."""

    job_id = "12_0"

    def __init__(self, folder, tasks):
        self.num_tasks, self.results = tasks, {}
        self._folder = folder

    def task(self, number):
        path = self._folder / f"{number}.pkl"
        if number in self.results:
            path.write_bytes(pickle.dumps(self.results[number]))
        return SimpleNamespace(paths=SimpleNamespace(result_pickle=path, stderr=f"{number}.err"))


def test_a_job_ends_as_its_tasks_or_as_slurm_says(tmp_path, monkeypatch):
    seen = [None]
    submitted = Submitted(tmp_path, 2)
    job = slurm._Job(submitted, lambda name: seen[-1])
    assert job.poll() is None and job.note() is None
    for state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"):
        seen.append(Seen(state, 0))
        assert job.poll() is None and job.note() is None
    seen.append(Seen("PENDING", 1))
    assert job.note() == "job 12_0 is queued again; it goes on from the last checkpoint"
    assert job.note() is None
    submitted.results[0] = ("success", 3)
    assert job.poll() is None  # the other task has not ended
    seen.append(Seen("CANCELLED", 1))
    assert job.poll() == "job 12_0 ended with exit code 3; see 0.err"
    submitted.results[1] = ("success", -9)
    assert job.poll() == "job 12_0 ended with SIGKILL; see 1.err"
    submitted.results.update({0: ("success", 0), 1: ("success", 0)})
    assert job.poll() == ""
    submitted.results[1] = ("error", "Traceback: no module\n")
    assert job.poll() == "job 12_0 ended: it has raised Traceback: no module"
    seen.append(Seen("PENDING", 2))
    assert job.poll() is None  # the error is of what has asked Slurm to queue it again

    late = slurm._Job(Submitted(tmp_path / "late", 1), lambda name: Seen("COMPLETED", 0))
    assert late.poll() is None  # its result may only not be seen yet
    monkeypatch.setattr(slurm, "LATE", 0.0)
    assert late.poll().startswith("job 12_0 is COMPLETED; see 0.err; the same command goes on")
    gone = slurm._Job(Submitted(tmp_path / "late", 1), lambda name: Seen("FORGOTTEN", 0))
    assert gone.poll().startswith("job 12_0 is not known to Slurm any more; see 0.err")


def test_settings_are_of_the_types_that_submitit_wants_and_options_of_sbatch_go_to_it():
    text = "srun_args=--mpi=pmix -v,exclusive=False,use_srun=False,setup=module load x"
    given = slurm._read(text)
    assert given["slurm_srun_args"] == ["--mpi=pmix", "-v"]
    assert given["slurm_setup"] == ["module load x"]
    assert given["slurm_exclusive"] is given["slurm_use_srun"] is False
    own = slurm._read("reservation=me,requeue=0")["slurm_additional_parameters"]
    assert own == {"reservation": "me", "no_requeue": True}
