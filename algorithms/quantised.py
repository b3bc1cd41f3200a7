"""Quantised all-reduce: few bits per entry.

    qsgd                 random multiples of norm / levels   D. Alistarh et al., arXiv 1610.02132
    natural_compression  random powers of two                S. Horvath et al., arXiv 1905.10988
    ef_sign              signs, with error feedback          S. P. Karimireddy et al.,
                                                             arXiv 1901.09847
    int8_all_reduce      int8, sent twice

The first two and the last are unbiased and need no memory. Messages of the first three cannot be
added: every worker gathers all of them, which pays for few workers only.
"""

import optax

from algorithms import compression
from algorithms.base import Algorithm
from algorithms.compression import Reducer, gathered, two_phase
from algorithms.mean import compressed
from comms import quantise


def rounded_to_levels(levels: int, bucket: int) -> Reducer:
    """Sum entries rounded to multiples of norm / levels; `bucket` entries share a norm."""
    quantise.qsgd_bits(levels)  # raises ValueError for levels without a code
    _check_bucket("qsgd", bucket)
    return gathered(
        lambda x, key: quantise.qsgd(x, levels, key, bucket),
        lambda message, size: quantise.qsgd_decode(message, size, levels, bucket),
        lambda size: quantise.qsgd_payload_bytes(size, levels, bucket),
    )


def rounded_to_powers() -> Reducer:
    """Return the sum of entries rounded to powers of two."""
    return gathered(
        quantise.natural,
        lambda message, size: quantise.natural_decode(message),
        quantise.natural_payload_bytes,
    )


def signs() -> Reducer:
    """Sum signs times each worker's mean magnitude."""
    return gathered(
        lambda x, key: quantise.sign(x), quantise.sign_decode, quantise.sign_payload_bytes
    )


def rounded_to_int8(bucket: int) -> Reducer:
    """Sum arrays that every worker sends as int8 twice, rounded at random without bias."""
    _check_bucket("int8_all_reduce", bucket)
    return two_phase(quantise.int8_codec(bucket))


def qsgd(
    optimizer: optax.GradientTransformation,
    *,
    levels: int = 7,
    bucket: int = 512,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Gather entries rounded to multiples of norm / levels, then step.

    levels: levels of a magnitude; 7 of them make codes of 4 bits. bucket: entries that share a
    norm.
    """
    reducer = rounded_to_levels(levels, bucket)
    return _everything("qsgd", optimizer, reducer, weighting, seed)


def natural_compression(
    optimizer: optax.GradientTransformation,
    *,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Gather entries rounded to powers of two, then step."""
    reducer = rounded_to_powers()
    return _everything("natural_compression", optimizer, reducer, weighting, seed)


def ef_sign(
    optimizer: optax.GradientTransformation, *, weighting: str = "proportional"
) -> Algorithm:
    """Gather signs and a mean magnitude, keep their errors for later, then step."""
    reducer = compression.with_error_feedback(signs())
    return _everything("ef_sign", optimizer, reducer, weighting, seed=0)


def int8_all_reduce(
    optimizer: optax.GradientTransformation,
    *,
    bucket: int = 1024,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce in int8 instead of float32, then step. bucket: entries that share a scale."""
    return _everything("int8_all_reduce", optimizer, rounded_to_int8(bucket), weighting, seed)


def _everything(name: str, optimizer, reducer: Reducer, weighting: str, seed: int) -> Algorithm:
    return compressed(name, optimizer, lambda path, leaf: reducer, weighting=weighting, seed=seed)


def _check_bucket(name: str, bucket: int) -> None:
    if bucket < 1:
        raise ValueError(f"{name}: needs buckets of 1 entry or more, got {bucket}; 512 is usual")
