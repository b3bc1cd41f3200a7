"""SwarmSGD: local steps, and asynchronous meetings of random pairs of workers.

G. Nadiradze, A. Sabour, P. Davies, S. Li, D. Alistarh, *Asynchronous Decentralized SGD with
Quantized and Local Updates*, arXiv 1910.12308. A worker has three copies of the model:

    base   start of its current local steps        (the parameters of the method)
    live   result of these steps so far            (only inside a worker's update)
    comm   copy that others average with           (state of the exchange)

Worker i has made its local steps, G_i = base_i - live_i, and meets j, which need not stop:

    comm_i <- comm_i + (Q_j - Q_i) / 2 - G_i    base_i = live_i = comm_i
    comm_j <- comm_j + (Q_i - Q_j) / 2          base_j, live_j untouched

Q is the identity, or the lattice codec of `comms.lattice` in a few bits. For any Q, adding half of
the difference preserves the sum of all comm exactly. With one local step this is AD-PSGD (X. Lian
et al., arXiv 1710.06952): a gradient at a snapshot is applied after the average of the pair.

Schedules of pairs come from `stragglers.rules.pairs`. In lock-step the partners are a random
matching of the graph's edge colouring, the same on all workers. The encoded message itself travels,
also on a mesh; the codec's metrics count messages that are repeated after a failed decode.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, Details, Needs, choose
from algorithms.gossip import random_pairs
from algorithms.links import given
from comms import cost, gossip, lattice, topology
from comms.messages import Payload, over_links

FIRST_BOUND = 0.1  # bound of the codec on the distance of two models, until the first meeting


class Rounding(NamedTuple):
    """Rounding of coordinates to the lattice, and the fewest bits with which models converge."""

    unbiased: bool
    least_bits: int


LOCKSTEP = "set lockstep=true for a rule in rounds"
ROUNDINGS = {"nearest": Rounding(False, 3), "unbiased": Rounding(True, 4)}


class Quantised(NamedTuple):
    """Constants of the codec: bits of a coordinate, and its rounding."""

    bits: int
    rounding: str = "nearest"  # a key of ROUNDINGS
    seed: int = 0  # of draws of unbiased rounding


class Codec(NamedTuple):
    """Bounds and counters of a worker's messages; sums of `lattice.Report`, in its order."""

    bound: jax.Array  # [buckets] float32, expected distance of the next partner
    meetings: jax.Array  # [] int32
    failed: jax.Array  # [] float32, buckets that were sent again
    full_precision: jax.Array  # [] float32, buckets sent in float32 after failed decodes
    skipped: jax.Array  # [] float32, buckets that were not finite
    extra_messages: jax.Array  # [] float32, beyond a message and its answer per meeting
    extra_bytes: jax.Array  # [] float32, bytes of the extra messages


class SwarmState(NamedTuple):
    """State of the exchange of one worker."""

    comm: Any  # like the parameters; () if only stopped partners are averaged
    codec: Codec | tuple  # () without quantisation


def _wire_of(partners: np.ndarray | None):
    """Return a function: (partner, active) -> the `lattice.Wire` of a worker to its partner."""

    def wire(partner, active) -> lattice.Wire:
        me = jax.lax.axis_index(AXIS)

        def agree(number):
            return jax.lax.pmax(number, AXIS)

        def swap(tree):
            if partners is None:
                return gossip.exchange(tree, partner, AXIS)
            return gossip.exchange_matching(tree, jnp.argmax(active), partners, AXIS)

        if partners is not None:
            partner = jnp.asarray(partners)[jnp.argmax(given(active)), me]
        elif partner is None:
            raise ValueError(
                "swarm: workers meet in pairs of a schedule, but `partner` is missing; give the "
                "position of whom this worker meets, or take swarm(lockstep=true)"
            )
        return lattice.Wire(swap, agree, partner != me, lockstep=partners is not None)

    return wire


def _start_codec(params, quantised: Quantised | None):
    if quantised is None:
        return ()
    vector, _ = lattice.ravel_floats(params)
    bound = jnp.full(lattice.buckets(vector.size), FIRST_BOUND, jnp.float32)
    return Codec(bound, jnp.zeros((), jnp.int32), *[jnp.zeros((), jnp.float32)] * 5)


def _average(mine, codec, wire: lattice.Wire, quantised: Quantised | None, worker):
    """Return (mine + (Q_theirs - Q_mine) / 2, the codec after the meeting)."""
    if quantised is None:
        return jax.tree.map(lambda a, b: a + (b / 2 - a / 2), mine, wire.swap(mine)), codec
    key = None
    if ROUNDINGS[quantised.rounding].unbiased:
        me = jax.lax.axis_index(AXIS) if worker is None else worker
        key = jax.random.fold_in(jax.random.key(quantised.seed), me)
        key = jax.random.fold_in(key, codec.meetings)
    vector, restore = lattice.ravel_floats(mine)
    difference, report = lattice.converse(
        lattice.in_buckets(vector), codec.bound, wire, quantised.bits, key
    )
    counted = (before + now for before, now in zip(codec[2:], report[1:], strict=True))
    learnt = Codec(report.bound, codec.meetings + 1, *counted)
    # A worker without a partner has sent nothing.
    codec = jax.tree.map(lambda new, old: jnp.where(wire.met, new, old), learnt, codec)
    return restore(vector + lattice.flat(difference, vector.size) / 2), codec


