"""Cost of messages: bytes that a worker sends, and seconds in the alpha-beta model.

A transfer of x bytes takes alpha + beta x seconds: start-up and inverse bandwidth.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax  # for pytrees only
import numpy as np
import scipy

PAYLOAD = 1448 / 1514  # of a full Ethernet frame that TCP sends; the rest is headers


class AlphaBeta(NamedTuple):
    """Cost model of an operation: `alpha` seconds and `beta` seconds per byte of payload."""

    alpha: float
    beta: float

    def seconds(self, payload) -> float | np.ndarray:
        """Return the seconds for a payload in bytes, a number or an array."""
        return self.alpha + self.beta * payload


def payload_bytes(tree) -> int:
    """Return the bytes of all leaves of a pytree of arrays or shapes, padding aside.

        >>> payload_bytes({"kernel": np.zeros((2, 3), np.float32)})
        24
    """
    return sum(int(leaf.size) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def ring_all_reduce_bytes(payload: int, workers: int, itemsize: int = 4) -> int:
    """Return the bytes that each worker sends to all-reduce a buffer of `payload` bytes by a ring.

    2 (n - 1) / n of the payload, with its elements of `itemsize` bytes padded to whole chunks.

        >>> ring_all_reduce_bytes(4000, workers=4)
        6000
    """
    chunk = -(-payload // (itemsize * workers))
    return 2 * (workers - 1) * chunk * itemsize


# All-reduces as in Shi, Chu, Li, "MG-WFBP", arXiv 1811.11141, over links (alpha, beta); gamma:
# seconds per byte to add. A single worker pays nothing; fewer raise ValueError.


def ring(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Return the cost of a ring all-reduce.

        >>> ring(workers=4, alpha=1.0, beta=2.0)
        AlphaBeta(alpha=6.0, beta=3.0)
    """
    _depth("ring", workers)
    others = workers - 1
    return AlphaBeta(2 * others * alpha, (2 * beta + gamma) * others / workers)


