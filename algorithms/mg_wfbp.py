"""All-reduce SGD that sends gradients in planned buckets, while the backward pass goes on.

S. Shi, X. Chu, B. Li, *MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
Algorithms*, arXiv 1811.11141 and 1912.09268. One step equals one step of `all_reduce`; only the
messages differ. The plans of buckets are "optimal" (exact), "greedy" (the authors' MG-WFBP), "asc"
(ASC-WFBP), "wfbp" (a bucket per layer), "single" (one bucket at the end), "fixed:25MB", and
"byte_scheduler:4MB" (parts of layers, the first layers first).

Each bucket waits for the bucket before by a data dependence (`comms.buckets`). No all-reduce
combiner of a CPU, GPU or TPU can merge dependent all-reduces. Without it a CPU program needs the
option `xla_disable_hlo_passes=cpu-all-reduce-combiner`, and a GPU program a low
`xla_gpu_all_reduce_combine_threshold_bytes`. `runtimes.overlapped` sends buckets during the
backward pass; in a plain program the backend's scheduler decides whether buckets overlap with it.
"""

import re
import warnings
from collections.abc import Callable

import jax
import numpy as np
import optax

from algorithms.all_reduce import all_reduce
from algorithms.base import AXIS, Algorithm, Bucketed, choose
from comms import buckets as planners
from comms import cost, iteration
from comms.buckets import bucketed_weighted_mean
from comms.collectives import ALL_REDUCES
from comms.messages import Payload
from comms.trees import named_leaves

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def bucketed_mean(
    buffers_of: Callable, reduce: Callable = jax.lax.psum
) -> optax.GradientTransformationExtraArgs:
    """Replace every worker's contribution by the weighted mean over workers, bucket by bucket.

    buffers_of: parameters or a contribution -> its `comms.buckets.buffers`.
    reduce: (flat vector, axis) -> its sum over the workers; a lossy sum gives a lossy mean.

    Tracing warns if several buckets cannot overlap with the backward pass.
    """

    def update_fn(updates, state, params=None, *, weight=None, nominal=1, **extra):
        del params, extra
        made = buffers_of(updates)
        # A weight is given where workers may finish less than a round; then, too, mini-batches run
        # in a loop.
        if len({buffer.bucket for buffer in made}) > 1 and (weight is not None or nominal > 1):
            warnings.warn(
                "mg_wfbp: workers add up mini-batches in a loop, at whose end all buckets are "
                "ready at once, so that none is sent beside the backward pass; use "
                "buckets='single', or rounds of one mini-batch that wait for all workers",
                stacklevel=2,
            )
        return bucketed_weighted_mean(updates, made, weight, AXIS, reduce), state

    def init_fn(params):
        if jax.tree.leaves(params):
            buffers_of(params)  # an impossible plan is refused before anything is compiled
        return optax.init_empty_state(params)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def mg_wfbp(
    optimizer: optax.GradientTransformation,
    *,
    buckets: str = "optimal",
    profile=None,
    collective: str = "psum",
    weighting: str = "proportional",
) -> Algorithm:
    """All-reduce the workers' gradients in buckets, then let `optimizer` take one step.

    buckets: "optimal", "greedy", "asc", "wfbp", "single", "fixed" (25 MiB) or "fixed:SIZE" with a
        size in kB, MB, GB, KiB, MiB or GiB; or "byte_scheduler:SIZE", parts of layers of at most
        SIZE, to one element (default: the best of `comms.iteration.SIZES` for the profile). These
        parts go first layer first. Where rounds overlap in `threads`, the next forward pass waits
        for a layer only when the pass reaches this layer.
    profile: an object with `layers` (lists of paths, "module/kernel", in backward order), `ready`
        (seconds from the start of the backward pass; None: unknown), `forward` (seconds of the
        forward pass; None: unknown) and `cost` (see `comms.buckets`), as `experiments.profiling`
        measures. None: layers are modules in reverse order of their names. "optimal", "greedy",
        "asc" and "byte_scheduler" need the times.
    collective: "psum" or "ring", as in `all_reduce`, or "decoupled", a reduce-scatter and an
        all-gather. A runtime that overlaps runs the all-gather beside the next forward pass (DeAR,
        arXiv 2302.12445). weighting: as in `all_reduce`.

    A message has one element more than its bucket, for the dependence, and its own start-up time. A
    message leaves in the last mini-batch of a round, when its gradients are ready by the profile,
    or at the end if `ready` or `forward` is unknown. Raises ValueError for unknown buckets, missing
    times and, once the parameters are known, for a profile of another model.
    """
    plan_of = plan_with(buckets, profile)
    by_priority = planners.PLANNERS[str(buckets).partition(":")[0]].eager
    reduce = choose("collective", ALL_REDUCES, collective)

    def buffers_of(params):
        plan, leaves = plan_of(params)
        return planners.buffers(params, leaves, plan.order, plan.bytes)

    def messages(params, workers, row):
        del workers, row
        shares = _shares(plan_of(params)[0], profile)
        return tuple(
            Payload(((1 + b.elements) * b.dtype.itemsize,), itemsize=b.dtype.itemsize,
                    share=shares[b.bucket])
            for b in buffers_of(params)
        )  # fmt: skip

    method = all_reduce(optimizer, weighting=weighting)
    return method._replace(
        exchange=bucketed_mean(buffers_of, reduce),
        messages=messages,
        details=method.details._replace(
            buckets=Bucketed(buffers_of, reduce, by_priority or reduce.gather is not None)
        ),
    )


