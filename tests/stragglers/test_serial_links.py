"""Links that serve one transfer at a time, on cases that can be worked out by hand."""

import networkx as nx
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from algorithms.gossip import graph_matchings
from comms import lattice, topology
from configs import swarm_scale
from experiments.studies import serial_links, study
from experiments.studies.swarm_scale import claims
from stragglers import delays, processes, wavefront
from stragglers.rule import whole
from tests import planned


def schedule(n, graph, law=None, kind="random_pairs", updates=60, **options):
    rule = planned.rule(kind, law or delays.deterministic(1.0), n, 1, 0, graph=graph, **options)
    return whole(rule, updates)


def test_two_nodes_that_ask_each_other_at_once_take_turns():
    """Both end at 1; node 0's transfer is over at 1.25, node 1's at 1.5, and so on for ever."""
    made = schedule(2, nx.path_graph(2), width=1, updates=6)
    spent = serial_links.pair_seconds(made, 2, 0.25)
    assert spent[:2].tolist() == [0.25, 0.5]
    # Node 0 begins at 1.25, node 1 at 1.5: they never meet a taken link again.
    np.testing.assert_allclose(spent[2:], 0.25)


def test_transfers_to_the_centre_of_a_star_queue_in_the_order_of_asking():
    """Node i asks at 1 + i / 100 s and is served as the i-th."""
    n = 5
    asked = 0.01 * np.arange(n)
    law = processes.persistent(delays.deterministic(1.0), 1 + asked)
    made = schedule(n, topology.star(n), law, width=1, updates=n)
    spent = serial_links.pair_seconds(made, n, 0.1)
    np.testing.assert_allclose(spent[:n], 0.1 * np.arange(1, n + 1) - asked)


def test_a_meeting_is_a_transfer_where_links_are_never_taken():
    made = schedule(8, nx.complete_graph(8), delays.jitter(1.0, 0.3))
    spent = serial_links.pair_seconds(made, 8, 1e-9)
    np.testing.assert_allclose(spent, 1e-9, rtol=0.01)
    assert len(spent) == len(wavefront.interactions(made).time)


def test_more_load_is_more_waiting():
    made = schedule(16, nx.complete_graph(16), delays.jitter(1.0, 0.3), updates=400)
    over = [serial_links.pair_seconds(made, 16, t).mean() / t for t in (0.01, 0.1, 0.5)]
    assert 1.0 <= over[0] < over[1] < over[2]


def test_passive_nodes_of_a_bipartite_schedule_do_not_communicate():
    made = schedule(8, topology.ring(8), kind="bipartite_pairs")
    met = wavefront.interactions(made).pairs
    spent = serial_links.pair_seconds(made, 8, 0.1)
    assert len(spent) == (met[:, 0] != met[:, 1]).sum() < len(met)
    assert (spent >= 0.1 - 1e-12).all()


def test_partners_that_stop_are_refused():
    made = schedule(4, nx.complete_graph(4), blocking=True)
    with pytest.raises(ValueError, match="stop for meetings; make it with blocking=false"):
        serial_links.pair_seconds(made, 4, 0.1)


@pytest.mark.parametrize(
    ("graph", "matchings"),
    [(topology.ring(8), 2), (topology.hypercube(8), 3), (topology.complete(8), 7)],
)
def test_equal_nodes_gossip_for_a_transfer_per_matching(graph, matchings):
    partners = graph_matchings(graph)[1]
    spent = serial_links.matching_rounds(np.ones((3, 8)), partners, 0.1)
    np.testing.assert_allclose(spent, 0.1 * matchings)


def test_neighbours_wait_for_a_slow_node_and_for_its_neighbours_later():
    """Path 0 - 1 - 2 - 3 in the matchings {01, 23} and {12}; node 0 computes 2 s longer."""
    partners = np.array([[1, 0, 3, 2], [0, 2, 1, 3]])
    spent = serial_links.matching_rounds(np.array([[3.0, 1, 1, 1]]), partners, 0.5)
    np.testing.assert_allclose(spent, [[0.5, 3.0, 3.0, 0.5]])


def test_equal_nodes_push_for_one_transfer_and_a_slow_one_holds_up_its_receiver():
    np.testing.assert_allclose(serial_links.push_rounds(np.ones((4, 8)), 0.1), 0.1)
    busy = np.ones((1, 4))
    busy[0, 0] = 2.0
    np.testing.assert_allclose(serial_links.push_rounds(busy, 0.1), [[0.1, 1.1, 0.1, 0.1]])


def test_a_message_waits_until_its_receivers_link_has_taken_the_last_one_in():
    """Node 1's is taken by slow node 0 until 5.1 s, so that node 7 is rid of its next at 5.2 s."""
    busy = np.ones((2, 8))
    busy[0, 0] = 5.0
    assert serial_links.push_rounds(busy, 0.1)[1, 7] == pytest.approx(5.2 - 2.1)


