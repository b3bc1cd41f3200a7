"""Non-blocking rounds beside a barrier where one host has less of a core than the others.

    python -m benchmarks.slow_host --hosts=3 --rate=1gbit --share=0.2                 # as root

No delay is injected: a control group limits the cores of the last host, so that its own computing
is slow. Every host is a process of the same training, once with a barrier and once with
first_finisher, each several times in turn. Theory (`stragglers.theory.rounds.speeds_gain`, the
run-time analysis of arXiv 2211.00889) is given what a mini-batch takes on each host and what a
round takes beside it, both from the runs without a barrier, which see every mini-batch end. Points
go to docs/results/benchmarks/slow_host.json, in which other hosts, rates and shares stay.
"""

import pathlib
import statistics
import tempfile

import numpy as np
from absl import app, flags

from benchmarks import host_runs, namespaces, points
from experiments import records
from stragglers import schedule
from stragglers.theory.rounds import speeds_gain

_SHARE = flags.DEFINE_float("share", 0.2, "Cores that the last host may use.", lower_bound=0.01)
_PAIRS = flags.DEFINE_integer("pairs", 3, "Runs of either rule, in turn.", lower_bound=2)
_ROUNDS = flags.DEFINE_integer("rounds_of_run", 12, "Of either rule.", lower_bound=4)

RECORD = points.FOLDER / "slow_host.json"
KEY = ("hosts", "rate", "cores")  # of a point
WARM = 2  # rounds of a run that are not counted
MINI_BATCHES = 16
BARRIER, FREE = RULES = "barrier", "first_finisher(in_flight=finish)"  # no device is interrupted


def flags_of(rule: str) -> list[str]:
    """Of launch.py, for rounds in which computing takes most of the time."""
    return [
        "--config=configs/links.py",
        f"--config.wait={rule}",
        f"--config.mini_batches={MINI_BATCHES}",
        "--config.batch_size=512",
        f"--config.updates={_ROUNDS.value}",
        "--config.target_loss=None",
        "--config.stop_at_target=False",
        "--config.evaluate_every=1000",
    ]


def run(count: int, rate: str, cores: float, rule: str, workdir: pathlib.Path) -> schedule.Schedule:
    """What happened in one run on `count` hosts, the last of which may use this much of a core."""
    arguments = [*flags_of(rule), f"--config.workers={count}", f"--workdir={workdir}"]
    with namespaces.switch(count, rate, cores) as there:
        code = host_runs.launched(there, arguments)
    if code:
        raise SystemExit(code)
    return schedule.load(workdir / records.SCHEDULE)


def throughput(done: schedule.Schedule) -> float:
    """Mini-batches per second of all hosts, after the first rounds."""
    return float(done.batches[WARM:].sum() / (done.time[-1] - done.time[WARM - 1]))


def costs(done: schedule.Schedule) -> tuple[np.ndarray, float]:
    """Seconds of a mini-batch on every host, and of a round beside the first one's computing.

    done: a run of first_finisher.
    """
    order = np.argsort(done.workers, axis=1)
    busy, batches = (
        np.take_along_axis(of_row, order, axis=1)[WARM:] for of_row in (done.busy, done.batches)
    )
    each = busy.sum(axis=0) / np.maximum(batches.sum(axis=0), 1)
    lasted = np.diff(done.time)[WARM - 1 :]
    return each, float(np.median(lasted - busy.max(axis=1)))


def compare(count: int, rate: str, cores: float, folder: pathlib.Path) -> dict:
    """The point of these hosts."""
    rates, theory, seconds, beside = {rule: [] for rule in RULES}, [], [], []
    for repeat in range(_PAIRS.value):
        for rule in RULES:
            done = run(count, rate, cores, rule, folder / f"{rule.split('(')[0]}_{repeat}")
            rates[rule].append(throughput(done))
            if rule == FREE:
                each, communication = costs(done)
                seconds.append(each)
                beside.append(communication)
                theory.append(speeds_gain(each, MINI_BATCHES, communication, in_flight="finish"))
    barrier, free = rates[BARRIER], rates[FREE]
    gains = [one / other for one, other in zip(free, barrier, strict=True)]
    gain, expected = statistics.mean(gains), statistics.mean(theory)
    return {
        "hosts": count,
        "rate": rate,
        "cores": cores,
        "runs": _PAIRS.value,
        "gain": gain,
        "deviation": statistics.stdev(gains),
        "expected": expected,
        "error": expected / gain - 1,
        "barrier": statistics.mean(barrier),
        "first_finisher": statistics.mean(free),
        "fast": float(np.mean(seconds, axis=0)[:-1].mean()),
        "slow": float(np.mean(seconds, axis=0)[-1]),
        "beside": statistics.mean(beside),
    }


def main(_) -> None:
    reason = namespaces.unmet(quota=True)
    if reason is not None:
        print(f"skipped: {reason}")
        return
    path = RECORD if host_runs.OUTPUT.value is None else pathlib.Path(host_runs.OUTPUT.value)
    for count in map(int, host_runs.HOSTS.value):
        for rate in host_runs.RATES.value:
            with tempfile.TemporaryDirectory() as folder:
                point = compare(count, rate, _SHARE.value, pathlib.Path(folder))
            points.put(path, "python -m benchmarks.slow_host", KEY, [point])
            print(" ".join(f"{name}={value}" for name, value in point.items()), flush=True)


if __name__ == "__main__":
    app.run(main)
