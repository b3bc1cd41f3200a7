"""Every waiting rule in settings that suit it, for the battery that all must pass."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest

from algorithms.links import Links, in_turn
from stragglers import delays, link_spells
from stragglers.processes import markov, persistent
from stragglers.rule import Exchange, Transfer
from stragglers.schedule import Schedule, concatenate
from tests import planned

P = 6
RING = nx.cycle_graph(P)
COMPLETE = nx.complete_graph(P)
COSTS = 0.05 + 0.1 * np.arange(P)  # s, so that a worker may be restarted before an update lands
SHIFTED = delays.shifted_exponential(1.0, 1.0)
DELAYS = {
    "law": SHIFTED,
    "ties": persistent(delays.deterministic(1.0), [1.0, 2.0, 1.0, 0.5, 2.0, 1.0]),
    "time": markov(SHIFTED, 5.0, 9.0, 3.0),
}


class Row(NamedTuple):
    """A rule in a setting that suits it."""

    own: Mapping[str, Any]  # its parameters
    setting: Mapping[str, Any] = MappingProxyType({"mini_batches": 3})
    exchange: Callable[[Any], Any] = lambda seconds: seconds  # seconds -> communication


# Pushes to the next worker and to the one after it, in turn.
AHEAD = Links((np.arange(P) - [[1], [2]]) % P, in_turn(2), directed=True)
PUSHES = {"mini_batches": 3, "links": AHEAD}


def leaving(*shares, late=0):
    """Return the function seconds -> transfers that leave after these shares."""
    return lambda seconds: tuple(Transfer(seconds, share, late) for share in shares)


SPELLS = link_spells.markov(4.0, 6.0, 3.0, workers=P, seed=1)


def slowed(communication):
    """Return a communication over links, one of each worker, that are slow at times."""
    everyone = np.arange(P)

    def usual(t):
        return communication(t) if callable(communication) else communication

    def timed(t):
        cost = usual(t)
        transfers = cost if isinstance(cost, tuple) else (Transfer(cost),)
        return tuple(map(during, transfers))

    def during(transfer):
        def seconds(begin):
            return transfer.seconds * SPELLS.slowness(everyone, everyone, begin)

        return transfer._replace(seconds=seconds)

    return Exchange(usual, timed, usual, SPELLS)


SERVER = {"mini_batches": 1}
PAIRS = {"mini_batches": 3, "graph": COMPLETE}
ROWS = {
    "barrier": Row({}),
    "neighbour_barrier": Row({}, {"mini_batches": 3, "graph": RING}),
    "neighbour_barrier/overlap": Row({}, PUSHES, leaving(1.0, late=1)),
    "neighbour_barrier/beside": Row({}, {"mini_batches": 3, "graph": RING}, leaving(0.0)),
    "barrier/buckets": Row({}, exchange=leaving(0.5, 1.0)),
    "first_finisher": Row({}),
    "first_finisher/beside": Row({"in_flight": "cut"}, PUSHES, leaving(0.0)),
    "first_finisher/cut": Row({"in_flight": "cut", "leftovers": "drop"}),
    "deadline": Row({"seconds": 4.0}),
    "quorum": Row({"k": 7}),
    "quorum_grace": Row({"k": 4, "gamma": 0.3}),
    "quorum_grace/cut": Row({"k": 2, "gamma": 0.5, "in_flight": "cut", "leftovers": "drop"}),
    "quorum_grace/ring": Row({"k": 3}, {"mini_batches": 3, "graph": RING}),
    "adaptive_deadline": Row({"c": 0.5, "window": 3}),
    "adaptive_deadline/cut": Row({"c": 1.0, "in_flight": "cut"}),
    "equal_work": Row({"cost": 2.5}),
    "anytime": Row({"seconds": 5.0}),
    "drop_compute": Row({"calibration": 5}),
    "mindflayer": Row({"seconds": 1.5}),
    "ata": Row({"tasks": 10, "alpha": 0.1}),
    "ata/empirical": Row({"tasks": 10}),
    "k_sync": Row({"k": 3}, SERVER),
    "k_batch_sync": Row({"k": 5}, SERVER),
    "k_async": Row({"k": 3}, SERVER),
    "k_async/grace": Row({"k": 2, "grace": 0.6}, SERVER),
    "quorum_async": Row({"k": 2, "gamma": 0.7}, SERVER),
    "quorum_async/all": Row({"k": 6, "gamma": 0.0}, SERVER),
    "k_batch_async": Row({"k": 4}, SERVER),
    "rennala": Row({"k": 3}, SERVER),
    "rennala/interrupt": Row({"k": 3, "interrupt": True}, SERVER),
    "ringmaster": Row({"limit": 2}, SERVER),
    "ringmaster/interrupt": Row({"limit": 2, "interrupt": True, "k": 2}, SERVER),
    "ringmaster/grows": Row({"limit": 1, "grows": True}, SERVER),
    "ringmaster/grows and interrupts": Row({"limit": 1, "grows": True, "interrupt": True}, SERVER),
    "adasync": Row({"protocol": "k_async", "interval": 9.0, "k": 2}, SERVER),
    "adasync/sync": Row({"protocol": "k_batch_sync", "interval": 9.0}, SERVER),
    "random_pairs": Row({}, PAIRS),
    "random_pairs/geometric": Row({"steps": "geometric", "local_steps": 2, "width": 2}, PAIRS),
    "random_pairs/blocking": Row({"blocking": True}, PAIRS),
    "bipartite_pairs": Row({}, PAIRS | {"graph": RING}),
}


def made(name, delay="law", slow_links=False, **options):
    row = ROWS[name]
    delay = DELAYS.get(delay, delay) if isinstance(delay, str) else delay
    cost = options.get("communication", 0.0)
    within = row.exchange
    plain = (lambda t: within(cost(t))) if callable(cost) else within(cost)
    options["communication"] = slowed(plain) if slow_links else plain
    return planned.rule(name.split("/")[0], delay, P, **dict(row.setting) | dict(row.own) | options)


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def in_segments(make, lengths):
    """Return the schedule of segments, each by a rule made anew, as after a restart."""
    state, pieces = make().init(), []
    for updates in lengths:
        state, piece = make().extend(state, updates)
        pieces.append(piece)
    return concatenate(pieces)


def arrays(state):
    """All that a state holds, copied."""
    if isinstance(state, tuple):
        return tuple(arrays(part) for part in state)
    return np.array(state, copy=True)


def row_marks(names):
    return pytest.mark.parametrize("name", names)


ALL = row_marks(ROWS)
WITH_ARRIVALS = [name for name in ROWS if made(name).arrivals is not None]
SERVERS = [name for name in WITH_ARRIVALS if "graph" not in ROWS[name].setting]
MEETINGS = sorted(set(WITH_ARRIVALS) - set(SERVERS))
WITH_TRIGGER = [name for name in ROWS if made(name).trigger is not None]
