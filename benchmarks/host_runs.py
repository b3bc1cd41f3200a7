"""What benchmarks on hosts with rate-limited links share: their flags, and how they launch."""

import sys
from collections.abc import Sequence

from absl import flags

from benchmarks import namespaces, output
from benchmarks.processes import free_port

HOSTS = flags.DEFINE_list("hosts", ["2", "4"], "How many, with a process and a link each.")
RATES = flags.DEFINE_list("rate", ["1gbit", "100mbit"], "Of all links, one after the other.")
OUTPUT = output.PATH


def launched(hosts: Sequence[namespaces.Host], arguments: Sequence[str]) -> int:
    """Run launch.py with these flags on all hosts; the exit code of the first."""
    where = [f"--coordinator_address={hosts[0].address}:{free_port()}"]
    where.append(f"--num_processes={len(hosts)}")
    commands = [
        [sys.executable, "launch.py", *arguments, *where, f"--process_id={rank}"]
        for rank in range(len(hosts))
    ]
    with namespaces.started(hosts, commands, {}) as running:
        return running[0].wait()
