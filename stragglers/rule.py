"""Waiting rules: their setting, and the faces that they show to runtimes.

A rule is a function `name(setting, *, own parameters) -> Rule`. Its name decides nothing: all its
abilities stand in the `Rule`.

    plan       `init, extend, observe`: a Schedule in virtual time, without any training
    trigger    for workers that move in rounds on devices: end of a round, finished mini-batches
    arrivals   for workers that run freely: reactions to a delivery, or to a time

A face that makes no sense for a rule is None, and a runtime that needs it refuses the rule.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import networkx as nx
import numpy as np

from stragglers.delays import Law
from stragglers.processes import Process
from stragglers.schedule import Schedule


class Transfer(NamedTuple):
    """Part of a round's exchange; the parts of a round travel one after the other.

    seconds: under way, scalar or [P]; or a function of the begin [s], scalar or [P], where links
        are slow at times.
    leaves: share of the last mini-batch after which it is known. 0: as the round begins, so that it
        travels beside all mini-batches; 1: once the worker is ready.
    late: rounds that end without it before workers wait for it.
    others: it is among all workers but the last one, and does not wait for that.
    """

    seconds: float | np.ndarray | Callable[[float | np.ndarray], float | np.ndarray]
    leaves: float = 1.0
    late: int = 0
    others: bool = False


# Seconds of an exchange that leaves once a worker is ready, scalar or [P], or its transfers.
RoundCost = float | np.ndarray | tuple[Transfer, ...]
# Of every round alike, or round -> cost, as also an `Exchange`: its cost without spells.
Cost = RoundCost | Callable[[int], RoundCost]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Cost of exchanges on a network.

    usual: round -> its cost if no link is slow at times.
    timed: round -> its transfers, whose seconds may be functions of their begin.
    push: update -> seconds [P] of a worker's push to a server, and of the model back.
    spells: `stragglers.link_spells.Spells`, or None.
    """

    usual: Callable[[int], RoundCost]
    timed: Callable[[int], tuple[Transfer, ...]]
    push: Callable[[int], np.ndarray]
    spells: Any = None

    def __call__(self, round_index: int) -> RoundCost:
        """Return the exchange of a round as if no link was slow."""
        return self.usual(round_index)


DRAWS = {"mini_batch": False, "round": True}  # draw -> True if a duration holds for a whole round


class Links(Protocol):
    """Links that come and go: active matchings of every round (MATCHA, 1905.09435)."""

    partners: np.ndarray  # [M, P] int, sender that each worker hears, or itself
    directed: bool  # a worker need not hear from its receiver

    def active(self, first: int, count: int) -> np.ndarray:
        """Return the matchings of rounds from `first` on, bool [count, M]; a pure function."""


class Setting(NamedTuple):
    """Parts of an experiment that every waiting rule may use."""

    delay: Law | Process  # seconds of a mini-batch
    workers: int
    mini_batches: int | Sequence[int]  # of a full round or contribution, or one number per worker
    seed: int  # seed of the delays
    graph: nx.Graph | None = None  # neighbours; None: all workers are neighbours
    links: Links | None = None  # links that come and go; None: all of the graph's, always
    communication: Cost = 0.0
    draw: str = "mini_batch"  # a duration per "mini_batch", or per "round"


class RoundView(NamedTuple):
    """View of a round from a worker's device that asks whether to go on."""

    finished: np.ndarray  # [workers] mini-batches finished in this round
    elapsed: float  # seconds since this worker began the round
    ready: np.ndarray  # [workers] s from then until the last finished mini-batch of each
    past: np.ndarray  # [n, workers] s of a mini-batch in the last rounds or more, or nan


class Goal(NamedTuple):
    """Points that all workers together have to reach in a round, which then ends for all of them.

    points: mini-batches finished [workers] -> points [workers], whole numbers that grow with them.
    needed: points of all workers. The order of the points decides which of them come too late.
    """

    points: Callable[[np.ndarray], np.ndarray]
    needed: int


class Calibration(NamedTuple):
    """Rounds without a stop, from which the end of all later ones follows.

    rounds: number of these rounds.
    choose: (seconds of their mini-batches [rounds, workers, M], seconds of their exchanges
        [rounds]) -> seconds after which every worker stops.
    """

    rounds: int
    choose: Callable[[np.ndarray, np.ndarray], float]


