"""Streaming DiLoCo: outer steps on one fragment of the model at a time, beside local steps.

A. Douillard et al., *Streaming DiLoCo with overlapping communication: Towards a Distributed Free
Lunch*, arXiv 2501.18512. The parameters are cut into F fragments. After every round one fragment is
due, in turn. Each of P workers holds theta_i, the server holds Theta. For fragment p of round t:

    D_p     <- mean_i (Theta_p - theta_i,p)            sent while the workers go on
    Theta_p <- Theta_p - outer step on D_p             `overlap` rounds later
    theta_i,p <- alpha theta_i,p + (1 - alpha) Theta_p

The outer optimizer, here Nesterov momentum, has its own state for every fragment. With a single
fragment, no overlap and alpha 0 this is DiLoCo. A worker sends as many bytes as in DiLoCo, but only
1 / F of them at a time. Any reducer without a memory may round a fragment, in the paper to 4 bits.

A round is `mini_batches` local steps, so that every fragment is due once in F rounds. In the
paper's letters H = F mini_batches and tau = overlap mini_batches. Fragments are equal slices of
the concatenated parameters; the paper cuts between layers.
"""

from collections.abc import Container
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import base, compression, reducers
from algorithms.base import Algorithm, Needs, Parted, check_shares, extended, servers_own
from algorithms.compression import Reducer
from algorithms.mean import compressed, mean_messages, mean_over_workers
from comms.lattice import ravel_floats


class Outer(NamedTuple):
    """State of the server; n: entries of a fragment."""

    update: jax.Array  # [] int32, rounds so far
    queue: Any  # [overlap, n] float32, mean progress that is still under way; (): no overlap
    optimizer: Any  # optimizer states of the fragments, [fragments, ...] each


