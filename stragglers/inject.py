"""Real delays on devices: host callbacks that sleep, watch the trigger and record the rounds.

In every round each worker calls three methods of the `Injector` on the host, in this order:

    begin(worker, round, token)       -> GO, or STOP if the round is already over for this worker
    tick(worker, round, done, token)  -> GO, STOP if the worker shall take no further mini-batch,
                                         or CUT if not even the present mini-batch shall count
    land(worker, round, token)        -> 0, after the seconds of the exchange

All arguments are scalars. The host ignores `token`, which orders a callback after earlier work of
the device. A worker with several devices calls from its first device. `tick` sleeps until the
mini-batch has lasted for its delay, so that a shorter computation adds nothing to the delay.
Callbacks of the workers sleep at the same time. `Injector.schedule` returns the record as a
`Schedule`, which the simulator can replay. A trigger's goal ends rounds by points, see `Tally`.
"""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from comms.messages import Transfer
from stragglers.processes import as_process
from stragglers.round_clock import seconds_each
from stragglers.rule import (
    Calibration,
    Cost,
    RoundView,
    Trigger,
    hides,
    lasting,
    per_round,
    timed_transfers,
)
from stragglers.schedule import Schedule


class Tally:
    """Tally of the points that the workers of this process have made in each round.

    A tally of several processes has the same thread-safe methods, and one order of all additions.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._needed, self._points = 0, Counter()

    def begin(self, needed: int) -> None:
        """Forget all rounds; from now on a round is over for all workers at `needed` points."""
        self._needed, self._points = needed, Counter()

    def add(self, round_index: int, points: int) -> bool:
        """Add points to a round, and return True if the round was not over before."""
        with self._lock:
            before = self._points[round_index]
            self._points[round_index] = before + points
        return before < self._needed

    def over(self, round_index: int) -> bool:
        """Return True if this process knows that a round is over, without waiting for others."""
        return self._points[round_index] >= self._needed

    def close(self, rounds: Iterable[int]) -> None:
        """Forget rounds in which no worker of any process works any more."""
        for round_index in rounds:
            self._points.pop(round_index, None)


GO, STOP, CUT = range(3)  # answers of a callback to its device
LOOK = 1e-3  # s between two checks of the trigger by a sleeping worker that can be cut


def _noted(callback: Callable) -> Callable:
    """Wrap a callback so that `Injector.due` lists its due time while the callback runs."""

    @functools.wraps(callback)
    def noted(self, worker, *arguments):
        self._due[int(worker)] = time.monotonic()
        try:
            return callback(self, worker, *arguments)
        finally:
            self._due.pop(int(worker), None)

    return noted


class _Round:
    """Records of one round, with an entry per worker."""

    def __init__(self, workers: int, measured: int = 0):
        """Begin empty records. measured: mini-batches per worker whose durations are kept."""
        self.durations = np.zeros((workers, measured))
        self.first = np.zeros(workers, np.int64)
        self.finished = np.zeros(workers, np.int32)
        self.tried = np.zeros(workers, np.int32)  # mini-batches begun
        self.quota = np.full(workers, np.inf)  # mini-batches after which a worker's round is over
        self.start, self.ready, self.finish, self.busy = np.zeros((4, workers))
        self.last = np.zeros(workers)  # s, begin of the last mini-batch
        self.slept = np.zeros(workers)  # s, for the exchange
        self.landed = 0


class Measured:
    """Calibration in progress: the measured durations of its rounds, and the resulting deadline.

    mini_batches: mini-batches of a worker's round that are measured; 0 once the deadline is set.
    deadline: seconds after which a worker stops a round; inf during the calibration.
    """

    def __init__(self, calibration: Calibration, workers: int, mini_batches: int):
        self.mini_batches, self.deadline = mini_batches, np.inf
        self._calibration = calibration
        self._durations = np.zeros((0, workers, mini_batches))  # s
        self._exchanges = np.zeros(0)  # s

    def add(self, durations: np.ndarray, exchanges: np.ndarray) -> None:
        """Add rounds, [rounds, workers, M] and [rounds] s; set the deadline once all are there."""
        rounds = self._calibration.rounds
        self._durations = np.concatenate([self._durations, durations])[:rounds]
        self._exchanges = np.concatenate([self._exchanges, exchanges])[:rounds]
        if len(self._durations) == rounds:
            self.deadline = self._calibration.choose(self._durations, self._exchanges)
            self.mini_batches = 0

    def pack(self) -> dict[str, np.ndarray]:
        """Return the arrays that `unpack` takes."""
        return {"durations": self._durations, "exchanges": self._exchanges}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Continue a packed calibration."""
        self.add(packed["durations"], packed["exchanges"])


