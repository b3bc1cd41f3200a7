"""A gossip worker: it makes local steps, asks others to meet, and answers while it computes.

One thread makes the local steps and asks the partner that the waiting rule draws. Other threads
answer the calls of other workers. A meeting plays a pair program in turns, see
`runtimes.gossip.partition`, and changes both ends when the program ends.

A worker that holds the lock of its state never waits for another lock, because a busy worker
refuses. A refused worker releases its lock, sleeps for a random time and asks the same partner
again; other partners would shift meetings to idle workers. So no cycle of askers can deadlock.
"""

import collections
import contextlib
import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS
from comms import collectives, hashing
from runtimes import worker
from runtimes.asynchronous.pool import Member
from runtimes.asynchronous.worker import WorkerParts, finite
from runtimes.gossip.partition import Half, PairProgram
from stragglers.pair_log import Entry, Meeting
from stragglers.rule import AsyncProtocol, Rule

MEET = "meet"  # the group of calls of other workers
ASKS, ANSWERS = 0, 1  # positions in a meeting, as in a row of the schedule
BACK_OFF = 2e-3  # s, the longest first sleep after a refusal
DOUBLINGS = 4  # doublings of the longest sleep, at most
LOOK = 0.1  # s between two checks for changes
PATIENCE = 10.0  # s without a request by the asker, after which a meeting is given up
REMEMBERED = 1 << 14  # stored meetings that others asked for, in case the askers die
NEVER = 1 << 62  # number of an attempt that no worker reaches


class GossipParts(NamedTuple):
    """Task, method and waiting rule of a gossip worker."""

    worker: WorkerParts
    rule: Rule
    drops: bool  # leave out local steps that fail or are not finite; False: fail


class GossipState(NamedTuple):
    """State of a gossip worker between two of its meetings."""

    params: Any
    work: Any  # state of the method's local steps
    exchange: Any  # state of the method's exchange
    rule: Any  # the worker's own state of the waiting rule; () if the launcher keeps it
    counter: np.ndarray  # [] int64, of its next mini-batch
    meetings: np.ndarray  # [] int64, number of its meetings so far


class Counted(NamedTuple):
    """Counters of a gossip worker, or sums over all workers."""

    asked: int = 0  # meetings that the worker asked for
    refused: int = 0  # attempts that a partner refused
    sent_bytes: int = 0
    dropped: int = 0  # local steps that failed, or whose contribution was not finite
    deaths: int = 0  # of processes, as the launcher counts them
    moved: float = 0.0  # distance by which restarts moved the sum of the models, over its norm


class WorkerSnapshot(NamedTuple):
    """State and counters of a gossip worker between two of its meetings."""

    state: GossipState
    counted: Counted


class Progress(NamedTuple):
    """Results of local steps that are done."""

    contribution: Any
    work: Any
    entry: Entry  # without the count of meetings


class Step(NamedTuple):
    """Order of a waiting rule to a worker whose local steps are done."""

    partner: int | None  # None: no partner
    asks: bool  # the worker asks; False: it waits to be asked
    batches: int  # mini-batches of the next local steps
    rule: Any = ()  # as in `GossipState`


class Request(NamedTuple):
    """Message of an asker to its partner."""

    asker: int
    attempt: int  # number among the asker's attempts
    step: int  # number of the message in this attempt
    message: Sequence[Any]
    entry: Entry


class Reply(NamedTuple):
    """The partner's message at the same step."""

    message: Sequence[Any]
    entry: Entry


class Arrival(NamedTuple):
    """Event of a worker that has done its local steps and waits for a Step."""

    worker: int
    seconds: float


class Report(NamedTuple):
    """Events of a worker since its last report."""

    items: Sequence[Meeting | Arrival]
    computing: float  # s, for which the present program has been running


class Programs(NamedTuple):
    """Compiled programs of a gossip worker, with the same results as in the simulator.

    contribute: (params, work state, indices [mini_batches, batch_size], batches, words of the
        samples seen, worker) -> (contribution, work state).
    ask, answer: (contribution, exchange state, params, batches, worker) -> (params, exchange
        state). A partner that does not stop keeps its params: its `answer` is (exchange state,
        params, worker) -> exchange state.
    alone: as `ask`, for a worker without a partner.
    """

    contribute: Callable
    ask: PairProgram
    answer: PairProgram
    alone: Callable


