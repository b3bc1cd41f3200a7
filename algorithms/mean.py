"""The mean over the workers: plain, or by reducers for some parameters."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import compression
from algorithms.base import (
    AXIS,
    WEIGHTINGS,
    Algorithm,
    Details,
    choose,
    freeze_when_idle,
    proportional,
    whole,
)
from algorithms.compression import Draw, Reducer, counters, times_fallen
from comms import collectives, hashing
from comms.collectives import HEADROOM, Collective, divide, scaled_weights, weigh
from comms.messages import Alternative, Fallbacks, Payload, Row, in_step
from comms.registry import Registry
from comms.trees import named_leaves


def _all_reduced(size: int, workers: int, itemsize: int) -> tuple[Payload, ...]:
    del workers
    return (Payload((size,), itemsize=itemsize),)


COLLECTIVES = Registry({
    "psum": Collective(collectives.weighted_mean, _all_reduced),
    "ring": Collective(collectives.ring_weighted_mean, _all_reduced),
    "halving_doubling": "comms.halving:COLLECTIVE",
    "straggl_ar": "comms.straggl_ar:COLLECTIVE",
})


def mean_over_workers(collective: str | None = None) -> optax.GradientTransformationExtraArgs:
    """Replace every worker's contribution by the weighted mean over workers.

    A worker of weight 0 adds nothing; if all weights are 0, the mean is 0. collective: a key of
    COLLECTIVES; None: "psum".
    """
    mean = choose("collective", COLLECTIVES, collective or "psum").mean

    def update_fn(updates, state, params=None, *, weight=None, **extra):
        del params, extra
        return mean(updates, weight, AXIS), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update_fn)


def mean_messages(
    params, workers: int, row: Row, collective: str | None = None
) -> tuple[Payload, ...]:
    """Return an all-reduce of all parameters, a buffer per dtype; integers travel as floats."""
    elements = Counter()
    for leaf in jax.tree.leaves(params):
        elements[jnp.result_type(leaf.dtype, float)] += leaf.size
    sent = COLLECTIVES["psum" if row.pushed else collective or "psum"].payloads
    return tuple(
        payload
        for dtype, size in elements.items()
        for payload in sent(size * dtype.itemsize, workers, dtype.itemsize)
    )


SHARED, OWN = 0, 1  # last number of a key's address: draws shared by all workers, or a worker's own


class CompressionState(NamedTuple):
    """State of the exchange of one worker."""

    update: jax.Array  # [] int32, updates done
    reducers: tuple  # state of the reducer of every parameter that has one
    rest: Any  # state of the exchange of all other parameters
    fallen: Any  # [] int32, updates with a fallback of some array; () if none can fall back


def without_counters(state: Any) -> Any:
    """Return the state of an exchange without counters of fallbacks, which are no memory.

    Two contributions of one worker to an update raise the counters by the same numbers.
    """

    def leaf(node):
        if isinstance(node, CompressionState):
            return without_counters((node.reducers, node.rest))
        return () if isinstance(node, compression.Fallbacks) else node

    kinds = CompressionState | compression.Fallbacks
    return jax.tree.map(leaf, state, is_leaf=lambda node: isinstance(node, kinds))


def compressed_mean(
    reducer_of: Callable[[str, Any], Reducer | None],
    rest: optax.GradientTransformationExtraArgs,
    *,
    weight_of: Callable[[jax.Array], jax.Array] = proportional,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Replace contributions by their weighted mean over workers, as reducers compute it.

    reducer_of: ("module/kernel", array or its shape) -> its reducer; None: `rest` averages it.
    weight_of: finished mini-batches -> weight of a worker.

    Weights are as in `comms.collectives.weighted_mean`: NaN of weight 0 does not spread. The
    extra arguments `count`, `version`, `worker` and `first` address random draws. `count` defaults
    to `samples`, `worker` to the position in the axis, `samples` and `version` to the number of
    updates. `nominal` gives the weight at which idle workers keep rounding errors.
    """

    def init_fn(params):
        leaves, reducers, _ = _parts(params, reducer_of)
        states = tuple(r.init(x) for x, r in zip(leaves, reducers, strict=True) if r)
        fallen = jnp.int32(0) if counters(states) else ()
        rest_state = rest.init(_others(params, reducer_of))
        return CompressionState(jnp.int32(0), states, rest_state, fallen)

    def update_fn(
        updates,
        state,
        params=None,
        *,
        samples=None,
        count=None,
        version=None,
        weight=None,
        worker=None,
        first=0,
        nominal=1,
        **extra,
    ):
        samples = state.update if samples is None else samples
        count = samples if count is None else count
        version = state.update if version is None else version
        worker = jax.lax.axis_index(AXIS) if worker is None else worker
        leaves, reducers, structure = _parts(updates, reducer_of)
        others = _others(updates, reducer_of)
        rest_state = state.rest
        if jax.tree.leaves(others):
            given = {"samples": samples, "count": count, "version": version, "worker": worker}
            given |= {"first": first, "weight": weight, "nominal": nominal}
            of_rest = None if params is None else _others(params, reducer_of)
            others, rest_state = rest.update(others, state.rest, of_rest, **given, **extra)
        others = iter(jax.tree.leaves(others))

        own_weight, total = scaled_weights(weight, AXIS)
        full = own_weight if weight is None else HEADROOM * weight_of(nominal)
        root, address = jax.random.key(seed), hashing.address(count)
        states, means, new_states = iter(state.reducers), [], []
        for index, (x, reducer) in enumerate(zip(leaves, reducers, strict=True)):
            if reducer is None:
                means.append(next(others))
                continue
            shared = _addressed(root, address, index, SHARED)
            own = _addressed(root, worker, version, first, index, OWN)
            draw = Draw(shared, own, own_weight, full, total, state.update)
            held = x.astype(jnp.float32)  # before weighing, which would round a short float
            held = weigh(held, own_weight)
            summed, _, new = reducer.reduce(held, next(states), draw)
            # A division fused with later operations could round unlike a plain mean.
            means.append(divide(jax.lax.optimization_barrier(summed), total).astype(x.dtype))
            new_states.append(new)
        fallen = state.fallen
        if counters(new_states):
            fallen += times_fallen(new_states) > times_fallen(state.reducers)
        return jax.tree.unflatten(structure, means), CompressionState(
            state.update + 1, tuple(new_states), rest_state, fallen
        )

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def compressed(
    name: str,
    optimizer: optax.GradientTransformation,
    reducer_of: Callable[[str, Any], Reducer | None],
    *,
    rest: Algorithm | None = None,
    warmup_updates: int = 0,
    equal_memory: bool = False,
    weighting: str = "proportional",
    seed: int = 0,
) -> Algorithm:
    """Let `optimizer` take a step on the compressed mean.

    name: of the method, for errors. reducer_of: as in `compressed_mean`. rest: a method without a
    memory, whose exchange averages all other parameters; None: a plain mean.
    warmup_updates: number of updates after which the payload no longer changes. equal_memory:
    reducers keep values that must be equal on all workers. With a warm-up or with equal memory,
    every update needs all workers.
    """
    whole(name, 0, warmup_updates=warmup_updates)
    if rest is None:
        rest = Algorithm(exchange=mean_over_workers(), messages=mean_messages)

    def messages(params, workers, row):
        leaves, reducers, _ = _parts(params, reducer_of)
        pairs = [(x, r) for x, r in zip(leaves, reducers, strict=True) if r]
        steps = in_step(_planned(x, r, workers, row) for x, r in pairs) or (Payload(),)
        others = _others(params, reducer_of)
        of_rest = rest.messages(others, workers, row) if jax.tree.leaves(others) else ()
        return (*(step._replace(encoded=True) for step in steps), *of_rest)

    def fallbacks(state, params, workers, row):
        leaves, reducers, _ = _parts(params, reducer_of)
        pairs = [(x, r) for x, r in zip(leaves, reducers, strict=True) if r]
        found = []
        for (x, reducer), reducer_state in zip(pairs, state.reducers, strict=True):
            for counter in counters(reducer_state):
                planned = _planned(x, reducer, workers, row)
                means = jax.device_get(counter.taken.mean(0)).tolist()
                for times, instead in zip(means, reducer.instead(x, workers), strict=True):
                    found.append(Alternative(times, planned, instead))
        updates = float(jax.device_get(state.fallen.mean())) if found else 0.0
        return Fallbacks(updates, tuple(found))

    weight_of = choose("weighting", WEIGHTINGS, weighting)

    needs = rest.needs
    if equal_memory or warmup_updates:
        equal = "memory" if equal_memory else "count of warm-up updates"
        needs = needs._replace(everybody=f"its {equal} must be equal on all workers")
    return Algorithm(
        exchange=compressed_mean(
            reducer_of,
            rest.exchange,
            weight_of=weight_of,
            seed=seed,
        ),
        messages=messages,
        server=freeze_when_idle(optimizer),
        weight=weight_of,
        needs=needs,
        details=Details(settled=warmup_updates, metrics=_metrics, fallbacks=fallbacks),
    )


