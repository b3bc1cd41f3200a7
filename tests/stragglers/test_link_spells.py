"""Links that are slow for a while: seconds by hand, in all clocks, and how often they are."""

from dataclasses import replace
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from algorithms.links import Links
from comms import cost, messages
from comms.messages import Payload
from configs import base
from experiments import prepare
from experiments.registry import part
from stragglers import delays, link_spells
from stragglers.processes import markov, persistent
from stragglers.rule import Exchange, whole
from tests import planned
from tests.refusals import refused
from tests.stragglers.contract_rows import COSTS, ROWS, SPELLS, P, assert_equal, made

ONE = delays.deterministic(1.0)
PATH = np.array([[1, 0, 2], [0, 2, 1]])  # matchings of a path of three nodes


def exchange(spells, *payloads, links=None):
    """Return the cost of messages that take a quarter of a second over a link that is not slow."""
    method = SimpleNamespace(messages=lambda *_: payloads, settled=0, links=links)
    network = cost.uniform_network(0.25, 1e300, workers=3, spells=spells)
    sender = method, None, 3, network
    usual, push = messages.exchange_transfers(*sender), messages.push_seconds(*sender)
    timed = usual if spells is None else spells.timed(method, None, network)
    return Exchange(usual, timed, push, spells)


def slow(*changes, **options):
    return link_spells.listed(changes, workers=3, **options)


def test_a_ring_takes_its_slowest_link_as_it_is_at_the_beginning():
    """4 steps of .25 s; the link 1-2 is three times slower from 2.5 s to 4.5 s."""
    over = exchange(slow((2.5, "1-2", 3.0), (4.5, "1-2", 1.0)), Payload((12,)))
    rows = planned.plan("barrier", ONE, 3, 3, communication=over)
    np.testing.assert_allclose(rows.time, [2, 2 + 1 + 3, 6 + 2])
    np.testing.assert_allclose(rows.communication, [[1] * 3, [3] * 3, [1] * 3])
    assert over(0)[0].seconds == 1.0  # as if no link was slow
    again = exchange(slow((0.0, "0-1", 3.0), of="link", switch=[[0, 2], [1]]), Payload((12,)))
    np.testing.assert_allclose(planned.plan("barrier", ONE, 3, 1, communication=again).time, 4)


def test_the_last_of_several_changes_at_one_time_counts():
    spells = slow((0.0, "0-1", 8.0), (5.0, "0-1", 2.0), (5.0, "0-1", 4.0))
    assert [float(spells.slowness(0, 1, now)) for now in (4.0, 5.0, 6.0)] == [8.0, 4.0, 4.0]


def test_a_ring_of_workers_who_land_apart_begins_with_the_last_one():
    """Worker 2 of the path 0-1-2 is ready after 2 s, and its link is slow from 1.5 s on."""
    over = exchange(slow((1.5, "1-2", 3.0)), Payload((12,)))
    delay, path = persistent(ONE, [1.0, 1.0, 2.0]), nx.path_graph(3)
    rows = planned.plan("neighbour_barrier", delay, 3, 1, graph=path, communication=over)
    np.testing.assert_allclose(rows.finish, [[1 + 3, 2 + 3, 2 + 3]])


def test_what_follows_begins_when_what_was_before_has_arrived():
    """Two buckets, the first one known after half a mini-batch of 1 s."""
    over = exchange(slow((1.2, "0-1", 3.0)), Payload((12,), share=0.5), Payload((12,)))
    rows = planned.plan("barrier", ONE, 3, 1, communication=over)
    np.testing.assert_allclose(rows.time, 0.5 + 1 + 3)


def test_gossip_waits_for_its_own_links():
    """On a path 0-1-2 the link 0-1 is three times slower, which node 2 hears of a round later."""
    links = Links(PATH, lambda first, count: np.tile([True, True], (count, 1)))
    over = exchange(slow((0.0, "0-1", 3.0)), Payload(exchanged=1, matchings=PATH), links=links)
    rows = planned.plan("neighbour_barrier", ONE, 3, 2, links=links, communication=over)
    np.testing.assert_allclose(rows.finish, [[1.75, 2.0, 1.25], [3.75, 4.0, 3.25]])
    # From 1.2 s on the link 1-2 is slow, over which the second matching goes from 1.25 s on.
    later = exchange(slow((1.2, "1-2", 3.0)), Payload(exchanged=1, matchings=PATH), links=links)
    rows = planned.plan("neighbour_barrier", ONE, 3, 1, links=links, communication=later)
    np.testing.assert_allclose(rows.finish[0, 1], 1 + 0.25 + 0.75)
    spared = Links(PATH, lambda first, count: np.tile([False, True], (count, 1)))
    over = exchange(slow((0.0, "0-1", 3.0)), Payload(exchanged=1, matchings=PATH[1:]), links=spared)
    rows = planned.plan("neighbour_barrier", ONE, 3, 2, links=spared, communication=over)
    np.testing.assert_allclose(rows.time, [1.25, 2.5])  # MATCHA without that matching


