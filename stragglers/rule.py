"""Waiting rules: their setting, and the interfaces that they offer to runtimes.

A rule is a function `name(setting, *, own parameters) -> Rule`. Nothing depends on the name of a
rule: all its abilities are fields of the `Rule`.

    plan       `init, extend, observe`: a Schedule in virtual time, without any training
    trigger    for workers that move in rounds on devices: end of a round, finished mini-batches
    arrivals   for workers that run freely: reactions to a delivery, or to a time

An interface that makes no sense for a rule is None. A runtime refuses rules without its interface.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import networkx as nx
import numpy as np

from comms.messages import Transfer
from stragglers.delays import Law
from stragglers.processes import Process
from stragglers.schedule import Schedule

IN_FLIGHT = {"cut": True, "finish": False}  # True if a mini-batch in flight at the signal is lost


# Seconds of an exchange that leaves once a worker is ready, scalar or [P]; or a round's transfers.
RoundCost = float | np.ndarray | tuple[Transfer, ...]
# The cost of every round, or a function: round -> cost, as an `Exchange`, which leaves out spells.
Cost = RoundCost | Callable[[int], RoundCost]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Cost of exchanges on a network.

    usual: round -> its cost if no link is slow at times.
    timed: round -> its transfers, whose seconds may be functions of their start.
    push: update -> seconds [P] of each worker's push to a server and of the model's way back.
    spells: `stragglers.link_spells.Spells`, or None.
    """

    usual: Callable[[int], RoundCost]
    timed: Callable[[int], tuple[Transfer, ...]]
    push: Callable[[int], np.ndarray]
    spells: Any = None

    def __call__(self, round_index: int) -> RoundCost:
        """Return the cost of a round's exchange as if no link was slow."""
        return self.usual(round_index)


DRAWS = {"mini_batch": False, "round": True}  # draw -> True if a duration holds for a whole round


class Links(Protocol):
    """Links that change from round to round: the active matchings (MATCHA, 1905.09435)."""

    partners: np.ndarray  # [M, P] int, the worker from which each worker receives, or itself
    directed: bool  # True if a worker need not receive from the worker to which it sends

    def active(self, first: int, count: int) -> np.ndarray:
        """Return the matchings of rounds from `first` on, bool [count, M]; a pure function."""


class Setting(NamedTuple):
    """Parts of an experiment that every waiting rule may use."""

    delay: Law | Process  # seconds of a mini-batch
    workers: int
    mini_batches: int | Sequence[int]  # of a full round or contribution, or one number per worker
    seed: int  # seed of the delays
    graph: nx.Graph | None = None  # neighbours; None: all workers are neighbours
    links: Links | None = None  # links that come and go; None: all links of the graph, always
    communication: Cost = 0.0
    draw: str = "mini_batch"  # a duration per "mini_batch", or per "round"


class RoundView(NamedTuple):
    """View of a round for a worker whose device asks whether to go on."""

    finished: np.ndarray  # [workers] mini-batches finished in this round
    elapsed: float  # seconds since this worker began the round
    ready: np.ndarray  # [workers] s from this begin to the end of each worker's work so far
    past: np.ndarray  # [n, workers] s per mini-batch in n past rounds, see `seconds_each`


class Goal(NamedTuple):
    """Points that end a round for all workers once the workers together have made them.

    points: mini-batches finished [workers] -> points [workers], whole numbers that grow with them.
    needed: sum of the points of all workers that ends a round. Points made after it come too late.
    """

    points: Callable[[np.ndarray], np.ndarray]
    needed: int


class Calibration(NamedTuple):
    """Rounds without a stop, whose durations give the deadline of all later rounds.

    rounds: number of these rounds.
    choose: (seconds of their mini-batches [rounds, workers, M], seconds of their exchanges
        [rounds]) -> seconds after which every worker stops.
    """

    rounds: int
    choose: Callable[[np.ndarray, np.ndarray], float]


