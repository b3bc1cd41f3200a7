"""Arms whose jobs a real Slurm queues, ends, preempts or loses."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import slurm_cluster
from tests.launcher import CONFIG, ROOT
from tests.slurm_cluster import NODES

pytestmark = pytest.mark.slow

# Workers on a mesh, whose delays are real ones: an arm takes as long as its clock says.
FLAGS = (
    "--config=config.py",
    "--config.runtime=mesh",
    "--config.wait=barrier",
    "--config.delay=deterministic(value=0.05)",
    "--config.communication=0",
    "--config.updates=1000000",
    "--config.evaluate_every=0.25",
    "--checkpoint_seconds=1000",
)
SWEEP = """

def sweep():
    for name in ("a", "b", "c"):
        yield f"all_reduce/{name}", {}
"""
# An optimizer that fails where it trains, and not where the arms are checked.
FAILING = """
import os
import jax
import optax

def sgd(learning_rate):
    made = optax.sgd(learning_rate)
    def fail():
        raise RuntimeError("the arm fails")
    def update(*args, **_):
        jax.debug.callback(fail)
        return made.update(*args)
    return made._replace(update=update) if "SLURM_JOB_ID" in os.environ else made
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of our cluster."""
    reason = slurm_cluster.left_out()
    if reason is None:
        with slurm_cluster.started(tmp_path_factory.mktemp("slurm") / "cluster") as started:
            yield started
    else:
        pytest.skip(reason)


@pytest.fixture
def here(cluster, tmp_path):
    """A directory with a config; no job of its sweeps goes on after the test."""
    (tmp_path / "config.py").write_text(CONFIG.partition("\n\ndef sweep")[0] + SWEEP)
    yield tmp_path
    cluster.ask("scancel", "--user=root")
    cluster.wait_until_idle()


class Launch:
    """A sweep on the cluster that is under way, and what it has said."""

    def __init__(self, here, process):
        self.here, self.process, self.workdir = here, process, here / "sweep"

    def said(self) -> str:
        return (self.here / "said.txt").read_text()

    def ends(self, seconds: float = 120) -> int:
        return self.process.wait(seconds)

    def arm(self, name: str):
        return self.workdir / "all_reduce" / name

    def job(self, name: str) -> str:
        """The job that has an arm, as "12_0"."""
        jobs = json.loads((self.workdir / "slurm" / "jobs.json").read_text())["jobs"]
        return next(job for job, of in jobs.items() if of["arms"] == [f"all_reduce/{name}"])


@contextlib.contextmanager
def launched(cluster, here, *flags, slurm="timeout_min=10", seconds=8):
    """A sweep whose arms take `seconds` each; its process is ended with the block."""
    environment = cluster.environment | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, ROOT / "launch.py", *FLAGS, f"--config.seconds={seconds}"]
    command += ["--sweep", "--workdir=sweep", "--executor=slurm", f"--slurm={slurm}", *flags]
    with (here / "said.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=here, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Launch(here, process)
    finally:
        process.kill()
        process.wait()


def until(happens, what: str, seconds: float = 120) -> None:
    begun = time.monotonic()
    while not happens():
        assert time.monotonic() - begun < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def wait_for_records(place, count: int = 4) -> list[dict]:
    """The metrics of an arm once they have this number of lines."""
    path = place / "metrics.jsonl"
    until(lambda: path.exists() and path.read_text().count("\n") >= count, f"{path} grows")
    return whole(place)


def whole(place) -> list[dict]:
    """The metrics of an arm, but for a line that is just being written."""
    text = (place / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rindex("\n")].splitlines()]


def assert_went_on(place, before, seconds: float = 8) -> None:
    """A run has ended at its budget, and what it had recorded is still there."""
    after = whole(place)
    assert after[: len(before)] == before
    assert after[-1]["seconds"] >= seconds and (place / "summary.json").exists()
    updates = [record["update"] for record in after]
    assert updates == sorted(set(updates))
    assert len(list((place / "checkpoint").iterdir())) == 1  # of the end


def assert_quiet(text: str) -> None:
    """No line of a library about Slurm, whatever it lacks."""
    assert "sacct" not in text and "WARNING" not in text and "accounting" not in text, text
    assert "\nTraceback" not in text, text


def test_an_array_larger_than_its_slots_with_an_arm_that_fails(cluster, here):
    """Four arms on two processors; the third one fails, and the others do not mind."""
    (here / "failing.py").write_text(FAILING)
    (here / "config.py").write_text(
        CONFIG.partition("\n\ndef sweep")[0]
        + SWEEP.replace('"c"', '"c", "d"').replace(
            "{}", '{"optimizer": "failing:sgd(learning_rate=0.1)"} if name == "c" else {}'
        )
    )
    cluster.environment["PYTHONPATH"] = str(here)
    try:
        with launched(cluster, here, seconds=2) as launch:
            assert launch.ends() == 1, launch.said()
    finally:
        del cluster.environment["PYTHONPATH"]
    for name in "abd":
        assert_went_on(launch.arm(name), [], seconds=2)
    (line,) = [line for line in launch.said().splitlines() if line.startswith("failed: ")]
    assert line.startswith("failed: all_reduce/c: JaxRuntimeError: ") and "error.txt" in line
    assert "the arm fails" in (launch.arm("c") / "error.txt").read_text()
    assert_quiet(launch.said())


def test_jobs_that_are_queued_again_or_cancelled_resume(cluster, here):
    """`scontrol requeue` of one with --overwrite, `scancel` of one, then of all of them."""
    with launched(cluster, here, "--overwrite") as launch:
        before = wait_for_records(launch.arm("a"))
        cluster.ask("scontrol", "requeue", launch.job("a"))
        cancelled = wait_for_records(launch.arm("b"))
        cluster.ask("scancel", launch.job("b"))
        waiting = wait_for_records(launch.arm("c"))
        until(lambda: "queued again; it goes on" in launch.said(), "a is queued again")
        cluster.ask("scancel", "--user=root")
        assert launch.ends() == 1
    for name in "bc":
        assert f"job {launch.job(name)} is CANCELLED" in launch.said()
    assert_quiet(launch.said())
    with launched(cluster, here) as launch:
        assert launch.ends() == 0, launch.said()
    for name, records in {"a": before, "b": cancelled, "c": waiting}.items():
        assert_went_on(launch.arm(name), records)


def test_a_job_that_is_out_of_time_goes_on(cluster, here):
    """It is asked to end 8 seconds before its minute is over, and is queued again."""
    slurm = "timeout_min=1,signal_delay_s=8"
    flags = ("--config.name=long/arm", "--nosweep")
    with launched(cluster, here, *flags, slurm=slurm, seconds=48) as launch:
        assert launch.ends(200) == 0, launch.said()
    assert "is queued again; it goes on" in launch.said()
    assert_went_on(launch.workdir, [], seconds=48)
    assert_quiet(launch.said())


def test_a_job_of_higher_priority_goes_first(cluster, here):
    with launched(cluster, here) as launch:
        before = {name: wait_for_records(launch.arm(name)) for name in "ab"}
        urgent = ("-p", "high", "-N2", "--exclusive", "-o", str(here / "urgent.txt"))
        cluster.ask("sbatch", *urgent, f"--wrap=ls {launch.workdir}/all_reduce/*")
        assert launch.ends() == 0, launch.said()
    urgent = (here / "urgent.txt").read_text()
    assert "metrics.jsonl" in urgent and "summary.json" not in urgent
    for name, records in before.items():
        assert_went_on(launch.arm(name), records)
    assert launch.said().count("is queued again; it goes on") >= 2
    assert_quiet(launch.said())


def test_arms_of_a_node_whose_daemon_dies_go_on(cluster, here):
    """Its jobs are queued again, while what they had begun still runs there unseen.

    Slurm notices after up to half a minute, before which no arm may end.
    """
    two_arms(here)
    with launched(cluster, here, "--checkpoint_seconds=0", seconds=60) as launch:
        before = {name: wait_for_records(launch.arm(name))[:-1] for name in "ab"}
        cluster.kill_daemon(NODES[1])
        try:
            until(lambda: "queued again" in launch.said(), "Slurm notices")
        finally:
            cluster.start_daemon(NODES[1])
        assert launch.ends(200) == 0, launch.said()
    for name, records in before.items():
        assert_went_on(launch.arm(name), records, seconds=60)
    assert_quiet(launch.said())


def test_a_launch_after_one_that_was_killed_follows_its_jobs(cluster, here):
    with launched(cluster, here, seconds=20) as launch:
        before = wait_for_records(launch.arm("a"))
        jobs = {name: launch.job(name) for name in "abc"}
    with launched(cluster, here, "--overwrite") as launch:
        assert launch.ends() == 2
        assert "Slurm still has job" in launch.said() and "leave out --overwrite" in launch.said()
    with launched(cluster, here, seconds=20) as launch:
        assert launch.ends() == 0, launch.said()
        assert launch.job("c") == jobs["c"]
    assert_went_on(launch.arm("a"), before, seconds=20)
    assert len(list((launch.workdir / "slurm").glob("*_submitted.pkl"))) == 3
    assert_quiet(launch.said())


def test_a_launch_that_is_interrupted_cancels_its_jobs(cluster, here):
    with launched(cluster, here) as launch:
        before = wait_for_records(launch.arm("a"))
        launch.process.send_signal(signal.SIGINT)
        assert launch.ends() == 130, launch.said()
    ended = ("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--name=gossax")
    until(lambda: not cluster.ask(*ended), "its jobs end")
    assert whole(launch.arm("a"))[: len(before)] == before
    assert list((launch.arm("a") / "checkpoint").iterdir())
    assert not (launch.arm("c") / "metrics.jsonl").exists()


def test_a_partition_that_is_not_there_is_one_sentence(cluster, here):
    with launched(cluster, here, slurm="partition=nowhere") as launch:
        assert launch.ends() == 2
    (line,) = launch.said().splitlines()[-1:]
    assert "Slurm does not take the jobs" in line and "invalid partition" in line
    assert_quiet(launch.said())


# --- meshes of several processes ---


def test_arms_that_are_meshes_of_two_processes(cluster, here):
    """One of them is queued again."""
    two_arms(here)
    slurm = "timeout_min=10,nodes=2,tasks_per_node=1"
    with launched(cluster, here, slurm=slurm, seconds=5) as launch:
        before = wait_for_records(launch.arm("a"))
        cluster.ask("scontrol", "requeue", launch.job("a"))
        assert launch.ends(180) == 0, launch.said()
    assert_went_on(launch.arm("a"), before, seconds=5)
    assert_went_on(launch.arm("b"), [], seconds=5)
    printed = [path.read_text() for path in (launch.workdir / "slurm").glob("*_1_log.err")]
    assert len(printed) == 2 and all("distributed" in text for text in printed)
    assert_quiet(launch.said())


def two_arms(here) -> None:
    """Leave the third arm out."""
    (here / "config.py").write_text((here / "config.py").read_text().replace(', "c"', ""))


def tasks() -> list[int]:
    """The processes that train in a step of `srun`."""
    return slurm_cluster.running(sys.executable, "launch.py", "--workdir=mesh")


def test_a_mesh_run_of_srun(cluster, here):
    """A task is killed; queued again the run goes on; before its time is over it has to end."""
    command = [sys.executable, str(ROOT / "launch.py"), *FLAGS, "--config.seconds=60"]
    command += ["--workdir=mesh", "--config.name=mesh/run", "--checkpoint_seconds=1"]
    quoted = " ".join(f"'{part}'" for part in command)
    (here / "job.sh").write_text(
        f'#!/bin/bash\nsrun -N2 bash -c "trap : TERM; {quoted}; echo ended \\$SLURM_PROCID \\$?"\n'
    )
    environment = cluster.environment | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    output = here / "output.txt"
    flags = ["--requeue", "-N2", "--time=30", "--signal=TERM@5", "--open-mode=append"]
    submitted = subprocess.run(
        ["sbatch", "--parsable", *flags, f"--output={output}", "job.sh"],
        cwd=here, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    job, place = submitted.stdout.strip(), here / "mesh"
    until(lambda: any(evaluations(place)), "a checkpoint")
    kept = 0.25 * max(evaluations(place))
    before = [record for record in whole(place) if record["seconds"] < kept]
    killed = max(pid for pid in tasks() if "bash" not in command_line(pid))
    os.kill(killed, signal.SIGKILL)
    until(lambda: " 3\n" in output.read_text() and " 137\n" in output.read_text(), "3 and 137")
    assert "the run goes on from its last checkpoint" in output.read_text()
    until(lambda: not tasks(), "both have ended")
    cluster.ask("scontrol", "requeue", job)
    gone_on = len(whole(place)) + 4  # more than what an older checkpoint leaves
    until(lambda: len(whole(place)) > gone_on, "the run goes on", 120)
    cluster.ask("scontrol", "update", f"JobId={job}", "EndTime=now+30")
    until(lambda: output.read_text().count(" 143\n") == 2, "both are asked to end", 90)
    after = whole(place)
    assert after[: len(before)] == before
    kept = 0.25 * max(evaluations(place))  # the checkpoint is of the last evaluation
    assert after[-2]["seconds"] < kept <= after[-1]["seconds"]
    assert "ended by SIGTERM; the same command goes on from here" in output.read_text()


def evaluations(place) -> list[int]:
    """After which evaluations there are checkpoints."""
    folder = place / "checkpoint"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [int(name) for name in names if name.isdigit()]


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
        return file.read().split("\0")[0]
    return ""