def compile_programs(parts: GossipParts, params: Any) -> Programs:
    """Compile the programs of a worker for parameters of these shapes.

    Raises ValueError if the exchange cannot be cut into messages.
    """
    algorithm, losses, examples, sampler, mini_batches, *_ = parts.worker
    state = jax.eval_shape(lambda: worker.init(algorithm, params))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    taken = jax.ShapeDtypeStruct((mini_batches, sampler.batch_size), jnp.int32)
    seen = jax.ShapeDtypeStruct((2,), jnp.uint32)
    full = (params, state.exchange, params, number, number)

    def known(me):
        return {"nominal": mini_batches, "active": None, "worker": me, "staleness": jnp.int32(0)}

    def contribute(examples, *arguments):
        def body(params, work, indices, batches, samples, me):
            mine = jax.tree.map(lambda a: a[indices], examples)
            contribution, local = worker.contribute(
                algorithm, losses, params, worker.WorkerState(work, ()), mine, batches,
                known(me) | hashing.counted(samples),
            )  # fmt: skip
            return contribution, local.work

        return _of_one(body)(*arguments)

    def half(position):
        def body(contribution, state, params, batches, me):
            given = known(me) | {"partner": position}
            local, weight = worker.WorkerState((), state), algorithm.weight(batches)
            with collectives.on_one_device():
                updates, local = worker.exchange(
                    algorithm, contribution, params, local, batches, given, weight
                )
            return optax.apply_updates(params, updates), local.exchange

        return body

    def passive(state, params, me):
        nothing = jax.tree.map(jnp.zeros_like, params)
        return half(ASKS)(nothing, state, params, jnp.int32(0), me)[1]

    held = jax.tree.map(jnp.asarray, examples)
    own = params, state.work, taken, number, seen, number
    return Programs(
        functools.partial(jax.jit(contribute).lower(held, *own).compile(), held),
        PairProgram(half(ANSWERS), ASKS, *full),
        PairProgram(passive, ANSWERS, state.exchange, params, number)
        if parts.rule.arrivals.apart
        else PairProgram(half(ASKS), ANSWERS, *full),
        jax.jit(_of_one(half(ASKS))).lower(*full).compile(),
    )


def _of_one(body: Callable) -> Callable:
    """Return the body on an axis of one worker, for arguments and results without this axis."""

    def run(*arguments):
        stacked = jax.tree.map(lambda a: jnp.asarray(a)[None], arguments)
        return jax.tree.map(lambda a: a[0], jax.vmap(body, axis_name=AXIS)(*stacked))

    return run


def arrived(
    arrivals: AsyncProtocol, rule: Any, who: int, now: float
) -> tuple[Any, dict[int, Step]]:
    """Return the rule's state after a worker has done its local steps, and Steps by worker.

    Steps are for workers that go on: for both workers of a pair, or for a single worker.
    """
    decision = arrivals.on_arrival(rule, who, 0, now)
    met = decision.update
    partners = {} if len(met) < 2 else dict(zip(met, met[::-1], strict=True))
    return decision.state, {
        one: Step(partners.get(one), one == met[0], arrivals.mini_batches(decision.state, one))
        for one in decision.restart
    }


class PairHandler:
    """Part of a worker that answers others that ask to meet: one meeting at a time, in turns.

    A repeated request, with the numbers of an earlier attempt and step, gets the earlier reply. The
    holder of `_lock` may change the state of the worker; a meeting holds it from its first reply to
    its end. A subclass has the clock `now`, and, called under the lock:

    _answer: () -> (half, entry of the worker) of a meeting that begins, or None to refuse.
    _answered: called with (Meeting, result of the half) at the end.
    _count: called with `sent_bytes` of every reply, before it leaves.
    """

    def __init__(self):
        self._lock, self._answering = threading.Lock(), threading.Lock()
        # By asker: the number of its latest attempt, and the replies in this attempt.
        self._replies: dict[int, tuple[int, list[Reply | None]]] = {}
        self._asker: int | None = None  # the asker for whom the lock is held
        self._turn: tuple[Half, list, Entry, float] | None = None  # of the asker's meeting
        self._last_request = 0.0  # monotonic time of the last request of this asker

    def answer(self, request: Request) -> Reply | None:
        """Return the reply to a request; None: it is refused, or its meeting was given up."""
        with self._answering:
            asker, attempt, step, *_ = request
            latest, replies = self._replies.get(asker, (-1, []))
            if attempt == latest and step < len(replies):
                if replies[step] is not None:
                    self._count(sent_bytes=_bytes(replies[step].message))
                return replies[step]
            if attempt < latest or (step and attempt > latest):
                return None
            if step == 0:
                self._release(asker)  # the asker has given up its attempt before
                replies = []
                self._replies[asker] = attempt, replies
            try:
                replies.append(self._replied(request))
            except BaseException:
                self._release(asker)
                raise
            if self._asker == asker:
                self._last_request = time.monotonic()
            return replies[step]

    def _give_up_the_silent(self) -> None:
        """Give up a meeting without a request for PATIENCE s; no state has changed in it so far."""
        with self._answering:
            if self._asker is not None and time.monotonic() - self._last_request > PATIENCE:
                self._release(self._asker)

    def _expect(self, asker: int, attempt: int) -> None:
        """Refuse all attempts of an asker before this number, also an attempt under way."""
        with self._answering:
            self._release(asker)
            self._replies[asker] = attempt - 1, []

    def _release(self, asker: int) -> None:
        if self._asker == asker:
            self._asker = None
            self._lock.release()

    def _replied(self, request: Request) -> Reply | None:
        """Return the reply in a meeting that begins, goes on or ends; None refuses."""
        if request.step == 0 and self._lock.acquire(blocking=False):
            self._asker = request.asker
            asked, begun = self.now(), self._answer()
            if begun is None:
                self._release(request.asker)
            else:
                half, entry = begun
                self._turn = half, on_host(next(half)), entry, asked
        if self._asker != request.asker:
            return None
        half, message, entry, asked = self._turn
        reply = Reply(message, entry)
        self._count(sent_bytes=_bytes(message))
        message, result = advanced(half, request.message)
        self._turn = half, message, entry, asked
        if message is None:
            self._answered(Meeting((request.entry, entry), asked, self.now()), result)
            self._release(request.asker)
        return reply


