"""Seconds to a loss as links slow: fewer bytes beside all-reduce, measured on links with a rate.

    python -m benchmarks.seconds_to_loss --hosts=4 --rate=1gbit,100mbit               # as root

Every rate is a sweep of `configs/links.py` with a process per host, see `benchmarks.hosts`. Beside
it stand two expectations. The *expected* seconds of an update are what it takes on links without a
limit, where the hosts share these cores as before, and what its bytes take on the link. The
*nominal* ones are seconds of simulated workers on a network of that rate, who are given the time
that a mini-batch takes on the hosts with next to no exchange. Points go to
docs/results/benchmarks/seconds_to_loss.json, in which other rates stay, and the figure of all of
them to docs/links.png.
"""

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from absl import app, flags
from matplotlib.figure import Figure

from benchmarks import host_runs, namespaces, points
from comms import cost
from experiments import records
from experiments.figures import COLOURS, plain, save

_OPTIONS = flags.DEFINE_list("launch_options", [], "More flags of all launches.")

RECORD = points.FOLDER / "seconds_to_loss.json"
PICTURE = points.FOLDER.parents[1] / "links.png"
KEY = ("method", "hosts", "rate")  # of a point
CONFIG = "--config=configs/links.py"
ALONE = 100  # local steps between two of the few exchanges that time a mini-batch
ROUNDS = 4


def results(workdir: pathlib.Path) -> dict[str, dict]:
    """The summaries of a sweep, by the names of its arms."""
    found = (records.read_json(path) for path in sorted(workdir.rglob(records.SUMMARY)))
    return {summary["name"]: summary for summary in found if "seconds_to_target" in summary}


def each(count: int, workdir: pathlib.Path, options: Sequence[str]) -> float:
    """Seconds of a mini-batch on hosts that share these cores and hardly exchange."""
    alone = [
        "--config.algorithm=local_sgd",
        f"--config.mini_batches={ALONE}",
        f"--config.updates={ROUNDS}",
        "--config.target_loss=None",
        "--config.stop_at_target=False",
        "--config.evaluate_every=1000",
    ]
    with namespaces.switch(count) as there:
        _ended(host_runs.launched(there, [CONFIG, *alone, *options, f"--workdir={workdir}"]))
    (summary,) = results(workdir).values()
    return summary["seconds"] / summary["updates"] / ALONE


def measured(
    count: int, rate: str | None, workdir: pathlib.Path, options: Sequence[str]
) -> dict[str, dict]:
    """The summaries of all arms on links of a rate; None: without a limit."""
    with namespaces.switch(count, rate) as there:
        _ended(host_runs.launched(there, [CONFIG, "--sweep", *options, f"--workdir={workdir}"]))
    return results(workdir)


def modelled(
    count: int, rate: str, seconds: float, workdir: pathlib.Path, options: Sequence[str]
) -> dict[str, dict]:
    """The summaries of all arms on simulated workers, on a network of that rate."""
    bits = namespaces.bits_per_second(rate)
    config = f"{CONFIG}:runtime=simulate,workers={count},bits={bits:g},each={seconds:.6g}"
    command = [sys.executable, "launch.py", config, "--sweep", *options, f"--workdir={workdir}"]
    _ended(subprocess.run(command, cwd=namespaces.ROOT, check=False).returncode)
    return results(workdir)


def _ended(code: int) -> None:
    if code:
        raise SystemExit(code)


def rows(
    count: int,
    rate: str,
    mini_batch: float,
    real: dict[str, dict],
    free: dict[str, dict],
    simulated: dict[str, dict],
) -> Iterator[dict]:
    """A point per arm; free: on links without a limit. Errors are of the expected seconds."""
    bandwidth = namespaces.bits_per_second(rate) / 8 * cost.PAYLOAD
    for name, summary in real.items():
        update, unlimited, nominal = map(_update, (summary, free[name], simulated[name]))
        sent = summary["bytes_per_worker"] / summary["updates"]
        expected = unlimited + sent / bandwidth
        updates = summary["updates_to_target"]
        yield {
            "method": name,
            "hosts": count,
            "rate": rate,
            "loss": summary["target_loss"],
            "seconds": summary["seconds_to_target"],
            "expected": None if updates is None else updates * expected,
            "nominal": simulated[name]["seconds_to_target"],
            "update": update,
            "unlimited_update": unlimited,
            "expected_update": expected,
            "nominal_update": nominal,
            "error": expected / update - 1,
            "nominal_error": nominal / update - 1,
            "updates": updates,
            "bytes": sent,
            "mini_batch": mini_batch,
        }


def _update(summary: dict) -> float:
    """Seconds of an update."""
    return summary["seconds"] / summary["updates"]


def figure(found: Sequence[dict]) -> Figure:
    """Seconds to the loss against the rate of the links: a line per method, dots where expected.

    found: of them, at least one came to the loss.
    """
    found = [point for point in found if point["seconds"] is not None]
    canvas = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = canvas.subplots()
    names = list(dict.fromkeys(point["method"] for point in found))
    for name, colour in zip(names, COLOURS, strict=False):
        own = sorted(
            (namespaces.bits_per_second(point["rate"]) / 1e6, point["seconds"], point["expected"])
            for point in found
            if point["method"] == name
        )
        rates, seconds, expected = zip(*own, strict=True)
        axes.plot(rates, seconds, "o-", color=colour, label=name)
        axes.plot(rates, [value or float("nan") for value in expected], ":", color=colour)
    axes.set(xscale="log", yscale="log", xlabel="rate of the links [Mbit/s]")
    axes.set_ylabel(f"seconds to a training loss of {found[0]['loss']:g}")
    canvas.legend(loc="outside right center", frameon=False, title="measured;\ndotted: expected")
    plain(axes)
    rates = {namespaces.bits_per_second(point["rate"]) / 1e6 for point in found}
    axes.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
    return canvas


def main(_) -> None:
    reason = namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    path = RECORD if host_runs.OUTPUT.value is None else pathlib.Path(host_runs.OUTPUT.value)
    options = _OPTIONS.value
    for count in map(int, host_runs.HOSTS.value):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            mini_batch = each(count, place / "alone", options)
            free = measured(count, None, place / "unlimited", options)
            for rate in host_runs.RATES.value:
                real = measured(count, rate, place / rate, options)
                simulated = modelled(count, rate, mini_batch, place / f"modelled_{rate}", options)
                found = list(rows(count, rate, mini_batch, real, free, simulated))
                points.put(path, "python -m benchmarks.seconds_to_loss", KEY, found)
                for point in found:
                    print(" ".join(f"{name}={value}" for name, value in point.items()), flush=True)
    if path == RECORD:
        every = records.read_json(path)["summary"]["points"]
        if any(point["seconds"] is not None for point in every):
            save(figure(every), PICTURE)
        else:
            print(f"no method came to the loss, so that {PICTURE.name} stays as it is")


if __name__ == "__main__":
    app.run(main)
