"""The host's part of a simulated run: what the clock has planned, in the form a device takes.

A waiting rule plans some updates ahead; a run takes those that land in time, a turn after the
other. Where gradients are stale, every version of the parameters gets its slot here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runtimes import slots
from runtimes.bodies import Row
from stragglers.rule import Rule
from stragglers.schedule import Schedule, concatenate

PLANNED_UPDATES = 64  # how far the clock runs ahead of the training
INDICES_PER_DISPATCH = 1 << 22  # bounds the sample indices of one dispatch to 16 MiB


class Plan(NamedTuple):
    """Where a run stands on its clock."""

    clock: Any  # state of the waiting rule, after `planned`
    planned: Schedule | None  # made by the clock, not yet run
    begun: tuple[Any, slots.Slots] | None  # clock and slots from which `planned` was made
    rows: tuple[np.ndarray, np.ndarray, np.ndarray] | None  # read, write, current of `planned`
    slots: slots.Slots
    newest: int  # slot of the newest parameters
    update: int
    samples: int
    remembers: bool  # the method keeps something for every worker


class Turn(NamedTuple):
    """Updates to run now."""

    schedule: Schedule
    samples: np.ndarray  # [T] int64, seen before each update
    read: np.ndarray  # [T, k]
    write: np.ndarray  # [T]
    current: np.ndarray  # [T]
    everyone: bool  # all workers take part in every update, in their order


class Planner(NamedTuple):
    """start(remembers) -> Plan; take(plan, seconds, most) -> (Plan, Turn or None);
    rows(turn, updates, width) -> Row; observe(plan, seconds, loss) -> Plan;
    skip(plan, seconds, most) -> (Plan, Schedule or None)."""

    start: Callable[[bool], Plan]
    take: Callable[[Plan, float, float], tuple[Plan, Turn | None]]
    rows: Callable[[Turn, int, int], Row]
    observe: Callable[[Plan, float, float], Plan]
    skip: Callable[[Plan, float, float], tuple[Plan, Schedule | None]]


def planner(rule: Rule, sampler, mini_batches: int, stale: bool) -> Planner:
    """Plans of one waiting rule; sampler, mini_batches: as in `runtimes.simulate.simulator`.

    stale: contributions may be taken at older versions, which live in slots.
    """
    workers = rule.workers

    def start(remembers: bool) -> Plan:
        held = slots.init(workers + 1)
        return Plan(rule.init(), None, None, None, held, 0, 0, 0, remembers)

    def extended(plan: Plan) -> Plan:
        clock, planned = rule.extend(plan.clock, PLANNED_UPDATES)
        if planned.updates == 0:
            return plan._replace(clock=clock)
        if plan.remembers:
            _refuse_lost_memory(planned, workers)
        rows = (np.zeros_like(planned.version), *np.zeros((2, planned.updates), np.int32))
        held = plan.slots
        if stale:
            held, *rows = slots.allocate(held, planned)
        begun = (plan.clock, plan.slots)
        return plan._replace(
            clock=clock, planned=planned, begun=begun, rows=tuple(rows), slots=held
        )

    def take(plan: Plan, seconds: float, most: float) -> tuple[Plan, Turn | None]:
        """The updates that land by `seconds`, at most so many and not too many at once."""
        if plan.planned is None:
            plan = extended(plan)
            if plan.planned is None:
                return plan, None  # a recorded schedule has come to its end
        planned = plan.planned
        per_update = planned.workers.shape[1] * mini_batches * sampler.batch_size
        landed = np.searchsorted(planned.time, seconds, side="right")
        count = int(min(landed, most, max(1, INDICES_PER_DISPATCH // per_update)))
        if count == 0:
            return plan, None
        done = planned.slice(0, count)
        seen = plan.samples + np.concatenate([[0], done.samples_used(sampler.batch_size)])
        everyone = done.workers.shape[1] == workers and np.array_equal(
            done.workers, np.broadcast_to(np.arange(workers), done.workers.shape)
        )
        turn = Turn(done, seen[:-1], *(a[:count] for a in plan.rows), everyone)
        left = planned.updates - count
        return plan._replace(
            planned=planned.slice(count, planned.updates) if left else None,
            rows=tuple(a[count:] for a in plan.rows) if left else None,
            newest=int(plan.rows[1][count - 1]),
            update=plan.update + count,
            samples=int(seen[-1]),
        ), turn

    def rows(turn: Turn, updates: int, width: int) -> Row:
        """The turn padded to so many updates, of `width` participants each; the rest is nobody."""
        done = turn.schedule
        missing = width - done.workers.shape[1]

        def pad(values, dtype, filler=0):
            wide = [(0, updates - done.updates)] + [(0, missing)] * (values.ndim - 1)
            return np.pad(values.astype(dtype), wide, constant_values=filler)

        working = width
        if done.partner is not None and not done.batches[:, width // 2 :].any():
            working //= 2  # partners never stop: they bring nothing along
        ids = pad(done.workers, np.int32, workers)
        counters = pad(done.first, np.int64)[..., None] + np.arange(mini_batches)
        return Row(
            indices=sampler.indices(
                np.minimum(ids, workers - 1)[:, :working, None], counters[:, :working]
            ),
            batches=pad(done.batches, np.int32),
            worker=ids,
            staleness=pad(done.staleness, np.int32),
            samples=pad(turn.samples, np.float32),
            read=pad(turn.read, np.int32),
            write=pad(turn.write, np.int32),
            current=pad(turn.current, np.int32),
            active=None if done.matchings is None else _lengthened(done.matchings, updates),
            partner=None if done.partner is None else pad(done.partner, np.int32),
        )

    def observe(plan: Plan, seconds: float, loss: float) -> Plan:
        """Tell a rule that follows the training, as if its clock had not run ahead."""
        if rule.observe is None:
            return plan
        if plan.planned is not None:
            clock, held = plan.begun
            clock, done = rule.extend(clock, plan.update - clock.update)
            if stale and done.updates:
                held, *_ = slots.allocate(held, done)
            plan = plan._replace(clock=clock, slots=held, planned=None, rows=None)
        return plan._replace(clock=rule.observe(plan.clock, seconds, loss))

    def skip(plan: Plan, seconds: float, most: float) -> tuple[Plan, Schedule | None]:
        """Take all turns that land by `seconds`, at most `most` updates, and run none of them."""
        done = []
        while most > 0:
            plan, turn = take(plan, seconds, most)
            if turn is None:
                break
            done.append(turn.schedule)
            most -= turn.schedule.updates
        return plan, concatenate(done) if done else None

    return Planner(start, take, rows, observe, skip)


def whole_powers(updates: int) -> int:
    """The next power of two: few shapes to compile."""
    return 1 << (updates - 1).bit_length()


def stacked(rows: list[Row]) -> Row:
    """Rows of several runs with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def _lengthened(matchings: np.ndarray, updates: int) -> np.ndarray:
    return np.pad(matchings.astype(bool), [(0, updates - len(matchings)), (0, 0)])


def _refuse_lost_memory(schedule: Schedule, workers: int) -> None:
    """A worker that delivers twice in one update would keep only one of its two new states."""
    rows = [row[row < workers] for row in schedule.workers]
    repeated = [t for t, row in enumerate(rows) if len(set(row.tolist())) < len(row)]
    if repeated:
        raise ValueError(
            f"simulate: a worker delivers twice in update {repeated[0]}, but the method keeps "
            "memory per worker; use a method without per-worker memory or a waiting rule with "
            "distinct workers"
        )
