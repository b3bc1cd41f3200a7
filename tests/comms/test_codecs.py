"""One battery for all codecs: the sum over the workers, as each of them decodes it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from algorithms.powersgd import factored_all_reduce, first_factor
from comms import bitmap, compact, quantise, sketch, sparse
from comms.cost import payload_bytes
from tests.comms.test_collectives import collective_calls
from tests.marks import slow

SHAPE = (40, 3)
SIZE = 120


def key_of_worker():
    return jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("workers"))


def s2(x):
    words = bitmap.union(bitmap.pack(bitmap.occupied(x)))
    total = sketch.all_reduce(sketch.encode(x, 3, 40, seed=5))
    return sketch.recover(total, words, len(x), seed=5)


def top_k(x):
    total = sparse.all_gather_sum(sparse.top_k(x, SIZE), x.size)
    return total.reshape(x.shape)


def threshold(x):
    message, _ = sparse.above(x, 0.1, capacity=SIZE)
    return sparse.all_gather_sum(message, x.size).reshape(x.shape)


def random_k(x, k=SIZE // 2):
    key = jax.random.key(3)
    values = jax.lax.psum(sparse.random_k(x, k, key), "workers")
    return sparse.random_k_decode(values, x.size, key).reshape(x.shape)


def qsgd(x):
    total = quantise.all_gather_sum(
        quantise.qsgd(x, 7, key_of_worker(), bucket=32),
        lambda message: quantise.qsgd_decode(message, x.size, 7, bucket=32),
    )
    return total.reshape(x.shape)


def natural(x):
    message = quantise.natural(x, key_of_worker())
    return quantise.all_gather_sum(message, quantise.natural_decode).reshape(x.shape)


def sign(x):
    total = quantise.all_gather_sum(
        quantise.sign(x), lambda message: quantise.sign_decode(message, x.size)
    )
    return total.reshape(x.shape)


def int8(x, key=None, codec=None):
    codec = codec or quantise.int8_codec(16)
    return quantise.two_phase_all_reduce(x, codec, key=key).total


def ring(x, bucket=16, keys=None):
    """Return (the sum, this worker's part of it) by int8."""
    codec = quantise.int8_codec(bucket)
    return quantise.ring_all_reduce(
        x,
        lambda held, key: codec.encode(held[None], key),
        lambda message, entries: codec.decode(message, entries)[0],
        keys=keys,
    )


def low_rank(x):
    q = first_factor(x.shape, 1, jax.random.key(0))
    return factored_all_reduce(x, q)[0]


LOSSLESS = {
    "s2": s2,
    "compact": lambda x: compact.all_reduce(x, budget=len(x))[0],
    "compact, dense": lambda x: compact.all_reduce(x, budget=0)[0],
    "top_k of all": top_k,
    "random_k of all": lambda x: random_k(x, k=SIZE),
}
CODECS = LOSSLESS | {
    "threshold": threshold,
    "random_k": random_k,
    "qsgd": qsgd,
    "natural": natural,
    "sign": sign,
    "int8": int8,
    "int8, random": lambda x: int8(x, key_of_worker()),
    "int8, ring": lambda x: ring(x, keys=quantise.hop_keys(key_of_worker()))[0],
    "int4": functools.partial(int8, codec=quantise.int4_codec(16)),
    "fp8": functools.partial(int8, codec=quantise.fp8_codec(bucket=16)),
    "mxfp4, random": lambda x: int8(x, key_of_worker(), quantise.mxfp4_codec()),
    "powersgd": low_rank,
}
QUICK = ("compact", "qsgd", "int8")
# One of every way through the collectives.
KINDS = (
    *("s2", "compact", "top_k of all", "random_k", "qsgd", "int8, random", "int8, ring"),
    "powersgd",
)


def all_codecs(x, names=CODECS):
    """Return the sum of each codec, by name: one program compiles faster than many."""
    return {name: CODECS[name](x) for name in names}


def gradients(workers):
    """Row-sparse gradients, stacked over the workers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(workers, *SHAPE)).astype(np.float32)
    return x * (rng.random((workers, SHAPE[0], 1)) < 0.2)


@functools.cache
def compiled(names):
    return jax.jit(jax.vmap(functools.partial(all_codecs, names=names), axis_name="workers"))


def vmapped(x, names=tuple(CODECS)):
    return {name: np.asarray(found, np.float32) for name, found in compiled(names)(x).items()}


@pytest.mark.slow
def test_runtimes_agree_and_workers_hold_the_same_bits():
    x = gradients(3)
    mesh = jax.make_mesh((3,), ("workers",), (AxisType.Auto,), devices=jax.devices()[:3])
    stacked = PartitionSpec("workers")
    run = jax.shard_map(
        lambda x: jax.tree.map(lambda a: a[None], all_codecs(x[0], KINDS)),
        mesh=mesh, in_specs=stacked, out_specs=stacked,
    )  # fmt: skip
    sharded, expected = jax.block_until_ready(jax.jit(run)(x)), vmapped(x, KINDS)
    for name, found in sharded.items():
        found = np.asarray(found)
        assert found.shape == x.shape, name
        for same in (found, expected[name]):
            np.testing.assert_array_equal(same, np.broadcast_to(same[:1], same.shape), name)
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_without_loss_where_nothing_is_left_out():
    """Short floats are coded in float32; zeros stay zeros."""
    x = gradients(3)
    found = vmapped(x)
    for name in LOSSLESS:
        np.testing.assert_allclose(found[name][0], x.sum(0), rtol=1e-6, atol=1e-6, err_msg=name)
    for name, nothing in vmapped(0 * x).items():
        np.testing.assert_array_equal(nothing, 0, name)
    x = jnp.asarray(x, jnp.bfloat16)
    long = vmapped(np.asarray(x, np.float32), KINDS)
    for name, short in vmapped(x, KINDS).items():
        np.testing.assert_allclose(short, long[name], rtol=0.03, atol=0.03, err_msg=name)


@pytest.mark.parametrize("names", [QUICK, slow(tuple(CODECS))], ids=["quick", "all"])
def test_what_is_not_finite_stays_visible_on_every_worker(names):
    """Also where infinities of two workers cancel."""
    for poisons in ([np.nan], [-np.inf], [np.inf, -np.inf]):
        x = gradients(3)
        x[: len(poisons), 17, 1] = poisons
        for name, found in vmapped(x, names).items():
            assert not np.isfinite(found[:, 17, 1]).any(), name


@pytest.mark.parametrize("size", [31, 0])
def test_messages_are_as_large_as_their_codec_says(size):
    def bytes_of(encode):
        return payload_bytes(jax.eval_shape(encode, jax.ShapeDtypeStruct((size,), jnp.float32)))

    key = jax.random.key(0)
    k = min(20, size)
    for encode, expected in (
        (lambda x: bitmap.pack(x != 0), bitmap.payload_bytes(size)),
        (lambda x: sketch.encode(x, 3, 50, 0), sketch.payload_bytes(3, 50)),
        (lambda x: sparse.top_k(x, 20), sparse.payload_bytes(k, jnp.float32)),
        (lambda x: sparse.above(x, 1.0, 20)[0], sparse.payload_bytes(k, jnp.float32)),
        (lambda x: sparse.random_k(x, 20, key), 4 * k),
        (lambda x: quantise.qsgd(x, 1, key), quantise.qsgd_payload_bytes(size, 1)),
        (lambda x: quantise.qsgd(x, 100, key), quantise.qsgd_payload_bytes(size, 100)),
        (lambda x: quantise.natural(x, key), quantise.natural_payload_bytes(size)),
        (quantise.sign, quantise.sign_payload_bytes(size)),
    ):
        assert bytes_of(encode) == expected


@pytest.mark.parametrize(("workers", "size"), [(3, 5), (8, 1000)])
def test_two_phase_reductions_send_what_they_say(workers, size):
    """All-to-all of the payload and all-gather of a worker's n-th part: as a ring all-reduce."""

    def sent(body, x):
        traced = jax.make_jaxpr(body, axis_env=[("workers", workers)])(x)
        calls = list(collective_calls(traced.jaxpr).elements())
        whole = sum(size for name, size in calls if name == "all_to_all")
        part = sum(size for name, size in calls if name == "all_gather")
        assert whole == workers * part
        return whole

    payload = quantise.two_phase_bytes(size, workers, quantise.int8_codec(16))
    assert sent(int8, jnp.zeros(size)) == payload
    words = jnp.zeros(-(-size // 32), jnp.uint32)
    padding = -words.size % workers
    assert sent(bitmap.union, words) == bitmap.payload_bytes(size) + 4 * padding