def reduced_by(
    name: str, exchange: Reducer, collective: str | None
) -> Callable[[str, Any], Reducer]:
    """Return a `reducer_of` that always gives `exchange`; ValueError beside a `collective`."""
    compression.check_reducer(name, exchange)
    if collective is not None:
        raise ValueError(
            f"{name}: collective={collective!r} is for a plain mean, but exchange says how it is "
            "reduced; leave one of them out"
        )
    return lambda path, leaf: exchange


def _addressed(key, *numbers) -> jax.Array:
    """Return `key` with an address folded in; numbers: whole, below 2^32."""
    return functools.reduce(jax.random.fold_in, numbers, key)


def _planned(leaf, reducer: Reducer, workers: int, row: Row) -> tuple[Payload, ...]:
    """Return the payloads of a reducer in an update without a fallback."""
    if row.pushed and reducer.pushed is not None:
        return (reducer.pushed(leaf),)
    payload = reducer.payload(leaf, workers, row.update)
    return (payload,) if isinstance(payload, Payload) else payload


def _metrics(state: CompressionState) -> dict[str, jax.Array]:
    """Return, as maxima over workers, updates with a fallback and rows that did not fit."""
    found = counters(state.reducers)
    if not found:
        return {}
    return {
        "fallbacks": state.fallen.max(),
        "unresolved": sum(counter.unresolved for counter in found).max(),
    }


def _parts(tree, reducer_of):
    """Return (leaves, the reducer of each, structure)."""
    leaves, structure = jax.tree.flatten(tree)
    return leaves, [reducer_of(path, leaf) for path, leaf in named_leaves(tree)], structure


def _others(tree, reducer_of):
    """Return the tree without the leaves that have a reducer."""
    leaves, reducers, structure = _parts(tree, reducer_of)
    pairs = zip(leaves, reducers, strict=True)
    return jax.tree.unflatten(structure, [x if r is None else None for x, r in pairs])
