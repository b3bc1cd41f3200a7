"""SwarmSGD and AD-PSGD on schedules of pairs, against a sequential loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ad_psgd, swarm
from algorithms.base import AXIS
from algorithms.swarm import Quantised, meet, meet_stopped
from comms import topology
from comms.messages import sent_bytes
from runtimes import simulate
from stragglers import wavefront
from tests import planned
from tests.algorithms.nodes import DECAY, LAW, MODELS, RATE, STEPS, N, gradient, optimizer
from tests.runtimes.toy import DATA, SAMPLES, X0, losses


def sequential(schedule, blocking):
    """Return (comm, base) [N, d] after all meetings of the schedule, one after the other."""
    comm, base = (np.tile(X0.astype(np.float64), (N, 1)) for _ in range(2))
    velocity = np.zeros_like(comm)

    def local(i, start, first, steps):
        live = start.copy()
        for counter in range(first, first + steps):
            velocity[i] = DECAY * velocity[i] + gradient(live, i, counter)
            live -= RATE * velocity[i]
        return live

    met = wavefront.interactions(schedule)
    for (i, j), row, (p, q) in zip(met.pairs, met.row, met.position, strict=True):
        first, steps = schedule.first[row], schedule.batches[row]
        if blocking:
            ends = [local(a, base[a], first[b], steps[b]) for a, b in ((i, p), (j, q))]
            base[i] = base[j] = comm[i] = comm[j] = (ends[0] + ends[1]) / 2
            continue
        progress = base[i] - local(i, base[i], first[p], steps[p])
        comm[i], comm[j] = ((comm[i] + comm[j]) / 2,) * 2
        comm[i] = comm[i] - progress
        base[i] = comm[i]
    return comm, base


def agrees(method, rule, updates, blocking=False, mini_batches=STEPS):
    """Compare with the loop, to float32 rounding, and return the schedule."""
    runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=mini_batches)
    state, schedule = runtime.advance(runtime.start(X0), np.inf, updates)
    comm, base = sequential(schedule, blocking)
    np.testing.assert_allclose(state.model.params, base, rtol=5e-4, atol=5e-5)
    np.testing.assert_allclose(runtime.models(state), comm, rtol=5e-4, atol=5e-5)
    return schedule


@pytest.mark.slow
def test_wavefronts_train_as_meetings_one_after_the_other():
    graph, options = topology.ring(N), {"blocking": True, "width": 2}
    rule = planned.rule("random_pairs", LAW, N, STEPS, 3, graph=graph, **options)
    schedule = agrees(swarm(optimizer(), graph, blocking=True), rule, 200, blocking=True)
    assert len(wavefront.interactions(schedule).time) >= 300


def test_geometric_local_steps_and_rows_that_are_not_full():
    graph, options = topology.star(N), {"steps": "geometric", "local_steps": 2, "width": 3}
    rule = planned.rule("random_pairs", LAW, N, 4, 1, graph=graph, **options)
    schedule = agrees(swarm(optimizer(), graph), rule, 120, mini_batches=4)
    assert (schedule.workers == N).any()  # all meetings of a star share its centre


def test_ad_psgd_averages_then_subtracts_the_gradient_of_the_snapshot():
    """The paper's loop: g at a snapshot of x_i; x_i, x_j <- their mean; x_i <- x_i - lr g."""
    graph = topology.ring(N)
    rule = planned.rule("bipartite_pairs", LAW, N, 1, 5, graph=graph)
    runtime = simulate.Simulator(
        ad_psgd(optimizer(decay=0.0), graph), losses, DATA, SAMPLES, rule, mini_batches=1
    )
    state, schedule = runtime.advance(runtime.start(X0), np.inf, 200)
    x = np.tile(X0.astype(np.float64), (N, 1))
    snapshot = x.copy()
    met = wavefront.interactions(schedule)
    for (i, j), row, (p, _) in zip(met.pairs, met.row, met.position, strict=True):
        g = gradient(snapshot[i], i, schedule.first[row, p])
        x[i], x[j] = ((x[i] + x[j]) / 2,) * 2
        x[i] = x[i] - RATE * g
        snapshot[i] = x[i]
    np.testing.assert_allclose(runtime.models(state), x, rtol=5e-4, atol=5e-5)


