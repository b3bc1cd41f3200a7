"""The contract between a runtime and a training loop, wherever workers live.

A loop that knows nothing else, with `evaluate` as its only own part:

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

NO_OVERLAP = "none"  # gradients travel after the backward pass


def remembers(algorithm: Algorithm, params: Any) -> bool:
    """Return whether a method keeps anything per worker but counters; params: or their shapes."""
    if algorithm.own_models:
        return True
    state = jax.eval_shape(functools.partial(worker.init, algorithm), params)
    return bool(jax.tree.leaves(without_counters(state)))


def misfit(algorithm: Algorithm, workers: int, turnout: Turnout, params: Any = None) -> str | None:
    """Return why a method cannot use the updates of a waiting rule, or None if it can.

    params: or their shapes; None: they are not known yet, nor what the method keeps per worker.
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
    """Raise ValueError where `misfit` finds a reason."""
    reason = misfit(algorithm, workers, turnout, params)
    if reason is not None:
        raise ValueError(f"{reason}; take another waiting rule or method")


class WorkersLost(RuntimeError):
    """Workers that a run needs have gone and do not come back."""


class Run(Protocol):
    """A run between two dispatches, as a tuple of values; `Runtime.advance` makes the next one."""

    @property
    def update(self) -> int:
        """The number of updates made."""

    @property
    def samples(self) -> int:
        """The number of samples that all workers have used in these updates."""

    @property
    def seconds(self) -> float:
        """The time on the clock [s]."""

    @property
    def exhausted(self) -> bool:
        """True if no update can follow, as at the end of a recorded schedule."""


@runtime_checkable
class Runtime(Protocol):
    """The home of the workers of one method and one task, and their clock.

    `advance` may give the arrays of the run that it gets away: only the newest run can be used.
    """

    clock: str  # what seconds are: "virtual" or "wall"
    replays: bool  # `resume` works out what has happened; without, a checkpoint must hold it

    def start(self, params: Any) -> Run:
        """Return a run of no updates from `params`, which are copied."""

    def advance(
        self, run: Run, seconds: float, updates: float = np.inf
    ) -> tuple[Run, Schedule | None]:
        """Go on until the clock stands at `seconds`, by at most `updates` updates.

        Returns the run, whose clock stands at the last update if the limit of updates ended it, and
        the schedule, None for no update. A wall clock may stop later than asked for. In
        virtual time, two calls do what one call to the end does.
        """

    def observe(self, run: Run, seconds: float, loss: float) -> Run:
        """Pass a training loss to a waiting rule that follows it; before others go on."""

    def models(self, run: Run) -> Any:
        """Return the current parameters, with a leading axis: one per worker, or 1.

        They may be arrays of the run, which `advance` gives away.
        """

    def memory(self, run: Run) -> Any:
        """Return the state of the method's exchange, with a leading axis of workers."""

    def measured(self, run: Run) -> dict[str, float]:
        """Columns of the records that this runtime measures, instead of what is worked out."""

    def close(self) -> None:
        """End what a run has started; the same runtime may start another one."""

    def pack(self, run: Run) -> dict[str, np.ndarray | jax.Array]:
        """Return all that `resume` needs of a run, the same on every process.

        A jax.Array is divided between devices, and no process has it whole.
        """

    def resume(
        self,
        run: Run,
        packed: Mapping[str, np.ndarray | jax.Array],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[Run, Schedule | None]:
        """Take a run that has just been started to where the packed one stood.

        observed: (seconds, loss) of all calls of `observe` until then, the first one before any
        update. Returns the run and what had happened; None if the runtime does not replay.
        Raises ValueError if another program has packed it.
        """
