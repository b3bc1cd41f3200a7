"""A Ray cluster whose nodes are hosts of one machine, see `benchmarks.namespaces`."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.namespaces import Host

PORT = 6379
STORE = 100 * 2**20  # bytes of a node's store
JOINING = 180.0  # s that a node may take on a machine that has other things to do
JOINED = "Ray runtime started"
# Who belongs to a cluster has these.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else the launching process alone is quick
}


@contextlib.contextmanager
def cluster(
    hosts: Sequence[Host], token: str, cpus: int = 1, more: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray node of `cpus` on every host: (its address, the variables of who belongs to it).

    more: variables beside these. Raises RuntimeError for a node that does not come up.
    """
    environment = {**ENVIRONMENT, "RAY_AUTH_TOKEN": token, **(more or {})}
    address = f"{hosts[0].address}:{PORT}"
    # A short name, as the names of sockets may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="gossax-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as ending,
    ):
        for number, host in enumerate(hosts):
            where = [f"--address={address}"]
            if not number:
                where = ["--head", f"--port={PORT}", "--include-dashboard=false"]
                where.append(f"--temp-dir={folder}")
            command = [
                *host.prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
                f"--node-ip-address={host.address}", f"--num-cpus={cpus}",
                f"--object-store-memory={STORE}", *where,
            ]  # fmt: skip
            said = pathlib.Path(folder, f"{host.name}.txt")
            with said.open("w") as file:
                process = subprocess.Popen(
                    command, env=os.environ | environment, stdout=file, stderr=subprocess.STDOUT
                )
            ending.callback(_end, process)
            _await(process, said)
        yield address, environment


def _await(process: subprocess.Popen, said: pathlib.Path) -> None:
    """Return when a node belongs to the cluster."""
    until = time.monotonic() + JOINING
    while JOINED not in said.read_text():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"a Ray node does not come up: {said.read_text()[-1000:]}")
        time.sleep(0.2)


def _end(process: subprocess.Popen) -> None:
    process.terminate()  # it ends what it has started
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
