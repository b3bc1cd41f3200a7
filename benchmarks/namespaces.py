"""Hosts of one Linux machine: network namespaces on a switch, whose links have a rate.

    with namespaces.switch(4, "1gbit") as hosts:
        subprocess.run([*hosts[1].prefix, "ping", hosts[0].address])

Every host has a veth to a bridge in a namespace of its own, and `tc tbf` on either end. A child
removes everything when its parent has ended in whatever way, SIGKILL included, and ends what still
runs on the hosts. All names begin with gossax and the parent's process id; nothing else is touched.

    python -m benchmarks.namespaces NAME     # that child: waits for the end of its input
"""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = pathlib.Path("/run/netns")  # where `ip netns add` puts them
FILES = pathlib.Path("/etc/netns")  # where `ip netns exec` looks for files of a host
BURST = 5e-4  # seconds at full rate that a link makes up for after a pause
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_switches = itertools.count()


class Host(NamedTuple):
    """A namespace on a switch."""

    name: str
    address: str
    hub: str  # the namespace of the switch
    port: str  # of the switch

    @property
    def prefix(self) -> list[str]:
        """Return the words that make a command run on this host."""
        return ["ip", "netns", "exec", self.name]

    @property
    def cut(self) -> list[str]:
        """Return the command that unplugs the host."""
        return ["ip", "-n", self.hub, "link", "set", self.port, "down"]

    def set_rate(self, rate: str) -> None:
        """Limit both directions of the link to a rate such as "1gbit", also while it is in use."""
        bytes_at_once = max(16_000, round(BURST * bits_per_second(rate) / 8))  # some packets
        limit = f"root tbf rate {rate} burst {bytes_at_once} latency 50ms"
        for name, device in ((self.hub, self.port), (self.name, "eth0")):
            _run(f"tc -n {name} qdisc replace dev {device} {limit}")


def bits_per_second(rate: str) -> float:
    """Return the bits/s of a rate of `tc`: "100mbit" -> 1e8. Raises ValueError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if match is None or not float(match[1]):
        raise ValueError(f"rate {rate!r} is none; write a number and its unit, as in 100mbit")
    return float(match[1]) * UNITS[match[2]]


def unmet() -> str | None:
    """Return the reason why hosts cannot be made here, or None if none is known."""
    if sys.platform != "linux" or not (shutil.which("ip") and shutil.which("tc")):
        return "links with a rate need Linux with ip and tc (iproute2)"
    return None if os.geteuid() == 0 else "links with a rate need root"


@contextlib.contextmanager
def switch(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """Yield `count` hosts, 10.77.0.1 and on, each with a link of this rate; None: no limit.

    Where hosts cannot be made, the program prints the reason and ends. Raises CalledProcessError
    where the kernel refuses, as it may in a container.
    """
    if (reason := unmet()) is not None:
        print(f"skipped: {reason}")
        sys.exit()
    own = f"gossax{os.getpid()}s{next(_switches)}"
    hub = f"{own}hub"
    hosts = [Host(f"{own}h{i}", f"10.77.0.{i + 1}", hub, f"port{i}") for i in range(count)]
    child = [sys.executable, "-m", "benchmarks.namespaces", own]
    remover = subprocess.Popen(  # not in this session: ctrl-C is not meant for it
        child, stdin=subprocess.PIPE, start_new_session=True, cwd=ROOT
    )
    try:
        _run(f"ip netns add {hub}")
        _run(f"ip -n {hub} link add hub type bridge")
        _run(f"ip -n {hub} link set hub up")
        for host in hosts:
            _run(f"ip netns add {host.name}")
            _run(f"ip -n {hub} link add {host.port} type veth peer name eth0 netns {host.name}")
            _run(f"ip -n {hub} link set {host.port} master hub up")
            _run(f"ip -n {host.name} addr add {host.address}/24 dev eth0")
            _run(f"ip -n {host.name} link set eth0 up")
            _run(f"ip -n {host.name} link set lo up")
            # Gloo listens where the name of the machine leads.
            (FILES / host.name).mkdir(parents=True)
            lines = f"127.0.0.1 localhost\n{host.address} {socket.gethostname()}\n"
            (FILES / host.name / "hosts").write_text(lines)
            if rate is not None:
                host.set_rate(rate)
        yield hosts
    finally:
        remover.stdin.close()
        remover.wait()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def run(hosts: Sequence[Host], commands: Sequence[Sequence[str]]) -> None:
    """Run a command on every host, until the first ends; SystemExit unless that ends well."""
    with contextlib.ExitStack() as ending:
        running = []
        for host, command in zip(hosts, commands, strict=True):
            output = subprocess.DEVNULL if running else None
            running.append(subprocess.Popen([*host.prefix, *command], cwd=ROOT, stdout=output))
            ending.callback(running[-1].wait)
            ending.callback(running[-1].kill)
        if running[0].wait():
            raise SystemExit(running[0].returncode)


def remove(own: str) -> None:
    """End all processes on the hosts of a switch and remove the hosts; own: prefix of their names.

    Hosts that are already removed are skipped.
    """
    ours = re.compile(rf"{re.escape(own)}(hub|h\d+)")
    names = {path.name for folder in (NAMES, FILES) for path in folder.glob(f"{own}*")}
    names = sorted(filter(ours.fullmatch, names))
    began, inside = time.monotonic(), [""]
    # For a moment a process may still be about to enter.
    while time.monotonic() < began + (5 if inside else 0.2):
        listed = [subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
                  for name in names]  # fmt: skip
        inside = [int(pid) for found in listed for pid in found.stdout.split()]
        for process in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(FILES / name, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    remove(sys.argv[1])
