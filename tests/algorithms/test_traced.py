"""The reader of compiled programs, on programs whose bytes are plain to see."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.algorithms import traced
from tests.conftest import make_mesh

N = 8
X = np.ones((N, 1000), np.float32)
TO_NEXT = [(i, (i + 1) % N) for i in range(N)]
PAIR = [(1, 0), (0, 1), *((i, i) for i in range(2, N))]
psum = functools.partial(jax.lax.psum, axis_name="workers")
permuted = functools.partial(jax.lax.ppermute, axis_name="workers")


def compiled(body):
    """Return the HLO of `body` on a device per worker."""
    over = P("workers")
    mapped = jax.shard_map(body, mesh=make_mesh(N), in_specs=over, out_specs=over, check_vma=False)
    return jax.jit(mapped).lower(X).compile().as_text()


def test_bytes_of_collectives():
    for body, sent in (
        (psum, 2 * 7 / 8 * 4000),
        (lambda x: jax.lax.all_gather(x[0], "workers")[None].sum(1), 7 * 4000),
        (lambda x: permuted(x, perm=PAIR), 4000 * 2 / 8),
        (lambda x: jax.lax.all_to_all(x.reshape(8, 125), "workers", 0, 0).reshape(1, -1),
         7 / 8 * 4000),
        (lambda x: jax.lax.psum_scatter(x[0].reshape(8, 125), "workers", tiled=True), 7 * 500),
        (lambda x: jax.lax.fori_loop(0, 5, lambda i, y: permuted(y * i, perm=TO_NEXT), x),
         5 * 4000),
    ):  # fmt: skip
        assert traced.sent_bytes(compiled(body), N) == sent


def test_of_a_condition_the_wanted_branch_counts():
    """Data decide, equal on all workers."""

    def body(x):
        large = jax.lax.pmax(x.sum(), "workers") > 10
        return jax.lax.cond(large, psum, lambda x: permuted(x, perm=PAIR), x)

    text, agreed = compiled(body), 2 * 7 / 8 * 4
    assert traced.sent_bytes(text, N) == agreed + 1000
    assert traced.sent_bytes(text, N, fallback=True) == agreed + 2 * 7 / 8 * 4000


def test_groups_of_devices_are_read_in_all_forms():
    for text, joined in (
        ("{{0,2,4,6},{1,3,5,7}}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mesh['workers'=4,'slice'=2] {'workers'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ):
        assert traced.groups(f"channel_id=1, replica_groups={text}, to_apply=%sum", N) == joined
    with pytest.raises(ValueError, match="in a form that is not read"):
        traced.groups("replica_groups=all", N)
