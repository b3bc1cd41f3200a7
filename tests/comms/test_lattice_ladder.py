"""Two vectors that are exchanged, and the ladder that a failed decode climbs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import gossip, lattice
from comms.lattice import Wire
from tests.marks import slow

AXIS = "workers"


def conversation(rows, bound, partner, key=None, *, bits, lockstep=False):
    """Return the knowledge of one worker of the axis; partner: the position of the other one."""

    def swap(tree):
        return gossip.exchange(tree, partner, AXIS)

    wire = Wire(
        swap, lambda a: jax.lax.pmax(a, AXIS), partner != jax.lax.axis_index(AXIS), lockstep
    )
    return lattice.converse(rows, bound, wire, bits, key)


@functools.partial(jax.jit, static_argnames=("bits", "lockstep"))
def converse(rows, bound, partner, keys=None, *, bits, lockstep=False):
    """(difference [workers, buckets, n], Report) of all workers; bound: a number or stacked."""
    rows = jnp.asarray(rows)
    one = functools.partial(conversation, bits=bits, lockstep=lockstep)
    bound = jnp.broadcast_to(jnp.asarray(bound, jnp.float32), rows.shape[:2])
    partner = jnp.asarray(partner)
    if keys is None:
        return jax.vmap(one, axis_name=AXIS)(rows, bound, partner)
    return jax.vmap(one, axis_name=AXIS)(rows, bound, partner, keys)


def two(rng, shape, distance):
    """[2, buckets, n] of which the second is up to `distance` from the first."""
    x = rng.normal(size=shape).astype(np.float32)
    return np.stack([x, x + rng.uniform(-distance, distance, shape).astype(np.float32)])


def counts(report):
    names = ("failed", "full_precision", "skipped", "extra_messages", "extra_bytes")
    return np.stack([getattr(report, name) for name in names], 1).tolist()


@pytest.mark.parametrize("bits", [8, slow(9)])
def test_every_rung_by_hand(bits):
    """Six buckets: read at once, with more levels twice, in full twice, and left out."""
    side, wide, n = 0.01, min(2 * bits, 16), 64
    wider = 1 if bits <= 8 else 4
    radii = [lattice.radius(side, bits), lattice.radius(wider * side, wide)]
    x = np.random.default_rng(1).normal(size=(6, n)).astype(np.float32)
    other = x.copy()
    other[0, ::2] += np.float32(0.5 * radii[0])
    other[1:3, ::2] += np.float32(0.5 * (radii[0] + radii[1]))
    other[3:5, ::2] += np.float32(10 * radii[1])
    other[5, 3] = np.nan
    rows = np.stack([x, other])
    difference, report = converse(rows, radii[0], [1, 0], bits=bits)

    # Four buckets with more levels and their answer of a byte; two in full, sent as four.
    extra = 4 * lattice.row_bytes(n, wide) + 1 + 4 * 4 * n
    assert counts(report) == [[4, 2, 1, 3, extra]] * 2
    np.testing.assert_array_equal(difference[0], -difference[1])
    exact = other - x
    np.testing.assert_array_equal(difference[0, 3:5], exact[3:5])
    np.testing.assert_array_equal(difference[0, 5], 0)
    for bucket, finer in ((0, 1), (1, wider), (2, wider)):
        error = np.abs(difference[0, bucket] - exact[bucket]).max()
        # Both vectors are rounded, and a side is raised where float32 does not resolve it.
        resolved = max(finer * side, np.abs(other[bucket]).max() * 2.0**-21)
        assert 0 < error <= resolved * 1.001 + 1e-5


@pytest.mark.slow
def test_whatever_the_distance_the_difference_is_right_and_opposite():
    """400 pairs from 1e-3 to 1e7 apart, at a bound of 0.1."""
    rng = np.random.default_rng(3)
    bits, pairs, bound = 3, 400, 0.1
    x = rng.normal(size=(pairs, 3, 32)) * 10.0 ** rng.uniform(-3, 7, (pairs, 1, 1))
    away = rng.uniform(-1, 1, x.shape) * 10.0 ** rng.uniform(-3, 7, (pairs, 1, 1))
    rows = np.stack([x, x + away], 1).reshape(2 * pairs, 3, 32).astype(np.float32)
    difference, report = converse(rows, bound, np.arange(2 * pairs) ^ 1, bits=bits)
    difference, rows = (np.asarray(a).reshape(pairs, 2, 3, 32) for a in (difference, rows))
    np.testing.assert_array_equal(difference[:, 0], -difference[:, 1])
    exact = rows[:, 1].astype(np.float64) - rows[:, 0]
    side = float(lattice.side_for(bound, bits))
    largest = np.abs(rows).max((1, 3), keepdims=True)[:, 0]
    assert (np.abs(difference[:, 0] - exact) <= side + 2.0**-20 * largest).all()
    assert (report.skipped == 0).all()
    assert (report.full_precision > 0).any() and (report.full_precision < report.failed).any()
    assert (report.failed == 0).any()


def crowd():
    """Six workers in three pairs: one that needs one bucket, one that needs three, one none."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 1, 5, 20)) + rng.uniform(-0.05, 0.05, (3, 2, 5, 20))
    x[0, 1, 2] += 0.5
    x[1, 1, 1:4] += [[0.5], [20], [1e4]]
    bound = rng.uniform(0.1, 0.11, (6, 5)).astype(np.float32)
    keys = jax.random.split(jax.random.key(3), 6)
    return x.reshape(6, 5, 20).astype(np.float32), bound, np.arange(6) ^ 1, keys


