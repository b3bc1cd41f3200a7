"""Decoupled DiLoCo: learners that never wait, and a server that merges the arrivals.

A. Douillard et al., *Decoupled DiLoCo for Resilient Distributed Pre-training*, arXiv 2604.21428.
The parameters are cut into F fragments, one of which is due in every update of the server, in turn.
Learner m holds theta_m and goes on with local steps, whatever the others do. After each period of
local steps it sends theta_m,p, the due fragment p of its parameters. In an update, the server
merges the fragments of a set M of learners with its own Theta:

    D_m      = Theta_p - theta_m,p
    w_m      = tokens_m^2 / steps_m           both since m has last received p
    D        = (sum_m w_m |D_m| / sum_m w_m) phi(sum_m w_m phi(D_m) / sum_m w_m)
    Theta_p <- Theta_p - outer step on D
    theta_m,p <- alpha theta_m,p + (1 - alpha) Theta_p       whenever m receives it

with phi(x) = x / |x| and phi(0) = 0, for every tensor by itself. The mean of vectors in random
directions is shorter than the vectors, and shrinks as learners are added; radial-directional
averaging keeps the mean length, so that the outer rate need not depend on the number of learners.
The outer optimizer, here Nesterov momentum, has its own state for every fragment.

The waiting rule chooses M: the paper's is `quorum_async`, which waits for K learners and a grace
period. For learners of equal speed, alpha 0 and plain means give Streaming DiLoCo without
overlap. Here all mini-batches have equally many tokens, so that w_m is proportional to steps_m.
Fragments are equal slices of the concatenated parameters, in which a tensor may be cut in two. The
paper packs whole tensors, and takes plain means of embeddings. Any reducer without a memory may
round directions or entries; the lengths, one for every tensor, are sent uncompressed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.base import (
    Algorithm,
    Parted,
    check_shares,
    choose,
    equal,
    servers_own,
    whole,
)
from algorithms.compression import Reducer
from algorithms.streaming_diloco import fragment_of, fragment_size, mean_by, step_by_fragment
from comms.lattice import ravel_floats


class Received(NamedTuple):
    """State of the exchange of one learner."""

    version: jax.Array  # [] int32, number of the server's updates that the learner knows
    steps: jax.Array  # [fragments] int32, local steps since it has received each fragment
    inner: Any  # state of the mean's exchange


DIRECTION, LENGTH = "direction", "length"  # parts of a message
Mean = Callable[[Any], tuple[Any, Any]]  # tree -> (its mean over workers, new exchange state)
# (distance from the server's fragment [n], number of every entry's tensor [n], tensors, mean) ->
# (D [n], new exchange state)
Average = Callable[[jax.Array, jax.Array, int, Mean], tuple[jax.Array, Any]]


def lengths(x, tensor, tensors: int) -> jax.Array:
    """Return norms, [tensors], of a fragment x [n] per tensor; `tensor` [n] numbers its entries."""
    return jnp.sqrt(jax.ops.segment_sum(x * x, tensor, tensors))


def directions(x, length, tensor) -> jax.Array:
    """Return phi(x) [n], tensor by tensor, given the lengths [tensors]; 0 where a length is 0."""
    return x / jnp.where(length > 0, length, 1)[tensor]


def radial_directional(off, tensor, tensors: int, mean: Mean) -> tuple[jax.Array, Any]:
    """Return D [n], each tensor's mean direction times mean length, and the new exchange state."""
    length = lengths(off, tensor, tensors)
    sent, inner = mean({DIRECTION: directions(off, length, tensor), LENGTH: length})
    direction = directions(sent[DIRECTION], lengths(sent[DIRECTION], tensor, tensors), tensor)
    return sent[LENGTH][tensor] * direction, inner


def plain(off, tensor, tensors: int, mean: Mean) -> tuple[jax.Array, Any]:
    """Return D [n], the plain mean of the distances, and the new exchange state."""
    del tensor, tensors
    return mean(off)


AVERAGES: dict[str, Average] = {"radial_directional": radial_directional, "mean": plain}