def meeting(transform, comm, partner, progress, busy):
    """Return models [n, d] and states after an update in which position i meets partner[i]."""

    def one(comm, partner, progress, busy):
        state = transform.init(comm)
        moved, state = transform.update(
            progress, state, comm, batches=busy, partner=partner, active=None
        )
        return comm + moved, state

    return jax.jit(jax.vmap(one, axis_name=AXIS))(
        jnp.asarray(comm), jnp.asarray(partner), jnp.asarray(progress), jnp.asarray(busy, jnp.int32)
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("quantised", [Quantised(8), Quantised(4, "unbiased", 2)])
def test_the_sum_of_public_copies_changes_by_the_progress_alone(quantised):
    """Exactly but for float32 sums, however coarse the codec and however it rounds."""
    partner = np.array([1, 0, 3, 2, 5, 4, 6, 7])
    progress = np.random.default_rng(1).normal(size=MODELS.shape).astype(np.float32)
    busy = np.array([1, 0, 1, 1, 0, 0, 1, 0])
    _, state = meeting(meet(quantised), MODELS, partner, progress, busy)
    change = np.asarray(state.comm, np.float64).sum(0) - MODELS.sum(0, dtype=np.float64)
    np.testing.assert_allclose(change, -progress[busy > 0].sum(0, dtype=np.float64), atol=1e-5)


@pytest.mark.parametrize("transform", [meet, pytest.param(meet_stopped, marks=pytest.mark.slow)])
def test_who_meets_nobody_sends_and_learns_nothing(transform):
    """Even weights that the codec cannot send at its first bound count for a real meeting only."""
    far = MODELS * 1e6
    partner, busy = np.array([1, 0, *range(2, N)]), np.arange(N) % 2 == 0
    transform = transform(Quantised(8))
    _, state = meeting(transform, far, partner, np.zeros_like(far), busy)
    codec = jax.tree.map(np.asarray, state.codec)
    # 40 coordinates in 16 bits, a header of 12 bytes, an answer of 1; then in 32 bits.
    np.testing.assert_array_equal(codec.failed[:2], 1)
    np.testing.assert_array_equal(codec.full_precision[:2], 1)
    np.testing.assert_array_equal(codec.extra_messages[:2], 3)
    np.testing.assert_array_equal(codec.extra_bytes[:2], 40 * 2 + 12 + 1 + 160)
    start = jax.vmap(transform.init)(jnp.asarray(far)).codec
    jax.tree.map(
        lambda found, first: np.testing.assert_array_equal(found[2:], first[2:]), codec, start
    )


def pure_gossip(quantised, rounds):
    """Return (squared distances to the mean [rounds], over the first one, the state in the end).

    Eight random models of 4,096 coordinates meet in pairs, drawn anew in every round.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4096)).astype(np.float32)
    partners = np.empty((rounds, 8), int)
    for row in partners:
        one, other = rng.permutation(8).reshape(2, 4)
        row[one], row[other] = other, one
    transform = meet(quantised)

    def spread(models):
        return ((models - models.mean(0, keepdims=True)) ** 2).sum()

    def one(state, partner):
        return transform.update(state.comm, state, state.comm, batches=0, partner=partner)[1]

    def step(state, partner):
        state = jax.vmap(one, axis_name=AXIS)(state, partner)
        return state, spread(state.comm)

    run = jax.jit(lambda state: jax.lax.scan(step, state, partners))
    state, distance = run(jax.vmap(transform.init)(x))
    return np.asarray(distance) / spread(x), state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantised", "most"), [(Quantised(3), 300), (Quantised(4, "unbiased"), 90)]
)
def test_models_meet_in_few_bits_without_gradients(quantised, most):
    """Down to a millionth of the first distance, for a codec follows what is left of it.

    Only the first meetings, which know nothing of the distance, send anything again.
    """
    distance, state = pure_gossip(quantised, most)
    assert distance.min() < 1e-6
    np.testing.assert_array_equal(state.codec.failed, 4)  # all buckets of a node, once


def test_bytes_are_those_of_the_messages():
    """Of 100 float32 parameters, per update in the mean over workers."""
    params, ring = np.zeros(100, np.float32), topology.ring(N)
    schedule = planned.plan("random_pairs", LAW, N, 60, graph=ring, width=2)
    # 8 bits each, with a side and two sums for the one bucket; the answer is a byte.
    for bits, message in ((None, 400), (8, 100 + 12 + 1)):
        found = sent_bytes(swarm(optimizer(), ring, bits=bits), params, schedule)
        met = wavefront.interactions(schedule)
        asked = np.bincount(met.row[met.pairs[:, 0] != met.pairs[:, 1]], minlength=60)
        np.testing.assert_allclose(found, 2 * asked * message / N)