class Trigger(NamedTuple):
    """Waiting rule for workers that move in rounds on devices.

    stop: view of a worker -> True if the round is over for this worker; None: it never is.
    mini_batches: limit of a worker's mini-batches in a round, scalar or [workers].
    cuts: the mini-batch in flight is cut, instead of finished.
    carries: unfinished mini-batches go on in the next round, instead of being skipped.
    sees_all: `stop` looks at other workers than the one that asks, which takes a single process.
    whole: [workers] mini-batches of a contribution, of which a part counts for nothing; None: every
        finished mini-batch counts.
    remembers: rounds before the present one that `stop` looks at.
    goal: points that end the round for all workers, wherever they live.
    calibration: of a deadline that is not known before.
    renews: the samples of a contribution that was cut are lost, and the next one has new ones.
    quota: (workers [n], counters [n]) -> mini-batches [n] of a round that begins with these; None:
        up to the limit.
    everywhere: an update lands at all workers once all are ready; False: at each of them with the
        messages of its neighbours.
    """

    stop: Callable[[RoundView], bool] | None
    mini_batches: int | np.ndarray
    cuts: bool = False
    carries: bool = True
    sees_all: bool = True
    whole: np.ndarray | None = None
    remembers: int = 0
    goal: Goal | None = None
    calibration: Calibration | None = None
    renews: bool = False
    quota: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    everywhere: bool = False

    @property
    def stops(self) -> bool:
        """True if a worker can ever be stopped."""
        return any((self.stop, self.goal, self.calibration, self.quota))


class Decision(NamedTuple):
    """Decision of a rule at an arrival, or at a time that is due: nothing, a hold, or an update."""

    state: Any
    counts: bool  # the contribution is held until it is in an update; False: it is ignored
    update: tuple[int, ...] = ()  # workers of the update that is made now, in order; (): none
    restart: tuple[int, ...] = ()  # workers that begin anew from the newest parameters
    proceed: tuple[int, ...] = ()  # workers that begin another contribution, at their parameters


class AsyncProtocol(NamedTuple):
    """Reactions of a rule to workers that run freely, each on a process of its own.

    init: () -> state, of workers that have all begun a contribution at version 0.
    on_arrival: (state, worker, version at which the contribution was taken, seconds) -> Decision.
        Every arrival is reported, also one whose worker has been restarted in the meantime.
    mini_batches: (state, worker) -> mini-batches of the contribution that the worker begins next.
    begun: (state, worker, version, seconds) -> state in which the worker's contribution in flight
        is taken at that version and begun at that time. The contribution in flight before is lost,
        as the process of the worker has died or the run resumes.
    observe: as in `Rule`.
    apart: every arrival makes an update at once, independent of the others, so that each worker
        can keep a state of its own and report nothing but its own arrivals to it.
    due: state -> s, time at which the rule reacts without an arrival; inf: at no time that is
        known. None: it reacts to arrivals alone.
    on_due: (state, seconds) -> Decision, at that time or soon after; all earlier arrivals were
        reported before. None where `due` is.
    """

    init: Callable[[], Any]
    on_arrival: Callable[[Any, int, int, float], Decision]
    mini_batches: Callable[[Any, int], int]
    begun: Callable[[Any, int, int, float], Any]
    observe: Callable[[Any, float, float], Any] | None = None
    apart: bool = False
    due: Callable[[Any], float] | None = None
    on_due: Callable[[Any, float], Decision] | None = None


class Turnout(NamedTuple):
    """Possible participants of a rule's updates under any delays; a method must suit them.

    fewest: least workers of an update, with or without a finished mini-batch; None: all.
    pairs: an update is a set of meetings, of two neighbours or of one alone.
    stopped: both of a pair have ended their local steps.
    early: a worker may begin a contribution before its last one is in an update.
    twice: both may be in the same update.
    cancels: an update discards the work of workers not in it, who begin anew.
    wastes: it may do so, or leave out stale work; a worker without a row computes.
    """

    fewest: int | None = None
    pairs: bool = False
    stopped: bool = False
    early: bool = False
    twice: bool = False
    cancels: bool = False
    wastes: bool = False


class Unfit(ValueError):
    """Refusal by a rule of the neighbours in a setting, which a method has to cure."""

    def __init__(self, name: str, cause: str, remedy: str):
        super().__init__(f"{name}: {cause}; {remedy}")
        self.cause = cause


class Rule(NamedTuple):
    """Waiting rule with its faces.

    init: () -> state, a NamedTuple of arrays with `update`, the index of the next row.
    extend: (state, updates, **knobs) -> (state, Schedule); extending twice equals extending once.
    asynchronous: contributions may be taken at older versions.
    observe: (state, seconds, loss) -> state, called with the training loss at some times, for a
        rule that follows the training; it may change the rows that come after.
    data: own parameters that are data to a compiled program, so that runs which differ in them can
        share it. A rule whose parameters are all data lists "name": it shares with its relatives.
    turnout: possible workers of an update; all, each once, unless the rule says otherwise.
    """

    workers: int
    init: Callable[[], Any]
    extend: Callable[..., tuple[Any, Schedule]]
    asynchronous: bool = False
    observe: Callable[[Any, float, float], Any] | None = None
    trigger: Trigger | None = None
    arrivals: AsyncProtocol | None = None
    data: tuple[str, ...] = ()
    turnout: Turnout = Turnout()

    @property
    def cuts_off(self) -> bool:
        """True if a worker that is not in an update has lost its work for it, as in K-sync."""
        return not (self.asynchronous or self.turnout.pairs or self.turnout.early)