@pytest.mark.slow
def test_pairs_in_lockstep_send_again_as_much_as_the_neediest():
    """And learn the same, bit for bit, as each in a program of its own."""
    rows, bound, partner, keys = crowd()
    alone = {"difference": [], "counts": []}
    for i in (0, 2, 4):
        pair = slice(i, i + 2)
        found, report = converse(rows[pair], bound[pair], [1, 0], keys[pair], bits=8)
        alone["difference"].append(found)
        alone["counts"] += counts(report)
    assert [c[0] for c in alone["counts"]] == [1, 1, 3, 3, 0, 0]
    row = lattice.row_bytes(20, 16)
    assert [c[3:] for c in alone["counts"][::2]] == [[2, row + 1], [3, 4 * row + 1 + 80], [0, 0]]
    difference, report = converse(rows, bound, partner, keys, bits=8, lockstep=True)
    np.testing.assert_array_equal(difference, np.concatenate(alone["difference"]))
    # In lock-step every pair counts what the second one needs.
    assert counts(report) == [c[:3] + alone["counts"][2][3:] for c in alone["counts"]]


@pytest.mark.slow
@pytest.mark.parametrize("spmd", ["shard_map"], indirect=True)
def test_devices_converse_as_simulated_workers_do_bit_for_bit(spmd):
    crowded = crowd()
    body = functools.partial(conversation, bits=8, lockstep=True)
    expected = converse(*crowded, bits=8, lockstep=True)
    jax.tree.map(np.testing.assert_array_equal, spmd(body, *crowded), expected)


@pytest.mark.slow
def test_unbiased_rounding_is_unbiased_on_every_rung():
    """The mean over 4,000 draws of a difference that is read at once, or only with more levels."""
    rng, draws = np.random.default_rng(5), 4_000
    rows = two(rng, (2, 8), 0.05)
    rows[1, 1] += 1.0
    bound = np.full((2, 2), 0.1, np.float32)
    keys = jax.random.split(jax.random.key(6), (draws, 2))
    found, report = jax.vmap(lambda keys: converse(rows, bound, [1, 0], keys, bits=4))(keys)
    assert (report.failed == 1).all() and (report.full_precision == 0).all()
    side = float(lattice.side_for(0.1, 4, stochastic=True))
    off = np.asarray(found[:, 0], np.float64).mean(0) - (rows[1] - rows[0])
    assert np.abs(off).max() <= 5 * side * np.sqrt(0.5 / draws)


def test_bounds_by_hand():
    bound, heard = np.float32([1, 1, 1, 4, 1]), np.float32([1, 2, np.nan, 1, np.inf])
    distance = np.float32([0.1, 0.1, 3, 1, np.nan])
    # Faded; the partner's faded; twice what was found; one's own faded; nothing that is infinite.
    following = lattice.next_bound(bound, heard, distance)
    np.testing.assert_allclose(following, [0.9, 1.8, 6, 3.6, 0.9], rtol=1e-6)
