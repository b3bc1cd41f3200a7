"""SwarmSGD: local steps, and meetings of random pairs of workers at no common time.

G. Nadiradze, A. Sabour, P. Davies, S. Li, D. Alistarh, *Asynchronous Decentralized SGD with
Quantized and Local Updates*, arXiv 1910.12308. Three copies of the model live at a worker:

    base   where its current local steps began     (the parameters of the method)
    live   what they have become                   (only inside a worker's update)
    comm   what others average with                (state of the exchange)

A worker i that has made its local steps, G_i = base_i - live_i, meets j, which need not stop:

    comm_i <- comm_i + (Q_j - Q_i) / 2 - G_i    base_i = live_i = comm_i
    comm_j <- comm_j + (Q_i - Q_j) / 2          base_j, live_j untouched

Q is the identity, or the lattice codec of `comms.lattice` in a few bits: the difference form keeps
the sum of all comm exactly, whatever Q. With one local step this is AD-PSGD (X. Lian et al., arXiv
1710.06952), whose gradient is taken at a snapshot and applied after an average of the pair.

Schedules of pairs come from `stragglers.pairs`; in lock-step the partners are a random matching of
the graph's edge colouring, the same on all workers. The sender's retries after a failed decode need
both ends, so a mesh exchanges whole models; `messages` and the metrics count what is encoded.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm
from algorithms.gossip import graph_matchings
from algorithms.links import Links, one_at_a_time
from comms import cost, gossip, lattice, lattice_ladder
from comms.messages import Payload, over_links

MARGIN = 1e-3  # the codec's first bound on the distance of two models, learnt from then on


class Codec(NamedTuple):
    """What a worker has learnt and counted of its messages."""

    bound: lattice_ladder.Bound  # [buckets]
    failed: jax.Array  # [] float32, buckets that were sent again
    full_precision: jax.Array  # [] float32, buckets that went as float32 at last
    skipped: jax.Array  # [] float32, buckets that were not finite
    extra_bytes: jax.Array  # [] float32, beyond one message a meeting


class SwarmState(NamedTuple):
    """The exchange's state of one worker."""

    comm: Any  # like the parameters; () if partners are averaged when both have stopped
    codec: Codec | tuple  # () without quantisation


def _meeting_of(partners: np.ndarray | None):
    """(partner, active) -> (tree -> the partner's tree, whether the partner is somebody else)."""

    def meeting(partner, active):
        me = jax.lax.axis_index(AXIS)
        if partners is None:
            return lambda tree: gossip.exchange(tree, partner, AXIS), partner != me
        index = jnp.argmax(active)
        swap = functools.partial(
            gossip.exchange_matching, index=index, partners=partners, axis=AXIS
        )
        return swap, jnp.asarray(partners)[index, me] != me

    return meeting


def _start_codec(params, bits: int | None):
    if bits is None:
        return ()
    vector, _ = lattice.ravel_floats(params)
    zeros = [jnp.zeros((), jnp.float32)] * 4
    return Codec(lattice_ladder.init_bound(vector.size, MARGIN), *zeros)


def _average(mine, codec, swap, met, bits: int | None):
    """(mine + (Q_theirs - Q_mine) / 2, the codec after it)."""
    if bits is None:
        return jax.tree.map(lambda a, b: a + (b - a) / 2, mine, swap(mine)), codec
    vector, restore = lattice.ravel_floats(mine)
    theirs, their_bound = swap((vector, codec.bound.bound))
    bound = jnp.maximum(codec.bound.bound, their_bound)  # both know it, the distance is symmetric
    sent, report = lattice_ladder.transfer(vector, theirs, bound, bits)
    once = lattice.payload_bytes(vector.size, bits, lattice.buckets(vector.size))
    learnt = Codec(
        lattice_ladder.update_bound(codec.bound, report.failed, report.distance),
        codec.failed + report.failed.sum(),
        codec.full_precision + report.full_precision,
        codec.skipped + report.skipped,
        codec.extra_bytes + (report.bytes - once),
    )
    # Who is left alone has sent nothing.
    codec = jax.tree.map(lambda new, old: jnp.where(met, new, old), learnt, codec)
    return restore(vector + (swap(sent) - sent) / 2), codec


