"""Exchange with neighbours, as functions that run under a named axis.

On a mesh only neighbours communicate; under `vmap` a permutation is a fused gather, faster than a
dense [n, n] product from 16 workers on. All functions run under `jax.vmap`, `jax.pmap` and
`jax.shard_map` alike. Values travel in their own dtype, are weighed and summed in float32 at least,
and come back in their own dtype.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from comms import collectives
from comms.collectives import AXIS
from comms.trees import Tree

AT_ONCE = 16  # matchings that are heard in one pass over the values


def mix(tree: Tree, W, partners, axis: str = AXIS) -> Tree:
    """Return the mixed values sum_j W_ij x_j of every leaf; neighbours send x_j by `ppermute`.

    `W`: host array [n, n]. `partners`: host array [M, n], each worker's partner in M matchings,
    itself where unmatched. Raises ValueError unless the matchings hold every edge of W exactly
    once. This is the mixing of D-PSGD (arXiv 1705.09056, Algorithm 1).
    """
    W, partners = np.asarray(W), np.asarray(partners)
    workers = jax.lax.axis_size(axis)
    _check_mixing(W, partners, workers)
    everyone = np.arange(workers)
    # Unmatched workers map to themselves: vmap rejects partial permutations, shard_map fills
    # them with zeros. Their own value is weighed once, by the diagonal.
    weights = np.where(partners == everyone, 0, W[everyone, partners])  # [M, n]
    worker = jax.lax.axis_index(axis)

    def mix_leaf(x):
        dtype = _accumulator(x)
        mixed = jnp.asarray(np.diag(W), dtype)[worker] * x.astype(dtype)
        for weight, partner in zip(weights, partners, strict=True):
            received = hear(x, partner, axis)
            mixed += jnp.asarray(weight, dtype)[worker] * received.astype(dtype)
        return mixed.astype(x.dtype)

    return jax.tree.map(mix_leaf, tree)


def mix_active(tree: Tree, alpha, partners, active, axis: str = AXIS) -> Tree:
    """Return the mixed values x_i + sum_m active_m alpha_mi (x_partner_m(i) - x_i) of every leaf.

    `alpha`: the weight of received values, one for all links, as in MATCHA (arXiv 1905.09435), or
    a host array [M, n]. `partners`: host array [M, n], as in `mix`. `active`: bool [M], may be
    traced, but equal on all workers; an inactive matching sends nothing.
    """
    mixed = jax.tree.map(lambda x: x.astype(_accumulator(x)), tree)
    mixed = _pulled(mixed, tree, alpha, partners, active, axis)
    return jax.tree.map(lambda m, x: m.astype(x.dtype), mixed, tree)


def pull(tree: Tree, alpha, partners, active=None, axis: str = AXIS) -> Tree:
    """Return the sums sum_m active_m alpha_mi (x_partner_m(i) - x_i) of every leaf, W x - x.

    Arguments as in `mix_active`; `active` None: all. Where both ends of a link weigh it alike, one
    end gains exactly the loss of the other, however large the values are.
    """
    moved = jax.tree.map(lambda x: jnp.zeros_like(x, _accumulator(x)), tree)
    moved = _pulled(moved, tree, alpha, partners, active, axis)
    return jax.tree.map(lambda m, x: m.astype(x.dtype), moved, tree)


def _pulled(start: Tree, tree: Tree, alpha, partners, active, axis: str) -> Tree:
    """Return `start` plus the sums of `pull`."""

    def of_worker(weight, like):
        if np.ndim(weight) == 0:
            return weight
        return jnp.asarray(weight, like.dtype)[jax.lax.axis_index(axis)]

    def pull_one(mixed, partner, weight):
        def leaf(m, x):
            received = hear(x, partner, axis)
            return m + of_worker(weight, m) * (received.astype(m.dtype) - x.astype(m.dtype))

        return jax.tree.map(leaf, mixed, tree)

    if active is not None and jnp.shape(active) != (len(partners),):
        raise ValueError(
            f"gossip: active has shape {jnp.shape(active)}, where a bool of each of the "
            f"{len(partners)} matchings is due; give [{len(partners)}]"
        )
    if active is not None and collectives.is_on_one_device():
        return _pulled_at_once(start, tree, alpha, partners, active, axis)
    weights = [alpha] * len(partners) if np.ndim(alpha) == 0 else np.asarray(alpha)
    mixed = start
    for m, (partner, weight) in enumerate(zip(np.asarray(partners), weights, strict=True)):
        heard = functools.partial(pull_one, partner=partner, weight=weight)
        if active is None:
            mixed = heard(mixed)
        else:
            mixed = jax.lax.cond(active[m], heard, lambda mixed: mixed, mixed)
    return mixed


def _pulled_at_once(start: Tree, tree: Tree, alpha, partners, active, axis: str) -> Tree:
    """Return `_pulled` where others' values are at hand, with few passes over the values.

    A pass adds AT_ONCE active matchings; the last one adds the rest, by a program for each number.
    """
    partners = np.asarray(partners)
    matchings = len(partners)
    worker = jax.lax.axis_index(axis)
    order, count = jnp.argsort(~active, stable=True), active.sum()
    theirs = jnp.asarray(partners)[order, worker]
    everyone = jax.tree.map(lambda x: jax.lax.all_gather(x, axis), tree)

    def heard(mixed, first, count):
        def leaf(m, x, of_all):
            weights = jnp.broadcast_to(jnp.asarray(alpha, m.dtype), partners.shape)[order, worker]
            for place in range(count):
                received = of_all[theirs[first + place]].astype(m.dtype)
                m += weights[first + place] * (received - x.astype(m.dtype))
            return m

        return jax.tree.map(leaf, mixed, tree, everyone)

    passes = jnp.maximum(count - 1, 0) // AT_ONCE  # number of passes before the last one
    if matchings > AT_ONCE:
        start = jax.lax.fori_loop(
            0, passes, lambda turn, mixed: heard(mixed, AT_ONCE * turn, AT_ONCE), start
        )
    programs = [
        functools.partial(heard, first=AT_ONCE * passes, count=rest)
        for rest in range(min(AT_ONCE, matchings) + 1)
    ]
    return jax.lax.switch(count - AT_ONCE * passes, programs, start)


def exchange(tree: Tree, partner, axis: str = AXIS) -> Tree:
    """Return every leaf as the worker at position `partner` (int scalar, may be traced) holds it.

    A worker may be its own partner. On a mesh every worker gathers the leaves of all.
    """
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis)[partner], tree)


def hear(tree: Tree, senders: np.ndarray, axis: str = AXIS) -> Tree:
    """Return every leaf as the worker's sender holds it; `senders`: host permutation [n]."""
    if len(senders) != jax.lax.axis_size(axis):
        raise ValueError(
            f"gossip: senders or partners are given for {len(senders)} workers, and the axis "
            f"{axis!r} has {jax.lax.axis_size(axis)}; give one for each"
        )
    links = [(int(sender), worker) for worker, sender in enumerate(senders)]
    return jax.lax.ppermute(tree, axis, links)


