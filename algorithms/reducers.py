"""Reducers by the names that configs use, and their composition.

    local_sgd(exchange=top_k(ratio=0.01))
    all_reduce(exchange=chain(random_k(ratio=0.1), quantise(bits=4)))
    local_sgd(exchange=error_feedback(top_k(ratio=0.01), sign))
    all_reduce(exchange=bf16)
    all_reduce(exchange=ring(int8))

In a chain each reducer works on the values that the one before has picked. CocktailSGD (J. Wang et
al., ICML 2023) is `chain(random_k, top_k, quantise)`. Qsparse-local-SGD (D. Basu et al., arXiv
1906.02367) is `local_sgd(exchange=error_feedback(top_k, quantise(bucket=128)))`. A chain sends the
message of its last reducer, and indices if `top_k` is in it.
"""

import functools
import math
from collections.abc import Callable
from itertools import pairwise

import jax
import jax.numpy as jnp

from algorithms import compression
from algorithms.base import AXIS, choose, whole
from algorithms.compression import Encoder, Reducer
from comms import chunked, sparse
from comms import quantise as codecs
from comms.messages import Payload
from comms.quantise import Codec

INDEX_BYTES = 4  # bytes of an int32


def gathered(encode: Callable, decode: Callable, payload_bytes: Callable) -> Reducer:
    """Sum arrays that every worker gathers from all; arguments as in `Encoder`."""

    def reduce(x, state, draw):
        message = encode(x, draw.own)
        total = codecs.all_gather_sum(message, lambda held: decode(held, x.size), AXIS)
        return total.reshape(x.shape), decode(message, x.size).reshape(x.shape), state

    def payload(leaf, workers, update):
        return Payload(gathered=(payload_bytes(math.prod(leaf.shape)),))

    encoder = Encoder(encode, decode, payload_bytes)
    return Reducer(lambda leaf: (), reduce, payload, encoder=encoder)


def sent_twice(coder: Codec | Encoder) -> Callable:
    """Return `Reducer.payload` for chunks that are sent as codes before and after their sum."""

    def payload(leaf, workers, update):
        size = math.prod(leaf.shape)
        coded = codecs.two_phase_bytes(size, workers, coder)
        return Payload((4 * size if workers == 1 else coded,), itemsize=1)

    return payload


def pushed_once(coder: Codec | Encoder) -> Callable:
    """Return `Reducer.pushed` for codes that a worker pushes to a server."""
    return lambda leaf: Payload(gathered=(coder.payload_bytes(math.prod(leaf.shape)),))


def read_back(encoder: Encoder, x, key) -> jax.Array:
    """Return the array that others decode from one message, as a server does from a single push."""
    return encoder.decode(encoder.encode(x, key), x.size).reshape(x.shape)


def two_phase(codec: Codec) -> Reducer:
    """Sum arrays sent twice as codes, see `comms.quantise`; a lone worker encodes once.

    A worker's part also holds the rounding error of its chunk of the sum, whether the worker is
    busy or not, so that a memory around the reducer misses no error.
    """

    def reduce(x, state, draw):
        if jax.lax.axis_size(AXIS) == 1:
            return *[read_back(encoder, x, draw.own)] * 2, state
        reduced = codecs.two_phase_all_reduce(x, codec, AXIS, draw.own)
        rounding = codecs.at_own_chunk(reduced.left, x.size).reshape(x.shape)
        return reduced.total, reduced.sent - rounding, state

    def encode(x, key):
        return jax.tree.map(lambda a: a[0], codec.encode(x.reshape(1, -1), key))

    def decode(message, entries):
        return codec.decode(jax.tree.map(lambda a: a[None], message), entries)[0]

    encoder = Encoder(encode, decode, codec.payload_bytes)
    return Reducer(
        lambda leaf: (), reduce, sent_twice(codec), encoder=encoder, pushed=pushed_once(codec)
    )


def top_k(ratio: float = 0.01) -> Reducer:
    """Sum every worker's largest entries, a share `ratio` of every parameter."""
    check_ratio("top_k", ratio)

    def reduce(x, state, draw):
        del draw
        message = sparse.top_k(x, _entries(x, ratio), ordered=False)
        total = sparse.all_gather_sum(message, x.size, AXIS).reshape(x.shape)
        return total, sparse.decode(message, x.size).reshape(x.shape), state

    def payload(leaf, workers, update):
        return Payload(gathered=(sparse.payload_bytes(_sent(leaf, ratio), jnp.float32),))

    encoder = Encoder(
        lambda x, key: sparse.top_k(x, _entries(x, ratio), ordered=False),
        sparse.decode,
        lambda size: sparse.payload_bytes(min(_share(size, ratio), size), jnp.float32),
        picks=True,
    )
    within = functools.partial(_listed, ratio)
    return Reducer(lambda leaf: (), reduce, payload, "top_k", encoder, within)


