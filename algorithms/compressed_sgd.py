"""All-reduce SGD with compressed gradients: one method per codec.

    top_k                the largest entries, with feedback   S. U. Stich et al., arXiv 1809.07599
      momentum, warm-up  Deep Gradient Compression            Y. Lin et al., arXiv 1712.01887
    random_k             random entries, the same for all     arXiv 1809.07599
    qsgd                 random multiples of norm / levels    D. Alistarh et al., arXiv 1610.02132
    natural_compression  random powers of two                 S. Horvath et al., arXiv 1905.10988
    ef_sign              signs, with error feedback           S. P. Karimireddy et al.,
                                                              arXiv 1901.09847
    int8_all_reduce      int8, for contributions and for sums

Each is `all_reduce(exchange=...)` with a reducer of `algorithms.reducers`; other methods take
these, too. Messages of random_k and int8_all_reduce can be summed; with the other codecs every
worker gathers all messages, which pays for few workers only. qsgd, natural_compression and
int8_all_reduce are unbiased and need no memory.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms import compression, reducers
from algorithms.base import Algorithm, check_shares
from algorithms.compression import Reducer
from algorithms.mean import compressed

STAGES = 4  # of the warm-up's ratio, as in DGC: 25 %, 6.25 %, 1.6 %, 0.4 %, then 0.1 %


def top_k(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.01,
    momentum: float = 0.0,
    warmup_updates: int = 0,
    weighting: str = "proportional",
) -> Algorithm:
    """Gather the largest entries of every worker, keep the others for later, then step.

    ratio: share of entries that are sent, at least one per parameter.
    momentum: decay of DGC's momentum, which then replaces the optimizer's.
    warmup_updates: number of updates over which the share falls to `ratio`.
    """
    check_shares("top_k", momentum=momentum)
    reducer = with_ratio_warmup(ratio, warmup_updates)
    if momentum:
        reducer = compression.with_momentum_correction(reducer, momentum)
    else:
        reducer = compression.with_error_feedback(reducer)
    return _everywhere("top_k", optimizer, reducer, weighting, warmup_updates=warmup_updates)


def random_k(
    optimizer: optax.GradientTransformation,
    *,
    ratio: float = 0.01,
    error_feedback: bool = True,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce the same random entries of every worker, then step.

    ratio: share of entries that are sent, at least one per parameter.
    error_feedback: keep the others for later; false: scale the sent entries to be unbiased.
    """
    reducer = reducers.random_k(ratio, unbiased=not error_feedback, seed=None)
    if error_feedback:
        reducer = compression.with_error_feedback(reducer)
    return _everywhere("random_k", optimizer, reducer, weighting, seed=seed)


def qsgd(
    optimizer: optax.GradientTransformation,
    *,
    levels: int = 7,
    bucket: int = 512,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Gather entries rounded to multiples of norm / levels, then step.

    levels: number of levels of a magnitude; 7 levels make codes of 4 bits. bucket: number of
    entries that share a norm.
    """
    reducer = reducers.rounded_to_levels(levels, bucket)
    return _everywhere("qsgd", optimizer, reducer, weighting, seed=seed)


def natural_compression(
    optimizer: optax.GradientTransformation,
    *,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Gather entries rounded to powers of two, then step."""
    reducer = reducers.natural(seed=None)
    return _everywhere("natural_compression", optimizer, reducer, weighting, seed=seed)


def ef_sign(
    optimizer: optax.GradientTransformation, *, weighting: str = "proportional"
) -> Algorithm:
    """Gather signs and a mean magnitude, keep their errors for later, then step."""
    reducer = reducers.error_feedback(reducers.sign())
    return _everywhere("ef_sign", optimizer, reducer, weighting)


def int8_all_reduce(
    optimizer: optax.GradientTransformation,
    *,
    bucket: int = 1024,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """All-reduce in int8 instead of float32, then step. bucket: entries that share a scale."""
    reducer = reducers.int8(bucket, seed=None)
    return _everywhere("int8_all_reduce", optimizer, reducer, weighting, seed=seed)


def with_ratio_warmup(ratio: float, updates: int) -> Reducer:
    """Return `top_k` with a ratio that falls in equal factors over the first `updates`.

    arXiv 1712.01887 Sec. 3.3.
    """
    if updates == 0:
        return reducers.top_k(ratio)
    stages = [reducers.top_k(ratio ** ((s + 1) / (STAGES + 1))) for s in range(STAGES + 1)]

    def reduce(x, state, draw):
        stage = jnp.minimum(draw.update * STAGES // updates, STAGES)
        return jax.lax.switch(stage, [s.reduce for s in stages], x, state, draw)

    def payload(leaf, workers, update):
        stage = min(update * STAGES // updates, STAGES)
        return stages[stage].payload(leaf, workers, update)

    return Reducer(lambda leaf: (), reduce, payload)


def _everywhere(name: str, optimizer, reducer: Reducer, weighting: str, **options) -> Algorithm:
    return compressed(name, optimizer, lambda path, leaf: reducer, weighting=weighting, **options)
