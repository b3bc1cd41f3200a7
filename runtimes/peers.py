"""A node in a process of its own, as the launcher and the other nodes call it."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runtimes import matchmaking, meeting, worker
from runtimes.crew import reason
from runtimes.desk import Reply, Turn
from runtimes.free_worker import Parts
from runtimes.local_steps import Holding
from runtimes.nodes import LOOK, Node, Step, Stopped, Traffic
from stragglers.pair_log import Meeting
from stragglers.rule import Rule

NEWS, MEET = "news", "meet"  # groups of calls, beside those in order
REMEMBERED = 256  # meetings that others have asked for, in case they do not report them


class PeerParts(NamedTuple):
    """What a node computes with, and whom it meets."""

    worker: Parts
    rule: Rule
    drops: bool  # mini-batches whose contribution is not finite


class Arrival(NamedTuple):
    """A node has done its local steps and waits for a Step."""

    worker: int
    seconds: float


class Failure(NamedTuple):
    """A node has ended."""

    reason: str


class Report(NamedTuple):
    """What has happened at a node since its last report."""

    items: Sequence[Meeting | Arrival | Failure]
    computing: float  # s, of the local steps under way


class Held(NamedTuple):
    """A node at one moment between its meetings."""

    holding: Holding
    traffic: Traffic


class Peer:
    """One node; `recipe` builds its parts in the process where it lives."""

    def __init__(self, recipe: Callable[[], PeerParts], me: int):
        self._parts, self._me = recipe(), me
        self._items: list[Meeting | Arrival | Failure] = []
        self._happened = threading.Condition()
        self._heard_of: deque[Meeting] = deque(maxlen=REMEMBERED)
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._peers: dict[int, Any] = {}
        self._cut: Held | None = None
        self._began, self._elapsed = time.monotonic(), 0.0

    def ready(self, holding: Holding, batches: int, after: Any = None) -> None:
        """Compile all that a node runs, and take what it begins with.

        after: nothing to read; it is there once those who compile the same have done so.
        """
        del after
        parts, rule = self._parts.worker, self._parts.rule
        programs = meeting.build(
            parts.algorithm,
            parts.losses,
            holding.params,
            parts.examples,
            parts.mini_batches,
            parts.sampler.batch_size,
            goes_on=rule.arrivals.apart,
        )
        parts.sampler.indices(np.int64(self._me), np.arange(parts.mini_batches))  # compiles
        if parts.delay is not None:
            parts.delay.duration(self._me, 0.0, 0)  # may compile
        params, work, exchange = jax.tree.map(jnp.asarray, holding[:3])
        apart = rule.arrivals.apart
        self._node = Node(
            self._me,
            rule.workers,
            programs,
            holding._replace(params=params, work=work, exchange=exchange),
            batches,
            parts.sampler,
            arrive=matchmaking.by_itself(rule.arrivals, self._me) if apart else self._arrive,
            turn=self._turn,
            report=self._report,
            delay=parts.delay,
            communication=parts.communication,
            drops=self._parts.drops,
            now=lambda: self._elapsed + time.monotonic() - self._began,
        )

    def go(self, peers: Mapping[int, Any], elapsed: float) -> None:
        """Begin to work and meet, with the clock at `elapsed` seconds; who is no peer is absent."""
        self._peers = dict(peers)
        for other in set(range(self._parts.rule.workers)) - {self._me, *peers}:
            self._node.absent(other)
        self._began, self._elapsed = time.monotonic(), elapsed
        threading.Thread(target=self._run, daemon=True).start()

    def turn(self, turn: Turn) -> Reply | None:
        """Answer another node."""
        return self._node.answer(turn)

    def do(self, step: Step) -> None:
        """Do what the rule says, where the launcher asks it."""
        self._steps.put(step)

    def absent(self, other: int) -> list[Meeting]:
        """Expect nothing more of a node that has gone; returns what it has met this one for."""
        self._node.absent(other)
        return [met for met in self._heard_of if met.ends[0].worker == other]

    def present(self, other: int, peer: Any) -> None:
        """Expect the node to answer, in its new process."""
        self._peers[other] = peer
        self._node.present(other)

    def news(self) -> Report:
        """What has happened since the last call, waiting a moment if there is nothing."""
        with self._happened:
            self._happened.wait_for(lambda: self._items, 5 * LOOK)
            items, self._items = self._items, []
        return Report(items, self._node.steps.computing())

    def freeze(self) -> int:
        """Let no meeting begin or end, until `thaw`; returns how many there were."""
        self._cut = Held(self._node.freeze(), self._node.traffic())
        return int(self._cut.holding.meetings)

    def thaw(self) -> None:
        """Meet again; what `held` and `public` return stays as it was before."""
        self._node.thaw()

    def held(self) -> Held | None:
        """What there was when the node was frozen, on the host; None if it never was."""
        return None if self._cut is None else jax.device_get(self._cut)

    def public(self) -> Any:
        """The model that others would have been given when it was frozen, on the host."""
        return shown(self._parts, self._cut.holding)

    def _run(self) -> None:
        try:
            self._node.run()
        except BaseException as error:  # there is nobody else to hear of it
            self._tell(Failure(f"{type(error).__name__}: {reason(error)}"))

    def _turn(self, partner: int, turn: Turn) -> Reply | None:
        """Carry a turn to another process; again, if it may be there and has not answered."""
        import ray

        while partner in self._peers:
            call = self._peers[partner].turn.options(concurrency_group=MEET)
            try:
                return ray.get(call.remote(turn))
            except ray.exceptions.ActorUnavailableError:
                time.sleep(LOOK)
            except ray.exceptions.RayActorError:
                time.sleep(LOOK)
                return None
        return None

    def _arrive(self, state: Any, now: float) -> Step:
        del state
        self._tell(Arrival(self._me, now))
        while True:
            try:
                return self._steps.get(timeout=LOOK)
            except queue.Empty:
                if self._node.stopping:
                    raise Stopped from None

    def _report(self, met: Meeting) -> None:
        if met.ends[0].worker == self._me:
            self._tell(met)
        else:
            self._heard_of.append(met)

    def _tell(self, item: Meeting | Arrival | Failure) -> None:
        with self._happened:
            self._items.append(item)
            self._happened.notify()


def shown(parts: PeerParts, holding: Holding) -> Any:
    """The model of a node as others are given it, on the host."""
    public, params = parts.worker.algorithm.public, holding.params
    return jax.device_get(params if public is None else public(holding.exchange, params))


def begins(parts: PeerParts, me: int, params: Any, counter: int = 0, meetings: int = 0) -> Holding:
    """What a node holds that begins from a model, remembering nothing; on the host.

    counter: of its next mini-batch; meetings: that it has had, none of whose draws comes again.
    """
    state = jax.device_get(jax.jit(lambda p: worker.init(parts.worker.algorithm, p))(params))
    arrivals, rule = parts.rule.arrivals, ()
    if arrivals.apart:
        rule = arrivals.init()
        for _ in range(meetings):
            rule = arrivals.on_arrival(rule, me, 0, 0.0).state
    counted = np.int64(counter), np.int64(meetings)
    return Holding(jax.device_get(params), state.work, state.exchange, rule, *counted)