def test_pushes_go_over_the_link_of_their_worker():
    """Push and model take .25 s each, of worker 2 four times as long from 0 to 3 s."""
    over = exchange(slow((0.0, "2", 4.0), (3.0, "2", 1.0), of="node"), Payload((12,)))
    rows = planned.plan("k_async", ONE, 3, 9, communication=over, k=1)
    landed = {i: rows.finish[rows.workers == i].tolist() for i in range(3)}
    assert landed[0][:3] == landed[1][:3] == [1.5, 3, 4.5] and landed[2][:2] == [3, 4.5]
    rows = planned.plan("k_async", ONE, 3, 4, communication=exchange(None, Payload((12,))), k=1)
    np.testing.assert_allclose(rows.finish[rows.workers == 0], [1.5, 3])


@pytest.mark.parametrize("blocking", [False, True])
def test_pairs_meet_over_the_link_between_them(blocking):
    """On a path every meeting with node 1 takes .25 s, with node 0 three times as long."""
    over = exchange(slow((0.0, "1-0", 3.0)), Payload(met=1))
    rows = planned.random_pairs(
        ONE, nx.path_graph(3), 1, 40, width=1, blocking=blocking, communication=over
    )
    asked, other = rows.workers[:, 0], rows.workers[np.arange(40), rows.partner[:, 0]]
    with_first = (asked == 0) | (other == 0)
    ready = rows.start[:, 0] + rows.busy[:, 0]
    if blocking:
        ready = np.maximum(ready, rows.start[:, 1] + rows.busy[:, 1])
    assert with_first.any() and not with_first.all()
    np.testing.assert_allclose(rows.finish[:, 0] - ready, np.where(with_first, 0.75, 0.25))


def varying(t):
    return COSTS * (1 + t % 2)


BESIDE = ("overlap", "beside", "buckets")  # of which rows have the seconds that work hides not


@pytest.mark.parametrize(
    "name", [name for name in ROWS if "pairs" not in name and name.split("/")[-1] not in BESIDE]
)
def test_every_exchange_takes_as_long_as_its_link_says_at_its_beginning(name):
    rows = whole(made(name, "time", True, communication=varying), 60)
    sent = rows.communication > 0
    workers, spent = rows.workers[sent], rows.communication[sent]
    usual = COSTS[workers] * (1 + (np.arange(60)[:, None] % 2 + 0 * rows.workers)[sent])
    begin = rows.finish[sent] - spent
    assert sent.any(axis=1).all()
    np.testing.assert_allclose(spent, usual * SPELLS.slowness(workers, workers, begin))
    assert len(np.unique(np.round(spent / usual, 6))) == 2


@pytest.mark.parametrize("name", ["k_sync", "random_pairs/blocking"])
def test_loops_that_are_not_compiled_make_the_same_rows(name):
    """Nor does it matter how far paths of links are known."""
    delay = persistent(markov(ONE, 5.0, 9.0, 3.0), np.linspace(1, 2, P))
    live = replace(delay, in_time=None)
    once = whole(made(name, delay, True, communication=varying), 60)
    SPELLS.path(1e5)
    again = whole(made(name, live, True, communication=varying), 60)
    for field in ("workers", "first", "batches"):
        np.testing.assert_array_equal(getattr(once, field), getattr(again, field))
    np.testing.assert_allclose(once.finish, again.finish, rtol=1e-12)
    assert_equal(once, whole(made(name, delay, True, communication=varying), 60))


def test_links_are_known_for_as_long_as_a_segment_lasts():
    """At first a path has some sojourns alone, and it grows with the clock."""
    spells = link_spells.markov(4.0, 2.0, 1.0, "node", workers=3, seed=6)
    over = exchange(spells, Payload((12,)))
    rows = planned.plan("k_async", ONE, 3, 600, communication=over, k=2)
    begin = rows.finish - rows.communication
    slowness = spells.slowness(rows.workers, rows.workers, begin)
    np.testing.assert_allclose(rows.communication, 0.5 * slowness)
    assert set(slowness[-100:].ravel()) == {1.0, 4.0}


def test_links_are_slow_as_often_and_together_as_they_should():
    def drawn(of, switch=None, seed=3):
        found = link_spells.markov(5.0, 30.0, 10.0, of, switch, workers=8, seed=seed)
        at = np.linspace(0, 40_000, 4001)[:, None, None]
        everyone = np.arange(8)
        return found.slowness(everyone[:, None], everyone, at)

    links = drawn("link")
    assert set(np.unique(links)) == {1.0, 5.0}
    np.testing.assert_array_equal(links, links.swapaxes(1, 2))
    np.testing.assert_allclose((links > 1).mean(), 10 / 40, atol=0.01)
    slow = (links[:, np.triu_indices(8)[0], np.triu_indices(8)[1]] > 1).astype(float)
    apart = np.corrcoef(slow.T)[np.triu_indices(slow.shape[1], 1)]
    assert np.abs(apart).max() < 0.15
    nodes = drawn("node")
    own = np.diagonal(nodes, axis1=1, axis2=2)
    np.testing.assert_array_equal(nodes, np.maximum(own[:, :, None], own[:, None]))
    np.testing.assert_allclose((nodes[:, 0, 1] > 1).mean(), 1 - (30 / 40) ** 2, atol=0.03)
    shared = drawn("node", 4)
    np.testing.assert_array_equal(shared[:, 0, 4], shared[:, 3, 7])
    assert not np.array_equal(shared[:, 0, 0], shared[:, 4, 4])
    between = drawn("link", [[0, 2, 4, 6], [1, 3, 5, 7]])
    np.testing.assert_array_equal(between[:, 0, 1], between[:, 6, 3])
    assert not np.array_equal(between[:, 0, 1], between[:, 0, 2])
    assert not np.array_equal(links, drawn("link", seed=4))


