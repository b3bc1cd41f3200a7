"""Local SGD: every worker takes one step per mini-batch, then the workers' progress is averaged.

S. U. Stich, *Local SGD Converges Fast and Communicates Little*, arXiv 1805.09767. A server uses the
mean progress as its gradient. The server's optimizer turns local SGD into other methods:

    server                                      method
    momentum(nesterov=true), local AdamW        DiLoCo, A. Douillard et al., arXiv 2311.08105
    adam                                        FedAdam, S. Reddi et al., arXiv 2003.00295

Compressed progress gives Qsparse-local-SGD, D. Basu et al., arXiv 1906.02367.
"""

import functools

import optax

from algorithms.base import WEIGHTINGS, Algorithm, choose, freeze_when_idle
from algorithms.compression import Reducer
from algorithms.mean import compressed, mean_messages, mean_over_workers, reduced_by


def local_sgd(
    optimizer: optax.GradientTransformation,
    *,
    collective: str | None = None,
    weighting: str = "equal",
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.0,
    exchange: Reducer | None = None,
    server: optax.GradientTransformation | None = None,
) -> Algorithm:
    """Step locally with `optimizer` (its state stays with the worker), then average the models.

    The number of local steps H is the number of mini-batches per round. The server takes
    x <- x - server_learning_rate * mean_i (x - x_i); rate 1 without momentum is plain averaging.

    exchange: reducer of the progress x - x_i of every parameter, see `algorithms.reducers`; None:
    a plain mean.
    server: optimizer whose gradient is the mean progress, in place of the two parameters above.
    """
    if server is None:
        server = optax.sgd(server_learning_rate, momentum=server_momentum or None)
    elif (server_learning_rate, server_momentum) != (1.0, 0.0):
        raise ValueError(
            f"local_sgd: server_learning_rate={server_learning_rate} and server_momentum="
            f"{server_momentum} are for the server that averages, but server is given; leave them "
            "out, or write them as parameters of server"
        )
    if exchange is not None:
        reducer_of = reduced_by("local_sgd", exchange, collective)
        method = compressed("local_sgd", server, reducer_of, weighting=weighting)
        return method._replace(work=optimizer)
    return Algorithm(
        work=optimizer,
        exchange=mean_over_workers(collective),
        messages=functools.partial(mean_messages, collective=collective),
        server=freeze_when_idle(server),
        weight=choose("weighting", WEIGHTINGS, weighting),
    )
