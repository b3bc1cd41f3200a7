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

import pathlib
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import harness, namespaces
from comms import cost
from experiments import records

CONFIG = "configs/links.py"
RECORD = harness.Record(
    harness.FOLDER / "seconds_to_loss.json", "python -m benchmarks.links sweep",
    ("method", "hosts", "rate"),
)  # fmt: skip


def launched(count: int, rate: str | None, flags: Sequence[str]) -> None:
    """Run launch.py on hosts with links of a rate; None: without a limit."""
    with namespaces.switch(count, rate) as hosts:
        namespaces.run(hosts, harness.commands(flags, count, hosts[0].address))


def swept(
    count: int, rate: str | None, config: str, flags: Sequence[str], workdir: str
) -> dict[str, dict]:
    """Return the summaries of all arms, by name, on links of a rate."""
    chosen = f"--config={config}{',' if ':' in config else ':'}workers={count}"
    launched(count, rate, [chosen, "--sweep", *flags, f"--workdir={workdir}"])
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
    options = harness.options(
        __doc__, what=(("sweep", "launch"), "see above"), hosts=([4], "how many"),
        rate=(["1gbit", "100mbit"], "of all links"),
        config=(CONFIG, "of a sweep"), flags=("", "more of them for launch.py"),
    )  # fmt: skip
    flags = shlex.split(options.flags)
    if options.what == "launch":
        if len(options.hosts) > 1 or len(options.rate) > 1:
            raise SystemExit("launch runs once; give one number of --hosts and one --rate")
        return launched(options.hosts[0], options.rate[0], flags)
    with tempfile.TemporaryDirectory() as folder:
        # The record is of one config alone.
        other = RECORD._replace(path=pathlib.Path(folder, "points.json"))
        record = RECORD if options.config == CONFIG else other
        for count in options.hosts:
            free = swept(count, None, options.config, flags, f"{folder}/{count}")
            for rate in options.rate:
                real = swept(count, rate, options.config, flags, f"{folder}/{count}_{rate}")
                record.put([*rows(count, rate, real, free)])


if __name__ == "__main__":
    main()
