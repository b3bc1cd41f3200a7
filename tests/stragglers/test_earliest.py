import numpy as np
import pytest

from stragglers import earliest
from stragglers.earliest import interleaved


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 64, 65, 1000])
def test_the_first_is_who_has_the_least_time(size):
    rng = np.random.default_rng(size)
    times = rng.integers(0, 20, size).astype(float)  # with ties
    tree, levels = earliest.tree_of(times)
    assert earliest.first(tree, levels) == np.argmin(times)
    for _ in range(300):
        who = earliest.first(tree, levels) if rng.random() < 0.5 else rng.integers(size)
        times[who] = np.inf if rng.random() < 0.3 else times[who] + rng.integers(-3, 20)
        earliest.set_time(tree, levels, who, times[who])
        assert earliest.first(tree, levels) == np.argmin(times)


@pytest.mark.parametrize("count", [1, 8, 9])
def test_numbers_of_a_worker_share_cache_lines(count):
    kinds = [np.int64 if c % 2 else np.float64 for c in range(count)]
    arrays = [np.arange(5, dtype=kind) + 10 * c for c, kind in enumerate(kinds)]
    views = interleaved(arrays)
    for view, array in zip(views, arrays, strict=True):
        assert view.dtype == array.dtype
        np.testing.assert_array_equal(view, array)
        assert not np.shares_memory(view, array)
    for worker in range(5):
        lines = {view[worker:].ctypes.data // 64 for view in views}
        assert len(lines) == -(-count // 8)
