"""Jobs without a Slurm, whose programs are played by scripts of the same names."""

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from configs import base
from experiments import distributed, executors, files, slurm
from experiments.executors import Arm
from experiments.slurm import Seen
from tests.waiting import until


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return makers of programs of Slurm: name -> function of the lines of a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def maker(name):
        def make(text):
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)

        return make

    return {name: maker(name) for name in ("sbatch", "squeue", "srun", "scancel", "scontrol")}


@pytest.fixture
def squeue(programs, tmp_path):
    """Set what a `squeue` prints and its exit code; it notes with what it was called."""

    def shows(text, code=0):
        stream = " >&2" if code else ""
        programs["squeue"](
            f'echo "$@" > {tmp_path}/called\ncat <<EOF{stream}\n{text}\nEOF\nexit {code}'
        )
        return tmp_path / "called"

    return shows


def test_the_queue_says_how_jobs_are_and_how_often_they_began_again(squeue):
    called = squeue("12_0      RUNNING      0    0\n12_1      FAILED     2   768")
    expected = {"12_0": Seen("RUNNING", 0), "12_1": Seen("FAILED", 2, 3)}
    assert slurm.look(["12_0", "12_1"]) == expected
    assert "--jobs=12,12" in called.read_text() and "--array" in called.read_text()
    squeue("slurm_load_jobs error: Unable to contact slurm controller", code=1)
    with pytest.raises(ValueError, match="Unable to contact slurm controller"):
        slurm.look(["12_0"])


def test_a_job_that_the_queue_has_forgotten_has_ended(squeue, monkeypatch, capsys):
    monkeypatch.setattr(slurm, "SOONEST", 0.0)
    queue = slurm.Queue(["12_0", "12_1"])
    squeue("no answer", code=1)
    assert queue.seen("12_0") is None and queue.seen("12_0") is None
    said = capsys.readouterr().err
    assert said == "squeue fails (no answer); jobs go on, and this is asked again\n"
    squeue("12_0 CONFIGURING 0 0\n99_0 FAILED 0 256")
    found = until(lambda: queue.seen("12_0"))  # asked less often the longer it took to answer
    assert found == Seen("CONFIGURING", 0) and not found.ended
    assert queue.seen("12_1").ended and queue.seen("99_0") is None


def test_jobs_that_slurm_still_has_are_known_to_the_next_launch(squeue, programs, tmp_path):
    programs["sbatch"]("exit 0")
    assert slurm.under_way(tmp_path) == {}
    (tmp_path / "slurm").mkdir()
    jobs = {
        "12_0": {"arms": ["a", "b"], "tasks": 1},
        "12_1": {"arms": ["c"]},
        "12_2": {"arms": ["d"]},
    }
    (tmp_path / "slurm" / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    squeue("12_0 PENDING 0 0\n12_1 COMPLETED 0 0")
    assert slurm.under_way(tmp_path) == {"a": "12_0", "b": "12_0"}
    with pytest.raises(ValueError, match="Slurm still has job 12_0 of an earlier launch; give it"):
        slurm.check("", overwritten=tmp_path)
    squeue("12_0 CANCELLED 0 15")
    slurm.check("", overwritten=tmp_path)
    squeue("no answer", code=1)
    with pytest.raises(ValueError, match="may still run, so repeat the command when Slurm answers"):
        slurm.under_way(tmp_path)
    (tmp_path / "slurm" / "jobs.json").write_text('{"jobs": {"12_0": {"arms": "a"}}}')
    with pytest.raises(ValueError, match="when none of them is left in Slurm's queue, remove it"):
        slurm.under_way(tmp_path)


def test_wrong_settings_of_slurm_are_refused(programs, monkeypatch):
    """So is a machine without Slurm."""
    programs["sbatch"]('[[ "$*" != *partion* ]] || { echo "unrecognized $*" >&2; exit 1; }\n'
                       '[[ "$*" != *full* ]] || { echo "allocation failure: x" >&2; exit 1; }')
    slurm.check("timeout_min=2,mem_gb=1.5,signal_delay_s=20,partition=gpu,time=1:00:00")
    slurm.check("partition=full")  # it may have room later
    for settings, words in (
        ("partition", "cannot read 'partition' in --slurm; write name=value"),
        ("=gpu", "cannot read '=gpu' in --slurm; write name=value"),
        ("timeout_min=long", "cannot read 'timeout_min=long' in --slurm"),
        ("signal_delay_s=soon", "cannot read 'signal_delay_s=soon' in --slurm"),
        ("partion=gpu", "Slurm does not take the jobs .unrecognized .*partion=gpu"),
        ("timeout_min=1", "a job of 1 min is asked to end 90 s before"),
        ("time=1", "a job of 1 min is asked to end 90 s before"),
    ):
        with pytest.raises(ValueError, match=words):
            slurm.check(settings)
    alone = base.arm(runtime="simulate")
    with pytest.raises(ValueError, match="its workers live in one process, and there are 4"):
        slurm.check("tasks_per_node=4", [Arm("", alone)])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ValueError, match="finds no sbatch; start it where jobs are submitted"):
        slurm.check("")