def binary_tree(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Return the cost of 2 ceil(log2 n) whole payloads, up a binary tree and down again.

        >>> binary_tree(workers=4, alpha=1.0, beta=2.0)
        AlphaBeta(alpha=4.0, beta=8.0)
    """
    depth = _depth("binary_tree", workers)
    return AlphaBeta(2 * depth * alpha, depth * (2 * beta + gamma))


def recursive_doubling(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Return the cost of log2 n swaps of whole payloads; ValueError unless n is a power of 2."""
    depth = _depth("recursive_doubling", workers, power=True)
    return AlphaBeta(depth * alpha, depth * (beta + gamma))


def double_binary_tree(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Return the cost of two pipelined binary trees, half a payload each: 2 ceil(log2 n) alpha.

    A byte costs the same for any number of workers from two on.
    """
    depth = _depth("double_binary_tree", workers)
    return AlphaBeta(2 * depth * alpha, (beta + gamma) * (workers > 1))


def halving_doubling(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> AlphaBeta:
    """Return the cost of 2 log2 n messages with a ring's bytes; ValueError unless n is 2^q."""
    depth = _depth("halving_doubling", workers, power=True)
    return AlphaBeta(2 * depth * alpha, ring(workers, alpha, beta, gamma).beta)


def _depth(collective: str, workers: int, power: bool = False) -> int:
    """Return ceil(log2 n); raise ValueError for n < 1, and if `power` unless n is a power of 2."""
    if workers < 1:
        raise ValueError(f"{collective}: needs at least 1 worker, got {workers}; set workers")
    depth = (int(workers) - 1).bit_length()
    if power and workers != 2**depth:
        raise ValueError(
            f"{collective}: {workers} workers are no power of two; use {2**depth}, or ring"
        )
    return depth


class Table(NamedTuple):
    """Measured cost: non-decreasing `times` (s) at increasing `sizes` (bytes), linear between.

    Linear in the payload itself, not in its logarithm, so that alpha + beta x is met exactly.
    Payloads below the first size take its time; above the last size the slope of the last rise
    continues.
    """

    sizes: np.ndarray  # [n]
    times: np.ndarray  # [n]

    def seconds(self, payload) -> float | np.ndarray:
        """Return the seconds for a payload in bytes, a number or an array."""
        beyond = np.maximum(np.asarray(payload) - self.sizes[-1], 0)
        return np.interp(payload, self.sizes, self.times) + self._last_slope() * beyond

    def _last_slope(self) -> float:
        rises = np.flatnonzero(np.diff(self.times) > 0)
        if not rises.size:
            return 0.0
        last = slice(rises[-1], rises[-1] + 2)
        return float(np.diff(self.times[last])[0] / np.diff(self.sizes[last])[0])


def table(sizes, seconds) -> Table:
    """Return the cost by measured seconds [n] of payloads [n] in bytes, in any order.

    Repeated sizes are averaged; isotonic regression evens out noise that makes a larger payload
    faster. Raises ValueError for fewer than two sizes.
    """
    sizes, seconds = _measured("table", sizes, seconds)
    distinct, where, repeats = np.unique(sizes, return_inverse=True, return_counts=True)
    means = np.bincount(where, seconds) / repeats
    return Table(distinct, scipy.optimize.isotonic_regression(means, weights=repeats).x)


def fit(sizes, seconds) -> tuple[AlphaBeta, float]:
    """Fit alpha and beta by the least squares of relative errors; return them and R^2.

    The input is measured seconds [n] of payloads [n] in bytes. Usually each size is twice the one
    before. Absolute errors, and with them R^2, are then dominated by the largest sizes. A negative
    alpha is set to 0 and beta fitted again, and vice versa. R^2 is at most 1, and below 0 where the
    mean would fit better. Raises ValueError for fewer than two sizes. Shi, Chu, Li, "MG-WFBP",
    arXiv 1811.11141.
    """
    sizes, seconds = _measured("fit", sizes, seconds)
    unit = sizes.max()  # columns get one magnitude
    columns = np.stack([np.ones_like(sizes), sizes / unit], axis=1)
    # A time of 0 weighs as the shortest positive one.
    weights = 1 / np.maximum(seconds, np.min(seconds[seconds > 0], initial=np.inf))
    (alpha, beta), _ = scipy.optimize.nnls(columns * weights[:, None], seconds * weights)
    error = np.sum((columns @ [alpha, beta] - seconds) ** 2)
    spread = np.sum((seconds - seconds.mean()) ** 2)
    r_squared = 1 - error / spread if spread > 0 else 1.0  # equal times are fitted exactly
    return AlphaBeta(float(alpha), float(beta / unit)), float(r_squared)


def _measured(what: str, sizes, seconds) -> tuple[np.ndarray, np.ndarray]:
    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)
    if sizes.ndim != 1 or sizes.shape != seconds.shape:
        raise ValueError(
            f"{what}: sizes have shape {sizes.shape}, seconds {seconds.shape}; "
            "give one time per size"
        )
    for name, values in (("sizes", sizes), ("seconds", seconds)):
        if not np.all((values >= 0) & (values < np.inf)):
            raise ValueError(f"{what}: {name} hold a value that is not >= 0; measure it again")
    if np.unique(sizes).size < 2:
        raise ValueError(f"{what}: needs two different sizes, got {sizes}; measure some more")
    return sizes, seconds


class Network(NamedTuple):
    """Alpha and beta of every link, scalars or symmetric [n, n] arrays: seconds, seconds per byte.

    A link carries one message each way at a time, and different links work in parallel.
    """

    alpha: float | np.ndarray
    beta: float | np.ndarray
    all_reduce: Table | None = None  # cost of an all-reduce of all workers, if measured
    swap: Table | None = None  # cost of messages that two workers send each other, if measured
    spells: Any = None  # `stragglers.link_spells.Spells`, where links are slow at times
    hides: bool = True  # False: nothing travels beside computing, whatever a method allows

    def seconds(self, payload: float, i, j) -> float | np.ndarray:
        """Return the seconds of one message of `payload` bytes between workers i and j."""
        if self.swap is not None:
            shape = np.broadcast_shapes(np.shape(i), np.shape(j))
            return np.broadcast_to(self.swap.seconds(payload), shape)
        size = np.max([np.max(i), np.max(j)]) + 1
        alpha, beta = (
            np.broadcast_to(value, (size, size)) if np.ndim(value) == 0 else value
            for value in (self.alpha, self.beta)
        )
        return alpha[i, j] + beta[i, j] * payload


def uniform_network(
    latency: float | None = None,
    bandwidth: float | None = None,
    slow: dict[int, float] | None = None,
    workers: int = 1,
    path: str | None = None,
    spells: Any = None,
    hides: bool = True,
) -> Network:
    """Return a network of equal links, slower by a factor to `slow` workers.

    latency: seconds of a message's start-up; bandwidth: bytes per second; slow: {worker: factor}.
    spells: times when links are slow, see `stragglers.link_spells`. hides: False if exchanges begin
    after computing and workers wait for them, as in programs on CPUs.
    path: the output of `iperf3 --json`, for a missing latency or bandwidth: half of the shortest
    round trip, and the received bytes per second.
    """
    if path is not None:
        measured = _iperf(path)
        latency = measured[0] if latency is None else latency
        bandwidth = measured[1] if bandwidth is None else bandwidth
    if latency is None or bandwidth is None:
        what = "latency and bandwidth" if path is None else "a latency, which iperf3 has not seen"
        raise ValueError(
            f"network: needs {what}; set latency=1e-4 in seconds and bandwidth=1.25e8 in bytes per "
            "second, or path='...' of iperf3's JSON"
        )
    if not (latency >= 0 and bandwidth > 0):
        raise ValueError(
            f"network: needs latency >= 0 and bandwidth > 0, got {latency} and {bandwidth}; "
            "set seconds and bytes per second"
        )
    factor = np.ones(workers)
    if slow is not None and not hasattr(slow, "items"):
        raise ValueError(f"network: slow={slow} names no workers; give {{worker: factor}}")
    for worker, times in (slow or {}).items():
        if not (0 <= int(worker) < workers and times > 0):
            raise ValueError(
                f"network: slow={{{worker}: {times}}} names no worker of {workers} or no positive "
                "factor; give {worker: factor}"
            )
        factor[int(worker)] = times
    of_link = np.maximum(factor[:, None], factor)
    return Network(latency * of_link, of_link / bandwidth, spells=spells, hides=hides)


def uniform_link(
    seconds: float,
    payload: float,
    slow: dict[int, float] | None = None,
    workers: int = 1,
    spells: Any = None,
    hides: bool = True,
) -> Network:
    """Return a network whose links take `seconds` for `payload` bytes, more to `slow` workers.

    slow: {worker: factor}; others: as in `uniform_network`. An all-reduce then costs
    2 (n - 1) / n of `seconds`, gossip `seconds` per active matching.
    """
    if not seconds > 0:
        raise ValueError(f"link: needs seconds > 0, got {seconds}; set the time of one model")
    return uniform_network(0.0, payload / seconds, slow, workers, spells=spells, hides=hides)


def measured_network(
    sizes: Sequence[float] | None = None,
    seconds: Sequence[float] | None = None,
    workers: int = 1,
    path: str | None = None,
    swaps: Sequence[float] | None = None,
    arrays: int = 1,
    spells: Any = None,
    hides: bool = True,
) -> Network:
    """Return a network with a measured all-reduce of all workers, as in `table`.

    path: instead of sizes and seconds, the printed output of nccl-tests' all_reduce_perf or of
    OSU's osu_allreduce. swaps: seconds of messages of these sizes that two workers send to each
    other; None: as in a ring with the cost that `fit` finds. arrays: number of messages, if each
    array has a message of its own, as between CPUs; all but one of them take as long as the
    smallest measured message. Others: as in `uniform_network`.
    """
    if path is not None and sizes is None and seconds is None:
        sizes, seconds = _printed(path)
    elif path is not None or sizes is None or seconds is None:
        raise ValueError("measured: give sizes=[...] and seconds=[...], or path='...' alone")
    if not arrays >= 1:
        raise ValueError(f"measured: arrays={arrays} are no messages; give 1 or more")
    (alpha, beta), _ = fit(sizes, seconds)
    if not beta:
        raise ValueError(
            "measured: no larger payload takes longer than a smaller one; measure larger ones"
        )
    steps = max(1, 2 * (workers - 1))
    latency, bandwidth = arrays * alpha / steps, steps / (workers * beta)
    links = uniform_network(latency, bandwidth, workers=workers, spells=spells, hides=hides)

    def of_arrays(times: Sequence[float]) -> Table:
        one = table(sizes, times)
        return one._replace(times=one.times + (arrays - 1) * one.times[0])

    swap = None if swaps is None else of_arrays(swaps)
    return links._replace(all_reduce=of_arrays(seconds), swap=swap)


def _iperf(path: str) -> tuple[float | None, float]:
    """Return the latency [s], or None, and the bytes per second in the JSON of iperf3."""
    try:
        document = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
        if not isinstance(document, dict) or "end" not in document:
            raise ValueError("it is JSON of something else")
        if "error" in document:
            raise ValueError(f"iperf3 says: {document['error']}")
        end = document["end"]
        received = next(end[name] for name in ("sum_received", "sum") if name in end)
        bandwidth = float(received["bits_per_second"]) / 8
        trips = [
            float(stream.get("sender", {}).get("min_rtt", 0)) for stream in end.get("streams", [])
        ]
        trips = [trip for trip in trips if trip > 0]
        return (0.5e-6 * min(trips) if trips else None), bandwidth
    except Exception as error:  # any JSON may be there
        reason = getattr(error, "strerror", None) or str(error) or "it has no sum of the received"
        raise ValueError(
            f"network: {path} cannot be read ({reason}); give what `iperf3 --json -c HOST` has "
            "printed, or latency=... and bandwidth=..."
        ) from error


OTHER = "it is of another collective than the all-reduce"
OTHERS = re.compile(r"\b(?!all_reduce_)\w+_perf\b")  # programs of nccl-tests, where named


def _printed(path: str) -> tuple[list[float], list[float]]:
    """Return bytes and seconds in the text of nccl-tests or of OSU's benchmarks."""
    rows, heads = [], []
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
        for line in text.splitlines():
            words = line.replace("#wrong", "wrong").strip("# \t").split()
            names = [word.lower() for word in words]
            if names[:1] == ["size"] and {"time", "latency(us)"} & set(names):
                heads.append(names.index("time") if "time" in names else 1)
                root = names.index("root") if "root" in names else None
                rates = [names.index(n) for n in ("algbw", "busbw") if n in names]
            elif heads and words and words[0].isdecimal():
                rows.append((float(words[0]), 1e-6 * float(words[heads[-1]])))
                whole, bus = [float(words[i]) for i in rates] if len(rates) == 2 else (0, 0)
                # An all-reduce has at least as much bus as algorithm bandwidth, others have less.
                less = whole > 0.5 and 0 < bus < 0.9 * whole
                if less or "none" in names or (root is not None and words[root] != "-1"):
                    raise ValueError(OTHER)
        if OTHERS.search(text):
            raise ValueError(OTHER)
        if len(heads) != 1 or not rows or ("OSU" in text and "Allreduce" not in text):
            raise ValueError("it is no table of one all-reduce")
    except (OSError, ValueError, IndexError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"measured: {path} cannot be read ({reason}); give what all_reduce_perf or "
            "osu_allreduce has printed, or sizes=[...] and seconds=[...]"
        ) from error
    return [size for size, _ in rows], [time for _, time in rows]


def matching_seconds(partners: np.ndarray, payload: float, network: Network) -> np.ndarray:
    """Return the seconds [M] of each matching [M, n], by its slowest link.

    An empty matching takes no time. MATCHA, arXiv 1905.09435: a matching is the unit of
    communication time.
    """
    partners = np.asarray(partners)
    if not partners.size:
        return np.zeros(len(partners))
    everyone = np.arange(partners.shape[1])
    seconds = network.seconds(payload, everyone, partners)
    return np.where(partners == everyone, 0.0, seconds).max(axis=1)


def ring_seconds(
    workers: int, payload: float, network: Network, slowness: float | np.ndarray = 1.0
) -> float:
    """Return the seconds of a ring all-reduce through workers 0, 1, ..., n-1, by its slowest link.

    2 (n - 1) steps of payload / n bytes each; or the measured seconds of such an all-reduce.
    slowness: factor of the links to the next worker, scalar or [n].

        >>> round(ring_seconds(4, 1e6, uniform_network(1e-3, 1e9, workers=4)), 4)
        0.0075
    """
    if workers == 1:
        return 0.0
    if network.all_reduce is not None:
        return float(network.all_reduce.seconds(payload) * np.max(slowness))
    everyone = np.arange(workers)
    step = network.seconds(payload / workers, everyone, (everyone + 1) % workers) * slowness
    return float(2 * (workers - 1) * step.max())
