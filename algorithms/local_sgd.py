"""Local SGD: every worker takes one step per mini-batch, then the workers' progress is averaged.

S. U. Stich, *Local SGD Converges Fast and Communicates Little*, arXiv 1805.09767. With a server
optimizer other than plain averaging it is FedAvg's server form (Reddi et al., *Adaptive Federated
Optimization*, arXiv 2003.00295).
"""

import optax

from algorithms.all_reduce import all_reduce_bytes, all_reduce_seconds, mean_over_workers
from algorithms.base import WEIGHTINGS, Algorithm, choose, freeze_when_idle


def local_sgd(
    optimizer: optax.GradientTransformation,
    *,
    collective: str = "psum",
    weighting: str = "equal",
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.0,
) -> Algorithm:
    """Step locally with `optimizer` (its state stays with the worker), then average the models.

    The number of local steps H is the number of mini-batches per round. The server takes
    x <- x - server_learning_rate * mean_i (x - x_i); rate 1 without momentum is plain averaging.
    """
    server = optax.sgd(server_learning_rate, momentum=server_momentum or None)
    return Algorithm(
        work=optimizer,
        exchange=mean_over_workers(collective),
        server=freeze_when_idle(server),
        weight=choose("weighting", WEIGHTINGS, weighting),
        wire_bytes=all_reduce_bytes,
        round_seconds=all_reduce_seconds,
    )
