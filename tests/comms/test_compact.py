import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import bitmap, compact


def gradients(workers, share, dtype=np.float32, shape=(200, 5)):
    rng = np.random.default_rng(0)
    rows = rng.random((workers, shape[0], *[1] * len(shape[1:]))) < share
    x = rng.normal(size=(workers, *shape)) * 10.0 ** rng.integers(-6, 6, (workers, *shape))
    return jnp.asarray(np.where(rows, x, 0), dtype)


def body(budget):
    def both(x):
        total, fell_back = compact.all_reduce(x, budget)
        return total, fell_back, jax.lax.psum(x, "workers")

    return both


def assert_bits_of_the_dense_sum(run, x):
    """Whether or not the union fits: budgets just too small, just large enough, and ample."""
    workers, n = x.shape[:2]
    union = int((np.asarray(x, np.float32) != 0).reshape(workers, n, -1).any((0, 2)).sum())
    budgets = union - 1, union, 10_000
    bodies = [body(budget) for budget in budgets]
    found = run(lambda x: [one(x) for one in bodies], x)  # one program
    for budget, (total, fell_back, dense) in zip(budgets, found, strict=True):
        assert total.dtype == x.dtype
        assert (np.asarray(fell_back) == (budget < union)).all()
        np.testing.assert_array_equal(np.asarray(total, np.float32), np.asarray(dense, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers, shape, dtype",
    [
        (1, (333,), jnp.float32),
        (8, (200, 5), jnp.float32),
        (4, (60, 2, 3), jnp.bfloat16),
    ],
)
def test_bits_of_the_dense_sum_within_the_budget_and_beyond(spmd, workers, shape, dtype):
    assert_bits_of_the_dense_sum(spmd, gradients(workers, 0.1, dtype, shape))


@pytest.mark.slow
def test_many_simulated_workers_get_the_dense_sum():
    def run(body, x):
        return jax.jit(jax.vmap(body, axis_name="workers"))(x)

    # Whole numbers: every order of summation gives the same bits.
    x = np.random.default_rng(0).integers(-99, 99, (33, 300, 4)).astype(np.float32)
    assert_bits_of_the_dense_sum(run, x * (np.arange(300) % 7 == 0)[None, :, None])


@pytest.mark.parametrize("budget", [0, 100])
def test_nan_and_infinity_are_sent(budget):
    x = np.zeros((2, 100, 3), np.float32)
    x[0, 7, 1], x[1, 8, 2], x[0, 9, 0], x[1, 9, 0] = np.nan, np.inf, np.inf, -np.inf
    total, _, dense = jax.jit(jax.vmap(body(budget), axis_name="workers"))(x)
    assert np.isnan(total[0, 7, 1]) and np.isnan(total[0, 9, 0])
    np.testing.assert_array_equal(total, dense)


def test_within_the_budget_only_its_rows_are_summed():
    """The branch stays one under vmap: simulated workers do not pay for the dense sum too."""
    x = gradients(4, 0.05)
    mapped = jax.vmap(lambda x: compact.all_reduce(x, 50)[0], axis_name="workers")
    names = [equation.primitive.name for equation in jax.make_jaxpr(mapped)(x).jaxpr.eqns]
    assert "cond" in names


def test_bytes():
    words = bitmap.payload_bytes(200)
    assert words == 28
    assert compact.payload_bytes((200, 5), np.float32, 10) == words + 10 * 20
    assert compact.payload_bytes((200, 5), jnp.bfloat16, 10, fell_back=True) == words + 200 * 10
    assert compact.payload_bytes((200,), np.float32, 300) == words + 200 * 4


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="a budget of -1 rows"):
        compact.all_reduce(jnp.zeros(3), -1)