def meet(
    bits: int | None = None, partners: np.ndarray | None = None
) -> optax.GradientTransformationExtraArgs:
    """Average the public copies of a pair, then subtract one's own progress.

    updates: base - live of a worker that has made its local steps (batches > 0), else anything.
    bits: of a coordinate on the wire, None: as it is. partners: [M, n] matchings of which `active`
    chooses one; None: `partner` says whom. Source: arXiv 1910.12308, Algorithm 2 and Section 5.
    """
    meeting_of = _meeting_of(partners)

    def init_fn(params):
        return SwarmState(jax.tree.map(jnp.asarray, params), _start_codec(params, bits))

    def update_fn(updates, state, params, *, batches, partner=None, active=None, **extra):
        del extra
        averaged, codec = _average(state.comm, state.codec, *meeting_of(partner, active), bits)
        busy = jnp.asarray(batches) > 0
        comm = jax.tree.map(lambda a, g: a - jnp.where(busy, g, 0), averaged, updates)
        moved = jax.tree.map(lambda c, x: jnp.where(busy, c - x, 0), comm, params)
        return moved, SwarmState(comm, codec)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def meet_stopped(
    bits: int | None = None, partners: np.ndarray | None = None
) -> optax.GradientTransformationExtraArgs:
    """Average the models of a pair that has stopped: x_i <- (x_i - G_i + x_j - G_j) / 2.

    Arguments as in `meet`. Source: arXiv 1910.12308, Algorithm 1.
    """
    meeting_of = _meeting_of(partners)

    def update_fn(updates, state, params, *, batches, partner=None, active=None, **extra):
        del extra
        busy = jnp.asarray(batches) > 0
        live = jax.tree.map(lambda x, g: x - jnp.where(busy, g, 0), params, updates)
        averaged, codec = _average(live, state.codec, *meeting_of(partner, active), bits)
        moved = jax.tree.map(jnp.subtract, averaged, params)
        return moved, SwarmState((), codec)

    return optax.GradientTransformationExtraArgs(
        lambda params: SwarmState((), _start_codec(params, bits)), update_fn
    )


def swarm(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    bits: int | None = None,
    blocking: bool = False,
    lockstep: bool = False,
    seed: int = 0,
) -> Algorithm:
    """SwarmSGD with local steps of `optimizer`, whose state never leaves the worker.

    bits: of a coordinate in a message, 2 to 16; None: float32. blocking: pairs average when both
    have made their local steps (wait for `random_pairs(blocking=true)`). lockstep: all workers
    meet at once along a random matching of the graph, for rules in rounds and for meshes; seed: of
    these matchings. The number of local steps H is that of the schedule.
    """
    partners = links = None
    if lockstep:
        _, partners = graph_matchings(graph)
        if not len(partners):
            raise ValueError("swarm: a single worker has nobody to meet; set workers to 2 or more")
        links = Links(partners, one_at_a_time(len(partners), seed))
    transform = (meet_stopped if blocking else meet)(bits, partners)
    return Algorithm(
        work=optimizer,
        exchange=transform,
        messages=_meeting_messages(bits, blocking, partners),
        graph=graph,
        links=links,
        public=None if blocking else lambda state, params: state.comm,
        metrics=None if bits is None else codec_metrics,
        check=None if lockstep else _needs_pairs(blocking),
    )


def ad_psgd(optimizer: optax.GradientTransformation, graph: nx.Graph) -> Algorithm:
    """AD-PSGD: a gradient at a snapshot, an atomic average with a neighbour, then the step.

    Wait for `bipartite_pairs`, the paper's split into active and passive workers, or for
    `random_pairs`. Source: arXiv 1710.06952, Algorithm 1.
    """
    return swarm(optimizer, graph)


def codec_metrics(state: SwarmState) -> dict:
    """Sums and means over the workers of what the lattice codec has counted."""
    codec = state.codec
    return {
        "decode_failures": codec.failed.sum(),
        "full_precision_buckets": codec.full_precision.sum(),
        "skipped_buckets": codec.skipped.sum(),
        "extra_bytes_per_worker": codec.extra_bytes.mean(),
    }


def _message_bytes(params, bits: int | None) -> int:
    if bits is None:
        return cost.payload_bytes(params)
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    return lattice.payload_bytes(size, bits, lattice.buckets(size))


def _meeting_messages(bits: int | None, blocking: bool, partners: np.ndarray | None):
    """A message each way of every meeting, retries aside; public copies need no gradient."""
    said = {"beside_gradient": not blocking, "encoded": bits is not None}

    def messages(params, workers, row):
        del workers
        size = _message_bytes(params, bits)
        if partners is None:
            return (Payload(met=size, **said),)
        return (over_links(size, partners, row, **said),)

    return messages


def _needs_pairs(blocking: bool):
    def check(workers: int, row) -> None:
        if row.partner is None:
            raise ValueError(
                "swarm: the schedule has no pairs; wait for random_pairs or bipartite_pairs, or "
                "set lockstep=true for a rule in rounds"
            )
        met = row.partner[0] != np.arange(row.partner.shape[1])
        if blocking and (row.batches[0][met] == 0).any():
            raise ValueError(
                "swarm: blocking=true averages pairs that have both stopped, but here a partner "
                "goes on; wait for random_pairs(blocking=true)"
            )

    return check
