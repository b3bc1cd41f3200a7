from dataclasses import fields, replace
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest

from stragglers import delays
from stragglers.processes import as_process
from stragglers.rule import Transfer
from stragglers.rules.replay import recorded
from stragglers.schedule import Schedule, concatenate, load
from tests import planned
from tests.stragglers.rules.test_rounds import ROUNDS

EXPONENTIAL = delays.shifted_exponential(1.0, 1.0)
OWN = {
    "deadline": {"seconds": 12.0},
    "quorum": {"k": 20},
    "anytime": {"seconds": 12.0},
    "drop_compute": {"calibration": 6},
}


class Links(NamedTuple):
    """Matchings that are active with probability p each, one coin per round and matching."""

    partners: np.ndarray
    p: float
    directed: bool = False

    def active(self, first, count):
        coins = np.random.default_rng(7).random((first + count, len(self.partners)))
        return coins[first:] < self.p


def ring(workers, p):
    """The ring's two matchings: 0-1, 2-3, ... and 1-2, 3-4, ..., workers - 1 with 0."""
    everybody = np.arange(workers)
    return Links(np.stack([everybody ^ 1, ((everybody - 1) ^ 1) + 1]) % workers, p)


def rule(name, links, **options):
    return planned.rule(name, EXPONENTIAL, 8, 4, 3, links=links, **OWN.get(name, {}) | options)


def whole(rule, updates):
    return rule.extend(rule.init(), updates)[1]


def assert_equal(a, b):
    for field in fields(Schedule):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_neighbour_barrier_waits_for_active_partners_only():
    """t_i[k+1] = max over i and its active partners of t_j[k] + X_j[k], plus communication."""
    links = ring(6, 0.5)
    schedule = whole(
        planned.rule("neighbour_barrier", EXPONENTIAL, 6, 2, 1, links=links, communication=0.25), 60
    )
    durations = as_process(EXPONENTIAL).seeded(1).duration(np.arange(6)[:, None], 0.0, range(120))
    now = [0.0] * 6
    for k in range(60):
        active = links.active(k, 1)[0]
        np.testing.assert_array_equal(schedule.matchings[k], active)
        ready = [now[i] + durations[i, 2 * k] + durations[i, 2 * k + 1] for i in range(6)]
        now = [
            max([ready[i]] + [ready[links.partners[m][i]] for m in range(2) if active[m]]) + 0.25
            for i in range(6)
        ]
        np.testing.assert_allclose(schedule.finish[k], now, rtol=1e-12)
    schedule.validate()


@pytest.mark.parametrize("name", sorted(ROUNDS - {"barrier"}))
def test_all_links_active_equal_the_static_graph_exactly(name):
    graph = nx.cycle_graph(8)
    for both in (None, graph):
        dynamic = whole(rule(name, ring(8, 1.0), graph=both), 40)
        assert dynamic.matchings.all() and dynamic.matchings.shape == (40, 2)
        assert_equal(replace(dynamic, matchings=None), whole(rule(name, None, graph=graph), 40))


def test_no_active_link_leaves_workers_to_themselves():
    schedule = whole(rule("neighbour_barrier", ring(8, 0.0), communication=0.5), 40)
    for i in range(8):
        durations = as_process(EXPONENTIAL).seeded(3).duration(i, 0.0, np.arange(160))
        alone = durations.reshape(40, 4).sum(axis=1).cumsum() + 0.5 * np.arange(1, 41)
        np.testing.assert_allclose(schedule.finish[:, i], alone, rtol=1e-12)
    assert not schedule.matchings.any() and (schedule.idle < 1e-9).all()


@pytest.mark.parametrize("name", sorted(ROUNDS - {"barrier", "neighbour_barrier"}))
def test_landing_at_all_ignores_who_is_linked(name):
    schedule = whole(rule(name, ring(8, 0.5), landing="all"), 40)
    assert schedule.matchings.any() and not schedule.matchings.all()
    assert_equal(replace(schedule, matchings=None), whole(rule(name, None), 40))


def test_barrier_lands_at_all_and_tells_the_matchings():
    schedule = whole(rule("barrier", ring(8, 0.5)), 40)
    np.testing.assert_array_equal(schedule.matchings, ring(8, 0.5).active(0, 40))
    assert_equal(replace(schedule, matchings=None), whole(rule("barrier", None), 40))


