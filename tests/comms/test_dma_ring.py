"""Rings of codes: by hand in NumPy, and the kernel of remote DMA, interpreted."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from algorithms import reducers
from comms import dma_ring, quantise
from tests.comms.test_codecs import ring

WORKERS, BUCKET = 4, 16


def by_hand(x):
    """Return the sum of x [n, size] as a ring rounds it, and the most that its hops are off."""
    workers, size = x.shape
    chunk = -(-size // workers)
    chunks = np.pad(x, ((0, 0), (0, workers * chunk - size))).reshape(workers, workers, chunk)
    total, off = np.zeros((2, workers, chunk))
    for c in range(workers):
        for hop in range(workers):  # from the worker of the number of the chunk to the next one
            held = total[c] + chunks[(c + hop) % workers, c]
            blocks = np.pad(held, (0, -chunk % BUCKET)).reshape(-1, BUCKET)
            scale = np.abs(blocks).max(1, keepdims=True) / 127
            total[c] = (np.rint(blocks / scale) * scale).ravel()[:chunk]
            off[c] += np.broadcast_to(scale / 2, blocks.shape).ravel()[:chunk]
    return total.ravel()[:size], off.ravel()[:size]


def test_every_hop_rounds_once(spmd):
    """In float64 by hand; where a float32 falls on the other side of a tie, within the bound."""
    x = np.random.default_rng(0).standard_normal((WORKERS, 203)).astype(np.float32)
    total, parts = map(np.asarray, spmd(ring, x))
    expected, off = by_hand(x.astype(np.float64))
    np.testing.assert_array_equal(total, np.broadcast_to(total[:1], x.shape))
    exact = x.sum(0, dtype=np.float64)
    assert (np.abs(total[0] - exact) <= off + 1e-5).all()
    assert (np.abs(total[0] - exact) > off / 8).mean() > 0.5  # and rounded it is
    assert (np.abs(total[0] - expected) > 1e-5).mean() < 0.02
    np.testing.assert_allclose(parts.sum(0, dtype=np.float64), total[0], atol=1e-5)


def test_a_kernel_that_cannot_run_says_what_can():
    x = jnp.zeros((WORKERS, 4096))
    with pytest.raises(ValueError, match=r"needs a TPU for every worker, .*; take ring\(int8\)"):
        jax.vmap(lambda x: dma_ring.all_reduce(x, 128), axis_name="workers")(x)
    with pytest.raises(ValueError, match="buckets of n x 128 entries, got 100; 1024 fits"):
        reducers.dma_ring(bucket=100)
    with pytest.raises(ValueError, match="ring: top_k has no codes for whole sums"):
        reducers.ring(reducers.top_k())


def test_messages_of_the_kernel_are_whole_tiles():
    """A chunk of 9000 fills 71 blocks of 128, in two parts of 64 with a row of scales each."""
    leaf = jax.ShapeDtypeStruct((4, 9000), jnp.float32)
    (sent,) = reducers.dma_ring(bucket=128).payload(leaf, WORKERS, 0).reduced
    assert sent == WORKERS * 2 * (64 * 128 + 4 * 128)
    (sent,) = reducers.ring(reducers.int8(bucket=128)).payload(leaf, WORKERS, 0).reduced
    assert sent == WORKERS * 71 * (128 + 4)


@pytest.mark.slow
def test_the_interpreted_kernel_is_the_ring_of_ppermute_bit_for_bit():
    """In a process of four devices: two tiles, random draws, and the nearest; no race is found."""
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-m", "tests.comms.test_dma_ring"], capture_output=True, text=True,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def main():
    from jax.experimental.pallas import tpu as pltpu

    dma_ring.ROWS = dma_ring.SUBLANES = 8  # large arrays of callbacks take long
    mesh = jax.make_mesh((WORKERS,), ("workers",), (AxisType.Auto,))
    stacked = PartitionSpec("workers")
    x = np.random.default_rng(0).standard_normal((WORKERS, 4 * 2100)).astype(np.float32)
    x[0, 700] = np.nan

    interpret = pltpu.InterpretParams(detect_races=True)

    def ran(total, random):
        """Return what a sum gives, by a program of its own: collectives wait for no callback."""

        def body(x):
            keys = quantise.hop_keys(jax.random.key(jax.lax.axis_index("workers")))
            return jax.tree.map(lambda a: a[None], total(x[0], 128, keys=keys if random else None))

        run = jax.shard_map(body, mesh=mesh, in_specs=stacked, out_specs=stacked, check_vma=False)
        return jax.block_until_ready(jax.jit(run)(x))

    for random in (True, False):
        plain = ran(ring, random)
        kernel = ran(functools.partial(dma_ring.all_reduce, interpret=interpret), random)
        for ours, expected in zip(kernel, plain, strict=True):
            np.testing.assert_array_equal(ours, expected)
        assert np.isnan(kernel[0]).sum() == WORKERS * 128
        assert 0 < np.nanmax(np.abs(kernel[0][0] - x.sum(0))) < 0.5


if __name__ == "__main__":
    main()