def meet(
    quantised: Quantised | None = None, partners: np.ndarray | None = None
) -> optax.GradientTransformationExtraArgs:
    """Average the public copies of a pair, then subtract each worker's own progress.

    updates: base - live, for a worker that has made its local steps (batches > 0); other
    workers' are ignored. quantised: codec of the messages; None: float32. partners: [M, n]
    matchings; `active` chooses one. None: `partner` names the peer. Source: arXiv 1910.12308,
    Algorithm 2 and Section 5.
    """
    wire_of = _wire_of(partners)

    def init_fn(params):
        return SwarmState(jax.tree.map(jnp.array, params), _start_codec(params, quantised))

    def update_fn(
        updates, state, params, *, batches=1, worker=None, partner=None, active=None, **extra
    ):
        del extra
        wire = wire_of(partner, active)
        averaged, codec = _average(state.comm, state.codec, wire, quantised, worker)
        busy = jnp.asarray(batches) > 0
        comm = jax.tree.map(lambda a, g: a - jnp.where(busy, g, 0), averaged, updates)
        moved = jax.tree.map(lambda c, x: jnp.where(busy, c - x, 0), comm, params)
        return moved, SwarmState(comm, codec)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def meet_stopped(
    quantised: Quantised | None = None, partners: np.ndarray | None = None
) -> optax.GradientTransformationExtraArgs:
    """Average the models of a pair that has stopped: x_i <- (x_i - G_i + x_j - G_j) / 2.

    Arguments as in `meet`. Source: arXiv 1910.12308, Algorithm 1.
    """
    wire_of = _wire_of(partners)

    def update_fn(
        updates, state, params, *, batches=1, worker=None, partner=None, active=None, **extra
    ):
        del extra
        busy = jnp.asarray(batches) > 0
        live = jax.tree.map(lambda x, g: x - jnp.where(busy, g, 0), params, updates)
        wire = wire_of(partner, active)
        averaged, codec = _average(live, state.codec, wire, quantised, worker)
        moved = jax.tree.map(jnp.subtract, averaged, params)
        return moved, SwarmState((), codec)

    return optax.GradientTransformationExtraArgs(
        lambda params: SwarmState((), _start_codec(params, quantised)), update_fn
    )


def swarm(
    optimizer: optax.GradientTransformation,
    graph: nx.Graph,
    *,
    bits: int | None = None,
    rounding: str = "nearest",
    blocking: bool = False,
    lockstep: bool = False,
    seed: int = 0,
) -> Algorithm:
    """Step locally with `optimizer` (its state stays with the worker), and average in pairs.

    bits: of a coordinate in a message, 3 to 16; None: float32. rounding: of the codec, to the
    `nearest` lattice point, or `unbiased`, E[Q(x)] = x, as the paper's lemma assumes. blocking:
    pairs average when both have made their local steps; take `random_pairs(blocking=true)`.
    lockstep: all workers meet at once along a random matching of the graph, for waiting rules in
    rounds and for meshes. seed: of these matchings and of unbiased rounding. The schedule gives the
    number of local steps H. Raises ValueError for bits with which models do not come nearer.
    """
    quantised = _quantised(bits, rounding, seed)
    topology.check(graph)
    partners = links = None
    if lockstep:
        links = random_pairs("swarm", graph, seed)
        partners = links.partners
    transform = (meet_stopped if blocking else meet)(quantised, partners)
    return Algorithm(
        work=optimizer,
        exchange=transform,
        messages=_meeting_messages(bits, blocking, partners),
        graph=graph,
        links=links,
        public=None if blocking else lambda state, params: state.comm,
        details=Details(metrics=None if bits is None else codec_metrics),
        needs=Needs() if lockstep else Needs(pairs=True, stopped=blocking, otherwise=LOCKSTEP),
    )


def _quantised(bits: int | None, rounding: str, seed: int) -> Quantised | None:
    chosen = choose("rounding", ROUNDINGS, rounding)
    least, most = chosen.least_bits, lattice.BITS[1]
    if bits is None:
        if chosen.unbiased:
            raise ValueError(f"swarm: rounding={rounding!r} without bits rounds nothing; set bits")
        return None
    if bits not in range(least, most + 1):
        raise ValueError(
            f"swarm: bits={bits}, but with rounding {rounding!r} two models come together with "
            f"{least} to {most} bits a coordinate only; set bits to one of these, or to none"
        )
    return Quantised(bits, rounding, seed)


def ad_psgd(optimizer: optax.GradientTransformation, graph: nx.Graph) -> Algorithm:
    """Take a gradient at a snapshot, average atomically with a neighbour, then step: AD-PSGD.

    Take the waiting rule `bipartite_pairs`, the paper's split into active and passive workers, or
    `random_pairs`. Source: arXiv 1710.06952, Algorithm 1.
    """
    return swarm(optimizer, graph)._replace(needs=Needs(pairs=True))


def codec_metrics(state: SwarmState) -> dict:
    """Return the lattice codec's counters, summed or averaged over the workers."""
    codec = state.codec
    return {
        "decode_failures": codec.failed.sum(),
        "full_precision_buckets": codec.full_precision.sum(),
        "skipped_buckets": codec.skipped.sum(),
        "extra_messages_per_worker": codec.extra_messages.mean(),
        "extra_bytes_per_worker": codec.extra_bytes.mean(),
    }


def _meeting_messages(bits: int | None, blocking: bool, partners: np.ndarray | None):
    """Return a meeting's `messages`: one each way, and an answer if encoded; no retries.

    Messages can leave before the gradient is known, unless meetings block.
    """
    said = {"beside_gradient": not blocking, "encoded": bits is not None}

    def messages(params, workers, row):
        del workers
        if bits is None:
            parts = (cost.payload_bytes(params),)
        else:
            size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
            answer = lattice.flag_bytes(lattice.buckets(size))
            parts = (lattice.payload_bytes(size, bits), answer)
        if partners is None:
            return tuple(Payload(met=part, **said) for part in parts)
        return tuple(over_links(part, partners, row, **said) for part in parts)

    return messages