def test_a_recorded_table_is_as_the_list_of_its_rows(tmp_path):
    (tmp_path / "links.csv").write_text("time,link,factor\n5,0-1,1\n2,0-1,3\n0,1-2,2\n")
    found = link_spells.recorded(str(tmp_path / "links.csv"), workers=3)
    pairs = np.array([[0, 1], [1, 0], [1, 2], [0, 2]]).T[..., None]
    at = np.array([0.0, 1.9, 2.0, 5.0, 1e9])
    np.testing.assert_allclose(
        found.slowness(*pairs, at), [[1, 1, 3, 1, 1]] * 2 + [[2] * 5] + [[1] * 5]
    )
    (tmp_path / "links.csv").write_text("time_ms,link,factor\n2000,0-1,3\n")
    found = link_spells.recorded(str(tmp_path / "links.csv"), workers=3)
    np.testing.assert_allclose(found.slowness(*pairs[:, :1], at[1:3]), [[1, 3]])
    (tmp_path / "dates.csv").write_text("time,link,factor\n2026-11-27T12:00:00,0-1,3\n")
    with pytest.raises(ValueError, match="as dates would be; write seconds since the begin"):
        link_spells.recorded(str(tmp_path / "dates.csv"), workers=3)
    for header, missing in (("time,from,factor", "link"), ("step,link,factor", "time")):
        (tmp_path / "other.csv").write_text(f"{header}\n2,0-1,3\n")
        words = f"spells: .*no column '{missing}'; give a table with the columns time, link and"
        with pytest.raises(ValueError, match=words):
            link_spells.recorded(str(tmp_path / "other.csv"), workers=3)
    (tmp_path / "nodes.csv").write_text("time,node,factor\n2,1,3\n")
    found = link_spells.recorded(str(tmp_path / "nodes.csv"), of="node", workers=3)
    np.testing.assert_allclose(found.slowness(*pairs, 2.0)[:, 0], [3, 3, 3, 1])


def arm(spells, **changes):
    return base.arm(
        task=part("gaussians", model="logistic"), workers=4, batch_size=4, seconds=8.0, updates=20,
        communication=part("link", seconds=0.5, spells=spells), **changes,
    )  # fmt: skip


def often(**changes):
    own = {"factor": 4.0, "mean_normal": 3.0, "mean_slow": 3.0, "of": "node"}
    return part("markov", **own | changes)


def test_a_config_has_spells_of_its_seed():
    def times(seed):
        config = arm(often(), seed=seed)
        return whole(prepare.rule(config, prepare.prepare(config)), 20).time

    first = times(0)
    np.testing.assert_array_equal(first, times(0))
    assert (first != times(1)).any() and len(np.unique(np.diff(first).round(6))) == 2


def test_a_node_that_is_always_slow_slows_its_own_meetings_alone():
    def plan(**links):
        config = arm(None, algorithm=part("swarm"), graph=part("complete"), wait="random_pairs")
        config.communication = part("link", seconds=0.5, **links)
        return whole(prepare.rule(config, prepare.prepare(config)), 60)

    rows = plan(slow={1: 8.0})
    assert set(rows.communication[rows.communication > 0].round(9)) == {0.5, 4.0}
    assert_equal(rows, plan(spells=part("listed", changes=[[0.0, 1, 8.0]], of="node")))


test_spells_that_make_no_sense_are_refused = refused(
    (often(mean_slow=0.0), {}, "needs mean_slow > 0"),
    (often(of="cable"), {}, "unknown of='cable'; choose one of link, node"),
    (often(switch=0), {}, "switch=0 needs a number of nodes >= 1"),
    (often(switch=[[0, 1], [1, 2]]), {}, "each of the 4 workers once"),
    (part("listed", changes=[[0.0, "0-4", 2.0]]), {}, "a link among 4 workers"),
    (part("listed", changes=[[0.0, 3, 0.0]], of="node"), {}, "and a factor > 0"),
    (part("listed", changes=[["soon", "0-1", 2.0]]), {}, "needs a time >= 0 s"),
    (part("listed", changes=[[0.0, "0-1"]]), {}, "and a factor > 0"),
    (part("recorded", path="nowhere.csv"), {}, "cannot read nowhere.csv"),
    (part("markof"), {}, "unknown name 'markof'; did you mean 'markov'"),
    (often(), {"runtime": "actors", "delay": part("none"), "wait": part("k_async", k=1)},
     "models a network, and the links between processes are real"),
    by=lambda spells, changes: prepare.prepare(arm(spells, **changes)),
)  # fmt: skip
