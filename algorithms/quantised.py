"""Quantised all-reduce: few bits per entry.

    qsgd                 random multiples of norm / levels   D. Alistarh et al., arXiv 1610.02132
    natural_compression  random powers of two                S. Horvath et al., arXiv 1905.10988
    ef_sign              signs, with error feedback          S. P. Karimireddy et al.,
                                                             arXiv 1901.09847
    int8_all_reduce      int8, sent twice

The first two and the last are unbiased and need no memory. Messages of the first three cannot be
added: every worker gathers all of them, which pays for few workers only.
"""

import math

import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer
from comms import quantise
from comms.messages import Payload


def gathered(encode, decode, payload_bytes) -> Reducer:
    """Sum of quantised arrays.

    encode: (x, key of this worker) -> message; decode: (message, entries) -> float32 [entries];
    payload_bytes: entries -> bytes.
    """

    def reduce(x, state, draw):
        message = encode(x, draw.own)
        total = quantise.all_gather_sum(message, lambda held: decode(held, x.size), AXIS)
        return total.reshape(x.shape), decode(message, x.size).reshape(x.shape), state

    def payload(leaf, workers, update):
        return Payload(gathered=(payload_bytes(math.prod(leaf.shape)),))

    return Reducer(lambda leaf: (), reduce, payload)


def rounded_to_int8(bucket: int) -> Reducer:
    """Sum that every worker sends as int8 twice, rounded at random without bias."""

    def reduce(x, state, draw):
        total = quantise.int8_all_reduce(x, bucket, AXIS, draw.own)
        return total, compression.even_share(total, draw), state

    def payload(leaf, workers, update):
        size = quantise.int8_payload_bytes(math.prod(leaf.shape), workers, bucket)
        return Payload((size,))

    return Reducer(lambda leaf: (), reduce, payload)


def qsgd(
    optimizer: optax.GradientTransformation,
    *,
    levels: int = 7,
    bucket: int = 512,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Gather entries rounded to multiples of norm / levels, then step.

    levels: of a magnitude; 7 make codes of 4 bits. bucket: entries that share a norm.
    """
    quantise.qsgd_bits(levels)  # refuses what has no code
    _check_bucket("qsgd", bucket)
    reducer = gathered(
        lambda x, key: quantise.qsgd(x, levels, key, bucket),
        lambda message, size: quantise.qsgd_decode(message, size, levels, bucket),
        lambda size: quantise.qsgd_payload_bytes(size, levels, bucket),
    )
    return _everything("qsgd", optimizer, reducer, weighting, seed)


def natural_compression(
    optimizer: optax.GradientTransformation,
    *,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Gather entries rounded to powers of two, then step."""
    reducer = gathered(
        quantise.natural,
        lambda message, size: quantise.natural_decode(message),
        quantise.natural_payload_bytes,
    )
    return _everything("natural_compression", optimizer, reducer, weighting, seed)


def ef_sign(
    optimizer: optax.GradientTransformation, *, weighting: str = "proportional"
) -> Algorithm:
    """Gather signs and a mean magnitude, keep what they miss for later, then step."""
    reducer = gathered(
        lambda x, key: quantise.sign(x), quantise.sign_decode, quantise.sign_payload_bytes
    )
    reducer = compression.with_error_feedback(reducer)
    return _everything("ef_sign", optimizer, reducer, weighting, seed=0)


def int8_all_reduce(
    optimizer: optax.GradientTransformation,
    *,
    bucket: int = 1024,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce in int8 instead of float32, then step. bucket: entries that share a scale."""
    _check_bucket("int8_all_reduce", bucket)
    return _everything("int8_all_reduce", optimizer, rounded_to_int8(bucket), weighting, seed)


def _everything(name: str, optimizer, reducer: Reducer, weighting: str, seed: int) -> Algorithm:
    return compressed(name, optimizer, lambda path, leaf: reducer, weighting=weighting, seed=seed)


def _check_bucket(name: str, bucket: int) -> None:
    if bucket < 1:
        raise ValueError(f"{name}: needs buckets of 1 entry or more, got {bucket}; 512 is usual")
