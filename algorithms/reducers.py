"""Reducers by the names that configs use, and their composition.

    local_sgd(exchange=top_k(ratio=0.01))
    all_reduce(exchange=chain(random_k(ratio=0.1), quantise(bits=4)))
    local_sgd(exchange=error_feedback(top_k(ratio=0.01), sign))
    all_reduce(exchange=bf16)

In a chain each reducer works on the values that the one before has picked: CocktailSGD (J. Wang et
al., ICML 2023) is `chain(random_k, top_k, quantise)`, Qsparse-local-SGD (D. Basu et al., arXiv
1906.02367) `local_sgd(exchange=error_feedback(top_k, quantise))`. The message of a chain is that of
its last reducer, and the indices that `top_k` needs.
"""

import functools
from itertools import pairwise

import jax
import jax.numpy as jnp

from algorithms import compression, quantised
from algorithms.compression import Reducer
from algorithms.top_k import check_ratio, largest, random
from comms import chunked
from comms.quantise import BFLOAT16, FLOAT16


def top_k(ratio: float = 0.01) -> Reducer:
    """Sum the largest entries of every worker, of every parameter a share `ratio`."""
    check_ratio("top_k", ratio)
    return largest(ratio)._replace(name="top_k")


def chunked_top_k(chunk: int = 4096, k: int = 64, bits: int = 2) -> Reducer:
    """Sum the k largest entries of every chunk, in codes of 1 to 8 `bits` (arXiv 2508.15706)."""
    if not (1 <= k <= chunk <= 2**16 and 1 <= bits <= 8):
        raise ValueError(
            f"chunked_top_k: needs 1 <= k <= chunk <= 65536 and 1 to 8 bits, got {k}, {chunk} and "
            f"{bits}; 64 of 4096 in 2 bits is usual"
        )
    cut = chunked.Cut(chunk, k)
    reducer = compression.gathered(
        lambda x, key: chunked.encode(x, cut, bits),
        lambda message, size: chunked.decode(message, size, cut, bits),
        lambda size: chunked.payload_bytes(size, cut, bits),
    )
    return reducer._replace(name="chunked_top_k")


def random_k(ratio: float = 0.01, unbiased: bool = False, seed: int = 0) -> Reducer:
    """Sum the same random entries of all workers, of every parameter a share `ratio`.

    unbiased: scaled by 1 / ratio, which no error feedback can bear.
    """
    check_ratio("random_k", ratio)
    reducer = compression.with_seed(random(ratio, unbiased), seed)
    return reducer._replace(name="random_k")


def quantise(bits: int = 4, bucket: int = 512, seed: int = 0) -> Reducer:
    """Round by QSGD to 2 to 16 `bits`; `bucket` entries share a norm (arXiv 1610.02132)."""
    if not 2 <= bits <= 16:
        raise ValueError(f"quantise: needs 2 to 16 bits, got {bits}; sign has 1 bit an entry")
    reducer = quantised.rounded_to_levels(2 ** (bits - 1) - 1, bucket)
    return compression.with_seed(reducer, seed)._replace(name="quantise")


def natural(seed: int = 0) -> Reducer:
    """Round to powers of two, a byte per entry (arXiv 1905.10988)."""
    return compression.with_seed(quantised.rounded_to_powers(), seed)._replace(name="natural")


def sign() -> Reducer:
    """Send signs and their mean magnitude; biased, for error feedback (arXiv 1901.09847)."""
    return quantised.signs()._replace(name="sign")


def bf16() -> Reducer:
    """Send two bytes per value, of 8 bits each; the sum is found in float32 and rounded once."""
    return compression.two_phase(BFLOAT16)._replace(name="bf16")


def fp16() -> Reducer:
    """Send two bytes per value, of 11 bits each; a power of two per chunk keeps the range."""
    return compression.two_phase(FLOAT16)._replace(name="fp16")


def int8(bucket: int = 1024, seed: int = 0) -> Reducer:
    """All-reduce in int8; `bucket` entries share a scale."""
    return compression.with_seed(quantised.rounded_to_int8(bucket), seed)._replace(name="int8")


def error_feedback(*reducers: Reducer) -> Reducer:
    """Keep the error of a chain of reducers, and add it to the next message."""
    reducer = chain(*reducers)
    if remembers(reducer):
        raise ValueError("error_feedback: what it is given keeps a memory already; write it once")
    return compression.with_error_feedback(reducer)._replace(name="error_feedback")


def chain(*reducers: Reducer) -> Reducer:
    """Let every reducer work on the values that the one before has picked.

    Only `top_k` and `random_k` pick values, so that all but the last are of these. Raises
    ValueError for reducers that cannot follow one another.
    """
    if not reducers:
        raise ValueError(
            "chain: got no reducer; write them one after the other, as in chain(top_k)"
        )
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


def remembers(reducer: Reducer) -> bool:
    """Return True if workers keep anything for the reducer."""
    return bool(jax.tree.leaves(reducer.init(jax.ShapeDtypeStruct((8,), jnp.float32))))
