"""The slow worker is named soon, and nobody else ever is."""

import networkx as nx
import numpy as np
import pytest

from configs import base
from experiments import prepare
from stragglers import delays, processes, slow_worker
from stragglers.rule import Setting
from stragglers.rules import RULES

LAWS = {
    "exponential": lambda random, shape: random.exponential(size=shape),
    "pareto, infinite variance": lambda random, shape: 1 + random.pareto(1.5, shape),
    "two values": lambda random, shape: np.where(random.random(shape) < 0.1, 5.0, 1.0),
    "rounds that differ": lambda random, shape: (
        random.lognormal(0, 0.1, shape) * random.exponential(size=(shape[0], 1))
    ),
}
QUIET = {
    "lognormal of deviation 0.1": lambda random, shape: random.lognormal(0, 0.1, shape),
    "uniform, 20 % around the mean": lambda random, shape: random.uniform(0.8, 1.2, shape),
}


@pytest.mark.parametrize(("law", "workers"), [*zip(LAWS, (4, 64, 4, 64), strict=True)])
def test_no_false_alarm_in_a_thousand_rounds(law, workers, monkeypatch):
    """Rounds are ranked once: a look at 256 of them would rank all but one of them again."""
    seconds = LAWS[law](np.random.default_rng(workers), (1000, workers))
    ranks = slow_worker._ranks(seconds)
    for end in range(1, 1001):
        rows = slice(max(0, end - slow_worker.MEMORY), end)
        monkeypatch.setattr(slow_worker, "_ranks", lambda _, rows=rows: ranks[rows])
        assert slow_worker.slowest(seconds[rows]) is None, end


def rounds_until_named(law, workers, seed, most):
    random = np.random.default_rng([seed, workers])
    seconds = law(random, (most, workers))
    slow = int(random.integers(workers))
    seconds[:, slow] *= 1.5
    for end in range(1, most + 1):
        found = slow_worker.slowest(seconds[:end])
        if found is not None:
            assert found.column == slow
            return end
    return most + 1


@pytest.mark.parametrize(("law", "workers"), [*zip(QUIET, (4, 64), strict=True)])
def test_a_slow_worker_is_named_within_twenty_rounds(law, workers):
    named = [rounds_until_named(QUIET[law], workers, seed, 20) for seed in range(50)]
    assert max(named) <= 20


RULES_OF_ALL_KINDS = {
    "barrier": ({}, False),
    "first_finisher": ({"in_flight": "cut"}, False),
    "anytime": ({"seconds": 5.0}, False),
    "k_sync": ({"k": 6}, False),
    "k_sync, most of the time cut off": ({"k": 7}, False),
    "rennala": ({"k": 20}, False),
    "k_async": ({"k": 1}, False),
    "ringmaster": ({"limit": 40}, False),
    "random_pairs": ({}, True),
}


def looks(name, delay, updates, parts, each=4, seed=0):
    """Return what a watch says after each of the parts of a schedule."""
    own, paired = RULES_OF_ALL_KINDS[name]
    graph = nx.cycle_graph(8) if paired else None
    rule = RULES[name.partition(",")[0]](Setting(delay, 8, each, seed=seed, graph=graph), **own)
    watch, state, found = slow_worker.Watch(8, rule.cuts_off), rule.init(), []
    for _ in range(parts):
        state, schedule = rule.extend(state, updates // parts)
        watch.take(schedule)
        found.append(watch.metrics())
    return found


@pytest.mark.parametrize("name", RULES_OF_ALL_KINDS)
def test_rules_of_all_kinds_name_the_slow_worker_and_no_other(name):
    slow = processes.persistent(delays.lognormal(0.0, 0.1), {5: 1.5})
    (found,) = looks(name, slow, 400, 1)
    assert (found["slow_worker"], found["slow_persistent"]) == (5, True)
    assert found["slow_factor"] > 1.3
    assert looks(name, slow, 400, 20)[-1] == found
    assert looks(name, delays.exponential(1.0), 1000, 50, each=2, seed=3) == [{}] * 50


def test_a_spell_is_passing_and_over_when_it_is_over():
    seconds = np.random.default_rng(0).lognormal(0, 0.1, (400, 8))
    seconds[200:260, 3] *= 2
    found = [slow_worker.slowest(seconds[max(0, end - 256) : end]) for end in (200, 230, 290)]
    assert found[0] is None and found[2] is None
    assert (found[1].column, found[1].persistent) == (3, False)
    assert 1.8 < found[1].factor < 2.2
    assert slow_worker.described(dict(zip(slow_worker.WORKER, found[1], strict=True))).endswith(
        "passing"
    )


def over_links(method, wait, spells, seed=0, graph="complete"):
    """Return what a watch says after each of four parts of a plan, and the last in words."""
    config = base.arm(
        algorithm=method, wait=wait, workers=8, seed=seed, delay="uniform(low=0.3, high=0.5)",
        communication=f"link(seconds=0.1, spells={spells})", graph=graph, batch_size=1,
        task="synthetic_logistic(samples=16, dimension=2)",
    )  # fmt: skip
    made = prepare.prepare(config)
    rule, own = prepare.rule(config, made), prepare.own_links(config, made)
    watch, state, found = slow_worker.Watch(8, made.rule.cuts_off, own), rule.init(), []
    for _ in range(4):
        state, schedule = rule.extend(state, 500 if rule.turnout.pairs else 150)
        watch.take(schedule)
        found.append(watch.metrics())
    return found, slow_worker.described(found[-1])


MIXED = "dpsgd(order=adapt_then_combine)"
SLOW_LINK = "listed(changes=[[0.0, '2-5', 5.0], [0.0, '2-2', 5.0]])"
SPELLS = "markov(factor=8, mean_normal=0.9, mean_slow=0.1)"  # as long as a round


@pytest.mark.parametrize(
    ("method", "wait", "words"),
    [
        ("swarm", "random_pairs", "link 2-5 takes 5x, persistent"),
        ("swarm(blocking=true)", "random_pairs(blocking=true)", "link 2-5 takes 5x, persistent"),
        ("all_reduce", "k_async(k=1)", "link of worker 2 takes 5x, persistent"),
        (MIXED, "barrier", "link of worker 2 takes 1.6x, persistent"),  # one of its seven
        ("dpsgd", "barrier", ""),  # hides behind the work
        ("all_reduce", "barrier", ""),
    ],
)
def test_a_slow_link_is_named_where_it_can_be_told(method, wait, words):
    assert over_links(method, wait, SLOW_LINK)[1] == words
    assert over_links(method, wait, SPELLS, seed=3)[0] == [{}] * 4


def test_workers_with_more_links_than_others_are_not_called_slow():
    assert over_links(MIXED, "barrier", SPELLS, seed=1, graph="star")[0] == [{}] * 4


def test_ranks_and_their_sums_by_hand():
    ranks = slow_worker._ranks(np.array([[3.0, 1.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    np.testing.assert_array_equal(ranks, [[3.0, 0.5, 2.0, 0.5], [1.5] * 4])
    # 4 workers: the highest of 9 sums has probability 4^-9 = 3.8e-6, times 4 is above the level.
    assert slow_worker._critical(4, 9) == np.inf
    assert slow_worker._critical(4, 10) == 30
