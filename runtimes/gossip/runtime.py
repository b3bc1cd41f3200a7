"""Gossip workers as processes that meet in pairs, without a server, in wall-clock time.

Every worker is a `runtimes.gossip.worker.GossipWorker` in an actor of its own. The launching
process logs each meeting as a row of the Schedule, which the simulator replays bit for bit. This
process also runs the waiting rule, unless the rule is `apart`. For a snapshot, all workers pause
their meetings, but not their local steps; evaluation then uses the snapshot.

A dead or silent process is replaced. Its worker restarts from the public model of a neighbour, or
from its own model at the last evaluation. The worker goes on with its next mini-batches and a fresh
state. It is `missing` until its restart is logged, then `away` until its process has compiled.
Other workers go on meanwhile. Snapshots wait for missing workers, but not for workers away.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import networkx as nx
import numpy as np
import optax

from runtimes import packing
from runtimes.asynchronous import pool
from runtimes.asynchronous.runtime import refuse
from runtimes.base import WorkersLost
from runtimes.gossip.worker import (
    MEET,
    Counted,
    GossipParts,
    GossipState,
    GossipWorker,
    Report,
    WorkerSnapshot,
    arrived,
    first_state,
    shown_model,
    total,
)
from stragglers.pair_log import Meeting, PairLog
from stragglers.schedule import Event, Schedule

CATCHING_UP = 30.0  # s for which the log may lag behind workers that have paused their meetings
_FORGOTTEN = "several workers have gone at once, with what they had said to each other"
_LOST_AGAIN = f"workers have gone again and again for {pool.STARTING:g} s"


class GossipRun(NamedTuple):
    """States of all workers after the same rows, on the host."""

    states: Sequence[GossipState]
    seconds: float
    update: int
    samples: int
    counted: Counted  # since the begin of the run
    there: np.ndarray  # [workers] bool, False for workers that have been away for long
    exhausted = False  # gossip workers never end


class GossipRuntime(pool.ProcessRuntime):
    """The runtime of one local method and one task, see `runtimes.base.Runtime`.

    `advance` may make a few updates more than asked for, as meetings that are under way end.
    """

    copies, process, groups = 6, GossipWorker, (MEET,)
    fewest = 2  # a single worker has no partner

    def __init__(
        self,
        parts: GossipParts,
        recipe: Callable[[], GossipParts],
        options: pool.Options = pool.DEFAULTS,
    ):
        """Check the parts; recipe: builds equal parts, see `ProcessRuntime`."""
        super().__init__(parts.rule.workers, recipe, options)
        refuse(parts.worker.algorithm, parts.rule)
        self.parts, self._arrivals = parts, parts.rule.arrivals

    def start(self, params: Any) -> GossipRun:
        """Return a run without updates from `params`; the first `advance` starts the processes."""
        self.close()
        self._begin_run(params)
        states = [first_state(self.parts, 0, params)] * self._workers
        return self._stands(states, PairLog(self._workers), 0, 0, Counted())

    def _stands(
        self, states: Sequence[GossipState], log: PairLog, update: int, samples: int, past: Counted
    ) -> GossipRun:
        """Return a run without processes, whose workers have these states; past: its counters."""
        self.log, self.deaths = log, past.deaths
        self._rule: Any = shared_state(self.parts, states)
        self._freezing = threading.Lock()  # held for a snapshot, or to replace a worker
        self._away: dict[int, WorkerSnapshot] = {}  # workers away, with their new states
        self._since: dict[int, float] = {}  # monotonic times at which absent workers were lost
        # Snapshots of all workers after `_last_update` rows.
        self._last, self._last_update = [WorkerSnapshot(s, Counted()) for s in states], log.updates
        self._past = past  # counters of processes that have gone, and `moved` by restarts
        there = np.ones(self._workers, bool)
        return GossipRun(states, self._elapsed, update, samples, past, there)

    def advance(
        self, run: GossipRun, seconds: float, updates: float = np.inf
    ) -> tuple[GossipRun, Schedule | None]:
        """Let the workers go on until the clock shows `seconds`, or for `updates` meetings."""
        self._run_processes()
        enough = run.update + updates
        with self.changed:
            self.wait(seconds, lambda: self.log.updates >= enough)
        schedule, states, counted, there = self._snapshot()
        update, samples, now = run.update, run.samples, self.now()
        if schedule is not None:
            update += schedule.updates
            samples += int(schedule.batches.sum()) * self.parts.worker.sampler.batch_size
            now = max(run.seconds, float(schedule.time[-1])) if update >= enough else now
        return GossipRun(states, now, update, samples, counted, there), schedule

    def observe(self, run: GossipRun, seconds: float, loss: float) -> GossipRun:
        """Return the run unchanged, as no worker knows the loss of all workers."""
        del seconds, loss
        return run

    def models(self, run: GossipRun) -> Any:
        """Return the public models of the workers that are there, with a leading axis."""
        there = itertools.compress(run.states, run.there)
        return _stacked([shown_model(self.parts, state) for state in there])

    def memory(self, run: GossipRun) -> Any:
        """Return the exchange's state, with a leading axis of workers."""
        return _stacked([state.exchange for state in run.states])

    def measured(self, run: GossipRun) -> dict[str, float]:
        """Return sent bytes per worker, refusals per meeting, and the other counters."""
        counted = run.counted
        return {
            "sent_bytes_per_worker": counted.sent_bytes / self._workers,
            "refusals_per_meeting": counted.refused / max(1, counted.asked),
            "dropped_contributions": float(counted.dropped),
            "deaths": float(counted.deaths),
            "sum_moved": counted.moved,
            "nodes": float(run.there.sum()),
        }

    def pack(self, run: GossipRun) -> dict[str, np.ndarray]:
        """Return the workers' states, the clock and the counters."""
        return packing.pack(dict(enumerate(run.states))) | {
            "clock": np.array([run.seconds]),
            "counted": np.array([run.update, run.samples]),
            "traffic": np.array(run.counted[:4]),
            "deaths": np.array(run.counted[4:]),
        }

    def resume(
        self,
        run: GossipRun,
        packed: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[GossipRun, None]:
        """Return the packed run; local steps that were under way are computed anew."""
        del observed
        states = list(packing.unpack(dict(enumerate(run.states)), packed).values())
        update, samples = packed["counted"].tolist()
        self._elapsed = float(packed["clock"][0])
        deaths, moved = packed["deaths"].tolist()
        counts = np.array([(state.meetings, state.counter) for state in states], np.int64)
        log = PairLog(len(states), update, self._elapsed, *counts.T)
        past = Counted(*packed["traffic"].tolist(), int(deaths), moved)
        return self._stands(states, log, update, samples, past), None

    # --- the processes and their news

    def _start_all(self) -> Callable[[int], Any]:
        import ray

        states = [one.state for one in self._last]
        stored = [ray.put(state) for state in states]

        def start(who: int, *after: Any) -> Any:
            return self._pool.start(who, stored[who], self._batches(who, states[who]), after)

        first = start(0)  # the others reuse its compiled programs
        for who in range(1, self._workers):
            start(who, first)
        return start

    def _open(self) -> None:
        peers = {who: self._pool.handle(who) for who in range(self._workers)}
        for who in peers:
            self._enter(who, peers)

    def _enter(self, who: int, peers: Mapping[int, Any]) -> None:
        """Let a worker that is ready begin to work and to report."""
        self._pool.call(who, "go", peers, self.now())
        self._listen(who)
        with self.changed:
            self._alive.add(who)
            self.changed.notify_all()

    def _react(self, news: pool.News) -> None:
        who = news.member
        if news.kind == "lost":
            with self.changed:
                again = self._died_again(who, "a meeting")
                self._away.pop(who, None)
                self._since.setdefault(who, time.monotonic())
                self.log.happened(Event(self.now(), who, "lost"))
            self._aside.submit(self._try, self._mend, who, again)
        elif news.kind == "ready":
            self._aside.submit(self._try, self._return, who)
        elif news.kind == "failed":
            raise RuntimeError(
                f"worker {who} fails with {pool.reason(news.value)} after {self.log.updates} "
                "meetings; correct the task or the learning rate, or set "
                "config.actors.bad_contribution='drop'"
            )
        elif news.tag == pool.NEWS:
            self._reported(who, news.value)

    def _reported(self, who: int, report: Report) -> None:
        lives = self._lives(who, report.computing)
        with self.changed:
            for item in report.items:
                if isinstance(item, Meeting):
                    self._died |= {end.worker: 0 for end in item.ends}
                    self._durations.append(item.ends[0].busy)
                    self.log.add(item)
                elif lives and who in self._alive:  # else the worker restarts
                    self._rule, steps = arrived(self._arrivals, self._rule, *item)
                    for one, step in steps.items():
                        self._pool.call(one, "do", step)
            self.changed.notify_all()

    def _spares(self, gone: set[int]) -> bool:
        """Return whether the other workers can go on without the workers `gone`.

        If pairs block, a neighbour of a lost worker may wait until another neighbour meets the
        waiting one. Some worker in each connected part that is left must have no lost neighbour.
        """
        if not self.parts.rule.turnout.stopped:
            return True
        graph = self.parts.worker.algorithm.graph
        parts = nx.connected_components(graph.subgraph(set(graph) - gone))
        return all(any(gone.isdisjoint(graph[who]) for who in part) for part in parts)

    def _snapshot(self) -> tuple[Schedule | None, list[GossipState], Counted, np.ndarray]:
        """Return (rows since the last snapshot, states after exactly these rows, counters, there).

        there: [workers] bool, False after more than MISSED s without a process, or DEATHS deaths in
        a row. A worker without a process has the state with which it will restart.
        """
        import ray

        while True:
            with self.changed:
                self._wait_for(lambda: not self._missing(), pool.STARTING, _LOST_AGAIN)
            with self._freezing, contextlib.suppress(ray.exceptions.RayActorError):
                with self.changed:
                    found, working = dict(self._away), sorted(self._alive)
                if len(found) + len(working) < self._workers:
                    continue  # a worker has died meanwhile
                with self._frozen(working) as caught_up:
                    if not caught_up:
                        continue
                    with self.changed:
                        lines, rows = self.log.lines, self.log.updates
                found |= zip(working, self._asked(working, "snapshot"), strict=True)
                with self.changed:
                    self._last = [found[who] for who in range(self._workers)]
                    self._last_update = rows
                    counted = total(self._past, *(one.counted for one in self._last))
                    died, before = self._died, time.monotonic() - pool.MISSED
                    left = self._since.items()
                    away = {one for one, at in left if at < before or died[one] >= pool.DEATHS}
                    return (
                        self.log.take(lines),
                        [one.state for one in self._last],
                        counted._replace(deaths=self.deaths),
                        np.array([who not in away for who in range(self._workers)]),
                    )

    def _mend(self, who: int, again: bool) -> None:
        """Determine the state with which a lost worker restarts; again: start a process for it."""
        import ray

        while not self._closing:
            with self._freezing, contextlib.suppress(ray.exceptions.RayActorError):
                with self.changed:
                    others, gone = sorted(self._alive), self._missing()
                if not (others or self._away or self._options.own_model):
                    raise WorkersLost("all workers have gone at once; give the same command again")
                reports = [met for one in gone for met in self._asked(others, "absent", one)]
                with self.changed:
                    for met in itertools.chain.from_iterable(reports):
                        self.log.add(met)
                with self._frozen(others, gone) as caught_up:
                    if not caught_up:
                        continue
                    state = self._beginning(who, others)
                break
        if again and not self._closing:
            self._pool.start(who, ray.put(state), self._batches(who, state))

    def _beginning(self, who: int, others: Sequence[int]) -> GossipState:
        """Return the state with which a lost worker restarts; log the restart after all rows."""
        if self._options.own_model:
            source, version = who, self._last_update
            model = self._last[who].state.params
        else:
            candidates, graph = others or sorted(self._away), self.parts.worker.algorithm.graph
            near = [one for one in candidates if graph is None or one in graph[who]]
            source, version = (near or candidates)[0], None
            shown = self._away.get(source) or self._asked([source], "snapshot")[0]
            model = shown_model(self.parts, shown.state)
        with self.changed:
            self.log.restored(who, source, self.now(), version)
            known = self.log.known(who)
        self._count_restart(who, model)
        state = first_state(self.parts, who, model, **known)
        with self.changed:
            self._rule = self._arrivals.begun(self._rule, who, 0, self.now())
            self._away[who] = WorkerSnapshot(state, Counted())
            self.changed.notify_all()
        return state

    def _count_restart(self, who: int, params: Any) -> None:
        """Count a worker's restart from this model, and its effect on the last models' sum."""
        last, models = self._last[who], [one.state.params for one in self._last]
        # Squares of float16 overflow or vanish.
        new, old = (optax.tree.cast(x, np.float32) for x in (params, last.state.params))
        whole = jax.tree.map(lambda *leaves: sum(x.astype(np.float32) for x in leaves), *models)
        size = float(optax.tree.norm(whole))  # 0 if all models begin at 0
        distance = float(optax.tree.norm(optax.tree.sub(new, old)))
        moved = Counted(moved=distance / size if size else 0.0)
        self._past = total(self._past, last.counted, moved)
        self._last[who] = WorkerSnapshot(last.state._replace(params=params), Counted())

    def _return(self, who: int) -> None:
        """Let a worker whose new process is ready work, and let other workers meet it."""
        with self._freezing, self.changed:
            if who in self._missing():
                return  # it has died once more
            peers = {one: self._pool.handle(one) for one in sorted(self._alive)}
            for other in peers:
                self._pool.call(other, "present", who, self._pool.handle(who))
            # A worker that returns later will be presented to this one then.
            self._enter(who, peers)
            del self._away[who], self._since[who]

    def _batches(self, who: int, state: GossipState) -> int:
        """Return the mini-batches of a worker's next local steps."""
        return self._arrivals.mini_batches(
            state.rule if self._arrivals.apart else self._rule, who
        )

    def _asked(self, workers: Sequence[int], method: str, *arguments: Any) -> list:
        import ray

        return ray.get([self._pool.call(who, method, *arguments) for who in workers])

    def _missing(self) -> list[int]:
        """Return the lost workers whose restarts are not in the log yet."""
        there = self._alive | self._away.keys()
        return [who for who in range(self._workers) if who not in there]

    @contextlib.contextmanager
    def _frozen(self, workers: Sequence[int], gone: Sequence[int] = ()) -> Iterator[bool]:
        """Within a block, keep these workers apart; yield whether all their meetings have rows.

        The result is False if a worker outside of `gone` is lost: meetings that a dead process has
        not reported never get rows.
        """
        import ray

        asked = {who: self._pool.call(who, "freeze") for who in workers}
        counts = {}
        for who, reference in asked.items():
            with contextlib.suppress(ray.exceptions.RayActorError):
                counts[who] = ray.get(reference)

        def lost() -> bool:
            return len(counts) < len(asked) or not set(gone).issuperset(self._missing())

        def written() -> bool:
            rows = self.log.counts()
            return all(rows[who] == count for who, count in counts.items())

        try:
            with self.changed:
                longest = CATCHING_UP + self.long_steps  # a silent process is ended before
                self._wait_for(lambda: lost() or written(), longest, _FORGOTTEN)
                caught_up = not lost()
            yield caught_up
        finally:
            for who in counts:
                self._pool.call(who, "thaw")

    def _wait_for(self, until: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Wait under `changed` for `until()`; raise `error`, or WorkersLost after `seconds`."""
        self.wait(self.now() + seconds, until)
        if not until():
            raise WorkersLost(f"{otherwise}; give the same command again to go on")


def shared_state(parts: GossipParts, states: Sequence[GossipState]) -> Any:
    """Return the launcher's state of the waiting rule, with draws of earlier meetings skipped.

    If the rule is `apart`, this is the initial state, as each worker keeps a state of its own.
    """
    first = parts.rule.arrivals.init()
    if parts.rule.arrivals.apart:
        return first
    return first._replace(rounds=np.array([state.meetings for state in states], np.int64))


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
