"""Runs on hosts whose links have a rate: namespaces of one Linux machine, a process on each.

    python -m benchmarks.links sweep --hosts=4 --rate=1gbit,100mbit                        # as root
    python -m benchmarks.links sweep --config=configs/s2_reducer.py:task=ncf,runtime=mesh
    python -m benchmarks.links launch --hosts=4 --rate=100mbit --flags='--config=configs/links.py'

`sweep` trains every arm of a config that takes `workers` as an argument. It reports the seconds of
an update, and up to the config's target loss, beside *expected* ones. Expected are the seconds of
an update on links without a limit, with the hosts on the same cores, plus the seconds of its bytes
on the link. Points go to a record, which keeps other numbers of hosts and rates. `launch` runs
`launch.py` with any flags.
"""

import argparse
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import namespaces
from benchmarks.harness import FOLDER, commands, put
from comms import cost
from experiments import records

CONFIG, RECORD = "configs/links.py", FOLDER / "seconds_to_loss.json"


def launched(hosts: Sequence[namespaces.Host], arguments: Sequence[str]) -> int:
    """Run launch.py with these flags on all hosts; return the exit code of the first."""
    each = commands(arguments, len(hosts), hosts[0].address)
    with namespaces.started(hosts, each) as running:
        return running[0].wait()


def swept(
    count: int, rate: str | None, config: str, flags: Sequence[str], workdir: str
) -> dict[str, dict]:
    """Return the summaries of all arms, by name, on links of a rate; None: without a limit."""
    chosen = f"--config={config}{',' if ':' in config else ':'}workers={count}"
    with namespaces.switch(count, rate) as hosts:
        code = launched(hosts, [chosen, "--sweep", *flags, f"--workdir={workdir}"])
    if code:
        raise SystemExit(code)
    paths = sorted(pathlib.Path(workdir).rglob(records.SUMMARY))
    found = (records.read_json(path) for path in paths)
    return {summary["name"]: summary for summary in found if "arms" not in summary}


def rows(
    count: int, rate: str, real: Mapping[str, dict], free: Mapping[str, dict]
) -> Iterator[dict]:
    """Yield a point per arm; real, free: summaries by arm, on links with and without a rate."""
    bandwidth = namespaces.bits_per_second(rate) / 8 * cost.PAYLOAD
    for name, summary in real.items():
        update, unlimited = (each[name]["seconds"] / each[name]["updates"] for each in (real, free))
        sent = summary["bytes_per_worker"] / summary["updates"]
        expected, updates = unlimited + sent / bandwidth, summary.get("updates_to_target")
        yield {
            "method": name, "hosts": count, "rate": rate, "loss": summary.get("target_loss"),
            "seconds": summary.get("seconds_to_target"),
            "expected": None if updates is None else updates * expected,
            "update": update, "unlimited_update": unlimited, "expected_update": expected,
            "error": expected / update - 1, "updates": updates, "bytes": sent,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["sweep", "launch"])
    parser.add_argument("--hosts", default="4", help="how many, with commas")
    parser.add_argument("--rate", default="1gbit,100mbit", help="of all links, with commas")
    parser.add_argument("--config", default=CONFIG, help="of a sweep")
    parser.add_argument("--flags", default="", help="more of them for launch.py")
    options = parser.parse_args()
    reason = namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    flags = shlex.split(options.flags)
    if options.what == "launch":
        if "," in options.hosts + options.rate:
            parser.error("launch runs once; give one number of --hosts and one --rate")
        with namespaces.switch(int(options.hosts), options.rate) as hosts:
            sys.exit(launched(hosts, flags))
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, options.hosts.split(",")):
            free = swept(count, None, options.config, flags, f"{folder}/{count}")
            for rate in options.rate.split(","):
                real = swept(count, rate, options.config, flags, f"{folder}/{count}_{rate}")
                for point in (points := list(rows(count, rate, real, free))):
                    print(" ".join(f"{name}={value}" for name, value in point.items()), flush=True)
                if options.config == CONFIG:  # the record is of this one alone
                    key = ("method", "hosts", "rate")
                    put(RECORD, "python -m benchmarks.links sweep", key, points)


if __name__ == "__main__":
    main()
