"""Seconds of an iteration of data-parallel SGD, from a layer trace and the cost of all-reduce.

All schedules have one serial channel, workers of equal speed, and free bookkeeping. Bucketed ones
(`comms.buckets`) start the next forward pass when all communication has ended. Two more overlap
communication with the next forward pass too; for them an iteration is the period from one start
of the backward pass to the next. Shi, Chu, Li, arXiv 1811.11141 and 1912.09268.
"""

import csv
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from comms import buckets


class LayerTrace(NamedTuple):
    """Layers with parameters in forward order, each with the parameterless layers after it."""

    name: str
    sizes: np.ndarray  # [L] bytes of the gradient
    forward: np.ndarray  # [L] s
    backward: np.ndarray  # [L] s

    @property
    def compute(self) -> float:
        """Seconds of a forward and a backward pass."""
        return float(self.forward.sum() + self.backward.sum())

    def backward_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bytes [L] and ready times [L] from the start of backward, last layer first.

        The first two arguments of the planners in `comms.buckets`.
        """
        return self.sizes[::-1], np.cumsum(self.backward[::-1])


def googlenet() -> LayerTrace:
    """Return GoogLeNet on a K80: 64 layers, 13.4 M parameters, a backward pass of 201.5 ms."""
    path = Path(__file__).parent / "data" / "googlenet_k80.csv"  # the file names its source
    return read(path)._replace(name="googlenet")


def read(path: str | os.PathLike) -> LayerTrace:
    """Read the layers of a CSV file with the columns `bytes` and `backward_us`, in forward order.

    Lines that begin with # and other columns are ignored. A layer's forward pass takes half as long
    as its backward pass. Raises ValueError for any other file, and for negative numbers.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"layer trace: cannot read {path} ({reason}); give a CSV file") from error
    rows = csv.DictReader(line.replace(" ", "") for line in lines if line[:1] != "#")
    missing = {"bytes", "backward_us"} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(
            f"layer trace: {path} has no column {min(missing)!r}; write bytes,backward_us in its "
            "first line, and a layer in each of the others"
        )
    try:
        layers = [(float(row["bytes"]), float(row["backward_us"])) for row in rows]
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"layer trace: {path} has a layer without two numbers ({error}); give each its bytes "
            "and microseconds"
        ) from error
    sizes, microseconds = np.array(layers).reshape(-1, 2).T
    backward = 1e-6 * microseconds
    if not (len(sizes) and np.all(sizes > 0) and np.all(backward >= 0) and backward.sum() > 0):
        raise ValueError(
            f"layer trace: {path} needs layers of bytes > 0 and backward_us >= 0, some of them "
            "above 0; correct its lines"
        )
    forward = backward.sum() / 2 * backward / backward.sum()
    return LayerTrace(Path(path).stem, sizes, forward, backward)


def traced(sizes, ready, forward_seconds: float) -> LayerTrace:
    """Return the trace of this `backward_order`; forward seconds are in proportion to backward."""
    backward = np.diff(ready, prepend=0.0)[::-1]
    forward = forward_seconds * backward / (backward.sum() or 1.0)
    return LayerTrace("", np.asarray(sizes, float)[::-1], forward, backward)


SIZES = tuple(2**power for power in range(18, 29))  # sizes in bytes that tuned schedules try


class Iteration(NamedTuple):
    """Seconds of one iteration, and of its parts."""

    seconds: float
    compute: float  # seconds of forward and backward
    exposed: float  # the rest: communication beyond computation
    messages: int  # number of collectives


class Scaling(NamedTuple):
    """One schedule on growing numbers of workers, each with a mini-batch of its own."""

    workers: np.ndarray  # [points]
    seconds: np.ndarray  # [points] of an iteration
    speedup: np.ndarray  # [points] samples per second over one worker's
    efficiency: np.ndarray  # [points] speed-up per worker


def iteration(trace: LayerTrace, cost, schedule: str = "optimal") -> Iteration:
    """Return one iteration under a schedule of `SCHEDULES`; cost as in `comms.buckets`.

    Raises ValueError for an unknown schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is unknown; choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[schedule](trace, cost)


def scaling(
    trace: LayerTrace, cost_of: Callable, workers: Sequence[int], schedule: str = "optimal"
) -> Scaling:
    """Return speed-up and efficiency for each number of workers; cost_of: workers -> cost.

    The work of a worker stays the same (weak scaling): N workers would at best be N times faster.
    """
    seconds = np.array([iteration(trace, cost_of(n), schedule).seconds for n in workers])
    efficiency = trace.compute / seconds
    count = np.array(workers)
    return Scaling(count, seconds, count * efficiency, efficiency)


def byte_scheduler(trace: LayerTrace, cost, bytes: float) -> Iteration:
    """Schedule by partition and priority, as `comms.buckets.byte_scheduler` plans.

    The next forward pass runs a layer as soon as its gradient is there and the layer before is
    done.
    """
    plan = buckets.byte_scheduler(*trace.backward_order(), cost, bytes)
    arrived = dict(zip(plan.order, plan.end, strict=True))  # the last part of every layer
    return next_forward(trace, [arrived[i] for i in range(len(arrived))], len(plan.order))


def dear(trace: LayerTrace, cost, bytes: float) -> Iteration:
    """Reduce-scatter in the backward pass, and all-gather in the next forward pass.

    Each takes half the seconds of an all-reduce. The buckets of `comms.buckets.fixed` are reduced
    in backward order, then gathered in forward order; the forward pass runs a layer as soon as its
    bucket is there. Zhang et al., "DeAR", arXiv 2302.12445.
    """
    seconds = buckets.seconds_of(cost)
    sizes, ready = trace.backward_order()
    plan = buckets.fixed(sizes, ready, lambda payload: seconds(payload) / 2, bytes)
    arrived, now = np.zeros(len(sizes)), plan.finish
    for bucket, begun, ended in zip(
        plan.buckets[::-1], plan.start[::-1], plan.end[::-1], strict=True
    ):
        now += ended - begun
        arrived[bucket] = now
    return next_forward(trace, arrived, 2 * len(plan.buckets))


def next_forward(trace: LayerTrace, arrived: Sequence[float], messages: int) -> Iteration:
    """Return the iteration for given arrival times [L] of gradients, in backward order."""
    now = float(trace.backward.sum())
    for gradient, layer in zip(arrived[::-1], trace.forward, strict=True):
        now = max(now, gradient) + layer
    return Iteration(float(now), trace.compute, float(now) - trace.compute, messages)


def _bucketed(plan: Callable, trace: LayerTrace, cost) -> Iteration:
    made = plan(*trace.backward_order(), cost)
    seconds = trace.compute + made.exposed
    return Iteration(seconds, trace.compute, made.exposed, len(made.buckets))


def best_size(schedule: Callable, trace: LayerTrace, cost) -> int:
    """Return the size in `SIZES` by which `byte_scheduler` or `dear` has its shortest iteration."""
    return min(SIZES, key=lambda size: schedule(trace, cost, size).seconds)


def _tuned(schedule: Callable, trace: LayerTrace, cost) -> Iteration:
    return schedule(trace, cost, best_size(schedule, trace, cost))


# The authors of ByteScheduler and DeAR tune the size too, by Bayesian optimisation.
SCHEDULES: dict[str, Callable[[LayerTrace, object], Iteration]] = {
    **{name: partial(_bucketed, plan) for name, plan in buckets.PLANNERS.items() if not plan.eager},
    "byte_scheduler": partial(_tuned, byte_scheduler),
    "dear": partial(_tuned, dear),
}
