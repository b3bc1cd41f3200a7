import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import bitmap, sketch


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns", [(1, 500), (4, 300), (5, 300)])
def test_the_error_of_estimates_is_the_simulated_one(rows, columns):
    """Over sketches of normal values; an even number of rows is less wrong than is said."""

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def squares(seed, entries):
        x = jax.random.normal(jax.random.key(seed), (3000,))
        x = jnp.where(jnp.arange(3000) < entries, x, 0)
        words = bitmap.pack(bitmap.occupied(x))
        found = sketch.decode_at(sketch.encode(x, rows, columns, seed), words, 3000, seed)
        return jnp.sum((found - x) ** 2), jnp.sum(x**2)

    for load in (0.1, 0.5, 1.5):
        entries = int(load * rows * columns)
        wrong, whole = (v.sum() for v in squares(jnp.arange(60, dtype=jnp.uint32), entries))
        simulated = float(jnp.sqrt(wrong / whole))
        estimated = sketch.estimate_error(entries, rows, columns)
        if rows % 2:
            assert estimated == pytest.approx(simulated, rel=0.05)
        else:
            assert 1 < estimated / simulated < 1.4


def test_one_row_is_the_closed_form():
    assert sketch.estimate_error(1, 1, 7) == 0
    assert sketch.estimate_error(51, 1, 200) == 0.5


def test_loads_are_the_published_ones():
    """Reciprocals of Table 1 of arXiv 1101.2245: buckets per entry."""
    for rows, buckets in ((3, 1.222), (4, 1.295), (5, 1.425), (6, 1.570), (7, 1.721)):
        assert sketch.peeling_load(rows) == pytest.approx(1 / buckets, abs=1e-3)
    assert sketch.peeling_load(1) == 0
    assert sketch.peeling_load(2) == pytest.approx(0.5, abs=1e-4)  # a forest


@pytest.mark.slow
def test_peeling_succeeds_below_its_load_and_not_above():
    rng = np.random.default_rng(0)
    for rows in (3, 5):
        columns = 6000 // rows
        for factor, resolved in ((0.97, True), (1.03, False)):
            entries = int(factor * sketch.peeling_load(rows) * rows * columns)
            mask = np.zeros(20_000, bool)
            mask[rng.choice(20_000, entries, replace=False)] = True
            left = sketch.unresolved(bitmap.pack(jnp.asarray(mask)), rows, columns, 20_000, 3)
            assert (bitmap.count(left) < 10) == resolved


def test_entries_within_an_error():
    for rows, columns in ((1, 50), (3, 40)):
        most = sketch.entries_within(0.5, rows, columns)
        assert sketch.estimate_error(most, rows, columns) <= 0.5
        assert sketch.estimate_error(most + 1, rows, columns) > 0.5