def advanced(half: Half, heard: Sequence[Any]) -> tuple[list[np.ndarray] | None, Any]:
    """Return (the next message of the half, None) or, at its end, (None, its result)."""
    try:
        return on_host(half.send(heard)), None
    except StopIteration as end:
        return None, jax.block_until_ready(end.value)


def on_host(message: Sequence[Any]) -> list[np.ndarray]:
    """Return a message as NumPy arrays, as it is sent."""
    return [np.asarray(value) for value in message]


class GossipWorker(PairHandler, Member):
    """A worker in its own process, which the launcher and other workers call."""

    def __init__(self, recipe: Callable[[], GossipParts], me: int):
        """Build the parts of worker `me` by `recipe`."""
        super().__init__()
        self.parts, self._me = recipe(), me
        self._arrivals = self.parts.rule.arrivals
        self._met = threading.Event()
        self._progress: Progress | None = None  # for a partner that asks
        self._peers: dict[int, Any] = {}  # actors of workers that are there, by worker
        self._unheard: tuple[Meeting, ...] = ()  # meetings alone since the last one with a partner
        self._attempts, self._counted, self._counting = 0, Counted(), threading.Lock()
        self._chance = np.random.default_rng(me)
        self._items: list[Meeting | Arrival] = []
        self._error: BaseException | None = None  # the error that has ended the worker
        self._happened = threading.Condition()
        self._asked_by_others: collections.deque[Meeting] = collections.deque(maxlen=REMEMBERED)
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._snapshot: WorkerSnapshot | None = None
        self._began, self._elapsed = time.monotonic(), 0.0

    def ready(self, state: GossipState, batches: int, after: Sequence[Any] = ()) -> None:
        """Compile all programs; take the worker's first state and its number of mini-batches.

        after: references to wait for, so that another worker compiles first, into the cache.
        """
        if after:
            import ray

            ray.wait(list(after))  # even if they fail
        parts = self.parts.worker
        self._programs = self._compiled(state.params)
        parts.sampler.indices(np.int64(self._me), np.arange(parts.mini_batches))  # compiles
        if parts.delay is not None:
            parts.delay.duration(self._me, 0.0, 0)  # may compile
        self._state = GossipState(*jax.tree.map(jnp.asarray, state[:3]), *state[3:])
        self._batches = batches

    def go(self, peers: Mapping[int, Any], elapsed: float) -> None:
        """Begin to work and meet, with the clock at `elapsed` seconds; other peers are absent."""
        self._peers = dict(peers)
        for other in set(range(self.parts.rule.workers)) - {self._me, *peers}:
            self._expect(other, NEVER)
        self._began, self._elapsed = time.monotonic(), elapsed
        threading.Thread(target=self._run, daemon=True).start()

    def now(self) -> float:
        """Return the seconds of the run."""
        return self._elapsed + time.monotonic() - self._began

    def do(self, step: Step) -> None:
        """Take a step from the launcher, where the launcher keeps the rule's state."""
        self._steps.put(step)

    def absent(self, other: int) -> list[Meeting]:
        """Forget a worker that has gone; return the stored meetings that it asked for."""
        self._expect(other, NEVER)  # first, so that none ends later
        self._peers.pop(other, None)
        return [met for met in self._asked_by_others.copy() if met.ends[0].worker == other]

    def present(self, other: int, peer: Any) -> None:
        """Expect a worker in a new process, which counts its attempts anew."""
        self._expect(other, 0)
        self._peers[other] = peer

    def news(self) -> Report:
        """Return the events since the last call; wait a moment if there are none.

        Raises the error of a worker that has ended, once all its events have been returned.
        """
        with self._happened:
            self._happened.wait_for(lambda: self._items or self._error, 5 * LOOK)
            items, self._items = self._items, []
        if self._error is not None and not items:
            raise self._error
        return Report(items, self._computing_for())

    def freeze(self) -> int:
        """Let no meeting begin or end until `thaw`; return the number of meetings so far."""
        self._hold()
        self._snapshot = WorkerSnapshot(self._state, self._counted)
        return int(self._state.meetings)

    def thaw(self) -> None:
        """Allow meetings again; `snapshot` still returns the frozen state."""
        self._lock.release()

    def snapshot(self) -> WorkerSnapshot:
        """Return the worker as it was frozen, on the host."""
        return jax.device_get(self._snapshot)

    def _compiled(self, params: Any) -> Programs:
        return compile_programs(self.parts, params)

    def _run(self) -> None:
        try:
            while True:
                progress = self._local_steps()
                if progress is None:
                    continue
                self._progress, rule, met = progress, self._state.rule, False
                while not met:  # a partner may have gone
                    step = self._next_step(rule)
                    rule, met = step.rule, self._meet(progress, step)
                self._batches, self._progress = step.batches, None
        except BaseException as error:  # `news` raises it
            with self._happened:
                self._error = error
                self._happened.notify()

    def _local_steps(self) -> Progress | None:
        """Make the local steps, with their delays; return None if they fail or are not finite."""
        state, start, parts = self._state, self.now(), self.parts.worker
        counter, batches = int(state.counter), self._batches
        samples = self.parts.rule.workers * counter * parts.sampler.batch_size
        indices = parts.sampler.indices(np.int64(self._me), counter + np.arange(parts.mini_batches))
        own = np.int32(batches), hashing.words(samples), np.int32(self._me)
        try:
            with self._computing():
                contribution, work = jax.block_until_ready(
                    self._programs.contribute(state.params, state.work, indices, *own)
                )
        except Exception:
            if not self.parts.drops:
                raise
            contribution = np.nan  # it is left out, too
        if parts.delay is not None:
            ends = start
            for count in range(counter, counter + batches):
                ends += float(parts.delay.duration(self._me, ends, count))
            time.sleep(max(0.0, ends - self.now()))
        if finite(contribution):
            entry = Entry(self._me, -1, batches, counter, samples, start, self.now() - start)
            return Progress(contribution, work, entry)
        if not self.parts.drops:
            raise FloatingPointError(f"the contribution of worker {self._me} is not finite")
        self._count(dropped=1)
        with self._held():
            self._state = self._state._replace(counter=np.int64(counter + batches))
        return None

    def _next_step(self, rule: Any) -> Step:
        """Return the step that a waiting rule in state `rule` orders after the local steps."""
        if not self._arrivals.apart:
            self._tell(Arrival(self._me, self.now()))
            return self._steps.get()
        rule, steps = arrived(self._arrivals, rule, self._me, self.now())
        return steps[self._me]._replace(rule=rule)

    def _meet(self, progress: Progress, step: Step) -> bool:
        """Carry out the step; return False if the partner has gone."""
        if step.partner is None:
            self._meet_nobody(progress, step)
            return True
        if step.asks:
            time.sleep(self.parts.worker.communication)
        for refused in itertools.count():
            gone = step.partner not in self._peers
            if step.asks and not gone and self._ask(progress, step):
                return True
            if not step.asks and self._met.wait(LOOK):
                self._met.clear()
                return True
            if gone:
                time.sleep(LOOK)
                return False
            if step.asks:
                self._count(refused=1)
                longest = BACK_OFF * 2.0 ** min(refused, DOUBLINGS)
                time.sleep(float(self._chance.uniform(0, longest)))

    def _meet_nobody(self, progress: Progress, step: Step) -> None:
        with self._held():
            asked = self.now()
            with self._computing():
                found = jax.block_until_ready(self._programs.alone(*self._arguments(progress)))
            entry = progress.entry._replace(count=int(self._state.meetings))
            met = Meeting((entry,), asked, self.now())
            self._commit(met, *found, progress, step.rule)
            self._unheard += (met,)

    def _ask(self, progress: Progress, step: Step) -> bool:
        """Ask the partner to meet; return False if it refuses."""
        with self._held():
            asked, entry = self.now(), self._entry(progress)
            with self._computing():
                half = self._programs.ask.begin(*self._arguments(progress))
                message, number = on_host(next(half)), 0
            self._attempts += 1
            while message is not None:
                request = Request(self._me, self._attempts, number, message, entry)
                self._count(sent_bytes=_bytes(message))
                reply, number = self._call(step.partner, request), number + 1
                if reply is None:
                    return False
                with self._computing():
                    message, result = advanced(half, reply.message)
            met = Meeting((entry, reply.entry), asked, self.now())
            self._commit(met, *result, progress, step.rule)
            self._count(asked=1)
        return True

    def _call(self, partner: int, request: Request) -> Reply | None:
        """Return the reply of another process, asked again if unavailable; None if it is lost."""
        import ray

        while (peer := self._peers.get(partner)) is not None:
            try:
                return ray.get(peer.answer.options(concurrency_group=MEET).remote(request))
            except ray.exceptions.ActorUnavailableError:
                time.sleep(LOOK)
            except ray.exceptions.RayActorError:
                time.sleep(LOOK)
                return None
        return None

    def _answer(self) -> tuple[Half, Entry] | None:
        state = self._state
        if self._arrivals.apart:  # this worker goes on with its local steps
            entry = Entry(self._me, int(state.meetings), 0, 0, 0, self.now(), 0.0, self._unheard)
            half = self._programs.answer.begin(state.exchange, state.params, np.int32(self._me))
            return half, entry
        if self._progress is None:  # during local steps
            return None
        half = self._programs.answer.begin(*self._arguments(self._progress))
        return half, self._entry(self._progress)

    def _answered(self, met: Meeting, result: Any) -> None:
        self._asked_by_others.append(met)
        if self._arrivals.apart:
            meetings = self._state.meetings + 1
            self._state = self._state._replace(exchange=result, meetings=meetings)
            self._unheard = ()
        else:
            self._commit(met, *result, self._progress, self._state.rule)
            self._met.set()

    def _commit(self, met: Meeting, params, exchange, progress: Progress, rule: Any) -> None:
        after, meetings = progress.entry.first + progress.entry.batches, self._state.meetings + 1
        self._state = GossipState(params, progress.work, exchange, rule, np.int64(after), meetings)
        if len(met.ends) > 1:
            self._unheard = ()
        if met.ends[0].worker == self._me:
            self._tell(met)

    def _arguments(self, progress: Progress) -> tuple:
        batches, state = np.int32(progress.entry.batches), self._state
        return progress.contribution, state.exchange, state.params, batches, np.int32(self._me)

    def _entry(self, progress: Progress) -> Entry:
        return progress.entry._replace(count=int(self._state.meetings), unheard=self._unheard)

    def _hold(self) -> None:
        while not self._lock.acquire(timeout=LOOK):
            self._give_up_the_silent()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self._hold()
        try:
            yield
        finally:
            self._lock.release()

    def _count(self, **more: int) -> None:
        with self._counting:
            self._counted = total(self._counted, Counted(**more))

    def _tell(self, item: Meeting | Arrival) -> None:
        with self._happened:
            self._items.append(item)
            self._happened.notify()


def _bytes(message: Sequence[np.ndarray]) -> int:
    return sum(value.nbytes for value in message)


def total(*counted: Counted) -> Counted:
    """Return the sum of counters."""
    return Counted(*map(sum, zip(*counted, strict=True)))


def shown_model(parts: GossipParts, state: GossipState) -> Any:
    """Return the public model of a worker, on the host."""
    public, params = parts.worker.algorithm.public, state.params
    return jax.device_get(params if public is None else public(state.exchange, params))


def first_state(
    parts: GossipParts, me: int, params: Any, counter: int = 0, meetings: int = 0
) -> GossipState:
    """Return the state on the host of a worker that begins from a model, with fresh memory.

    counter: of its next mini-batch. meetings: number of past meetings, whose draws are skipped.
    """
    state = jax.device_get(jax.jit(lambda p: worker.init(parts.worker.algorithm, p))(params))
    arrivals, rule = parts.rule.arrivals, ()
    if arrivals.apart:
        rule = arrivals.init()
        for _ in range(meetings):
            rule = arrivals.on_arrival(rule, me, 0, 0.0).state
    counted = np.int64(counter), np.int64(meetings)
    return GossipState(jax.device_get(params), state.work, state.exchange, rule, *counted)
