"""Spells of slow links: periods in which messages over a link take longer.

A message takes its usual seconds times the slowness factor of its link when the message starts. A
spell that begins or ends during a message does not change the message. A spell belongs to a link,
or to a node and then to all links of that node. The factor of an exchange is

    all-reduce    of the slowest link of the ring, when the last worker is ready
    gossip        of a worker's own links, in one active matching after the other
    pushes        of the worker's link to the server; a push and its pull are one exchange
    meetings      of the link between the two workers

Without spells, a round of gossip takes every worker as long as its slowest links (`comms.cost`).
The spells of a run are a function of its seed alone. Times are seconds since the start of the run.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from comms import messages
from comms.cost import Network
from stragglers.processes import check_sojourns
from stragglers.speed_paths import SPEED, SWITCH, Path, Paths, speeds
from stragglers.streams import addressed
from stragglers.traces import files

STREAM = 4  # of random numbers; rules of pairs have the streams 2 and 3
ENDLESS = 1e300  # s
LATEST = 1e8  # s, the latest recorded change that is accepted; a date would be later
Switch = int | Sequence[Sequence[int]] | None
OF_NODE = {"link": False, "node": True}  # of -> True if all links of a node are slow together


@dataclasses.dataclass(frozen=True)
class Spells:
    """Slowness of the links of P workers in time.

    path: time [s] -> `Path` [C, S + 1, 3] of speeds, known beyond that time, see `speed_paths`.
    links: [P, P, 2] int, the two paths of each link, of which the slower one counts; [i, i] is
        worker i's link to a server.
    """

    path: Callable[[float], Path]
    links: np.ndarray

    def slowness(self, i, j, at) -> np.ndarray:
        """Return the slowness factors of messages between workers i and j, begun at `at` [s]."""
        path, at = self.path(np.max(at)), np.asarray(at, np.float64)
        return 1 / speeds(path, self.links[i, j], at[..., None]).min(axis=-1)

    def timed(
        self, method: Any, params: Any, network: Network
    ) -> Callable[[int], tuple[messages.Transfer, ...]]:
        """Return a function: round -> its transfers, whose seconds are functions of their start."""

        def took(payload: messages.Payload) -> _Lasting:
            return _Lasting((payload,), self, network)

        workers = len(self.links)
        return messages.exchange_transfers(method, params, workers, network, took)


@dataclasses.dataclass(frozen=True)
class _Lasting:
    """Function: start [s] -> seconds of payloads in succession, both scalar or [P]."""

    payloads: tuple[messages.Payload, ...]
    spells: Spells
    network: Network

    def __add__(self, other: "_Lasting") -> "_Lasting":
        return dataclasses.replace(self, payloads=self.payloads + other.payloads)

    def __call__(self, begin: float | np.ndarray) -> float | np.ndarray:
        workers, total = len(self.spells.links), 0.0
        everyone = np.arange(workers)
        for payload in self.payloads:
            if payload.size > payload.exchanged:
                last = np.max(begin + total)
                slowness = self.spells.slowness(everyone, (everyone + 1) % workers, last)
                in_ring = payload._replace(exchanged=0)
                total = total + messages.seconds(in_ring, workers, self.network, slowness)
            for partners in payload.matchings if payload.exchanged else ():
                usual = self.network.seconds(payload.exchanged, everyone, partners)
                slowness = self.spells.slowness(everyone, partners, begin + total)
                total = total + np.where(partners == everyone, 0.0, usual * slowness)
        return total


def markov(
    factor: float,
    mean_normal: float,
    mean_slow: float,
    of: str = "link",
    switch: Switch = None,
    workers: int = 1,
    seed: int = 0,
) -> Spells:
    """Let each link alternate between normal and `factor` times slower.

    Sojourn times are exponential with these means in seconds, and start in the stationary state.
    of: "link" or "node". switch: number of nodes at each switch, in the order of the nodes, or the
    nodes of each switch, such as [[0, 2], [1, 3]]. Nodes at one switch have the same spells, and so
    have the links between the same two switches.
    """
    check_sojourns(factor, mean_normal, mean_slow)
    links = _links(of, switch, workers)
    count = int(links.max()) + 1
    paths = Paths(addressed(seed, STREAM), factor, mean_normal, mean_slow)
    return Spells(lambda until: paths.beyond(count, until), links)


def listed(
    changes: Sequence[Sequence], of: str = "link", switch: Switch = None, workers: int = 1
) -> Spells:
    """Change the slowness of links at given times; a change is (seconds, link or node, factor).

    A link is written "0-1"; "0-0" is worker 0's link to a server. A factor holds until the next
    change of the same link, and is 1 before the first change. of, switch: as in `markov`.
    """
    links = _links(of, switch, workers)
    known: dict[int, list[tuple[float, float]]] = {}
    for change in changes:
        try:
            time, name, factor = float(change[0]), str(change[1]), float(change[2])
            ends = [int(end) for end in name.split("-")]
            right = len(change) == 3 and len(ends) == 2 - OF_NODE[of]
            right &= max(ends) < workers and time >= 0 and 0 < factor < np.inf
        except (TypeError, ValueError, IndexError):
            right = False
        if not right:
            raise ValueError(
                f"spells: the change {change} needs a time >= 0 s, a {of} among {workers} workers "
                f"from 0 on, as {'0' if OF_NODE[of] else '0-1'}, and a factor > 0; correct it"
            )
        known.setdefault(int(links[ends[0], ends[-1], 0]), []).append((time, 1 / factor))
    longest = max(map(len, known.values()), default=0)
    sojourns = np.zeros((int(links.max()) + 1, longest + 2, 3))
    sojourns[..., SPEED], sojourns[:, 1:, SWITCH] = 1.0, ENDLESS
    for column, rows in known.items():
        in_order = sorted(rows, key=lambda row: row[0])  # at equal times the last change counts
        sojourns[column, 1 : 1 + len(rows)][:, [SWITCH, SPEED]] = in_order
    path = Path(sojourns)
    return Spells(lambda until: path, links)


def recorded(path: str, of: str = "link", switch: Switch = None, workers: int = 1) -> Spells:
    """Replay slowness from a table with the columns time, in seconds, link or node, and factor.

    of: name of a column of links, written as 0-1, or of nodes. The rows are changes as in `listed`;
    files are read as by the delay `trace`.
    """
    try:
        found = files.read(path, files.Columns(worker=of, time="time", duration="factor"))
        if not found.clock.lower().startswith("time"):  # as a step, which usually may stand for it
            raise ValueError(f"{path} has no column 'time'")
    except ValueError as error:
        cause = f"{error}".removeprefix("trace: ").partition(";")[0]
        raise ValueError(
            f"spells: {cause}; give a table with the columns time, {of} and factor"
        ) from error
    unit = files.SECONDS[files.unit_of(found.clock) or "s"]
    latest = unit * max(float(times.max()) for times in found.times.values())
    if latest > LATEST:
        raise ValueError(
            f"spells: {path} has changes until {latest:.4g} s after the begin of the run, as dates "
            "would be; write seconds since the begin"
        )
    changes = [
        (unit * time, name, factor)
        for name, factors in found.durations.items()
        for time, factor in zip(found.times[name], factors, strict=True)
    ]
    return listed(changes, of, switch, workers)


def _links(of: str, switch: Switch, workers: int) -> np.ndarray:
    """Return the numbers [P, P, 2] of the paths of links; see `Spells`."""
    if of not in OF_NODE:
        raise ValueError(f"spells: unknown of={of!r}; choose one of {', '.join(OF_NODE)}")
    shared = [[i] for i in range(workers)] if switch is None else switch
    if isinstance(shared, int) and shared >= 1:
        shared = [range(i, min(i + shared, workers)) for i in range(0, workers, shared)]
    if isinstance(shared, int) or sorted(i for nodes in shared for i in nodes) != [*range(workers)]:
        raise ValueError(
            f"spells: switch={switch} needs a number of nodes >= 1, or lists with each of the "
            f"{workers} workers once; correct it, or leave it out"
        )
    group = np.zeros(workers, np.int64)
    for number, nodes in enumerate(shared):
        group[list(nodes)] = number
    one, other = np.broadcast_arrays(group[:, None], group)
    if not OF_NODE[of]:
        low, high = np.minimum(one, other), np.maximum(one, other)
        one = other = high * (high + 1) // 2 + low
    return np.stack([one, other], axis=-1).astype(np.int32)