def plan_with(buckets: str, profile=None) -> Callable:
    """Return a function: tree of arrays or shapes -> (plan, its buckets' leaf indices in order).

    buckets, profile and errors as in `mg_wfbp`; the times of a plan without a profile are 0.
    """
    name, colon, size = str(buckets).partition(":")
    planner = choose("buckets", planners.PLANNERS, name)
    timed = profile is not None and profile.ready is not None
    if colon and not planner.sized:
        sized = " and ".join(other for other, known in planners.PLANNERS.items() if known.sized)
        raise ValueError(f"buckets {buckets!r}: only {sized} take a size; write {name}")
    if planner.timed and not timed:
        untimed = [other for other, known in planners.PLANNERS.items() if not known.timed]
        raise ValueError(
            f"buckets {buckets!r} need the times of the backward pass and of all-reduce; set "
            f"profile to measure or to a saved one, or buckets to one of {', '.join(untimed)}"
        )
    own = {"bytes": _bytes(size)} if colon else {}

    def plan_of(tree):
        leaves = jax.tree.leaves(tree)
        layers = _modules(tree) if profile is None else _profiled(tree, profile)
        sizes = [cost.payload_bytes([leaves[i] for i in layer]) for layer in layers]
        times = (profile.ready, profile.cost) if timed else (np.zeros(len(sizes)), np.zeros_like)
        given = own
        if planner.eager and not own:
            trace = iteration.traced(sizes, profile.ready, profile.forward or 0.0)
            size = iteration.best_size(iteration.byte_scheduler, trace, profile.cost)
            given = {"bytes": size}
        plan = planner(sizes, *times, **given)
        return plan, [[i for layer in bucket for i in layers[layer]] for bucket in plan.buckets]

    return plan_of


def _bytes(size: str) -> float:
    match = re.fullmatch(rf"(\d+(?:\.\d*)?) ?({'|'.join(UNITS)})", size)
    if match is None or not float(match[1]) > 0:
        raise ValueError(
            f"buckets: {size!r} is no size of a bucket; write a positive number of "
            f"{', '.join(UNITS)}, as in fixed:25MB"
        )
    return float(match[1]) * UNITS[match[2]]


def _modules(tree) -> list[list[int]]:
    """Return the indices of every module's leaves, modules in reverse order of their names."""
    layers: dict[tuple, list[int]] = {}
    for i, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        layers.setdefault(path[:-1], []).append(i)
    return list(layers.values())[::-1]


def _profiled(tree, profile) -> list[list[int]]:
    """Return the indices of every layer's leaves, by a profile; ValueError if it does not fit."""
    index = {path: i for i, (path, _) in enumerate(named_leaves(tree))}
    known = [path for layer in profile.layers for path in layer]
    strange = sorted(set(known) ^ set(index))
    if strange:
        which = "the model does not have" if strange[0] in known else "the profile does not have"
        raise ValueError(
            f"mg_wfbp: the profile is of another model: {which} {strange[0]!r}; measure it anew"
        )
    return [[index[path] for path in layer] for layer in profile.layers]


def _shares(plan: planners.Plan, profile) -> list[float]:
    """Return the share of a mini-batch's time (both passes) after which each bucket is known."""
    if profile is None or profile.ready is None or not profile.forward:
        return [1.0] * len(plan.buckets)
    whole = profile.forward + profile.ready[-1]
    return [float((profile.forward + ready) / whole) for ready in plan.ready[:-1]] + [1.0]