class Injector:
    """Thread-safe delays, trigger and record of the workers in one process.

    Each process has its own injector. An injector sees the actions of its own workers at once, and
    the actions of other workers when `schedule` ends a dispatch. During a round the processes share
    only `tally`, the points of the goal. `stop` of the trigger must not depend on other processes.

    trigger: the waiting rule for workers on devices. When it cuts a mini-batch, the rest of the
        delay is skipped; the gradient has been computed all the same, but does not count.
    delay: a delay distribution or process (seconds of one mini-batch), or None for the devices' own
        speed.
    draw: "mini_batch" or "round", as in `stragglers.rule.Setting`.
    communication: seconds of an exchange beyond the collective, as in `stragglers.rule.Setting`.
        The collective itself follows the work. A transfer beside the work counts from the time at
        which this worker knew its message, though neighbours may have begun the round later. The
        worker sleeps for the part that outlasts its work, and in full for a `late` transfer.
    tally: tally of the workers of all processes; None: all workers live in this process.
    """

    def __init__(
        self,
        workers: int,
        trigger: Trigger,
        seed: int,
        *,
        delay=None,
        draw: str = "mini_batch",
        communication: Cost = 0.0,
        tally: Tally | None = None,
    ):
        self.workers, self.trigger = workers, trigger
        self._tally = tally or Tally()
        self._delay = None if delay is None else as_process(delay).seeded(seed)
        self._per_round = per_round("mesh", draw)
        self._transfers = timed_transfers("mesh", communication, workers)
        self._lock = threading.Lock()
        self.reset()

    def reset(self, here: Sequence[int] | None = None) -> None:
        """Reset the clock, the counters and the record.

        here: the workers of this process; None: all workers.
        """
        self._here = np.arange(self.workers) if here is None else np.asarray(here)
        self._consumed = np.zeros(self.workers, np.int64)
        self._attempts = np.zeros(self.workers, np.int64)
        self._mark = np.zeros(self.workers)  # begin of the current mini-batch
        self._rounds: dict[int, _Round] = {}
        self._past = np.empty((0, self.workers))  # s per mini-batch in rounds that have landed
        self._elapsed, self._resumed_at = 0.0, None
        self._due: dict[int, float] = {}  # worker: time at which its callback is to return
        self._measured = None
        if self.trigger.calibration is not None:
            most = int(np.max(self.trigger.mini_batches))
            self._measured = Measured(self.trigger.calibration, self.workers, most)
        if self.trigger.goal is not None:
            self._tally.begin(self.trigger.goal.needed)

    def now(self) -> float:
        """Return the seconds of training so far; the clock runs from `resume` to `pause`."""
        running = 0.0 if self._resumed_at is None else time.monotonic() - self._resumed_at
        return self._elapsed + running

    def resume(self, waited: float = 0.0) -> None:
        """Start the clock as of `waited` seconds ago."""
        self._resumed_at = time.monotonic() - waited

    def pause(self) -> None:
        self._elapsed, self._resumed_at = self.now(), None

    def consumed(self) -> np.ndarray:
        """Return the counter [workers] of each worker's next mini-batch."""
        return self._consumed.copy()

    def due(self) -> list[float]:
        """Return the monotonic times [s] at which running callbacks shall return, for a watchdog.

        The due time of a callback that does not sleep is its start.
        """
        return list(self._due.values())

    def _sleep(self, worker: int, seconds: float) -> None:
        self._due[worker] = time.monotonic() + seconds
        time.sleep(max(0.0, seconds))

    @_noted
    def begin(self, worker, round_index, token) -> np.int32:
        del token  # ties the callback to earlier operations
        worker, round_index = int(worker), int(round_index)
        with self._lock:
            if round_index not in self._rounds:
                self._rounds[round_index] = self._new_round()
            record = self._rounds[round_index]
            now = self.now()
            record.first[worker] = self._consumed[worker]
            if self.trigger.quota is not None:
                one = np.array([worker])
                record.quota[worker] = self.trigger.quota(one, record.first[one])[0]
            record.start[worker] = record.ready[worker] = self._mark[worker] = now
            return np.int32(STOP if self._signalled(round_index, worker, now) else GO)

    def _new_round(self) -> _Round:
        return _Round(self.workers, 0 if self._measured is None else self._measured.mini_batches)

    @_noted
    def tick(self, worker, round_index, done, token) -> np.int32:
        del token
        worker, round_index, done = int(worker), int(round_index), int(done)
        with self._lock:
            began = self._mark[worker]
            count = round_index if self._per_round else self._attempts[worker]
            lasts = 0.0
            if self._delay is not None:
                record = self._rounds[round_index]
                counter = record.first[worker] + done - 1
                # A draw per round is taken as the round begins; costs belong to samples.
                holds = self._per_round and self._delay.cost is None
                at = record.start[worker] if holds else began
                lasts = float(self._delay.duration(worker, at, count, counter))
            self._attempts[worker] += 1
        record = self._rounds[round_index]
        record.tried[worker] = done
        if self.trigger.cuts and self._cut_before(round_index, worker, began + lasts):
            return np.int32(CUT)
        self._sleep(worker, began + lasts - self.now())
        with self._lock:
            now = self.now()
            # Only under the lock it is certain that no other worker of this process has stopped
            # this worker.
            cut = self.trigger.cuts and self._signalled(round_index, worker, now)
            self._worked(record, worker, began, now)
            if cut:
                return np.int32(CUT)
            if record.durations.size:
                record.durations[worker, done - 1] = now - began
            points = self._points(record, worker, done)
            if not points:
                return self._finished(round_index, worker, done, now)
        # The order of additions decides. No lock is held, as this may take a while.
        if not self._tally.add(round_index, points) and self.trigger.cuts:
            return np.int32(CUT)
        with self._lock:
            return self._finished(round_index, worker, done, now)

    def _finished(self, round_index: int, worker: int, done: int, now: float) -> np.int32:
        self._rounds[round_index].finished[worker] = done
        return np.int32(STOP if self._signalled(round_index, worker, now) else GO)

    def _points(self, record: _Round, worker: int, done: int) -> int:
        """Return the points that a worker's `done`-th mini-batch adds; 0 without a goal."""
        if self.trigger.goal is None:
            return 0
        after = record.finished.copy()
        after[worker] = done
        points = self.trigger.goal.points
        return int(np.sum(points(after), dtype=int) - np.sum(points(record.finished), dtype=int))

    def _cut_before(self, round_index: int, worker: int, end: float) -> bool:
        """Sleep until `end` [s] or the stop signal, and return True if the signal came first."""
        self._due[worker] = time.monotonic() + end - self.now()
        while (left := end - self.now()) > 0:
            with self._lock:
                now = self.now()
                if self._signalled(round_index, worker, now):
                    self._worked(self._rounds[round_index], worker, self._mark[worker], now)
                    return True
            time.sleep(min(left, LOOK))
        return False

    def _worked(self, record: _Round, worker: int, began: float, now: float) -> None:
        record.busy[worker] += now - began
        record.last[worker] = began
        record.ready[worker] = self._mark[worker] = now

    @_noted
    def land(self, worker, round_index, token) -> np.float32:
        del token
        worker, round_index = int(worker), int(round_index)
        record = self._rounds[round_index]
        seconds = self._left(record, worker, self._transfers(round_index))
        self._sleep(worker, seconds)
        with self._lock:
            record.slept[worker] = seconds
            record.finish[worker] = self.now()
            record.landed += 1
            self._consumed[worker] += self._used(record.finished, record.tried)[worker]
            if self.trigger.renews:
                self._attempts[worker] = self._consumed[worker]
            if self.trigger.remembers and record.landed == len(self._here):
                whole = self.trigger.mini_batches
                each = seconds_each(record.busy, record.finished, whole, self.trigger.cuts)
                self._past = np.concatenate([self._past, each[None]])[-self.trigger.remembers :]
        return np.float32(0)

    def _left(self, record: _Round, worker: int, transfers: Sequence[Transfer]) -> float:
        """Return the seconds that the worker still has to sleep for the exchange of its round."""
        now, left = self.now(), -np.inf
        begun, last, ready = record.start[worker], record.last[worker], record.ready[worker]
        for transfer in transfers:
            passed = 0.0  # s since the worker knew the message
            if hides(transfer) and not transfer.late:
                share = transfer.leaves
                passed = now - (last + share * (ready - last) if share else begun)
            elif transfer.others and len(self._here) == self.workers:  # else not known
                passed = now - record.ready[:-1].max()
            left = max(left, -passed)
            seconds = np.broadcast_to(lasting(transfer, now + left), self.workers)[worker]
            left += float(seconds)
        return max(0.0, left)

    def _signalled(self, round_index: int, worker: int, now: float) -> bool:
        record, trigger = self._rounds[round_index], self.trigger
        begun = record.start[worker]
        if record.finished[worker] >= record.quota[worker]:
            return True
        if self._measured is not None and now - begun >= self._measured.deadline:
            return True
        if trigger.goal is not None and self._tally.over(round_index):
            return True
        if trigger.stop is None:
            return False
        view = RoundView(record.finished, now - begun, record.ready - begun, self._past)
        return trigger.stop(view)

    def _counted(self, finished: np.ndarray) -> np.ndarray:
        """Return the finished mini-batches that belong to whole contributions."""
        whole = self.trigger.whole
        return finished if whole is None else finished // whole * whole

    def _used(self, finished: np.ndarray, tried: np.ndarray) -> np.ndarray:
        """Return the mini-batches [workers] by which the counters advance in a round."""
        if self.trigger.renews:
            return -(-tried // self.trigger.whole) * self.trigger.whole
        if self.trigger.carries:
            return self._counted(finished)
        return np.broadcast_to(self.trigger.mini_batches, self.workers)

    def schedule(
        self,
        first: int,
        updates: int,
        of_all: Callable[[np.ndarray], np.ndarray] = lambda values: values[None],
    ) -> Schedule:
        """Return the record of rounds first .. first + updates - 1, all of which have landed.

        of_all: function from an array to the arrays of all processes, [processes, ...]. All clocks
        continue from the latest clock of a process. Raises RuntimeError if a round has not landed.
        """
        # No worker begins a round in a process whose devices all belong to another process's
        # worker.
        unseen = {} if len(self._here) else {first + t: self._new_round() for t in range(updates)}
        rounds = [(self._rounds or unseen).pop(first + t) for t in range(updates)]
        if any(record.landed != len(self._here) for record in rounds):
            raise RuntimeError("Injector.schedule: a round has not landed on every worker yet")
        columns = ("start", "finish", "busy", "finished", "tried", "first", "slept")
        gathered = [getattr(record, column) for column in columns for record in rounds]
        gathered += [record.durations.T for record in rounds]
        gathered = np.vstack([*gathered, self._attempts, np.full(self.workers, self._elapsed)])
        others = np.setdiff1d(np.arange(self.workers), self._here)
        gathered[:, others] = 0  # zero in the sum over processes
        gathered = of_all(gathered).sum(0)
        if self.trigger.goal is not None:
            self._tally.close(range(first, first + updates))
        known = len(columns) * updates
        start, finish, busy, finished, tried, begun, slept = gathered[:known].reshape(
            -1, updates, self.workers
        )
        self._consumed = (begun[-1] + self._used(finished[-1], tried[-1])).astype(np.int64)
        self._attempts, self._elapsed = gathered[-2].astype(np.int64), float(gathered[-1].max())
        if known < len(gathered) - 2:
            durations = gathered[known:-2].reshape(updates, -1, self.workers)
            self._measured.add(durations.swapaxes(1, 2), slept.max(1))
        rows = np.arange(first, first + updates, dtype=np.int32)
        return Schedule(
            time=np.maximum.accumulate(finish.max(1)),
            workers=np.broadcast_to(np.arange(self.workers, dtype=np.int32), start.shape).copy(),
            start=start,
            finish=finish,
            batches=self._counted(finished).astype(np.int32),
            first=begun.astype(np.int64),
            version=np.broadcast_to(rows[:, None], start.shape).copy(),
            busy=busy,
            communication=slept,
            offset=first,
        )

    def pack(self) -> dict[str, np.ndarray]:
        """Return the state between two dispatches, which `unpack` takes in a later run."""
        return {
            "consumed": self._consumed.copy(),
            "attempts": self._attempts.copy(),
            "elapsed": np.array([self._elapsed]),
            **({} if self._measured is None else self._measured.pack()),
            **({"past": self._past} if self.trigger.remembers else {}),
        }

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Continue the packed run after a `reset`."""
        self._consumed, self._attempts = packed["consumed"].copy(), packed["attempts"].copy()
        self._elapsed = float(packed["elapsed"][0])
        self._past = packed.get("past", self._past).copy()
        if self._measured is not None:
            self._measured.unpack(packed)
