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

from runtimes.bodies import Model, body_of
from runtimes.planning import Plan, stacked, whole_powers
from runtimes.simulate import Simulation, Simulator
from stragglers.schedule import Schedule, concatenate


class Batch(NamedTuple):
    """Runs between two dispatches. Advancing them gives their arrays away."""

    model: Model  # with a leading axis of runs
    plans: list[Plan]


class Batched(NamedTuple):
    """stack(Simulation of every run) -> Batch; advance(batch, seconds, updates) -> (Batch, rows);
    one(batch, r) -> run r as its own simulator's Simulation."""

    stack: Callable[[Sequence[Simulation]], Batch]
    advance: Callable[..., tuple[Batch, list[Schedule | None]]]
    one: Callable[[Batch, int], Simulation]


def batched(simulators: Sequence[Simulator]) -> Batched:
    """One runtime for the runs of all `simulators`, which are alike but for data."""
    parts = [simulator.parts for simulator in simulators]
    algorithm, losses, examples, _, stale = parts[0]
    if any(part.stale != stale for part in parts):
        raise ValueError(
            "batched: some runs have stale gradients and some have not; run them apart"
        )
    body = body_of(algorithm, stale)

    @functools.partial(jax.jit, static_argnames="everyone", donate_argnums=0)
    def run(model, rows, counts, examples, everyone):
        def one(model, rows, count):
            def step(t, model):
                row = jax.tree.map(lambda a: a[t], rows)
                return body(algorithm, losses, model, row, examples, everyone)

            return jax.lax.fori_loop(0, count, step, model)

        return jax.vmap(one)(model, rows, counts)

    on_device = None

    def stack(runs: Sequence[Simulation]) -> Batch:
        nonlocal on_device
        if on_device is None:
            on_device = jax.tree.map(jnp.asarray, examples)
        models = [run.model for run in runs]
        return Batch(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *models), [run.plan for run in runs]
        )

    def advance(batch: Batch, seconds: Sequence[float], updates: Sequence[float]):
        """Every run r goes on to `seconds[r]`, by at most `updates[r]` updates.

        Returns the new batch and the schedule that each run went through, None for no update.
        """
        model, plans = batch.model, list(batch.plans)
        remaining = list(updates)
        done = [[] for _ in plans]
        while True:
            turns = [None] * len(plans)
            for r, part in enumerate(parts):
                if remaining[r] > 0:
                    plans[r], turns[r] = part.planner.take(plans[r], seconds[r], remaining[r])
            ready = [turn for turn in turns if turn is not None]
            if not ready:
                break
            length = whole_powers(max(turn.schedule.updates for turn in ready))
            width = max(turn.schedule.workers.shape[1] for turn in ready)
            counts = np.zeros(len(plans), np.int32)
            rows = []
            for r, turn in enumerate(turns):
                # A run with nothing to do takes no step of somebody else's rows.
                planner = parts[r].planner
                rows.append(planner.rows(ready[0] if turn is None else turn, length, width))
                if turn is not None:
                    counts[r] = turn.schedule.updates
                    done[r].append(turn.schedule)
                    remaining[r] -= turn.schedule.updates
            everyone = all(turn.everyone for turn in ready)
            model = run(model, stacked(rows), counts, on_device, everyone)
        return Batch(model, plans), [concatenate(rows) if rows else None for rows in done]

    def one(batch: Batch, r: int) -> Simulation:
        return Simulation(jax.tree.map(lambda a: a[r], batch.model), batch.plans[r])

    return Batched(stack, advance, one)