class Trigger(NamedTuple):
    """Waiting rule of workers that move in rounds on devices.

    stop: view of a worker -> True if the round is over for the worker; None: no view ends it.
    mini_batches: limit of a worker's mini-batches in a round, scalar or [workers].
    cuts: True if the mini-batch in flight is cut; False: it is finished.
    carries: True if unfinished mini-batches go on in the next round; False: they are skipped.
    sees_all: True if `stop` looks at several workers, which must then live in one process.
    whole: [workers] mini-batches of a contribution; a partial contribution counts for nothing.
        None: every finished mini-batch counts.
    remembers: number of earlier rounds that `stop` looks at.
    goal: points that end the round for all workers, in this and in other processes.
    calibration: rounds that give the deadline; None: there is no such deadline.
    renews: True if a cut contribution loses its samples, and the worker goes on with new samples.
    quota: (workers [n], counters [n]) -> mini-batches [n] of a round that begins with these
        counters; None: the limit `mini_batches`.
    everywhere: True if an update lands at all workers once all are ready; False: it lands at each
        worker with the messages of the worker's neighbours.
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
    """Decision of a rule at an arrival or a due time: to do nothing, to hold, or to update."""

    state: Any
    counts: bool  # the contribution is held until it is in an update; False: it is ignored
    update: tuple[int, ...] = ()  # workers of the update that is made now, in order; (): none
    restart: tuple[int, ...] = ()  # workers that begin anew from the newest parameters
    proceed: tuple[int, ...] = ()  # workers that go on from the parameters they have


class AsyncProtocol(NamedTuple):
    """Reactions of a rule to workers that run freely, each on a process of its own.

    init: () -> state in which every worker has begun a contribution at version 0.
    on_arrival: (state, worker, version at which the contribution was taken, time [s]) -> Decision.
        Every arrival is reported, even if its worker has been restarted in the meantime.
    mini_batches: (state, worker) -> mini-batches of the contribution that the worker begins next.
    begun: (state, worker, version, time [s]) -> state in which the worker's contribution in flight
        is taken at that version and begun at that time. An earlier contribution in flight is lost,
        as the process of the worker has died or the run resumes.
    observe: as in `Rule`.
    apart: True if every arrival makes an update at once, independently of other arrivals. Each
        worker can then keep its own state, to which only its own arrivals are reported.
    due: state -> time [s] at which the rule reacts without an arrival; inf: no such time is known.
        None: the rule reacts to arrivals alone.
    on_due: (state, time [s]) -> Decision, at the due time or soon after, when all earlier arrivals
        have been reported. None if `due` is None.
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

    fewest: fewest workers of an update, with or without a finished mini-batch; None: all workers.
    pairs: an update is a set of meetings, of two neighbours or of a single node.
    stopped: both nodes of a pair have ended their local steps.
    early: a worker may begin a contribution before its last one is in an update.
    twice: both of these contributions may be in the same update.
    cancels: an update discards the work of workers that are not in it, and they begin anew.
    wastes: an update may discard or leave out work, so that workers without a row compute, too.
    """

    fewest: int | None = None
    pairs: bool = False
    stopped: bool = False
    early: bool = False
    twice: bool = False
    cancels: bool = False
    wastes: bool = False


class Unfit(ValueError):
    """A rule's refusal of a graph or links of the setting; the method has to change them."""

    def __init__(self, name: str, cause: str, remedy: str):
        super().__init__(f"{name}: {cause}; {remedy}")
        self.cause = cause


class Rule(NamedTuple):
    """Waiting rule, with the interfaces that it offers.

    init: () -> state, a NamedTuple of arrays with `update`, the index of the next row.
    extend: (state, updates, **options) -> (state, Schedule); a + b updates equal a, then b updates.
    asynchronous: True if contributions may be taken at older versions.
    observe: (state, seconds, loss) -> state, called with the training loss at some times, for a
        rule that follows the training. The new state may change later rows.
    data: own parameters that are data to a compiled program, which runs with other values can
        share; "name" if all parameters are data, so that related rules share the program.
    turnout: possible workers of an update; default: all workers, each once.
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
        """True if an update discards the work of workers that are not in it, as in K-sync."""
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
    """Return a function: round -> its transfers; a bad cost raises a ValueError with `name`."""

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
    """Return a function: round -> its transfers, the cost's own `timed` if the cost has it."""
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
    """Return True if a worker goes on with its work while the transfer is under way."""
    return transfer.leaves < 1 or transfer.late > 0


def per_round(name: str, draw: str) -> bool:
    """Return True if a duration holds for a whole round; raise ValueError for an unknown `draw`."""
    if draw not in DRAWS:
        raise ValueError(f"{name}: unknown draw={draw!r}; choose one of {', '.join(DRAWS)}")
    return DRAWS[draw]


def mini_batches_each(name: str, setting: Setting) -> np.ndarray:
    """Return each worker's mini-batches per contribution, [P] int64; ValueError for bad numbers."""
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
    """Return the mini-batches of a round; ValueError unless all workers have the same number."""
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
