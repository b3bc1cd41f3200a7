"""SparseLoCo: local steps whose progress travels as a few entries of 2 bits.

A. Sarfi et al., *Communication Efficient LLM Pre-training with SparseLoCo*, arXiv 2508.15706. After
H local steps of its own a worker is D_i away from theta, and

    e_i   <- beta e_i + D_i
    s_i   <- Q(top-k of every chunk of e_i)
    e_i   <- e_i - s_i
    theta <- theta - alpha mean_i s_i

Q rounds to 2 bits. The decayed feedback e_i stands in for DiLoCo's outer momentum. Once in H steps,
64 entries of a chunk of 4096 are sent. With a value of 2 bits, an index of 12 bits and a scale,
that is 116 bytes in place of 16384.
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

    chunk: entries, of which k are sent, in `bits` each. decay: beta of the feedback, in [0, 1].
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"sparse_loco: needs 0 <= decay <= 1, got {decay}; 0.95 is usual")
    largest = reducers.chunked_top_k(chunk, k, bits)
    reducers.refuse_amplified("sparse_loco", largest)
    reducer = with_error_feedback(largest, decay)
    return local_sgd(optimizer, exchange=reducer, server_learning_rate=server_learning_rate)
