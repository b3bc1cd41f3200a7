"""SparseLoCo: local steps whose progress travels as a few entries of 2 bits.

A. Sarfi et al., *Communication Efficient LLM Pre-training with SparseLoCo*, arXiv 2508.15706. After
H local steps worker i is at theta - D_i, and

    e_i   <- beta e_i + D_i
    s_i   <- Q(top-k of every chunk of e_i)
    e_i   <- e_i - s_i
    theta <- theta - alpha mean_i s_i

Q rounds to 2 bits. The decayed feedback e_i stands in for DiLoCo's outer momentum. Every H steps a
worker sends 64 entries of each chunk of 4096. An entry has a value of 2 bits and an index of 12
bits. With the scale, a chunk takes 116 bytes in place of 16384.
"""

import optax

from algorithms import reducers
from algorithms.base import Algorithm
from algorithms.compression import with_error_feedback
from algorithms.local_sgd import local_sgd


def sparse_loco(
    optimizer: optax.GradientTransformation,
    *,
    chunk: int = 4096,
    k: int = 64,
    bits: int = 2,
    decay: float = 0.95,
    server_learning_rate: float = 1.0,
) -> Algorithm:
    """Step locally with `optimizer`, then send the largest entries of the accumulated progress.

    chunk: entries of a chunk, of which k are sent in `bits` bits each. decay: beta, in [0, 1].
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"sparse_loco: needs 0 <= decay <= 1, got {decay}; 0.95 is usual")
    largest = reducers.chunked_top_k(chunk, k, bits)
    reducers.refuse_amplified("sparse_loco", largest)
    reducer = with_error_feedback(largest, decay)
    return local_sgd(optimizer, exchange=reducer, server_learning_rate=server_learning_rate)