def chunked_top_k(chunk: int = 4096, k: int = 64, bits: int = 2) -> Reducer:
    """Sum the k largest entries of every chunk, in codes of 1 to 8 `bits` (arXiv 2508.15706)."""
    whole("chunked_top_k", chunk=chunk, k=k, bits=bits)
    if not (1 <= k <= chunk <= 2**16 and 1 <= bits <= 8):
        raise ValueError(
            f"chunked_top_k: needs 1 <= k <= chunk <= 65536 and 1 to 8 bits, got {k}, {chunk} and "
            f"{bits}; 64 of 4096 in 2 bits is usual"
        )
    cut = chunked.Cut(chunk, k)
    reducer = gathered(
        lambda x, key: chunked.encode(x, cut, bits),
        lambda message, size: chunked.decode(message, size, cut, bits),
        lambda size: chunked.payload_bytes(size, cut, bits),
    )
    encoder, loses = reducer.encoder._replace(picks=True), None
    if bits == 1 and k > 1:  # each of the k is read as large as their largest
        loses = "codes of one bit may lose more than there is; take bits=2"
    return reducer._replace(name="chunked_top_k", encoder=encoder, amplifies=loses)


def random_k(ratio: float = 0.01, unbiased: bool = False, seed: int | None = 0) -> Reducer:
    """Sum the same random entries of all workers, a share `ratio` of every parameter.

    unbiased: scale entries by 1 / ratio; error feedback then raises ValueError if ratio < 1. seed:
    folded into the method's seed, as in all reducers below; None: the method's seed alone.
    """
    check_ratio("random_k", ratio)
    return compression.with_seed(_random(ratio, unbiased), seed)._replace(name="random_k")


def quantise(bits: int = 4, bucket: int = 512, seed: int | None = 0) -> Reducer:
    """Round by QSGD to 2 to 16 `bits`; `bucket` entries share a norm (arXiv 1610.02132)."""
    whole("quantise", bits=bits)
    if not 2 <= bits <= 16:
        raise ValueError(f"quantise: needs 2 to 16 bits, got {bits}; sign has 1 bit an entry")
    whole("quantise", 1, bucket=bucket)
    reducer = rounded_to_levels(2 ** (bits - 1) - 1, bucket)
    return compression.with_seed(reducer, seed)._replace(name="quantise")


def rounded_to_levels(levels: int, bucket: int) -> Reducer:
    """Sum entries rounded to multiples of norm / levels; `bucket` entries share a norm.

    For one of d entries, x_i, and s levels, let f be the fractional part of u_i = x_i s / norm. Its
    rounding has the variance f (1 - f) (norm / s)^2. The squares of all u_i add up to s^2. So the
    expected squared error / |x|^2 is at most d / (4 s^2) if sqrt(d) <= 2 s, else sqrt(d) / s - 1,
    which equal entries reach. Error feedback needs less than 1 (arXiv 1906.02367, Lemma 1).
    """
    whole("qsgd", levels=levels)
    codecs.qsgd_bits(levels)  # raises ValueError for levels without a code
    whole("qsgd", 1, bucket=bucket)
    reducer = gathered(
        lambda x, key: codecs.qsgd(x, levels, key, bucket),
        lambda message, size: codecs.qsgd_decode(message, size, levels, bucket),
        lambda size: codecs.qsgd_payload_bytes(size, levels, bucket),
    )
    root = math.isqrt(bucket)
    if root < 2 * levels:
        return reducer
    return reducer._replace(
        amplifies=f"codes of {codecs.qsgd_bits(levels)} bits may lose as much of {bucket} entries "
        "that share a norm as there is, so that the errors which are kept would grow; take "
        f"quantise(bits={(root + 2).bit_length()}), or bucket={4 * levels**2 - 1}"
    )


def natural(seed: int | None = 0) -> Reducer:
    """Round to powers of two, a byte per entry (arXiv 1905.10988)."""
    reducer = gathered(
        codecs.natural,
        lambda message, size: codecs.natural_decode(message),
        codecs.natural_payload_bytes,
    )
    return compression.with_seed(reducer, seed)._replace(name="natural")


def sign() -> Reducer:
    """Send signs and the mean magnitude, biased, for error feedback (arXiv 1901.09847)."""
    reducer = gathered(lambda x, key: codecs.sign(x), codecs.sign_decode, codecs.sign_payload_bytes)
    return reducer._replace(name="sign")


