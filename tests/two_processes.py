"""Two or more launches of one run on loopback, as people start them; none outlives the block."""

import contextlib
import os
import pathlib
import subprocess
import sys

from benchmarks.harness import free_port
from tests import warm
from tests.launcher import ROOT
from tests.waiting import until

# A run that trains until it is ended, with an evaluation every few rounds.
ENDLESS = (
    "--config=config.py:workers=4",
    "--config.runtime=mesh",
    "--config.wait=barrier",
    "--config.delay=none",
    "--config.communication=0",
    "--config.updates=1000000",
    "--config.seconds=100000",
    "--config.evaluate_every=0.5",
    "--checkpoint_seconds=1000",
)


@contextlib.contextmanager
def ranks(module, here, count, devices, *arguments):
    """Start the processes of a module's program, each with some devices; yield their files, too.

    The program is given OUTPUT COORDINATOR PROCESSES RANK and the arguments.
    """
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    outputs, address = [here / f"{rank}.npz" for rank in range(count)], f"127.0.0.1:{free_port()}"
    running = []
    try:
        for rank, output in enumerate(outputs):
            own = [str(output), address, str(count), str(rank), *arguments]
            with (here / f"{rank}.txt").open("w") as said:
                running.append(
                    warm.Process(
                        ["-m", module, *own],
                        cwd=ROOT,
                        env=os.environ | {"XLA_FLAGS": flags},
                        stdout=said,
                        stderr=said,
                    )
                )
        yield running, outputs
    finally:
        _end(running)


@contextlib.contextmanager
def started(here: pathlib.Path, *flags, own=None, processes=2, programs=()):
    """Start the processes of a launch, which print into PROCESS.txt.

    own: flags of each; programs: process -> what it runs in place of launch.py. The last one is not
    forked, so that two of them iterate sets in different orders.
    """
    address = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"XLA_FLAGS": warm.COMPILING, "NO_PROXY": "127.0.0.1"}
    running = []
    try:
        for name in range(processes):
            where = (
                "--coordinator_address=" + address,
                f"--num_processes={processes}",
                f"--process_id={name}",
            )
            program = dict(programs).get(name, ROOT / "launch.py")
            words = [program, *flags, *where, *(own[name] if own else ())]
            with (here / f"{name}.txt").open("w") as output:
                how = {"cwd": here, "env": environment, "stdout": output, "stderr": output}
                if name < processes - 1:
                    running.append(warm.Process(words, **how))
                else:
                    words = [sys.executable, *words]
                    running.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, **how))
        yield running
    finally:
        _end(running)


def _end(running):
    """Kill all processes, and wait for each."""
    for process in running:
        process.kill()
    for process in running:
        process.wait()


def wait_for(path: pathlib.Path, lines: int) -> None:
    """Wait until a file has this number of lines."""
    until(lambda: path.exists() and path.read_text().count("\n") >= lines, f"{path} does not grow")


def said(here: pathlib.Path, name: int) -> str:
    """Return what a process has printed."""
    return (here / f"{name}.txt").read_text()
