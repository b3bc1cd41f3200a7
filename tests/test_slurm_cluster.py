"""Arms whose jobs a real Slurm queues, ends, preempts or loses."""

import contextlib
import json
import signal
import subprocess
import sys

import pytest

from tests import slurm_cluster
from tests.launcher import CONFIG, ROOT
from tests.slurm_cluster import NODES
from tests.two_processes import ENDLESS
from tests.waiting import until

pytestmark = pytest.mark.slow

# Workers on a mesh, whose delays are real ones: an arm takes as long as its clock says.
FLAGS = ("--config=config.py", *ENDLESS[1:])
FLAGS = (*FLAGS, "--config.delay=deterministic(value=0.05)", "--config.evaluate_every=0.25")
SWEEP = """

def sweep():
    for name in ("a", "b", "c"):
        yield f"all_reduce/{name}", {}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    reason = slurm_cluster.left_out()
    if reason is None:
        with slurm_cluster.started(tmp_path_factory.mktemp("slurm") / "cluster") as started:
            yield started
    else:
        pytest.skip(reason)


@pytest.fixture
def here(cluster, tmp_path):
    """Return a directory with a config; no job of its sweeps goes on after the test."""
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

    def ends(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)

    def arm(self, name: str):
        return self.workdir / "all_reduce" / name

    def jobs(self) -> dict:
        return json.loads((self.workdir / "slurm" / "jobs.json").read_text())["jobs"]

    def job(self, name: str) -> str:
        """Return the job that has an arm, as "12_0"."""
        return next(job for job, of in self.jobs().items() if of["arms"] == [f"all_reduce/{name}"])


@contextlib.contextmanager
def launched(cluster, here, *flags, slurm="timeout_min=10", seconds=8):
    """Start a sweep whose arms take `seconds` each; its process is ended with the block."""
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


def wait_for_records(place, count: int = 4) -> list[dict]:
    """Return the metrics of an arm once they have this number of lines."""
    path = place / "metrics.jsonl"
    until(lambda: path.exists() and path.read_text().count("\n") >= count, f"{path} grows")
    return whole(place)


def whole(place) -> list[dict]:
    """Return the metrics of an arm, but for a line that is just being written."""
    text = (place / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rindex("\n")].splitlines()]


def assert_went_on(place, before, seconds: float = 8) -> None:
    """Check that a run has ended at its budget, with all that it had recorded."""
    after = whole(place)
    assert after[: len(before)] == before
    assert after[-1]["seconds"] >= seconds and (place / "summary.json").exists()
    updates = [record["update"] for record in after]
    assert updates == sorted(set(updates))
    assert len(list((place / "checkpoint").iterdir())) == 1  # of the end


def assert_quiet(text: str) -> None:
    """Check that no line is of a library about Slurm, whatever it lacks."""
    assert "sacct" not in text and "WARNING" not in text and "accounting" not in text, text
    assert "\nTraceback" not in text, text


def test_interrupted_and_killed_launches_go_on(cluster, here):
    """A job is queued again despite --overwrite, one is cancelled, and ctrl-C cancels the rest.

    The next launch is killed, and a later one follows its jobs and does not overwrite them. A
    partition that is not there is one sentence before.
    """
    with launched(cluster, here, slurm="partition=nowhere") as launch:
        assert launch.ends() == 2
    line = launch.said().splitlines()[-1]
    assert "Slurm does not take the jobs" in line and "invalid partition" in line
    with launched(cluster, here, "--overwrite", seconds=20) as launch:
        before = {"a": wait_for_records(launch.arm("a"))}
        cluster.ask("scontrol", "requeue", launch.job("a"))
        before["b"] = wait_for_records(launch.arm("b"))
        cluster.ask("scancel", launch.job("b"))
        until(lambda: "queued again; it goes on" in launch.said(), "a is queued again")
        until(lambda: f"job {launch.job('b')} is CANCELLED" in launch.said(), "b is cancelled")
        launch.process.send_signal(signal.SIGINT)
        assert launch.ends() == 130, launch.said()
    ended = ("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--name=gossax")
    until(lambda: not cluster.ask(*ended), "its jobs end")
    assert list((launch.arm("a") / "checkpoint").iterdir())
    with launched(cluster, here, seconds=20) as launch:
        wait_for_records(launch.arm("a"), len(whole(launch.arm("a"))) + 2)
        jobs = launch.jobs()
    with launched(cluster, here, "--overwrite", seconds=20) as launch:
        assert launch.ends() == 2
        assert "Slurm still has job" in launch.said() and "leave out --overwrite" in launch.said()
    with launched(cluster, here, seconds=20) as launch:
        assert launch.ends() == 0, launch.said()
        assert launch.jobs().keys() <= jobs.keys()  # none was submitted anew
    for name in "abc":
        assert_went_on(launch.arm(name), before.get(name, []), seconds=20)
    assert_quiet(launch.said())


def test_preempted_jobs_jobs_out_of_time_and_jobs_of_a_dead_node_go_on(cluster, here):
    """Each is queued again; of the dead node's what had begun still runs there unseen.

    Slurm notices that after up to half a minute. A job is asked to end 8 s before its minute is
    over, which each arm needs more than once.
    """
    two_arms(here)
    slurm, seconds = "timeout_min=1,signal_delay_s=8", 75
    flags = ("--checkpoint_seconds=0",)
    with launched(cluster, here, *flags, slurm=slurm, seconds=seconds) as launch:
        before = {name: wait_for_records(launch.arm(name))[:-1] for name in "ab"}
        urgent = ("-p", "high", "-N2", "--exclusive", "-o", str(here / "urgent.txt"))
        cluster.ask("sbatch", *urgent, f"--wrap=ls {launch.workdir}/all_reduce/*")
        until(lambda: launch.said().count("is queued again; it goes on") >= 2, "both go on")
        listed = here / "urgent.txt"
        until(lambda: listed.exists() and "metrics.jsonl" in listed.read_text(), "it is first")
        assert "summary.json" not in listed.read_text()
        for name in "ab":
            wait_for_records(launch.arm(name), len(whole(launch.arm(name))) + 4)
        cluster.kill_daemon(NODES[1])
        try:
            until(lambda: launch.said().count("is queued again") >= 3, "Slurm notices")
        finally:
            cluster.start_daemon(NODES[1])
        assert launch.ends() == 0, launch.said()
        assert launch.said().count("is queued again; it goes on") >= 4
    for name, records in before.items():
        assert_went_on(launch.arm(name), records, seconds=seconds)
    assert_quiet(launch.said())


def test_arms_that_are_meshes_of_two_processes(cluster, here):
    """One of them is queued again."""
    two_arms(here)
    slurm = "timeout_min=10,nodes=2,tasks_per_node=1"
    with launched(cluster, here, slurm=slurm, seconds=5) as launch:
        before = wait_for_records(launch.arm("a"))
        cluster.ask("scontrol", "requeue", launch.job("a"))
        assert launch.ends() == 0, launch.said()
    assert_went_on(launch.arm("a"), before, seconds=5)
    assert_went_on(launch.arm("b"), [], seconds=5)
    printed = [path.read_text() for path in (launch.workdir / "slurm").glob("*.txt")]
    assert len(printed) == 2 and all("distributed" in text for text in printed)
    assert_quiet(launch.said())


def two_arms(here) -> None:
    """Leave the third arm out."""
    (here / "config.py").write_text((here / "config.py").read_text().replace(', "c"', ""))