def bf16() -> Reducer:
    """Send bfloat16, 8 significant bits; the sum is computed in float32 and rounded once."""
    return two_phase(codecs.BFLOAT16)._replace(name="bf16")


def fp16() -> Reducer:
    """Send float16, 11 significant bits; a power of two scales each chunk into its range."""
    return two_phase(codecs.FLOAT16)._replace(name="fp16")


def int8(bucket: int = 1024, seed: int | None = 0) -> Reducer:
    """All-reduce in int8, rounded at random without bias; `bucket` entries share a scale."""
    whole("int8", 1, bucket=bucket)
    return compression.with_seed(two_phase(codecs.int8_codec(bucket)), seed)._replace(name="int8")


def fp8(format: str = "e4m3", bucket: int = 1024, seed: int | None = 0) -> Reducer:
    """All-reduce in floats of 8 bits, e4m3 or e5m2, rounded at random without bias.

    `bucket` entries share a scale; a bucket as long as the array gives the array one scale.
    """
    whole("fp8", 1, bucket=bucket)
    codec = codecs.fp8_codec(choose("fp8: format", codecs.FP8, format), bucket)
    return compression.with_seed(two_phase(codec), seed)._replace(name="fp8")


def mxfp4(seed: int | None = 0) -> Reducer:
    """All-reduce in MXFP4, blocks of 32 with a power of two each, rounded at random (OCP MX)."""
    return compression.with_seed(two_phase(codecs.mxfp4_codec()), seed)._replace(name="mxfp4")


def int4(bucket: int = 128, seed: int | None = 0) -> Reducer:
    """All-reduce in 4 bits, rounded at random without bias; `bucket` entries share a scale."""
    whole("int4", 1, bucket=bucket)
    return compression.with_seed(two_phase(codecs.int4_codec(bucket)), seed)._replace(name="int4")


def error_feedback(*reducers: Reducer) -> Reducer:
    """Keep the error of a chain of reducers, and add it to the next message."""
    reducer = chain(*reducers)
    if remembers(reducer):
        raise ValueError("error_feedback: what it is given keeps a memory already; write it once")
    refuse_amplified("error_feedback", reducer)
    return compression.with_error_feedback(reducer)._replace(name="error_feedback")


def chain(*reducers: Reducer) -> Reducer:
    """Let every reducer work on the values that the one before has picked.

    All reducers but the last must be `top_k` or `random_k`. Raises ValueError for reducers that
    cannot follow one another.
    """
    if not reducers:
        raise ValueError(
            "chain: got no reducer; write them one after the other, as in chain(top_k)"
        )
    for reducer in reducers:
        compression.check_reducer("chain", reducer, "part")
    names = [reducer.name for reducer in reducers]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"chain: has {name} {names.count(name)} times; leave one of them")
    for reducer in reducers:
        if len(reducers) > 1 and remembers(reducer):
            raise ValueError(
                f"chain: {reducer.name} keeps a memory of every entry, but the entries of a chain "
                "are others in every update; write error_feedback(...) around all of it"
            )
    for reducer, following in pairwise(reducers):
        if reducer.within is None:
            raise ValueError(
                f"chain: {reducer.name} sends codes, which {following.name} cannot work on; only "
                "top_k and random_k can be followed"
            )
    return functools.reduce(
        lambda rest, outer: outer.within(rest)._replace(name=outer.name), reversed(reducers)
    )


def ring(*reducers: Reducer) -> Reducer:
    """All-reduce by a ring: every hop adds in float32, and encodes the sum by a reducer's codes.

    A worker sends as many bytes as in two phases, to one neighbour. Every hop rounds values once.
    """
    inner = chain(*reducers)
    if inner.encoder is None or inner.encoder.picks:
        raise ValueError(
            f"ring: {inner.name} has no codes for whole sums; put bf16, fp16, fp8, int8, int4, "
            "mxfp4, quantise, natural or sign in it, and write chain(random_k, ring(int8)) for both"
        )

    coder = inner.encoder

    def reduce(x, state, draw):
        if jax.lax.axis_size(AXIS) == 1:
            return *[read_back(coder, x, draw.own)] * 2, state
        keys = codecs.hop_keys(draw.own)
        return *codecs.ring_all_reduce(x, coder.encode, coder.decode, AXIS, keys), state

    payload, pushed = sent_twice(coder), pushed_once(coder)
    return Reducer(
        lambda leaf: (), reduce, payload, "ring", pushed=pushed, amplifies=inner.amplifies
    )


