"""The reader of compiled programs, on programs whose bytes are plain to see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.algorithms import traced

N, SIZE = 8, 1000
TO_NEXT = [(i, (i + 1) % N) for i in range(N)]
PAIR = [(1, 0), (0, 1), *((i, i) for i in range(2, N))]


def compiled(body, *arguments):
    """HLO of `body` on a device per worker; arguments: [N, ...] each."""
    devices = jax.make_mesh((N,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = functools.partial(
        jax.shard_map, mesh=devices, in_specs=P("workers"), out_specs=P("workers"), check_vma=False
    )
    return jax.jit(sharded(body)).lower(*arguments).compile().as_text()


def vectors(dtype=np.float32):
    return np.ones((N, SIZE), dtype)


def permuted(x, pairs):
    return jax.lax.ppermute(x, "workers", pairs)


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (lambda x: jax.lax.psum(x, "workers"), 2 * 7 / 8 * 4000),
        (lambda x: jax.lax.all_gather(x[0], "workers")[None].sum(1), 7 * 4000),
        (lambda x: permuted(x, PAIR), 4000 * 2 / 8),
        (lambda x: jax.lax.all_to_all(x.reshape(8, 125), "workers", 0, 0).reshape(1, -1),
         7 / 8 * 4000),
        (lambda x: jax.lax.psum_scatter(x[0].reshape(8, 125), "workers", tiled=True), 7 * 500),
        (lambda x: jax.lax.fori_loop(0, 5, lambda i, y: permuted(y * i, TO_NEXT), x), 5 * 4000),
    ],
    ids=["all_reduce", "all_gather", "pair", "all_to_all", "reduce_scatter", "loop"],
)  # fmt: skip
def test_bytes_of_a_collective(body, sent):
    assert traced.sent_bytes(compiled(body, vectors()), N) == sent


def test_of_a_condition_the_wanted_branch_counts():
    """What decides is data, but equal on all workers."""

    def body(x):
        large = jax.lax.pmax(x.sum(), "workers") > 10
        return jax.lax.cond(
            large, lambda x: jax.lax.psum(x, "workers"), lambda x: permuted(x, PAIR), x
        )

    text, agreed = compiled(body, vectors()), 2 * 7 / 8 * 4
    assert traced.sent_bytes(text, N) == agreed + 1000
    assert traced.sent_bytes(text, N, fallback=True) == agreed + 2 * 7 / 8 * 4000


@pytest.mark.parametrize(
    ("body", "depends"),
    [
        (lambda x, y: jax.lax.psum(y, "workers") + x, False),
        (lambda x, y: permuted(jnp.where(y > 0, x, y), TO_NEXT), True),
        (lambda x, y: jax.lax.psum(jax.jit(lambda a, b: (a, b))(x, y)[1], "workers"), False),
        (lambda x, y: jax.lax.psum(jax.jit(lambda a, b: (a, b))(x, y)[0], "workers"), True),
        (lambda x, y: jax.lax.cond(y[0] > 0, lambda a: permuted(a, TO_NEXT), jnp.sin, x), True),
        (lambda x, y: jax.lax.cond(y[0] > 0, lambda a: permuted(a, TO_NEXT), jnp.sin, y), False),
        (lambda x, y: jax.lax.fori_loop(0, 3, lambda i, a: permuted(a + x, TO_NEXT), y), True),
    ],
)
def test_what_is_sent_follows_from_an_argument_or_not(body, depends):
    arrays = (jnp.ones(SIZE), jnp.ones(SIZE))
    found = traced.sends_what_depends(body, *arrays, axis_env=[("workers", N)])
    assert found == depends


def test_groups_of_devices_are_read_in_all_forms():
    for text, joined in (
        ("{{0,2,4,6},{1,3,5,7}}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mesh['workers'=4,'slice'=2] {'workers'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ):
        assert traced.groups(f"channel_id=1, replica_groups={text}, to_apply=%sum", N) == joined


def test_what_is_not_understood_is_refused():
    def body(x):
        return jax.lax.while_loop(
            lambda y: jax.lax.pmax(y.sum(), "workers") < 1e9, lambda y: permuted(2 * y, TO_NEXT), x
        )

    with pytest.raises(ValueError, match="a loop of unknown length holds collectives"):
        traced.sent_bytes(compiled(body, vectors()), N)
    with pytest.raises(ValueError, match="no ENTRY computation"):
        traced.sent_bytes("nothing", N)
    start = "ENTRY %main (p: f32[8]) -> f32[8] {\n  %a = f32[8] all-reduce-start(f32[8] %p)\n}"
    with pytest.raises(ValueError, match="all-reduce-start: asynchronous"):
        traced.sent_bytes(start, N)
    with pytest.raises(ValueError, match="in a form that is not read"):
        traced.groups("replica_groups=all", N)