def test_a_ring_all_reduce_takes_all_its_steps_and_ends_with_the_slowest():
    np.testing.assert_allclose(serial_links.ring_rounds(np.ones((2, 4)), 0.1), 0.6)
    busy = np.array([[1.0, 3.0, 1.0, 1.0]])
    begin = busy + serial_links.ring_rounds(busy, 0.1)
    np.testing.assert_allclose(begin, 3.6)  # 6 steps after the slowest


@pytest.fixture
def config():
    config = swarm_scale.get_config("rounds=10")
    with config.unlocked():
        config.workers = (8, 16)
    return config


def test_swarm_stays_flat_where_dense_gossip_does_not(config):
    points = {(p.method, p.workers): p for p in serial_links.simulate(config)}
    assert {method for method, _ in points} == {label for label, _ in config.methods}
    for name, most in (("swarm/H=2", 1.25), ("ad_psgd", 1.25)):
        assert points[name, 16].mean < most * points[name, 8].mean
    assert points["dpsgd/complete", 16].mean > 1.8 * points["dpsgd/complete", 8].mean
    assert points["swarm/H=2/8 bits", 16].mean < 0.4 * points["swarm/H=2", 16].mean
    for name, models in (("swarm/H=2", 2), ("sgp", 1), ("dpsgd/ring", 2), ("dpsgd/complete", 15)):
        assert points[name, 16].bytes == models * 4 * config.size
    for name, steps in (("swarm/H=2", 2), ("sgp", 1), ("dpsgd/ring", 1)):
        point = points[name, 16]  # a mini-batch takes 0.2 s
        assert point.of_compute == pytest.approx(point.mean / (0.2 * steps), rel=0.05)
    ring = 30 * (config.alpha + config.beta * 4 * config.size / 16)
    assert ring < points["all_reduce", 16].mean < ring + 0.3 * 0.2  # who waits for jitter of 10 %
    # Buckets of 1,024 coordinates, the last one filled up, and a header of 12 bytes each.
    coded = lattice.buckets(config.size) * (1024 + 12)
    assert points["swarm/H=2/8 bits", 16].bytes == 2 * coded
    assert points["ad_psgd", 16].bytes == pytest.approx(4 * config.size, rel=0.1)
    assert points["all_reduce", 16].bytes == pytest.approx(2 * 15 / 16 * 4 * config.size, rel=1e-5)
    for point in points.values():
        assert 0 < point.mean <= point.quantile


def test_an_analysis_prints_its_table_and_draws_its_figure(config, tmp_path, capsys):
    with config.unlocked():
        config.workers = (8,)
    study.write(swarm_scale.analyse(config), config, tmp_path, Console(width=120))
    printed = capsys.readouterr().out
    assert "swarm/H=2/8 bits" in printed and "cannot be told: " in printed
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "summary.json",
        "figure.png",
    }
    with Image.open(tmp_path / "figure.png") as image:
        assert image.format == "PNG" and image.size == (1350, 600)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 0}, "config.rounds must be a positive whole number, got 0"),
        ({"methods": (("x", "telepathy"),)}, "unknown name 'telepathy'; known names: swarm, "),
        (
            {"methods": (("x", "swarm(step=2)"),)},
            "'swarm' takes steps, a positive whole number, and",
        ),
        ({"methods": (("x", "sgp"), ("y", "swarm(steps=0)"))}, "a positive whole number, and bits"),
        (
            {"methods": (("x", "swarm(bits=24)"),)},
            "24 bits a coordinate; set an integer from 2 to 16",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(config, changes, words):
    with config.unlocked():
        config.update(changes)
    with pytest.raises(ValueError, match=words):
        serial_links.simulate(config)


def test_claims_stand_beside_what_was_simulated():
    def point(method, workers, mean, quantile, of_compute):
        return serial_links.Point(method, workers, mean, quantile, of_compute, 0.0)

    points = [
        point("swarm/H=1", 8, 1.0, 2.0, 0.3),
        point("swarm/H=1", 64, 1.25, 2.2, 0.4),
        point("swarm/H=4", 8, 1.0, 2.0, 0.08),
        point("swarm/H=4", 64, 1.05, 3.0, 0.09),
        point("sgp", 8, 1.0, 2.0, 0.3),
        point("sgp", 64, 9.0, 9.0, 0.3),
    ]
    grows, small = (text for _, text in claims(points))
    assert grows == "holds where: swarm/H=1 1.25x; swarm/H=4 1.05x"
    assert small == "holds where: swarm/H=1 40.0%; swarm/H=4 9.0%"
    for few, words in (
        (points[::2], "swarm/H=1 was simulated with one number of nodes"),
        (points[4:], "no method of Swarm was simulated"),
    ):
        assert next(claims(few))[1] == f"cannot be told: {words}"


def test_an_unknown_delay_is_refused():
    with pytest.raises(ValueError, match="unknown delay 'none'; choose one of equal, slow4"):
        swarm_scale.get_config("delay=none")
