"""Event loops whose durations depend on the start: compiled, and drawn when they are looked up."""

import dataclasses

import networkx as nx
import numpy as np
import pytest

from stragglers import delays, lookahead
from stragglers.processes import from_law, markov, persistent, spells
from stragglers.rule import Setting, whole
from stragglers.rules import RULES
from tests.stragglers.contract_rows import assert_equal

MARKOV = markov(delays.shifted_exponential(1.0, 1.0), 5.0, 9.0, 3.0)
PROCESSES = {
    "slow workers": persistent(MARKOV, {1: 3.0, 2: 0.25}),
    "spells": spells(persistent(MARKOV, [1.0, 2.0, 1.0, 1.5, 1.0, 1.0]), 3),
    "factors of factors": persistent(persistent(MARKOV, {0: 1.1}), {0: 1.3}),
    "law": from_law(delays.shifted_exponential(1.0, 1.0)),
}


@pytest.mark.parametrize(
    ("name", "own", "delay"),
    [
        ("k_batch_async", {"k": 4}, "slow workers"),
        ("k_sync", {"k": 4}, "factors of factors"),
        ("k_batch_sync", {"k": 4}, "spells"),
        ("ringmaster", {"limit": 2, "interrupt": True, "k": 2}, "slow workers"),
        ("random_pairs", {"width": 1, "blocking": True}, "spells"),
        ("random_pairs", {"width": 1}, "law"),
        ("bipartite_pairs", {"width": 1}, "factors of factors"),
    ],
)
def test_a_compiled_loop_gives_what_durations_drawn_one_by_one_give(name, own, delay, monkeypatch):
    process = PROCESSES[delay]
    graph = nx.cycle_graph(6) if name.endswith("pairs") else None
    setting = Setting(process, 6, 2, 5, graph, communication=0.25)
    found = whole(RULES[name](setting, **own), 150)
    apart = setting._replace(delay=dataclasses.replace(process, in_time=None))
    assert_equal(found, whole(RULES[name](apart, **own), 150))
    # The same with a table so short that the loop has to come back for more in any place.
    monkeypatch.setattr(lookahead, "WINDOW", 1)
    assert_equal(found, whole(RULES[name](setting, **own), 150))


@pytest.mark.parametrize("size", [1, 8, 9, 65, 1000])
def test_the_first_is_who_has_the_least_time(size):
    rng = np.random.default_rng(size)
    times = rng.integers(0, 20, size).astype(float)  # with ties
    tree, levels = lookahead.tree_of(times)
    assert lookahead.earliest(tree, levels) == np.argmin(times)
    for _ in range(300):
        who = lookahead.earliest(tree, levels) if rng.random() < 0.5 else rng.integers(size)
        times[who] = np.inf if rng.random() < 0.3 else times[who] + rng.integers(-3, 20)
        lookahead.set_time(tree, levels, who, times[who])
        assert lookahead.earliest(tree, levels) == np.argmin(times)
