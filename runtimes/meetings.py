"""Workers as processes that meet in pairs, without a server: real gossip, wall-clock.

Every worker is a node of `runtimes.nodes` in an actor of `runtimes.crew`. The launching process
only listens: each meeting becomes a row of the Schedule, which the simulator replays bit for bit.
To evaluate, all nodes stop to meet for a moment, not to compute, and go on while their models are
looked at.

A process that dies, or does not answer any more, is replaced: its worker begins anew from what a
neighbour would show to others, on the mini-batches that come next, and remembers nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes import crew, meeting, packing
from runtimes.actors import check
from runtimes.gathering import Gathering
from runtimes.peers import PeerParts, begins
from runtimes.serving import Options
from stragglers.pair_log import PairLog
from stragglers.schedule import Schedule

DEFAULTS = Options()


class MeetingsRun(NamedTuple):
    """All nodes between the same rows."""

    models: Any  # public copies [workers, ...]
    seconds: float
    update: int
    samples: int
    measured: dict[str, float]

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
        session: crew.Session = crew.SESSION,
    ):
        """Check the parts; no process is started before the first update.

        recipe: builds the same parts in the process of a worker; it has to be picklable.
        """
        meeting.refuse(parts.worker.algorithm)
        check(parts.worker.algorithm, parts.rule)
        self.parts, self._recipe, self._options, self._session = parts, recipe, options, session
        self._gathering: Gathering | None = None

    def start(self, params: Any) -> MeetingsRun:
        """A run of no updates from `params`; processes come with the first `advance`."""
        self.close()
        self._log, self._elapsed = PairLog(self.parts.rule.workers), 0.0
        first = begins(self.parts, 0, params)
        self._holdings = [first] * self.parts.rule.workers
        return self._of_holdings(0.0, 0)

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
        schedule = gathering.cut()
        now, models = gathering.now(), _stacked(gathering.of_all("public"))
        samples = run.samples
        if schedule is not None:
            now = float(schedule.time[-1]) if self._log.updates >= enough else now
            samples += int(schedule.batches.sum()) * self.parts.worker.sampler.batch_size
        run = MeetingsRun(models, now, self._log.updates, samples, self._measured())
        return run, schedule

    def observe(self, run: MeetingsRun, seconds: float, loss: float) -> MeetingsRun:
        """Nothing: no node knows the loss of all."""
        del seconds, loss
        return run

    def models(self, run: MeetingsRun) -> Any:
        """The public copies, with a leading axis of workers."""
        return run.models

    def memory(self, run: MeetingsRun) -> Any:
        """The exchange's state, with a leading axis of workers."""
        del run
        if self._gathering is None:
            return _stacked([holding.exchange for holding in self._holdings])
        return _stacked(self._gathering.of_all("memory"))

    def measured(self, run: MeetingsRun) -> dict[str, float]:
        """What has really travelled, and what has gone wrong."""
        return run.measured

    def pack(self, run: MeetingsRun) -> dict[str, np.ndarray]:
        """All that the nodes held at the last cut."""
        held = self._holdings if self._gathering is None else self._gathering.of_all("held")
        return packing.pack(dict(enumerate(held))) | {
            **{f"log/{name}": value for name, value in self._log.pack().items()},
            "clock": np.array([run.seconds]),
            "samples": np.array([run.samples]),
        }

    def resume(
        self,
        run: MeetingsRun,
        packed: Mapping[str, np.ndarray],
        observed: Sequence[tuple[float, float]],
    ) -> tuple[MeetingsRun, None]:
        """The packed run; local steps that were under way then are made anew."""
        del run, observed
        held = dict(enumerate(self._holdings))
        self._holdings = list(packing.unpack(held, packed).values())
        self._log.unpack({n[4:]: value for n, value in packed.items() if n.startswith("log/")})
        self._elapsed = float(packed["clock"][0])
        return self._of_holdings(self._elapsed, int(packed["samples"][0])), None

    def close(self) -> None:
        """End the processes of the run."""
        if self._gathering is not None:
            self._gathering.close()
            self._gathering = None

    def _open(self) -> None:
        self._gathering = Gathering(self.parts, self._log, self._options)
        try:
            self._gathering.open(self._session, self._recipe, self._holdings, self._elapsed)
        except BaseException:
            self.close()
            raise

    def _of_holdings(self, seconds: float, samples: int) -> MeetingsRun:
        public = self.parts.worker.algorithm.public or (lambda exchange, params: params)
        models = _stacked([public(h.exchange, h.params) for h in self._holdings])
        return MeetingsRun(models, seconds, self._log.updates, samples, {})

    def _measured(self) -> dict[str, float]:
        counted = self._gathering.traffic()
        asked = max(1, sum(node.asked for node in counted))
        return {
            "sent_bytes_per_worker": float(np.mean([node.sent_bytes for node in counted])),
            "refusals_per_meeting": sum(node.refused for node in counted) / asked,
            "deaths": float(self._gathering.deaths),
            "dropped_contributions": float(sum(node.dropped for node in counted)),
        }


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