@pytest.mark.parametrize("name", ["neighbour_barrier", "first_finisher"])
def test_segments_equal_the_whole(name):
    options = {"communication": lambda t: 0.1 * (1 + np.arange(8)) * (t % 3)}
    one = whole(rule(name, ring(8, 0.5), **options), 30)
    first = rule(name, ring(8, 0.5), **options)
    state, parts = first.init(), []
    for updates in (4, 0, 7, 19):  # each by a fresh rule, as after a restart
        state, part = rule(name, ring(8, 0.5), **options).extend(state, updates)
        parts.append(part)
    assert_equal(concatenate(parts), one)


def test_matchings_survive_files_and_replays(tmp_path):
    schedule = whole(rule("first_finisher", ring(8, 0.5)), 30)
    schedule.save(tmp_path / "schedule.npz")
    again = recorded(load(tmp_path / "schedule.npz"))
    state, first = again.extend(again.init(), 11)
    _, second = again.extend(state, 100)
    np.testing.assert_array_equal(concatenate([first, second]).matchings, schedule.matchings)


def test_messages_that_overlap_are_waited_for_some_rounds_later():
    """With 0.25 s they hide behind 1 s of work, with 3 s every other round waits for one."""
    for seconds, finish, waited in (
        (0.25, [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]),
        (3.0, [1, 4, 5, 8, 9, 12], [0, 2, 0, 2, 0, 2]),
    ):
        links = Links(np.roll(np.arange(3), 1)[None], 1.0, directed=True)
        schedule = whole(
            planned.rule(
                "neighbour_barrier",
                delays.deterministic(1.0),
                3,
                1,
                0,
                links=links,
                communication=(Transfer(seconds, late=1),),
            ),
            6,
        )
        np.testing.assert_allclose(schedule.finish, np.tile(np.array([finish]).T, 3))
        np.testing.assert_allclose(schedule.communication, np.tile(np.array([waited]).T, 3))
        assert (schedule.idle < 1e-9).all()


@pytest.mark.parametrize("overlap", [1, 3])
def test_a_delay_spreads_overlap_rounds_later(overlap):
    """t_i[k] = max(own ready[k], max over i and its sender of ready[k - overlap] + cost)."""
    links = Links(np.roll(np.arange(5), 1)[None], 1.0, directed=True)
    cost = (Transfer(0.75, late=overlap),)
    make = planned.rule("neighbour_barrier", EXPONENTIAL, 5, 2, 1, links=links, communication=cost)
    schedule = whole(make, 40)
    durations = as_process(EXPONENTIAL).seeded(1).duration(np.arange(5)[:, None], 0.0, range(80))
    now, ready = [0.0] * 5, []
    for k in range(40):
        ready.append([now[i] + durations[i, 2 * k] + durations[i, 2 * k + 1] for i in range(5)])
        sent = ready[k - overlap] if k >= overlap else [-np.inf] * 5
        now = [max(ready[k][i], sent[i] + 0.75, sent[(i - 1) % 5] + 0.75) for i in range(5)]
        np.testing.assert_allclose(schedule.finish[k], now, rtol=1e-12)
    schedule.validate()
    state, parts = make.init(), []
    for updates in (1, 0, 12, 27):
        state, part = make.extend(state, updates)
        parts.append(part)
    assert_equal(concatenate(parts), schedule)


def test_neighbour_barrier_by_its_plain_name():
    graph, links = nx.cycle_graph(8), ring(8, 0.5)
    plain = planned.plan(
        "neighbour_barrier", EXPONENTIAL, len(graph), 20, 4, 3, graph=graph, links=links
    )
    assert_equal(plain, whole(rule("neighbour_barrier", links), 20))


class Wrong(NamedTuple):
    partners: np.ndarray
    answer: np.ndarray
    directed: bool = False

    def active(self, first, count):
        return self.answer


@pytest.mark.parametrize(
    "links, graph, message",
    [
        (ring(6, 0.5), None, "shape \\(2, 6\\), the rule 8 workers"),
        (Links(np.full((1, 8), 8), 0.5), None, "partners 0..7"),
        (Links(np.roll(np.arange(8), 1)[None], 0.5), None, "row 0 is no matching"),
        (ring(8, 0.5), nx.path_graph(8), "row 1 pairs the workers \\(0, 7\\), who share no edge"),
        (Wrong(ring(8, 1).partners, np.ones((5, 2), bool)), None, "expected bool \\(20, 2\\)"),
        (Wrong(ring(8, 1).partners, np.ones((20, 2))), None, "gave float64"),
    ],
)
def test_bad_links(links, graph, message):
    with pytest.raises(ValueError, match=message):
        whole(rule("first_finisher", links, graph=graph), 20)
