"""What a message costs: bytes that a worker sends, and seconds in the alpha-beta model.

A transfer of x bytes takes alpha + beta x seconds: start-up and inverse bandwidth.
"""

from typing import NamedTuple

import jax  # pytrees only
import numpy as np


class AlphaBeta(NamedTuple):
    """Cost model of an operation: ``alpha`` seconds and ``beta`` seconds per byte of payload."""

    alpha: float
    beta: float

    def seconds(self, payload):
        """Seconds for a payload in bytes, a number or an array."""
        return self.alpha + self.beta * payload


def payload_bytes(tree) -> int:
    """Bytes of all leaves of a pytree of arrays or ``jax.ShapeDtypeStruct``, padding aside."""
    return sum(int(leaf.size) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def ring_all_reduce_bytes(payload: int, workers: int, itemsize: int = 4) -> int:
    """Bytes that each worker sends to all-reduce one buffer of ``payload`` bytes by a ring.

    2 (n - 1) / n of the payload, with its elements of ``itemsize`` bytes padded to whole chunks.
    """
    chunk = -(-payload // (itemsize * workers))
    return 2 * (workers - 1) * chunk * itemsize


def ring(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Cost of a ring all-reduce over links (alpha, beta); ``gamma``: seconds per byte to add.

    Shi, Chu, Li, "MG-WFBP", arXiv 1811.11141. Free for a single worker.
    """
    others = workers - 1
    return AlphaBeta(2 * others * alpha, (2 * beta + gamma) * others / workers)


class Network(NamedTuple):
    """Alpha and beta of every link, scalars or symmetric [n, n] arrays: seconds, seconds per byte.

    A link carries one message each way at a time, and different links work in parallel.
    """

    alpha: float | np.ndarray
    beta: float | np.ndarray

    def seconds(self, payload: float, i, j):
        """Seconds of one message of `payload` bytes between workers i and j (arrays allowed)."""
        size = np.max([np.max(i), np.max(j)]) + 1
        alpha, beta = (np.broadcast_to(value, (size, size)) if np.ndim(value) == 0 else value
                       for value in self)  # fmt: skip
        return alpha[i, j] + beta[i, j] * payload


def uniform_network(latency: float, bandwidth: float, slow: dict[int, float] | None = None,
                    workers: int = 1) -> Network:  # fmt: skip
    """A network of equal links, but for those of `slow` workers, which take a factor longer.

    latency: seconds per message; bandwidth: bytes per second; slow: {worker: factor}.
    """
    if not (latency >= 0 and bandwidth > 0):
        raise ValueError(
            f"network: needs latency >= 0 and bandwidth > 0, got {latency} and {bandwidth}; "
            "set seconds and bytes per second"
        )
    factor = np.ones(workers)
    for worker, times in (slow or {}).items():
        if not (0 <= int(worker) < workers and times > 0):
            raise ValueError(
                f"network: slow={{{worker}: {times}}} names no worker of {workers} or no positive "
                "factor; give {worker: factor}"
            )
        factor[int(worker)] = times
    of_link = np.maximum(factor[:, None], factor)
    return Network(latency * of_link, of_link / bandwidth)


def uniform_link(
    seconds: float, payload: float, slow: dict[int, float] | None = None, workers: int = 1
) -> Network:
    """A network over whose links `payload` bytes take `seconds`, a factor more for `slow` workers.

    An all-reduce then costs 2 (n - 1) / n of `seconds`, gossip `seconds` per active matching.
    """
    if not seconds > 0:
        raise ValueError(f"link: needs seconds > 0, got {seconds}; set the time of one model")
    return uniform_network(0.0, payload / seconds, slow, workers)


def matching_seconds(partners: np.ndarray, payload: float, network: Network) -> np.ndarray:
    """[M] seconds of each matching [M, n]: its links work in parallel, the slowest one counts.

    An empty matching takes no time. MATCHA, arXiv 1905.09435: a matching is the unit of
    communication time.
    """
    seconds = np.zeros(len(partners))
    for m, partner in enumerate(np.asarray(partners)):
        matched = np.flatnonzero(partner != np.arange(len(partner)))
        if matched.size:
            seconds[m] = network.seconds(payload, matched, partner[matched]).max()
    return seconds


def ring_seconds(workers: int, payload: float, network: Network) -> float:
    """Seconds of a ring all-reduce through workers 0, 1, ..., n-1: its slowest link sets the pace.

    2 (n - 1) steps of payload / n bytes each.
    """
    if workers == 1:
        return 0.0
    everyone = np.arange(workers)
    step = network.seconds(payload / workers, everyone, (everyone + 1) % workers).max()
    return float(2 * (workers - 1) * step)
