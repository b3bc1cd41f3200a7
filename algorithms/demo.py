"""DeMo: momentum that stays with its worker, but for its fastest moving frequencies.

B. Peng, J. Quesnelle, D. P. Kingma, *DeMo: Decoupled Momentum Optimization*, arXiv 2411.19870,
Algorithm 1. With C the cosine transform of chunks:

    m_i   <- beta m_i + g_i
    q_i   <- the k largest entries of every chunk of C m_i
    m_i   <- m_i - C^-1 q_i
    theta <- theta - lr sign(C^-1 mean_i q_i)

What is sent leaves the momentum, which is therefore a feedback of errors as well. It is not the
authors' code in two points. They cut matrices in both directions, into chunks of 64 by 64 of which
they send 32 frequencies, 0.8 %; here chunks are stretches of a parameter's entries in a row, at
most 256, and the default of 8 of 64 sends 12.5 %. And their mean of a frequency is over those who
have sent it, here over all workers as in the equations, so that some signs differ.
"""

import jax
import jax.numpy as jnp
import optax

from algorithms.base import Algorithm
from algorithms.compressed_mean import compressed
from algorithms.compression import Reducer, gathered, with_error_feedback
from comms import chunked


def largest_frequencies(chunk: int, k: int) -> Reducer:
    """Sum of every worker's k largest coefficients of each chunk: float32, and a byte of index."""
    cut = chunked.Cut(chunk, k)
    return gathered(
        lambda x, key: chunked.encode_frequencies(x, cut),
        lambda message, size: chunked.decode_frequencies(message, size, cut),
        lambda size: chunked.frequency_bytes(size, cut),
    )


def demo(
    optimizer: optax.GradientTransformation,
    *,
    chunk: int = 64,
    k: int = 8,
    decay: float = 0.999,
) -> Algorithm:
    """Let `optimizer` step along the signs of the momenta's largest frequencies.

    chunk: entries of a parameter that are transformed together, at most 256, of whose frequencies
    k are sent. decay: of the momentum, in [0, 1).
    """
    if not 1 <= k <= chunk <= 256:
        raise ValueError(
            f"demo: needs 1 <= k <= chunk <= 256, got {k} and {chunk}; 8 of 64 is the default"
        )
    if not 0 <= decay < 1:
        raise ValueError(f"demo: needs 0 <= decay < 1, got {decay}; 0.999 is usual")
    reducer = with_error_feedback(largest_frequencies(chunk, k), decay)
    signs = optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
    return compressed("demo", optax.chain(signs, optimizer), lambda path, leaf: reducer)