def tensor_numbers(params) -> Any:
    """Return a tree like the parameters, whose float entries are the number of their tensor."""
    leaves, structure = jax.tree.flatten(params)
    floating = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]
    numbers = [
        jnp.full(jnp.shape(leaf), number if real else 0, jnp.float32 if real else jnp.int32)
        for number, (leaf, real) in enumerate(zip(leaves, floating, strict=True))
    ]
    return jax.tree.unflatten(structure, numbers)


def changed(since, version, fragments: int) -> jax.Array:
    """Return [fragments] bool, true for fragments due in the updates `since` to `version` - 1."""
    return (jnp.arange(fragments) - since) % fragments < version - since


def sent_of(average: Average, params, fragments: int) -> Any:
    """Return the shapes of a learner's message: one fragment, with tensors' lengths if needed."""
    fragment = jax.ShapeDtypeStruct((fragment_size(params, fragments),), jnp.float32)
    tensors = jax.ShapeDtypeStruct((len(jax.tree.leaves(params)),), jnp.float32)
    return {DIRECTION: fragment, LENGTH: tensors} if average is radial_directional else fragment


def merge_of_fragment(
    average: Average, mean: optax.GradientTransformationExtraArgs, fragments: int
) -> optax.GradientTransformationExtraArgs:
    """Merge the learners' distances from the server in the due fragment by `average`."""

    def init_fn(params):
        sent = sent_of(average, jax.tree.map(jnp.asarray, params), fragments)
        inner = mean.init(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sent))
        return Received(jnp.int32(0), jnp.zeros(fragments, jnp.int32), inner)

    def update_fn(
        updates, state, params, *, current=None, batches=1, version=None, staleness=0, **extra
    ):
        servers_own("decoupled_diloco", current, version)
        received = changed(state.version, version, fragments)
        steps = jnp.where(received, 0, state.steps) + batches
        due = (version + staleness) % fragments
        weight = jnp.where(batches > 0, steps[due], 0)  # a learner without a step has sent nothing

        live = jax.tree.map(jnp.subtract, params, updates)
        off = fragment_of(current, due, fragments) - fragment_of(live, due, fragments)
        tensor = fragment_of(tensor_numbers(params), due, fragments).astype(jnp.int32)
        tensors = len(jax.tree.leaves(params))
        extra |= {"version": version, "weight": weight}
        merged, inner = average(
            off, tensor, tensors, lambda sent: mean.update(sent, state.inner, None, **extra)
        )
        own = jax.tree.map(jnp.negative, updates)
        version = jnp.asarray(version, jnp.int32)
        return Parted(merged, own), Received(version, steps, inner)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def decoupled_diloco(
    optimizer: optax.GradientTransformation,
    *,
    fragments: int = 4,
    alpha: float = 0.0,
    average: str = "radial_directional",
    exchange: Reducer | None = None,
    server: optax.GradientTransformation | None = None,
) -> Algorithm:
    """Step locally with `optimizer`; the server merges one fragment of the learners that arrive.

    fragments: number of fragments of the model; the paper has 24, and sends each about every 24
    steps. alpha: weight of a learner's own entries when it receives a fragment, in [0, 1); 0 in the
    paper. average: "radial_directional" or "mean". exchange: reducer of a fragment's directions or
    entries, see `algorithms.reducers`; None: plain means. server: outer optimizer; None: Nesterov
    momentum .9 at rate .7. The server's model is evaluated.
    """
    whole("decoupled_diloco", 1, fragments=fragments)
    check_shares("decoupled_diloco", alpha=alpha)
    merge = choose("average", AVERAGES, average)
    if server is None:
        server = optax.sgd(0.7, 0.9, nesterov=True)

    mean = mean_by("decoupled_diloco", exchange, whole={LENGTH})

    def messages(params, workers, row):
        return mean.messages(sent_of(merge, params, fragments), workers, row)

    def adopt(own, served, state, version):
        received = changed(state.version, version, fragments)
        mine, restore = ravel_floats(own)
        theirs, _ = ravel_floats(served)
        fragment = jnp.arange(mine.size) // fragment_size(own, fragments)
        return restore(jnp.where(received[fragment], alpha * mine + (1 - alpha) * theirs, mine))

    return Algorithm(
        work=optimizer,
        exchange=merge_of_fragment(merge, mean.exchange, fragments),
        messages=messages,
        server=step_by_fragment(server, fragments, 0),
        adopt=adopt,
        weight=equal,
    )
