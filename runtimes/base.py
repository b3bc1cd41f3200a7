"""The contract between a training loop and a runtime, for every kind of worker.

A complete training loop, to which the caller adds only `evaluate`:

    run = runtime.start(params)
    while run.seconds < seconds and run.update < updates and not run.exhausted:
        run, schedule = runtime.advance(run, min(run.seconds + 1.0, seconds), updates - run.update)
        loss = evaluate(runtime.models(run))
        run = runtime.observe(run, run.seconds, loss)
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from algorithms.base import Algorithm
from algorithms.mean import without_counters
from runtimes import worker
from stragglers.rule import Turnout
from stragglers.schedule import Schedule

NO_OVERLAP = "none"  # default: gradients are exchanged after the backward pass


def remembers(algorithm: Algorithm, params: Any) -> bool:
    """Return whether a method keeps state per worker beside counters; params: arrays or shapes."""
    if algorithm.own_models:
        return True
    state = jax.eval_shape(functools.partial(worker.init, algorithm), params)
    return bool(jax.tree.leaves(without_counters(state)))


def misfit(algorithm: Algorithm, workers: int, turnout: Turnout, params: Any = None) -> str | None:
    """Return the reason why a method cannot use the updates of a waiting rule, or None if it can.

    params: parameters or their shapes; None: the method's memory per worker is not checked.
    """
    needs, fewest = algorithm.needs, workers if turnout.fewest is None else turnout.fewest
    if needs.workers not in (None, workers):
        return f"the method was built for {needs.workers} workers, but {workers} train"
    if needs.pairs and not turnout.pairs:
        return "its workers meet in pairs, and this rule makes none"
    if turnout.pairs and not needs.pairs:
        return "updates are meetings of pairs, which its exchange is not made for"
    if needs.stopped and not turnout.stopped:
        return "it averages pairs that have both stopped, but here a partner goes on"
    if needs.everybody and fewest < workers:
        return f"{needs.everybody}, but an update may have only {fewest} of {workers}"
    if turnout.twice and params is not None and remembers(algorithm, params):
        return "a worker may deliver twice in an update, but the method keeps memory per worker"
    return None


def refuse(algorithm: Algorithm, workers: int, turnout: Turnout, params: Any = None) -> None:
    """Raise ValueError if `misfit` finds a reason."""
    reason = misfit(algorithm, workers, turnout, params)
    if reason is not None:
        raise ValueError(f"{reason}; take another waiting rule or method")


class WorkersLost(RuntimeError):
    """Error of a run that has lost workers for good and cannot go on without them."""


class Run(Protocol):
    """Tuple of a run's state between two dispatches; `Runtime.advance` returns the next one."""

    @property
    def update(self) -> int:
        """The number of updates made."""

    @property
    def samples(self) -> int:
        """The number of samples that all workers together have used in these updates."""

    @property
    def seconds(self) -> float:
        """The time on the clock [s]."""

    @property
    def exhausted(self) -> bool:
        """True if no further update is possible, as at the end of a recorded schedule."""


@runtime_checkable
class Runtime(Protocol):
    """Executor of the workers of one method on one task, with the clock of their updates.

    `advance` may donate the arrays of the run that it is given: only the newest run can be used.
    """

    clock: str  # kind of its seconds: "virtual" or "wall"
    replays: bool  # `resume` returns the past schedule; if False, a checkpoint must hold it

    def start(self, params: Any) -> Run:
        """Return a run without updates that starts from a copy of `params`."""

    def advance(
        self, run: Run, seconds: float, updates: float = np.inf
    ) -> tuple[Run, Schedule | None]:
        """Train until the clock shows `seconds`, by at most `updates` updates.

        Returns the run and the schedule of these updates, or None if there were none. If the limit
        of updates ended the call, the run's clock shows the time of the last update. A wall clock
        may stop after `seconds`. In virtual time, two calls equal one call to the same end.
        """

    def observe(self, run: Run, seconds: float, loss: float) -> Run:
        """Pass a training loss to a waiting rule that follows it, before the next `advance`."""

    def models(self, run: Run) -> Any:
        """Return the current parameters with a leading axis: of workers, or of length 1.

        The result may share arrays with the run, which `advance` donates.
        """

    def memory(self, run: Run) -> Any:
        """Return the state of the method's exchange, with a leading axis of workers."""

    def measured(self, run: Run) -> dict[str, float]:
        """Return the columns of the records that this runtime measures; others are computed."""

    def close(self) -> None:
        """End the threads and processes of a run; the runtime may start another run."""

    def pack(self, run: Run) -> dict[str, np.ndarray | jax.Array]:
        """Return the values of a run that `resume` needs, the same on every process.

        A value of type jax.Array is divided between devices: no process holds it whole.
        """

    def resume(
        self,
        run: Run,
        packed: Mapping[str, np.ndarray | jax.Array],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[Run, Schedule | None]:
        """Bring a run that has just been started to the state of the packed run.

        observed: (seconds, loss) of all earlier calls of `observe`, the first one before any
        update. Returns the run and its past schedule, None if the runtime does not replay.
        Raises ValueError if another program has packed the run.
        """
