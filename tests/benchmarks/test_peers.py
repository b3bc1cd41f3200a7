"""The sides of the comparison with others train on the same, and take turns."""

import jax
import numpy as np
import pytest

from benchmarks import peers


@pytest.mark.slow
def test_one_scan_and_a_call_per_event_end_at_the_same_model():
    model = "softmax"
    called, scanned = peers.call(model, 24)(), peers.scan(model, 24)()
    start = peers.task_of(model).init(jax.random.key(0))
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), called, start)
    assert max(jax.tree.leaves(moved)) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), called, scanned)