def dma_ring(bucket: int = 1024, seed: int = 0) -> Reducer:
    """Sum as `ring(int8)` does, in one kernel of remote DMA; every worker needs a TPU."""
    from comms import dma_ring as kernel  # imports Pallas

    encoder = int8(bucket).encoder._replace(payload_bytes=kernel.sized(bucket))

    def reduce(x, state, draw):
        keys = jax.vmap(lambda key: jax.random.fold_in(key, seed))(codecs.hop_keys(draw.own))
        return *kernel.all_reduce(x, bucket, AXIS, keys), state

    payload, pushed = sent_twice(encoder), pushed_once(encoder)
    return Reducer(lambda leaf: (), reduce, payload, "dma_ring", pushed=pushed)


def refuse_amplified(name: str, reducer: Reducer) -> None:
    """Raise ValueError for a reducer whose errors would grow in the memory kept by `name`."""
    if reducer.amplifies:
        raise ValueError(f"{name}: {reducer.amplifies}")


def remembers(reducer: Reducer) -> bool:
    """Return True if workers keep a state for the reducer."""
    return bool(jax.tree.leaves(reducer.init(jax.ShapeDtypeStruct((8,), jnp.float32))))


def _listed(ratio: float, inner: Reducer) -> Reducer:
    """Return `top_k` whose values travel in the codes of `inner`; ValueError if it has none."""
    encoder = inner.encoder
    if encoder is None:
        raise ValueError(
            f"top_k: picks other entries on every worker, so that {inner.name} cannot add up what "
            "it picks; put bf16, fp16, fp8, int8, int4, mxfp4, quantise, natural or sign behind it"
        )

    def write(x, key):
        found = sparse.top_k(x, _entries(x, ratio))
        return found._replace(values=encoder.encode(found.values, key))

    def read(message, size):
        entries = min(_share(size, ratio), size)
        return message._replace(values=encoder.decode(message.values, entries))

    def reduce(x, state, draw):
        message = write(x, draw.own)
        everybodys = jax.vmap(lambda message: read(message, x.size))(
            jax.lax.all_gather(message, AXIS)
        )
        total = sparse.gathered_sum(everybodys, x.size)
        sent = sparse.decode(read(message, x.size), x.size)
        return total.reshape(x.shape), sent.reshape(x.shape), state

    def bytes_of(size):
        entries = min(_share(size, ratio), size)
        return encoder.payload_bytes(entries) + INDEX_BYTES * entries

    def payload(leaf, workers, update):
        return Payload(gathered=(bytes_of(math.prod(leaf.shape)),))

    def decode(message, size):
        return sparse.decode(read(message, size), size)

    listed = Encoder(write, decode, bytes_of, picks=True)
    return Reducer(lambda leaf: (), reduce, payload, encoder=listed, amplifies=inner.amplifies)


def _random(ratio: float, unbiased: bool, inner: Reducer | None = None) -> Reducer:
    """Sum the same random entries of all workers, ratio * size of them.

    unbiased: scale by size / entries. inner: reducer of the entries; None: an all-reduce.
    """
    last = compression.dense() if inner is None else inner

    def reduce(x, state, draw):
        k = _entries(x, ratio)
        scale = x.size / k if unbiased else 1.0
        values = scale * sparse.random_k(x, k, draw.shared)

        def decode(values):
            return sparse.random_k_decode(values, x.size, draw.shared).reshape(x.shape)

        total, sent, state = last.reduce(values, state, draw)
        return decode(total), decode(sent), state

    def within(other: Reducer) -> Reducer:
        return _random(ratio, unbiased, other if inner is None else inner.within(other))

    def picked(leaf):
        return jax.ShapeDtypeStruct((_sent(leaf, ratio),), jnp.float32)

    grows = (
        "random_k scales what it sends to be unbiased, so that the errors which are kept would "
        "grow; leave unbiased out"
    )
    return Reducer(
        lambda leaf: last.init(picked(leaf)),
        reduce,
        lambda leaf, workers, update: last.payload(picked(leaf), workers, update),
        within=within if inner is None or inner.within else None,
        amplifies=grows if unbiased and ratio < 1 else last.amplifies,
    )


def _entries(leaf, ratio: float) -> int:
    return _share(math.prod(leaf.shape), ratio)


def _share(size: int, ratio: float) -> int:
    return max(1, round(ratio * size))


def _sent(leaf, ratio: float) -> int:
    return min(_entries(leaf, ratio), math.prod(leaf.shape))  # an empty leaf has no entries


def check_ratio(method: str, ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"{method}: needs 0 < ratio <= 1, got {ratio}; 0.01 is usual")
