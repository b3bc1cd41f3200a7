"""A Slurm of two nodes on this machine, for the tests of what runs under it; installs nothing.

Its daemons, munge's among them, live in a process namespace of their own, and so does whatever
they start. The first process there ends when the pipe to the process that has asked for it closes,
also because that was killed, and the kernel then ends all others of the namespace. Every port and
file is the cluster's own; a Slurm that runs here already is not touched.

python -m tests.slurm_cluster FOLDER NODE...: the first process of the namespace.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TextIO

# Addresses as names: JAX takes the name of the first node for the address of its coordinator.
NODES = ("127.0.0.1", "127.0.0.2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue",
            "srun", "unshare")  # fmt: skip
STARTING = 30  # s for all nodes to be idle
CONFIG = """
ClusterName=gossax
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=100000,bf_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=5
KillWait=20
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
"""


def left_out() -> str | None:
    """Return the reason for which no cluster can be started here; None where one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"a Slurm of two nodes needs {', '.join(missing)}, not installed here"
    if os.geteuid() != 0:
        return "a Slurm of two nodes needs root, which this process is not"
    tried = subprocess.run([*_namespace(), "true"], capture_output=True, text=True)
    if tried.returncode:
        return f"a Slurm of two nodes needs a process namespace: {tried.stderr.strip()}"
    return None


class Cluster:
    """A cluster that is up; environment: of processes that are to find it.

    folder, pipe: where its files lie, and where names of nodes go whose daemons are to be started.
    """

    def __init__(self, folder: pathlib.Path, pipe: TextIO):
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self._folder, self._pipe = folder, pipe

    def ask(self, *command: str) -> str:
        """Return the output of a command of Slurm."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def kill_daemon(self, node: str) -> None:
        """SIGKILL for the daemon of a node; jobs that run there go on."""
        (pid,) = running("slurmd", "-N", node, str(self._folder))
        os.kill(pid, signal.SIGKILL)

    def start_daemon(self, node: str) -> None:
        """Start the daemon of a node, again."""
        self._pipe.write(f"{node}\n")
        self._pipe.flush()

    def wait_until_idle(self, seconds: float = STARTING) -> None:
        """Wait until all nodes are up with nothing to do."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                idle = self.ask("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D")
                if idle == str(len(NODES)):
                    return
            if time.monotonic() > until:
                logs = sorted(self._folder.glob("*.log"))
                ends = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)
                raise TimeoutError(f"no idle Slurm within {seconds} s\n{ends}")
            time.sleep(0.2)


def running(*words: str) -> list[int]:
    """Return the processes of this machine in whose command line all of these words stand."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in line for word in words):
                found.append(int(place.name))
    return found


@contextlib.contextmanager
def started(folder: pathlib.Path) -> Iterator[Cluster]:
    """Start a cluster with its state below `folder`; each node has one processor, as it says."""
    folder.mkdir(parents=True)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    ports = _free_ports(1 + len(NODES))
    lines = [
        f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr={node} "
        f"Port={port} CPUs=1 RealMemory=1000"
        for node, port in zip(NODES, ports[1:], strict=True)
    ]
    for node in NODES:
        (folder / node).mkdir()
    settings = {
        "host": socket.gethostname(),
        "port": ports[0],
        "folder": folder,
        "nodes": "\n".join(lines),
        "first_job": 1 + secrets.randbelow(2000),  # JAX takes a port from the number of a job
    }
    (folder / "slurm.conf").write_text(CONFIG.format(**settings))
    root = pathlib.Path(__file__).parents[1]
    first = subprocess.Popen(
        [*_namespace(), sys.executable, "-m", "tests.slurm_cluster", str(folder), *NODES],
        cwd=root,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        cluster = Cluster(folder, first.stdin)
        cluster.wait_until_idle()
        yield cluster
    finally:
        first.stdin.close()
        first.wait(30)


def _namespace() -> list[str]:
    return ["unshare", "--pid", "--fork", "--mount-proc"]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("", 0))
        return [free.getsockname()[1] for free in sockets]


def _reap(*_) -> None:
    """Wait for processes whose parents have ended, which Slurm would take for alive."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(folder: str, *nodes: str) -> None:
    """Start all daemons, then one of a node for every line that comes; end with the pipe."""
    config = f"{folder}/slurm.conf"

    def start(*command: str) -> None:
        os.posix_spawnp(command[0], command, os.environ, file_actions=silent)

    with open(f"{folder}/daemons.log", "a") as log, open(os.devnull) as nothing:
        silent = [
            (os.POSIX_SPAWN_DUP2, nothing.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
        ]
        signal.signal(signal.SIGCHLD, _reap)
        start(
            "munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        while not os.path.exists(f"{folder}/munge.socket"):
            time.sleep(0.05)
        start("slurmctld", "-D", "-f", config)
        for node in nodes:
            start("slurmd", "-D", "-N", node, "-f", config)
        for line in sys.stdin:
            start("slurmd", "-D", "-N", line.strip(), "-f", config)


if __name__ == "__main__":
    main(*sys.argv[1:])
