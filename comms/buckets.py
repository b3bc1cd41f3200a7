"""Buckets of layers that are all-reduced together, so that communication hides behind backward.

Shi, Chu, Li, "MG-WFBP", arXiv 1811.11141 and 1912.09268. Layers are numbered in backward order:
layer 0 is the last of the model, whose gradient is ready first. Buckets are runs of neighbours; one
channel all-reduces them in order, each as soon as all its gradients are ready. `byte_scheduler`
cuts layers into parts instead, which have an order of their own.

A plan from parameters' sizes, and the seconds from the start of the backward pass at which their
gradients are ready:

>>> import jax, numpy as np
>>> from comms import buckets, cost
>>> params = [{"w": np.zeros((512, 512), "f4"), "b": np.zeros(512, "f4")} for layer in range(6)]
>>> sizes = [cost.payload_bytes(layer) for layer in reversed(params)]
>>> ready = np.cumsum([2e-3] * 6)
>>> plan = buckets.optimal(sizes, ready, cost.ring(16, alpha=3e-5, beta=4e-10))
>>> plan.buckets
[[0], [1, 2], [3], [4], [5]]
>>> print(f"{1e3 * plan.finish:.1f} ms, {1e3 * plan.exposed:.1f} ms of it after the backward pass")
13.7 ms, 1.7 ms of it after the backward pass

A cost is an object with `.seconds(payload)`, such as `comms.cost` has, or a function from bytes to
seconds, of a number or an array; it includes the start-up of every message.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms.collectives import AXIS, mean_of, scaled_weights, term
from comms.trees import Tree


class Plan(NamedTuple):
    """Buckets and their predicted timeline, in seconds from the start of the backward pass."""

    buckets: list[list[int]]  # layers of each bucket, in backward order
    ready: np.ndarray  # [buckets] seconds until the last gradient of a bucket is ready
    start: np.ndarray  # [messages] start of a message's all-reduce
    end: np.ndarray  # [messages] end of a message's all-reduce
    finish: float  # end of everything
    exposed: float  # seconds of communication after the end of the backward pass
    order: list[int] | None = None  # bucket of each message; None: each once, whole
    bytes: float = 0.0  # of a message, if a bucket has several; the last of them has the rest


def evaluate(buckets: Sequence[Sequence[int]], sizes, ready, cost) -> Plan:
    """Return the timeline of given buckets.

    buckets: the layers of each bucket, together all layers in backward order; sizes: [L] bytes;
    ready: [L] seconds from the start of the backward pass, non-decreasing, up to its end. Raises
    ValueError for other buckets, sizes and times. arXiv 1811.11141, the recursion of tau_c.
    """
    sizes, ready = _check(sizes, ready)
    layers = [int(layer) for bucket in buckets for layer in bucket]
    if layers != list(range(len(sizes))) or not all(len(bucket) for bucket in buckets):
        raise ValueError(
            f"buckets: {list(map(list, buckets))} are not the {len(sizes)} layers in order, in "
            f"runs of at least one; give each of 0 ... {len(sizes) - 1} once"
        )
    return _timeline(np.cumsum([len(bucket) for bucket in buckets]), sizes, ready, cost)


def wfbp(sizes, ready, cost) -> Plan:
    """Plan one all-reduce per layer: wait-free backpropagation. Arguments as in `evaluate`."""
    sizes, ready = _check(sizes, ready)
    return _timeline(np.arange(1, len(sizes) + 1), sizes, ready, cost)


def single(sizes, ready, cost) -> Plan:
    """Plan one all-reduce of everything after the backward pass. Arguments as in `evaluate`."""
    sizes, ready = _check(sizes, ready)
    return _timeline([len(sizes)], sizes, ready, cost)


def fixed(sizes, ready, cost, bytes: float = 25 * 2**20) -> Plan:
    """Plan buckets that are sent once they hold `bytes` or more; the last one may hold less.

    PyTorch's DistributedDataParallel has this rule and default, but a small first bucket.
    Other arguments as in `evaluate`.
    """
    sizes, ready = _check(sizes, ready)
    if not bytes > 0:
        raise ValueError(f"fixed: needs bytes > 0, got {bytes}; set the size of a bucket")
    ends, held = [], 0.0
    for layer, size in enumerate(sizes[:-1]):
        held += size
        if held >= bytes:
            ends.append(layer + 1)
            held = 0.0
    return _timeline([*ends, len(sizes)], sizes, ready, cost)


def greedy(sizes, ready, cost) -> Plan:
    """Merge as in the authors' release of MG-WFBP; alpha is the cost of an empty message.

    A bucket takes in the next layer if that is ready before the bucket's sending would end, and
    less than alpha after the sending could start. This is not optimal. Arguments as in `evaluate`.
    """
    sizes, ready = _check(sizes, ready)
    seconds, total = seconds_of(cost), _prefix(sizes)
    alpha = seconds(0)
    ends, first, free = [], 0, 0.0
    for layer, following in enumerate(ready[1:]):
        start = max(free, ready[layer])
        end = start + seconds(total[layer + 1] - total[first])
        # The second condition also holds while the channel is busy, as it is then a difference < 0.
        if not (following < end and following - start < alpha):
            ends.append(layer + 1)
            first, free = layer + 1, end
    return _timeline([*ends, len(sizes)], sizes, ready, cost)


def asc(sizes, ready, cost) -> Plan:
    """Group as ASC-WFBP does: gradients merge while the channel is busy, and only then.

    A free channel takes all ready gradients, or else the next layer alone. ASC-WFBP may also run
    two all-reduces at once. Arguments as in `evaluate`. Shi, Chu, Li, INFOCOM 2021.
    """
    sizes, ready = _check(sizes, ready)
    seconds, total = seconds_of(cost), _prefix(sizes)
    ends, first, free = [], 0, 0.0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(ready, free, side="right")))
        free = max(free, ready[end - 1]) + seconds(total[end] - total[first])
        ends.append(end)
        first = end
    return _timeline(ends, sizes, ready, cost)


def optimal(sizes, ready, cost) -> Plan:
    """Find the buckets that finish first, for any cost: exact dynamic programming in O(L^2).

    f[j], the earliest end of the first j layers, is the least max(f[i], R_j) + t(S_j - S_i) over
    the start i of their last bucket, with prefix sizes S, ready times R and cost t. If the cost is
    affine, no plan that ends as early has fewer buckets. Arguments as in `evaluate`.
    """
    sizes, ready = _check(sizes, ready)
    seconds, total = seconds_of(cost), _prefix(sizes)
    layers = len(sizes)
    earliest = np.zeros(layers + 1)
    for j in range(1, layers + 1):
        begin = np.maximum(earliest[:j], ready[j - 1])
        earliest[j] = np.min(begin + seconds(total[j] - total[:j]))
    # From the end, every bucket takes all the layers that still let it meet its deadline. Given
    # an affine cost, a plan loses nothing by handing layers to the bucket after: it finishes
    # earlier by as much as the deadline moves.
    ends, j, deadline = [], layers, earliest[layers]
    while j > 0:
        ends.append(j)
        costs = seconds(total[j] - total[:j])
        i = int(np.argmax(np.maximum(earliest[:j], ready[j - 1]) + costs <= deadline))
        start = deadline - costs[i]  # rounded such that it ends by the deadline
        start = start if start + costs[i] <= deadline else np.nextafter(start, -np.inf)
        deadline = max(earliest[i], start)
        j = i
    return _timeline(ends[::-1], sizes, ready, cost)


def byte_scheduler(sizes, ready, cost, bytes: float = 4_096_000) -> Plan:
    """Plan parts of at most `bytes` of every layer, by priority: the model's first layers first.

    A free channel all-reduces a part of the first layer, in forward order, whose gradient is ready;
    a part is never interrupted. BytePS has such parts and this default. Other arguments as in
    `evaluate`. Peng et al., "ByteScheduler", SOSP 2019, which may also send several parts at once.
    """
    sizes, ready = _check(sizes, ready)
    seconds = seconds_of(cost)
    if not bytes > 0:
        raise ValueError(f"byte_scheduler: needs bytes > 0, got {bytes}; set the size of a part")
    left = np.maximum(np.ceil(sizes / bytes), 1).astype(int)
    part, last = float(seconds(bytes)), seconds(sizes - (left - 1) * bytes)
    queue, coming, now = [], 0, 0.0
    order, start, end = [], [], []
    while queue or coming < len(sizes):
        if not queue:
            now = max(now, float(ready[coming]))
        while coming < len(sizes) and ready[coming] <= now:
            heapq.heappush(queue, -coming)  # numbered in backward order: the largest is first
            coming += 1
        layer = -queue[0]
        left[layer] -= 1
        order.append(layer)
        start.append(now)
        now += part if left[layer] else float(last[layer])
        end.append(now)
        if not left[layer]:
            heapq.heappop(queue)
    layers, exposed = [[layer] for layer in range(len(sizes))], now - float(ready[-1])
    return Plan(layers, ready, np.array(start), np.array(end), now, exposed, order, bytes)


class Planner(NamedTuple):
    """Choice of buckets, called as `planner(sizes, ready, cost) -> Plan`."""

    plan: Callable[..., Plan]
    timed: bool = True  # buckets depend on `ready` and `cost`; if False, zeros give the same
    sized: bool = False  # takes `bytes`, the size of a bucket or of its parts
    eager: bool = False  # the next forward pass begins before everything has arrived

    def __call__(self, sizes, ready, cost, **own) -> Plan:
        return self.plan(sizes, ready, cost, **own)


PLANNERS: dict[str, Planner] = {
    "wfbp": Planner(wfbp, timed=False),
    "single": Planner(single, timed=False),
    "fixed": Planner(fixed, timed=False, sized=True),
    "greedy": Planner(greedy),
    "asc": Planner(asc),
    "optimal": Planner(optimal),
    "byte_scheduler": Planner(byte_scheduler, sized=True, eager=True),
}


def _timeline(ends: Sequence[int], sizes: np.ndarray, ready: np.ndarray, cost) -> Plan:
    ends = np.asarray(ends)
    begins = np.concatenate([[0], ends[:-1]])
    total = _prefix(sizes)
    costs = seconds_of(cost)(total[ends] - total[begins])
    ready_at = ready[ends - 1]
    start, end = np.zeros(len(ends)), np.zeros(len(ends))
    free = 0.0
    for b, (earliest, seconds) in enumerate(zip(ready_at, costs, strict=True)):
        start[b] = max(free, earliest)
        end[b] = free = start[b] + seconds
    grouped = [list(range(i, j)) for i, j in zip(begins.tolist(), ends.tolist(), strict=True)]
    finish = float(free)
    return Plan(grouped, ready_at, start, end, finish, finish - float(ready[-1]))


def _prefix(sizes: np.ndarray) -> np.ndarray:
    """Return the bytes [L + 1] of the first 0, 1, ..., L layers."""
    return np.concatenate([[0.0], np.cumsum(sizes)])


def seconds_of(cost) -> Callable:
    """Return a cost as a function of bytes, a number or an array, which checks its results."""
    function = getattr(cost, "seconds", cost)

    def seconds(payload):
        try:
            value = np.broadcast_to(np.asarray(function(payload), float), np.shape(payload))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"cost: failed for {np.size(payload)} payloads at once ({error}); write it with "
                "NumPy, or measure a comms.cost.table"
            ) from error
        bad = value[~((value >= 0) & (value < np.inf))]
        if bad.size:
            raise ValueError(f"cost: gave {bad[0]} s; it must be finite and 0 or more")
        return value

    return seconds


def _check(sizes, ready) -> tuple[np.ndarray, np.ndarray]:
    sizes, ready = np.asarray(sizes, float), np.asarray(ready, float)
    if sizes.ndim != 1 or sizes.shape != ready.shape or not sizes.size:
        raise ValueError(
            f"buckets: sizes have shape {sizes.shape} and ready times {ready.shape}; give one of "
            "each for every layer, and at least one layer"
        )
    for name, values in (("sizes", sizes), ("ready times", ready)):
        bad = np.flatnonzero(~((values >= 0) & (values < np.inf)))
        if bad.size:
            raise ValueError(
                f"buckets: {name}[{bad[0]}] = {values[bad[0]]}; they must be finite and 0 or more"
            )
    drops = np.flatnonzero(np.diff(ready) < 0)
    if drops.size:
        raise ValueError(
            f"buckets: ready times fall from {ready[drops[0]]} to {ready[drops[0] + 1]} at layer "
            f"{drops[0] + 1}; give layers in backward order, the last layer of the model first"
        )
    return sizes, ready


class Buffer(NamedTuple):
    """Leaves of a bucket that have one dtype, or a part of them, in one all-reduce.

    A token, one element that orders the all-reduces, follows them.
    """

    bucket: int
    dtype: jnp.dtype
    leaves: list[int]
    elements: int  # without the token
    first: int = 0  # index of the first element in the row of all these leaves


def bucketed_weighted_mean(
    tree: Tree,
    made: Sequence[Buffer],
    weight=None,
    axis: str = AXIS,
    reduce: Callable = jax.lax.psum,
) -> Tree:
    """Return `comms.collectives.weighted_mean` of a tree, all-reduced buffer by buffer, in order.

    made: from `buffers`; reduce: (flat vector, axis) -> its sum over the workers, exact or not.
    Integers travel as floats. By `psum`, unweighted means have the bits of `jax.lax.pmean`.
    """
    # The weights are summed apart, in float32: in a buffer's dtype their sum could be rounded.
    weights = scaled_weights(weight, axis)
    sums, token = [], jnp.float32(0)
    for buffer in made:
        sums.append(reduce(filled(buffer, tree, weights, token), axis))
        # The token of an inexact sum may be any number; compilers keep a float times 0.
        token = 0 * sums[-1][buffer.elements]
    return means(sums, tree, made, weights)


def buffers(
    tree: Tree,
    buckets: Sequence[Sequence[int]],
    order: Sequence[int] | None = None,
    bytes: float = 0.0,
) -> list[Buffer]:
    """Return the buffers of all messages of a tree of arrays or shapes, in the order of sending.

    buckets: indices of each bucket's leaves in `jax.tree.leaves`, every leaf once; order, bytes: as
    in a `Plan`. A message has a buffer per dtype. Raises ValueError for buckets that do not hold
    every leaf once.
    """
    leaves = jax.tree.leaves(tree)
    if sorted(i for bucket in buckets for i in bucket) != list(range(len(leaves))):
        raise ValueError(
            f"buckets {[list(bucket) for bucket in buckets]} do not hold each of {len(leaves)} "
            f"leaves once; give every index from 0 to {len(leaves) - 1} to one bucket"
        )
    order = range(len(buckets)) if order is None else order
    found, parts, sent = [], Counter(order), Counter()
    for index in order:
        by_dtype: dict = {}
        for i in buckets[index]:
            by_dtype.setdefault(jnp.result_type(leaves[i].dtype, float), []).append(i)
        begin = sent[index] * bytes  # counted, like `end`, from the first byte of a dtype's leaves
        sent[index] += 1
        end = np.inf if sent[index] == parts[index] else begin + bytes
        for dtype, members in by_dtype.items():
            elements = sum(leaves[i].size for i in members)
            within = np.clip(np.ceil(np.array([begin, end]) / dtype.itemsize), 0, elements)
            first, last = within.astype(int).tolist()
            if first < last or parts[index] == 1:
                found.append(Buffer(index, dtype, members, last - first, first))
            begin, end = begin - elements * dtype.itemsize, end - elements * dtype.itemsize
    return found


def groups(made: Sequence[Buffer]) -> list[list[int]]:
    """Return the indices of buffers grouped by their leaves, in backward order of the buckets."""
    found: dict[tuple, list[int]] = {}
    for place, buffer in enumerate(made):
        found.setdefault((buffer.bucket, *buffer.leaves), []).append(place)
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def filled(buffer: Buffer, tree: Tree, weights: tuple, token=0.0) -> jax.Array:
    """Return the flat vector [elements + 1] that a worker adds to the sum of a buffer.

    weights: (its own, the sum of all), from `comms.collectives.scaled_weights`.
    """
    leaves = jax.tree.leaves(tree)
    pieces, start = [], buffer.first
    for i in buffer.leaves:
        x = term(jnp.asarray(leaves[i], buffer.dtype), *weights).ravel()
        pieces.append(x[max(start, 0) : max(start + buffer.elements, 0)])
        start -= x.size
    return jnp.concatenate([*pieces, jnp.asarray(token, buffer.dtype)[None]])


def means(sums: Sequence, like: Tree, made: Sequence[Buffer], weights: tuple) -> Tree:
    """Return the means of all leaves from the sums [elements + 1 or more] of all buffers."""
    leaves, structure = jax.tree.flatten(like)
    found = list(leaves)
    for group in groups(made):
        row = jnp.concatenate([sums[place][: made[place].elements] for place in group])
        start = 0
        for i in made[group[0]].leaves:
            # The barrier separates the division from the slicing: an operation fused with both,
            # such as momentum, would round otherwise than for a leaf all-reduced alone.
            of_leaf = row[start : start + leaves[i].size].reshape(leaves[i].shape)
            found[i] = mean_of(jax.lax.optimization_barrier(of_leaf), weights[1])
            start += leaves[i].size
    return jax.tree.unflatten(structure, found)
