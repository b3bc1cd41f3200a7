import importlib
import sys

import numpy as np
import pytest

from stragglers import streams


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
    parts, lookup = list(streams.parts(5, 3)), streams.addressed(4)
    assert [part.ravel().tolist() for part in parts] == [[3, 4], [1, 2], [0]]
    for part in parts:
        np.testing.assert_array_equal(lookup(part, np.arange(3)), expected[part[:, 0]])


def test_a_missing_compiler_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # as where it is not installed
    with pytest.raises(ImportError, match=r"needs numba .*; run pip install 'gossax\[schedules\]'"):
        streams.compiled(streams._mixed)


def test_what_is_kept_follows_the_functions_that_are_called(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "calling.py").write_text(
        "from called import step\n\n\ndef run(x):\n    return step(x)\n"
    )
    for change in (1, 20):  # all else stays, so that numba finds nothing new in calling.py
        (tmp_path / "called.py").write_text(f"def step(x):\n    return x + {change}\n")
        for name in ("called", "calling"):
            monkeypatch.setitem(sys.modules, name, None)  # so that it is put back
            del sys.modules[name]
        importlib.invalidate_caches()
        called, calling = (importlib.import_module(name) for name in ("called", "calling"))
        assert streams.compiled(calling.run, called.step)(2) == 2 + change


def test_nothing_is_kept_where_nothing_can_be_written():
    """As of a package in an image that is read-only, for a user without a home."""
    names = {}
    exec(compile("def more(a):\n    return a + 1", "/nowhere/more.py", "exec"), names)
    assert streams.compiled(names["more"])(1) == 2
