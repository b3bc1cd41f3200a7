import os
import subprocess
import sys

import numpy as np
import pytest

from stragglers import streams
from tests.launcher import ROOT


def of_numpy(seed, stream, worker, count):
    address = np.random.SeedSequence(seed, spawn_key=(worker, count // 256, *stream))
    return np.random.default_rng(address).random(256)[count % 256]


@pytest.mark.parametrize(
    ("seed", "stream"), [(0, ()), (7, (1,)), (2**32 + 5, (3,)), (2**40, (2**33, 0))]
)
def test_numbers_are_those_of_numpys_generators(seed, stream):
    workers, counts = [0, 0, 5, 3, 2**20, 2**33], [0, 1, 255, 256, 257, 600, 601, 1000, 7, 70_000]
    found = streams.uniforms(seed, stream, np.array(workers)[:, None], np.array(counts))
    expected = [[of_numpy(seed, stream, worker, count) for count in counts] for worker in workers]
    np.testing.assert_array_equal(found, expected)


def test_draws_that_are_not_kept_are_the_same(monkeypatch):
    worker, count = np.broadcast_arrays(np.arange(3)[:, None], np.array([0, 1, 255, 256, 300, 2]))
    kept = streams.addressed(4, 1, transform=np.log1p)(worker, count)
    for threshold in ("MANY_BLOCKS", "MANY_WITH_COMPILER"):
        monkeypatch.setattr(streams, threshold, 1)
    np.testing.assert_array_equal(streams.addressed(4, 1, transform=np.log1p)(worker, count), kept)
    monkeypatch.setattr(streams, "MOST_KNOWN", 256)
    anew = streams.addressed(4, 1, transform=np.log1p)
    np.testing.assert_array_equal(anew(worker, count), kept)
    first = anew(np.array([0]), np.array([5]))
    np.testing.assert_array_equal(first, [np.log1p(of_numpy(4, (1,), 0, 5))])


@pytest.mark.parametrize("most", [2, 5], ids=["drawn anew", "kept"])
def test_draws_in_parts_are_the_same(most, monkeypatch):
    expected = streams.addressed(4)(np.arange(5)[:, None], np.arange(3))
    monkeypatch.setattr(streams, "AT_ONCE", 6)
    monkeypatch.setattr(streams, "MOST_ROWS", most)
    order = [some.ravel().tolist() for some in streams.parts(5, 3)]
    assert order == [[3, 4], [1, 2], [0]]
    lookup = streams.addressed(4)
    for some in streams.parts(5, 3):
        np.testing.assert_array_equal(lookup(some, np.arange(3)), expected[some[:, 0]])


COMPILED = {
    "streams": "streams.uniforms(0, (1,), np.arange(3), np.arange(3)); f = streams._compiled()",
    "event_loop": """
rule = RULES["k_async"](Setting(delays.exponential(1.0), 4, 1, 0), k=1)
rule.extend(rule.init(), 3); f = event_loop.compiled()""",
    "pair_loop": """
rule = RULES["random_pairs"](Setting(delays.exponential(1.0), 4, 1, 0, nx.cycle_graph(4)))
rule.extend(rule.init(), 3); f = pair_loop.compiled()""",
}


@pytest.mark.slow
@pytest.mark.parametrize("module", COMPILED)
def test_compiled_lines_are_kept_for_the_next_process(module, tmp_path):
    lines = f"""
import networkx as nx
import numpy as np
from stragglers import delays, event_loop, pair_loop, streams
from stragglers.rule import Setting
from stragglers.rules import RULES
{COMPILED[module]}
print(sum(f.stats.cache_hits.values()), sum(f.stats.cache_misses.values()))
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", lines],
            cwd=ROOT,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert found == [["0", "1"], ["1", "0"]]


def test_a_missing_compiler_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # as where it is not installed
    with pytest.raises(ImportError, match=r"needs numba .*; run pip install 'gossax\[schedules\]'"):
        streams.compiler()