def whole(rule: Rule, updates: int) -> Schedule:
    """Return the first `updates` rows of a rule, as one segment.

        >>> from stragglers import delays, rules
        >>> setting = Setting(delays.deterministic(1.0), workers=2, mini_batches=3, seed=0)
        >>> whole(rules.RULES["barrier"](setting), updates=2).time.tolist()
        [3.0, 6.0]
    """
    return rule.extend(rule.init(), updates)[1]


def checked_transfers(
    name: str, communication: Cost, workers: int
) -> Callable[[int], tuple[Transfer, ...]]:
    """Return a function: round -> its transfers; bad costs raise a ValueError of `name`."""

    def of_round(t: int) -> tuple[Transfer, ...]:
        cost = communication(t) if callable(communication) else communication
        transfers = cost if isinstance(cost, tuple) else (Transfer(cost),)
        for transfer in transfers:
            seconds = transfer.seconds
            if np.size(seconds) not in (1, workers):
                raise ValueError(
                    f"{name}: communication gave {np.size(seconds)} numbers for {workers} workers; "
                    "return one, or one per worker"
                )
            if not (np.min(seconds) >= 0 and np.max(seconds) < np.inf):
                raise ValueError(
                    f"{name}: needs communication >= 0, got {seconds}; set it in finite seconds"
                )
            if not (0 <= transfer.leaves <= 1 and transfer.late >= 0):
                raise ValueError(
                    f"{name}: a transfer leaves={transfer.leaves}, late={transfer.late}; give a "
                    "share from 0 to 1, and rounds >= 0"
                )
        return transfers

    first = of_round(0)  # refuses a bad constant before the first segment
    return of_round if callable(communication) else lambda t: first


def timed_transfers(
    name: str, communication: Cost, workers: int
) -> Callable[[int], tuple[Transfer, ...]]:
    """Return a function: round -> its transfers, whose seconds follow spells of links in time."""
    usual = checked_transfers(name, communication, workers)
    return getattr(communication, "timed", usual)


def lasting(transfer: Transfer, begin: float | np.ndarray) -> float | np.ndarray:
    """Return the seconds of a transfer that begins at `begin` s, both scalar or [P]."""
    return transfer.seconds(begin) if callable(transfer.seconds) else transfer.seconds


def checked_cost(
    name: str, communication: Cost, workers: int
) -> Callable[[int], float | np.ndarray]:
    """Return a function: round -> exchange seconds, scalar or [P], for rules without overlap."""
    of_round = checked_transfers(name, communication, workers)
    return lambda t: sum(transfer.seconds for transfer in of_round(t))


def hides(transfer: Transfer) -> bool:
    """Return True if a worker goes on with its work while this is under way."""
    return transfer.leaves < 1 or transfer.late > 0


def per_round(name: str, draw: str) -> bool:
    """Return True if a duration holds for a whole round; raise ValueError for an unknown `draw`."""
    if draw not in DRAWS:
        raise ValueError(f"{name}: unknown draw={draw!r}; choose one of {', '.join(DRAWS)}")
    return DRAWS[draw]


def mini_batches_each(name: str, setting: Setting) -> np.ndarray:
    """Return the mini-batches of each contribution, [P] int64; raise ValueError for bad ones."""
    if setting.workers < 1:
        raise ValueError(f"{name}: needs workers >= 1, got workers={setting.workers}; set more")
    each = np.asarray(setting.mini_batches)
    if each.shape not in ((), (setting.workers,)):
        raise ValueError(
            f"{name}: mini_batches lists {each.size} numbers for {setting.workers} workers; give "
            "one, or one per worker"
        )
    if not np.issubdtype(each.dtype, np.integer) or (each < 1).any():
        raise ValueError(
            f"{name}: needs mini_batches >= 1, got mini_batches={setting.mini_batches}; set whole "
            "numbers of at least 1"
        )
    return np.broadcast_to(each, setting.workers).astype(np.int64)


def most_mini_batches(mini_batches: int | Sequence[int]) -> int:
    """Return the most mini-batches of any worker's contribution."""
    return int(np.max(mini_batches))


def one_number(name: str, setting: Setting) -> int:
    """Return the mini-batches of a round, for rules in which they are the same for all workers."""
    each = mini_batches_each(name, setting)
    if (each != each[0]).any():
        raise ValueError(
            f"{name}: all workers have rounds of equally many mini-batches, got {each.tolist()}; "
            "give one number, or take a rule that counts contributions, as k_sync"
        )
    return int(each[0])


def check_nodes(name: str, graph: nx.Graph, workers: int) -> None:
    """Raise ValueError unless the nodes of the graph are the workers."""
    if set(graph) != set(range(workers)):
        raise ValueError(
            f"{name}: the graph has the nodes {sorted(graph, key=str)}, the rule {workers} "
            f"workers; label the nodes 0..{workers - 1}"
        )
