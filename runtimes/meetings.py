"""Workers as processes that meet in pairs, without a server: real gossip, wall-clock.

Every worker is a node of `runtimes.nodes` in an actor of `runtimes.crew`. The launching process
only listens: each meeting becomes a row of the Schedule, which the simulator replays bit for bit.
To evaluate, all nodes stop to meet for a moment, not to compute, and go on while their models are
looked at.

A process that dies, or does not answer any more, is replaced: its worker begins anew from what a
neighbour would show to others, or from its own model at the last evaluation, on the mini-batches
that come next, and remembers nothing. Evaluations do not wait for it.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes import packing
from runtimes.actors import refuse
from runtimes.gathering import COPIES, Gathering
from runtimes.ledger import NOTHING, Counted
from runtimes.local_steps import Holding
from runtimes.nodes import Traffic
from runtimes.overseer import Options
from runtimes.peers import PeerParts, begins, shown
from runtimes.session import SESSION, Session, store_bytes
from stragglers.pair_log import PairLog
from stragglers.schedule import Schedule

DEFAULTS = Options()


class MeetingsRun(NamedTuple):
    """All nodes between the same rows, on the host."""

    holdings: Sequence[Holding]
    seconds: float
    update: int
    samples: int
    counted: Counted
    there: np.ndarray  # [workers] bool, False of those that have been away for long

    @property
    def measured(self) -> dict[str, float]:
        """What has really travelled, and what has gone wrong."""
        traffic = self.counted.traffic
        return {
            "sent_bytes_per_worker": traffic.sent_bytes / len(self.holdings),
            "refusals_per_meeting": traffic.refused / max(1, traffic.asked),
            "dropped_contributions": float(traffic.dropped),
            "deaths": float(self.counted.deaths),
            "sum_moved": self.counted.moved,
            "nodes": float(self.there.sum()),
        }

    @property
    def exhausted(self) -> bool:
        """Free workers never come to an end."""
        return False


class Meetings:
    """The runtime of one local method and one task, see `runtimes.base.Runtime`.

    The last `advance` by a number of updates may make a few more: meetings under way end.
    """

    clock, replays = "wall", False

    def __init__(
        self,
        parts: PeerParts,
        recipe: Callable[[], PeerParts],
        options: Options = DEFAULTS,
        session: Session = SESSION,
    ):
        """Check the parts; no process is started before the first update.

        recipe: builds the same parts in the process of a worker; it has to be picklable.
        """
        refuse(parts.worker.algorithm, parts.rule)
        self.parts, self._recipe, self._options, self._session = parts, recipe, options, session
        self._gathering: Gathering | None = None

    def check_room(self, params: Any) -> None:
        """Raise ValueError where this machine lacks the memory; params: arrays, or shapes."""
        workers = self.parts.rule.workers
        self._session.check_room(workers, store_bytes(params, workers, COPIES))

    def start(self, params: Any) -> MeetingsRun:
        """A run of no updates from `params`; processes come with the first `advance`."""
        self.close()
        self._log, self._before = PairLog(self.parts.rule.workers), NOTHING
        holdings = [begins(self.parts, 0, params)] * self.parts.rule.workers
        self._run = MeetingsRun(holdings, 0.0, 0, 0, NOTHING, np.ones(len(holdings), bool))
        return self._run

    def advance(
        self, run: MeetingsRun, seconds: float, updates: float = np.inf
    ) -> tuple[MeetingsRun, Schedule | None]:
        """Let the nodes go on until the clock stands at `seconds`, or for `updates` meetings."""
        if self._gathering is None:
            self._open()
        gathering = self._gathering
        with gathering.turn:
            enough = run.update + updates
            while gathering.now() < seconds and self._log.updates < enough:
                if gathering.error is not None:
                    raise gathering.error
                gathering.turn.wait(min(0.2, max(0.0, seconds - gathering.now())))
        schedule, held, there = gathering.cut()
        update, samples, now = run.update, run.samples, gathering.now()
        if schedule is not None:
            update += schedule.updates
            samples += int(schedule.batches.sum()) * self.parts.worker.sampler.batch_size
            now = float(schedule.time[-1]) if update >= enough else now
        holdings = [one.holding for one in held]
        counted = self._before.and_then(gathering.counted(held))
        return MeetingsRun(holdings, now, update, samples, counted, there), schedule

    def observe(self, run: MeetingsRun, seconds: float, loss: float) -> MeetingsRun:
        """Nothing: no node knows the loss of all."""
        del seconds, loss
        return run

    def models(self, run: MeetingsRun) -> Any:
        """The public copies of the nodes that are there, with a leading axis."""
        there = itertools.compress(run.holdings, run.there)
        return _stacked([shown(self.parts, holding) for holding in there])

    def memory(self, run: MeetingsRun) -> Any:
        """The exchange's state, with a leading axis of workers."""
        return _stacked([held.exchange for held in run.holdings])

    def measured(self, run: MeetingsRun) -> dict[str, float]:
        """What has really travelled, and what has gone wrong."""
        return run.measured

    def pack(self, run: MeetingsRun) -> dict[str, np.ndarray]:
        """All that the nodes held, and where the clock stood."""
        return packing.pack(dict(enumerate(run.holdings))) | {
            "clock": np.array([run.seconds]),
            "counted": np.array([run.update, run.samples]),
            "traffic": np.array(run.counted.traffic),
            "deaths": np.array([run.counted.deaths, run.counted.moved]),
        }

    def resume(
        self,
        run: MeetingsRun,
        packed: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[MeetingsRun, None]:
        """The packed run; local steps that were under way then are made anew."""
        del observed
        holdings = packing.unpack(dict(enumerate(run.holdings)), packed)
        update, samples = packed["counted"].tolist()
        seconds = float(packed["clock"][0])
        deaths, moved = packed["deaths"].tolist()
        self._before = Counted(Traffic(*packed["traffic"].tolist()), int(deaths), moved)
        held, all_there = list(holdings.values()), np.ones(len(holdings), bool)
        self._run = MeetingsRun(held, seconds, update, samples, self._before, all_there)
        nodes = [(held.meetings, held.counter) for held in self._run.holdings]
        self._log = PairLog(len(nodes), update, seconds, *np.array(nodes, np.int64).T)
        return self._run, None

    def close(self) -> None:
        """End the processes of the run."""
        if self._gathering is not None:
            self._gathering.close()
            self._gathering = None

    def _open(self) -> None:
        self._gathering = Gathering(self.parts, self._log, self._options)
        try:
            start = self._run.holdings, self._run.seconds
            self._gathering.open(self._session, self._recipe, *start)
        except BaseException:
            self.close()
            raise


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
