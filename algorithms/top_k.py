"""Sparsified all-reduce with error feedback: the largest entries, or random ones.

Top-k: S. U. Stich et al., *Sparsified SGD with Memory*, arXiv 1809.07599; with momentum correction
and a warm-up of the ratio it is *Deep Gradient Compression*, Y. Lin et al., arXiv 1712.01887. Every
worker gathers the entries of all. Random-k: all workers send the same entries, from a shared seed,
so that they can be all-reduced.
"""

import math

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import AXIS, Algorithm
from algorithms.compression import Encoder, Reducer
from algorithms.mean import compressed
from comms import sparse
from comms.messages import Payload

INDEX_BYTES = 4  # bytes of an int32
STAGES = 4  # of the warm-up's ratio, as in DGC: 25 %, 6.25 %, 1.6 %, 0.4 %, then 0.1 %


def largest(ratio: float) -> Reducer:
    """Sum the largest entries of each worker, ratio * size of them."""

    def reduce(x, state, draw):
        del draw
        message = sparse.top_k(x, _entries(x, ratio), ordered=False)
        total = sparse.all_gather_sum(message, x.size, AXIS).reshape(x.shape)
        return total, sparse.decode(message, x.size).reshape(x.shape), state

    def payload(leaf, workers, update):
        return Payload(gathered=(sparse.payload_bytes(_sent(leaf, ratio), jnp.float32),))

    def within(inner: Reducer) -> Reducer:
        return _listed(ratio, inner)

    encoder = Encoder(
        lambda x, key: sparse.top_k(x, _entries(x, ratio), ordered=False),
        sparse.decode,
        lambda size: sparse.payload_bytes(min(_share(size, ratio), size), jnp.float32),
    )
    return Reducer(lambda leaf: (), reduce, payload, encoder=encoder, within=within)


def _listed(ratio: float, inner: Reducer) -> Reducer:
    """Return `largest` with values that travel as the encoder of `inner` writes them."""
    encoder = inner.encoder
    if encoder is None:
        raise ValueError(
            f"top_k: picks other entries on every worker, so that {inner.name} cannot add up what "
            "it picks; put bf16, fp16, int8, quantise, natural or sign behind it"
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

    listed = Encoder(
        write, lambda message, size: sparse.decode(read(message, size), size), bytes_of
    )
    return Reducer(lambda leaf: (), reduce, payload, encoder=listed)


def with_ratio_warmup(ratio: float, updates: int) -> Reducer:
    """Return `largest` with a ratio that falls in equal factors over the first `updates`.

    arXiv 1712.01887 Sec. 3.3.
    """
    if updates == 0:
        return largest(ratio)
    stages = [largest(ratio ** ((s + 1) / (STAGES + 1))) for s in range(STAGES + 1)]

    def reduce(x, state, draw):
        stage = jnp.minimum(draw.update * STAGES // updates, STAGES)
        return jax.lax.switch(stage, [s.reduce for s in stages], x, state, draw)

    def payload(leaf, workers, update):
        stage = min(update * STAGES // updates, STAGES)
        return stages[stage].payload(leaf, workers, update)

    return Reducer(lambda leaf: (), reduce, payload)


def random(ratio: float, unbiased: bool, inner: Reducer | None = None) -> Reducer:
    """Sum the same random entries of all workers, ratio * size of them.

    unbiased: scaled by size / entries. inner: reducer of the entries; None: an all-reduce.
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
        return random(ratio, unbiased, other if inner is None else inner.within(other))

    def picked(leaf):
        return jax.ShapeDtypeStruct((_sent(leaf, ratio),), jnp.float32)

    return Reducer(
        lambda leaf: last.init(picked(leaf)),
        reduce,
        lambda leaf, workers, update: last.payload(picked(leaf), workers, update),
        within=within if inner is None or inner.within else None,
    )


def top_k(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.01,
    momentum: float = 0.0,
    warmup_updates: int = 0,
    weighting: str = "proportional",
) -> Algorithm:
    """Gather the largest entries of every worker, keep the others for later, then step.

    ratio: share of entries that are sent, of every parameter at least one.
    momentum: decay of DGC's momentum, which then replaces the optimizer's.
    warmup_updates: number of updates over which the ratio falls to its value.
    """
    check_ratio("top_k", ratio)
    if not 0 <= momentum < 1:
        raise ValueError(f"top_k: needs 0 <= momentum < 1, got {momentum}; 0 is none")
    reducer = with_ratio_warmup(ratio, warmup_updates)
    if momentum:
        reducer = compression.with_momentum_correction(reducer, momentum)
    else:
        reducer = compression.with_error_feedback(reducer)
    return compressed(
        "top_k",
        optimizer,
        lambda path, leaf: reducer,
        warmup_updates=warmup_updates,
        weighting=weighting,
    )


def random_k(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.01,
    error_feedback: bool = True,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce the same random entries of every worker, then step.

    ratio: share of entries that are sent, of every parameter at least one.
    error_feedback: keep the others for later; false: scale the sent entries to be unbiased.
    """
    check_ratio("random_k", ratio)
    reducer = random(ratio, unbiased=not error_feedback)
    if error_feedback:
        reducer = compression.with_error_feedback(reducer)
    return compressed(
        "random_k", optimizer, lambda path, leaf: reducer, weighting=weighting, seed=seed
    )


def _entries(leaf, ratio: float) -> int:
    return _share(math.prod(leaf.shape), ratio)


def _share(size: int, ratio: float) -> int:
    return max(1, round(ratio * size))


def _sent(leaf, ratio: float) -> int:
    return min(_entries(leaf, ratio), math.prod(leaf.shape))  # none of an empty leaf


def check_ratio(method: str, ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"{method}: needs 0 < ratio <= 1, got {ratio}; 0.01 is usual")
