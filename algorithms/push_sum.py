"""SGP: gossip over directed links, one message per worker and update, with push-sum's weights.

M. Assran, N. Loizou, N. Ballas, M. Rabbat, *Stochastic Gradient Push for Distributed Deep
Learning*, arXiv 1811.10792. Every worker holds a biased model x_i and a weight w_i. A worker steps
on x_i with the gradient at z_i = x_i / w_i, keeps half of x_i and w_i, and pushes half to a peer:

    (x_i, w_i) <- sum_j P_ij (x_j - lr g_j(z_j), w_j)

P is column-stochastic, so that mixing conserves the sums of x and of w. In update t a worker's peer
is 2^(t mod ceil(log2 n)) places ahead: the one-peer directed exponential graph.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, Needs, freeze_when_idle, whole
from algorithms.links import Links, given, in_turn
from comms import cost, gossip, topology
from comms.messages import over_links

WEIGHT_BYTES = 4  # bytes of w, which travels with x


class PushSumState(NamedTuple):
    """State of the exchange of one worker."""

    weight: jax.Array  # [] float32, w_i
    inbox: Any  # messages (x, w) on their way to this worker, [overlap, ...] each


def push(sources: np.ndarray, overlap: int) -> optax.GradientTransformationExtraArgs:
    """Step on x, keep half of (x, w), push the other half; messages arrive after `overlap` updates.

    sources: [M, n] permutations, the sender that every worker hears; `active` chooses one row.
    """

    def init_fn(params):
        def nothing(a):
            return jnp.zeros((overlap, *jnp.shape(a)), jnp.result_type(a))

        one = jnp.ones((), jnp.float32)
        inbox = jax.tree.map(nothing, (params, one)) if overlap else ()
        return PushSumState(one, inbox)

    def update_fn(updates, state, params, *, active=None, **extra):
        del extra
        stepped = optax.apply_updates(params, updates)
        half = jax.tree.map(lambda a: a / 2, (stepped, state.weight))
        arriving = gossip.exchange_matching(half, jnp.argmax(given(active)), sources, AXIS)
        inbox = state.inbox
        if overlap:
            queue = jax.tree.map(lambda q, a: jnp.concatenate([q, a[None]]), inbox, arriving)
            arriving = jax.tree.map(lambda q: q[0], queue)
            inbox = jax.tree.map(lambda q: q[1:], queue)
        x, weight = jax.tree.map(jnp.add, half, arriving)
        moved = jax.tree.map(jnp.subtract, x, params)
        return moved, PushSumState(weight, inbox)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def debiased(state, params) -> optax.Params:
    """Return z = x / w; state: of an `optax.chain` whose last part is `push`."""
    return jax.tree.map(lambda x: x / state[-1].weight.astype(x.dtype), params)


def sgp(optimizer: optax.GradientTransformation, workers: int, *, overlap: int = 0) -> Algorithm:
    """Step locally with `optimizer`, and push half of the model to one peer per update (SGP).

    overlap: updates that a message takes while its receiver goes on (Overlap SGP); 0: the receiver
    waits. Waiting rules in rounds wait accordingly; on a mesh no part of the exchange is hidden.
    Every update needs all workers: take a waiting rule in rounds.
    """
    whole("sgp", 1, workers=workers)
    whole("sgp", 0, overlap=overlap)
    hops = 2 ** np.arange(max(1, (workers - 1).bit_length()))
    sources = (np.arange(workers) - hops[:, None]) % workers

    def messages(params, workers, row):
        del workers
        size = cost.payload_bytes(params) + WEIGHT_BYTES
        return (over_links(size, sources, row, late=overlap),)

    return Algorithm(
        exchange=optax.chain(freeze_when_idle(optimizer), push(sources, overlap)),
        messages=messages,
        grad_params=debiased,
        public=debiased,
        graph=topology.exponential(workers),
        links=Links(sources, in_turn(len(hops)), directed=True, period=len(hops)),
        needs=Needs("all workers push"),
    )
