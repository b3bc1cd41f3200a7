"""DeMo: momentum that stays on its worker, except for its largest frequencies, which are sent.

B. Peng, J. Quesnelle, D. P. Kingma, *DeMo: Decoupled Momentum Optimization*, arXiv 2411.19870,
Algorithm 1. With C the cosine transform of chunks:

    m_i   <- beta m_i + g_i
    q_i   <- the k largest entries of every chunk of C m_i
    m_i   <- m_i - C^-1 q_i
    theta <- theta - lr sign(C^-1 mean_i q_i)

Sent frequencies leave the momentum, which therefore also serves as error feedback. The authors'
code cuts matrices in both directions, into blocks of 64 by 64, sends 32 frequencies of each, and
takes the mean of a frequency over its senders only. Both are options here: `demo(blocks=true,
chunk=64, k=32, mean_of=senders)`. By default chunks are runs of a parameter's consecutive entries,
and the mean is over all workers as in the equations.
"""

import math

import jax
import jax.numpy as jnp
import optax

from algorithms.base import AXIS, Algorithm, check_shares, choose, whole
from algorithms.compression import Reducer, with_error_feedback
from algorithms.mean import compressed
from comms import chunked, quantise
from comms.messages import Payload

MEANS = {"workers": False, "senders": True}


def largest_frequencies(cut: chunked.Blocks, blocks: bool, of_senders: bool) -> Reducer:
    """Sum every worker's k largest coefficients per chunk, sent as float32 with their indices."""

    def flat(shape) -> tuple[int, int]:
        return tuple(shape) if blocks and len(shape) == 2 else (1, math.prod(shape))

    def reduce(x, state, draw):
        shape = flat(x.shape)
        message = chunked.encode_frequencies(x.reshape(shape), cut)

        def decode(message):
            return chunked.decode_frequencies(message, shape, cut)

        if of_senders:
            total = draw.total * chunked.mean_of_senders(message, draw.weight, shape, cut)
        else:
            total = quantise.all_gather_sum(message, decode, AXIS)
        return total.reshape(x.shape), decode(message).reshape(x.shape), state

    def payload(leaf, workers, update):
        return Payload(gathered=(chunked.frequency_bytes(flat(leaf.shape), cut),))

    return Reducer(lambda leaf: (), reduce, payload)


def demo(
    optimizer: optax.GradientTransformation,
    *,
    chunk: int = 64,
    k: int = 8,
    decay: float = 0.999,
    blocks: bool = False,
    mean_of: str = "workers",
) -> Algorithm:
    """Let `optimizer` step along the signs of the momenta's largest frequencies.

    chunk: entries of a parameter that are transformed together, at most 256. k: frequencies of a
    chunk that are sent. decay: of the momentum, in [0, 1). blocks: cut matrices in both directions,
    into chunk by chunk entries. mean_of: workers in the mean of a frequency, all "workers" or its
    "senders".
    """
    whole("demo", k=k, chunk=chunk)
    most = chunk**2 if blocks else chunk
    if not 1 <= k <= most or not chunk <= 256:
        bounds = "k <= chunk^2 and chunk <= 256" if blocks else "k <= chunk <= 256"
        raise ValueError(f"demo: needs 1 <= {bounds}, got {k} and {chunk}; take k=8 and chunk=64")
    check_shares("demo", decay=decay)
    of_senders = choose("mean_of", MEANS, mean_of)
    frequencies = largest_frequencies(chunked.Blocks(chunk, k), blocks, of_senders)
    reducer = with_error_feedback(frequencies, decay)
    signs = optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
    return compressed("demo", optax.chain(signs, optimizer), lambda path, leaf: reducer)