def test_settings_are_options_of_sbatch():
    made, tasks, grace = slurm.options(
        "timeout_min=60,mem_gb=1.5,nodes=2,tasks_per_node=4,gpus_per_node=4,reservation=me,"
        "slurm_qos=low,exclusive=True,overcommit=False,requeue=0"
    )
    assert set(made) == {
        "--time=60", "--mem=1536M", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4",
        "--reservation=me", "--qos=low", "--exclusive", "--no-requeue", "--signal=B:HUP@90",
    }  # fmt: skip
    assert (tasks, grace) == (8, 60)
    assert slurm.options("signal_delay_s=3") == (["--signal=B:HUP@3", "--requeue"], 1, 2)


# A run that ends with a checkpoint when it is asked to, and the first time is asked by its job.
RUN = """
import os, pathlib, signal, sys, time
place, asked = pathlib.Path(sys.argv[1]), []
signal.signal(signal.SIGHUP, lambda *_: asked.append(1))
(place / "pid").write_text(str(os.getpid()))
if not (place / "begun").exists():
    (place / "begun").write_text(" ".join(sys.argv[2:]))
    os.kill(os.getppid(), signal.SIGTERM)  # as Slurm may signal all processes of a job
    os.kill(os.getppid(), signal.SIGHUP)
    until = time.monotonic() + 20
    while not asked and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.25)
    (place / "asked").write_text(str(len(asked)))
    sys.exit(129)
(place / "summary.json").write_text("{}")
"""


def test_a_job_that_runs_out_of_time_is_queued_again_and_goes_on(programs, tmp_path, capsys):
    """A program in place of sbatch keeps the script, which runs here as it would on a node."""
    place, kept, stray = tmp_path / "a", tmp_path / "script", tmp_path / "b"
    place.mkdir()
    programs["sbatch"](f'echo "$@" > {kept}.args; cat > {kept}; echo 12')
    programs["srun"]('exec "$@"')
    programs["scancel"](f"kill -HUP $(cat {place}/pid)")
    programs["scontrol"](f'echo "$@" > {tmp_path}/asked')
    programs["squeue"]("echo 12_0 RUNNING 0 0; echo 12_1 RUNNING 0 0")
    arms = [Arm(name, base.arm(name=name)) for name in ("b", "a")]

    def finish():
        script = until(lambda: kept.exists() and "wait" in kept.read_text() and kept)
        # A shell cannot trap what it begins with ignored, as SIGHUP under nohup.
        command = ["env", "--default-signal=HUP", "SLURM_ARRAY_TASK_ID=1", "SLURM_JOB_ID=13"]
        codes = [subprocess.run([*command, "bash", script]).returncode for _ in range(2)]
        assert codes == [129, 0]
        stray.mkdir(exist_ok=True)
        (stray / "error.txt").write_text("ValueError: no such luck\n\nTraceback")

    working = threading.Thread(target=finish)
    working.start()
    failures = slurm.run(
        [[arm] for arm in arms], tmp_path, executors.Shown(2), at_once=3,
        command=lambda group: [sys.executable, "-c", RUN, str(place), "--seeds=2 'x'"],
        settings="timeout_min=5",
    )  # fmt: skip
    working.join()
    assert failures == {"b": "ValueError: no such luck"}
    assert (place / "begun").read_text() == "--seeds=2 'x'"
    assert (place / "asked").read_text() == "1"
    assert (tmp_path / "asked").read_text() == "requeue 13\n"
    assert "--array=0-1%3 " in (tmp_path / "script.args").read_text()
    jobs = json.loads((tmp_path / "slurm" / "jobs.json").read_text())["jobs"]
    assert jobs == {"12_0": {"arms": ["b"]}, "12_1": {"arms": ["a"]}}


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


def test_a_job_ends_as_its_records_or_as_slurm_says(tmp_path, monkeypatch):
    seen = [None]
    group = [Arm(name, base.arm()) for name in ("a", "b")]
    job = slurm.Job("12_0", group, tmp_path, SimpleNamespace(seen=lambda name: seen[-1]))
    assert job.poll() is None and job.note() is None
    for state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"):
        seen.append(Seen(state, 0))
        assert job.poll() is None and job.note() is None
    seen.append(Seen("PENDING", 1))
    assert job.note() == "job 12_0 is queued again; it goes on from the last checkpoint"
    assert job.note() is None
    output = tmp_path / "slurm" / "12_0.txt"
    for state, words in (
        (Seen("CANCELLED", 1), f"is CANCELLED; see {output}; the same command goes on from there"),
        (Seen("FAILED", 1, 3), f"ended with exit code 3; see {output}"),
        (Seen("FAILED", 1, -9), f"ended with SIGKILL; see {output}"),
        (Seen("FORGOTTEN"), f"is not known to Slurm any more; see {output}; the same command"),
    ):
        seen.append(state)
        assert job.poll().startswith(f"job 12_0 {words}")
    seen.append(Seen("COMPLETED", 0))
    late = slurm.Job("12_0", group, tmp_path, SimpleNamespace(seen=lambda name: seen[-1]))
    assert late.poll() is None  # its records may only not be seen yet
    monkeypatch.setattr(slurm, "LATE", 0.0)
    assert late.poll().startswith("job 12_0 is COMPLETED; see ")
    seen.append(Seen("RUNNING", 0))
    for name, file in (("a", "summary.json"), ("b", "error.txt")):
        assert job.poll() is None
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    assert job.poll() == ""
