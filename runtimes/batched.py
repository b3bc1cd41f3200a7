"""Several simulated runs as one compiled program: seeds, rates and waiting rules of a sweep.

Every run has its own clock; a dispatch takes what each of them has ready, fills up the shorter ones
with nothing, and makes the updates of all of them side by side under `vmap`. Runs may differ in
everything that is data to the program (initial parameters, samples, delays, learning rate, how many
gradients a rule waits for), not in its shapes otherwise, nor in the method.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.base import Algorithm
from runtimes import worker
from runtimes.bodies import Known, Model, body_of, run_rows
from runtimes.planning import Plan, stacked, whole_powers
from runtimes.simulate import Simulation, Simulator
from stragglers.schedule import Schedule, concatenate


class Batch(NamedTuple):
    """Runs between two dispatches. Advancing them gives their arrays away."""

    model: Model  # with a leading axis of runs
    plans: list[Plan]


class Batched:
    """The runtime of runs that are alike but for data, each of which has a `Simulator`.

    As in `runtimes.base.Runtime`, with a sequence for what every run has of its own: its start,
    seconds and updates, its schedule. A single run is looked at with `one`, by its own simulator.
    """

    def __init__(self, simulators: Sequence[Simulator]):
        """simulators: of the runs, in their order; one program serves all of them."""
        algorithm, losses, augment, stale = (
            getattr(simulators[0], name) for name in ("algorithm", "losses", "augment", "stale")
        )
        if any(simulator.stale != stale for simulator in simulators):
            raise ValueError(
                "batched: some runs have stale gradients and some have not; run them apart"
            )
        if not all(simulator.input.alike for simulator in simulators):
            raise ValueError("batched: every run would stream examples of its own; run them apart")
        self._planners = [simulator.planner for simulator in simulators]
        self._simulators = simulators
        self._run = _program(algorithm, losses, augment, stale)

    def stack(self, runs: Sequence[Simulation]) -> Batch:
        """The batch of runs that have just been started or resumed."""
        model = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.model for run in runs))
        return Batch(model, [run.plan for run in runs])

    def advance(
        self, batch: Batch, seconds: Sequence[float], updates: Sequence[float]
    ) -> tuple[Batch, list[Schedule | None]]:
        """Every run r goes on to `seconds[r]`, by at most `updates[r]` updates.

        Returns the new batch and the schedule that each run went through, None for no update.
        """
        model, plans = batch.model, list(batch.plans)
        remaining = list(updates)
        done = [[] for _ in plans]
        while True:
            turns = [None] * len(plans)
            for r, planner in enumerate(self._planners):
                if remaining[r] > 0:
                    plans[r], turns[r] = planner.take(plans[r], seconds[r], remaining[r])
            ready = [turn for turn in turns if turn is not None]
            if not ready:
                break
            length = whole_powers(max(turn.schedule.updates for turn in ready))
            width = max(turn.schedule.workers.shape[1] for turn in ready)
            counts = np.zeros(len(plans), np.int32)
            rows = []
            for r, turn in enumerate(turns):
                # A run with nothing to do takes no step of somebody else's rows.
                own = ready[0] if turn is None else turn
                planner = self._planners[r]
                addresses = planner.addresses(own, length, width)
                examples, indices = self._simulators[r].input.take(addresses, after=())
                draws = self._simulators[r].draws(addresses)
                rows.append(planner.rows(own, length, width, indices, draws))
                if turn is not None:
                    counts[r] = turn.schedule.updates
                    done[r].append(turn.schedule)
                    remaining[r] -= turn.schedule.updates
            known = functools.reduce(Known.__and__, (turn.known for turn in ready))
            if any(turn.schedule.workers.shape[1] < width for turn in ready):
                known = known._replace(busy=False)  # the positions that fill up finish nothing
            model = self._run(model, stacked(rows), counts, examples, known)
            plans = [r.ahead(plan) for r, plan in zip(self._planners, plans, strict=True)]
        return Batch(model, plans), [concatenate(rows) if rows else None for rows in done]

    def observed(self, batch: Batch, runs: Sequence[Simulation]) -> Batch:
        """The batch after each run, taken out by `one`, has been passed to its `observe`."""
        return batch._replace(plans=[run.plan for run in runs])

    def one(self, batch: Batch, r: int) -> Simulation:
        """Run r as its own simulator knows it."""
        return Simulation(_taken_out(batch.model, r), batch.plans[r])


@jax.jit
def _taken_out(model: Model, r) -> Model:
    return jax.tree.map(lambda a: a[r], model)


def _program(
    algorithm: Algorithm, losses: Callable, augment: worker.Augment | None, stale: bool
) -> Callable:
    """Compiled once per shape: (model, rows, counts, examples, known) -> model, all stacked."""
    body = body_of(algorithm, stale)

    @functools.partial(jax.jit, static_argnames="known", donate_argnums=0)
    def run(model, rows, counts, examples, known):
        def one(model, rows, count):
            return run_rows(body, algorithm, losses, augment, model, rows, count, examples, known)

        return jax.vmap(one)(model, rows, counts)

    return run