def exchange_matching(tree: Tree, index, partners, axis: str = AXIS) -> Tree:
    """Return every leaf as the partner in matching `index` holds it; unmatched workers: their own.

    `partners`: host array [M, n]. `index`: int scalar, may be traced, but equal on all workers.
    """
    branches = [
        functools.partial(hear, senders=partner, axis=axis) for partner in np.asarray(partners)
    ]
    return jax.lax.switch(index, branches, tree)


def _accumulator(x):
    return jnp.promote_types(x.dtype, jnp.float32)


def _check_mixing(W: np.ndarray, partners: np.ndarray, workers: int) -> None:
    if W.shape != (workers, workers) or partners.shape != (len(partners), workers):
        raise ValueError(
            f"mix: the axis has {workers} workers, got W {W.shape} and partners {partners.shape}; "
            f"pass W [{workers}, {workers}] and partners [M, {workers}]"
        )
    everyone = np.arange(workers)
    times = np.zeros((workers, workers), int)
    for partner in partners:
        times[everyone, partner] += 1
    # Each edge of W once; a partner without weight costs a message but is allowed.
    wrong = (everyone[:, None] != everyone) & (((W != 0) & (times != 1)) | (times > 1))
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"mix: W[{i}, {j}] = {W[i, j]:.3g} but the matchings pair these workers "
            f"{times[i, j]} times; pass the matchings of the graph that W was made for"
        )