def fragment_size(tree, fragments: int) -> int:
    """Return the number of entries of a fragment; the last fragment is padded with zeros."""
    entries = sum(
        leaf.size for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)
    )
    return -(-entries // fragments)


def _padded(tree, fragments: int) -> jax.Array:
    vector, _ = ravel_floats(tree)
    return jnp.pad(vector, (0, fragments * fragment_size(tree, fragments) - vector.size))


def fragment_of(tree, which, fragments: int) -> jax.Array:
    """Return the entries [n] of one fragment of a model."""
    size = fragment_size(tree, fragments)
    return jax.lax.dynamic_slice(_padded(tree, fragments), (which * size,), (size,))


def _placed(values, which, like, fragments: int) -> Any:
    """Return a tree that has `values` in one fragment, and the entries of `like` elsewhere."""
    vector, restore = ravel_floats(like)
    start = which * fragment_size(like, fragments)
    whole = jax.lax.dynamic_update_slice(_padded(like, fragments), values, (start,))
    return restore(whole[: vector.size])


def mean_by(name: str, exchange: Reducer | None, whole: Container[str] = ()) -> Algorithm:
    """Return a method that averages a fragment by a reducer, with its messages.

    name: of the method, for errors. exchange: the reducer; None: a plain mean. whole: paths of
    leaves with a plain mean. Raises ValueError for a reducer with a memory.
    """
    if exchange is None:
        return Algorithm(mean_over_workers(), messages=mean_messages)
    compression.check_reducer(name, exchange)
    if reducers.remembers(exchange):
        raise ValueError(
            f"{name}: {exchange.name} keeps a memory of one fragment, but every round sends "
            "another; write what is inside of it"
        )
    return compressed(
        name,
        optax.identity(),
        lambda path, leaf: None if path in whole else exchange,
        weighting="equal",
    )


def mean_of_fragment(
    mean: optax.GradientTransformationExtraArgs, fragments: int
) -> optax.GradientTransformationExtraArgs:
    """Replace progress by the mean difference Theta - theta_i in the due fragment, by `mean`.

    The server's count of rounds chooses the fragment, since a worker that replaces a lost worker
    has not counted the rounds.
    """

    def init_fn(params):
        size = fragment_size(jax.tree.map(jnp.asarray, params), fragments)
        return mean.init(jnp.zeros(size, jnp.float32))

    def update_fn(updates, state, params, *, current=None, version=None, staleness=0, **extra):
        servers_own("streaming_diloco", current, version)
        due = (version + staleness) % fragments
        live = jax.tree.map(jnp.subtract, params, updates)
        off = fragment_of(current, due, fragments) - fragment_of(live, due, fragments)
        off, state = mean.update(off, state, None, version=version, **extra)
        own = jax.tree.map(jnp.negative, updates)
        return Parted(off, own), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def step_by_fragment(
    optimizer: optax.GradientTransformation, fragments: int, overlap: int
) -> optax.GradientTransformationExtraArgs:
    """Step on the fragment whose mean was sent `overlap` rounds ago, with this fragment's state."""
    optimizer = extended(optimizer)

    def init_fn(params):
        size = fragment_size(jax.tree.map(jnp.asarray, params), fragments)
        states = jax.vmap(optimizer.init)(_padded(params, fragments).reshape(fragments, size))
        queue = jnp.zeros((overlap, size), jnp.float32) if overlap else ()
        return Outer(jnp.int32(0), queue, states)

    def update_fn(updates, state, params, **extra):
        queue, due = state.queue, updates
        if overlap:
            queue = jnp.concatenate([queue, updates[None]])
            queue, due = queue[1:], queue[0]
        sent = state.update - overlap
        which, arrived = sent % fragments, sent >= 0
        own = jax.tree.map(lambda a: a[which], state.optimizer)
        step, new = optimizer.update(due, own, fragment_of(params, which, fragments), **extra)
        new = jax.tree.map(lambda a, b: jnp.where(arrived, a, b), new, own)
        states = jax.tree.map(lambda a, b: a.at[which].set(b), state.optimizer, new)
        step = jnp.where(arrived, step, 0)
        moved = _placed(step, which, jax.tree.map(jnp.zeros_like, params), fragments)
        return moved, Outer(state.update + 1, queue, states)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def streaming_diloco(
    optimizer: optax.GradientTransformation,
    *,
    fragments: int = 4,
    overlap: int = 1,
    alpha: float = 0.5,
    exchange: Reducer | None = None,
    server: optax.GradientTransformation | None = None,
) -> Algorithm:
    """Step locally with `optimizer`, and take outer steps of `server` a fragment at a time.

    fragments: number of fragments; one is sent after every round. overlap: rounds until the mean
    has come back, fewer than fragments; 0: workers wait for it. alpha: share of its own entries
    that a worker keeps, in [0, 1). exchange: reducer of a fragment (`algorithms.reducers`); None: a
    plain mean. server: None: Nesterov momentum .9 at rate .7. The server's model is evaluated.
    Every update needs all workers: take a waiting rule in rounds, or k_sync with K = P.
    """
    base.whole("streaming_diloco", 1, fragments=fragments)
    base.whole("streaming_diloco", 0, overlap=overlap)
    check_shares("streaming_diloco", alpha=alpha)
    if overlap >= fragments:
        raise ValueError(
            f"streaming_diloco: needs overlap < fragments={fragments}, got {overlap}; a fragment "
            "comes back before it is sent again"
        )
    if server is None:
        server = optax.sgd(0.7, 0.9, nesterov=True)
    mean = mean_by("streaming_diloco", exchange)

    def messages(params, workers, row):
        fragment = jax.ShapeDtypeStruct((fragment_size(params, fragments),), jnp.float32)
        payloads = mean.messages(fragment, workers, row)
        return tuple(payload._replace(late=overlap) for payload in payloads)

    def adopt(own, served, state, version):
        del state
        sent = version - 1 - overlap
        which = sent % fragments
        mine, theirs = (fragment_of(tree, which, fragments) for tree in (own, served))
        mixed = jnp.where(sent >= 0, alpha * mine + (1 - alpha) * theirs, mine)
        return _placed(mixed, which, own, fragments)

    return Algorithm(
        work=optimizer,
        exchange=mean_of_fragment(mean.exchange, fragments),
        messages=messages,
        server=step_by_fragment(server, fragments, overlap),
        adopt=adopt,
        weight=lambda batches: jnp.ones_like(batches, jnp.float32),  # idle workers count, too
        needs=Needs("all workers send the same fragment"),
    )
