"""Losses that draw at random: anew in every local step, on all workers alike or each by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, local_sgd, swarm
from comms import hashing, topology
from experiments import tasks
from runtimes import slices
from runtimes.asynchronous.worker import AsynchronousWorker, Order, WorkerParts
from runtimes.gossip import worker as gossip_worker
from runtimes.mesh import Mesh
from runtimes.simulate import Simulator
from stragglers import delays, inject
from stragglers.rules.replay import recorded
from tests import planned
from tests.runtimes.toy import DATA, SAMPLES, X0, B, D

N, M = 4, 5
FAR = 2**24  # from which on float32 does not know one sample more from none
RATE = 0.5


def noise(count):
    return jax.random.normal(jax.random.fold_in(jax.random.key(7), count), (D,))


def alike(w, examples, count):
    """Their gradient is the noise, whatever the examples are."""
    return 0 * examples["y"] + w @ noise(count)


def apart(w, examples, count, worker):
    return alike(w, examples, count + jnp.uint32(1000) * worker.astype(jnp.uint32))


def apart_by_keyword(w, examples, count, *, worker):
    return apart(w, examples, count, worker)


def moved(worker, seen, steps):
    """Return the end of local steps, [d] float64, that follow this many samples."""
    return -RATE * sum(np.float64(noise(seen + step + 1000 * worker)) for step in range(steps))


def ends(schedule):
    """Return the model after the rows of a schedule, by hand."""
    before = np.concatenate([[0], schedule.samples_used(B)])
    return X0 + sum(
        np.mean([moved(w, int(before[t]), m) for w, m in zip(who, made, strict=True)], 0)
        for t, (who, made) in enumerate(zip(schedule.workers, schedule.batches, strict=True))
    )


def simulated(losses, rule, updates=np.inf, method=None):
    method = local_sgd(optax.sgd(RATE)) if method is None else method
    runtime = Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=M)
    run, _ = runtime.advance(runtime.start(X0), np.inf, updates)
    return np.asarray(runtime.models(run))[0]


@pytest.mark.slow
@pytest.mark.parametrize("watched", [False, True])
def test_a_mesh_draws_as_the_simulator(watched):
    injector = None
    if watched:
        rule = planned.rule("first_finisher", delays.exponential(0.002), N, M)
        injector = inject.Injector(N, rule.trigger, 0, delay=delays.exponential(0.002))
    method = local_sgd(optax.sgd(RATE), weighting="equal")
    runtime = Mesh(
        method, apart_by_keyword, DATA, SAMPLES, workers=N, mini_batches=M, injector=injector
    )
    run, schedule = runtime.advance(runtime.start(X0), np.inf, 3)
    found = np.asarray(runtime.models(run))[0]
    replayed = simulated(apart_by_keyword, recorded(schedule))
    np.testing.assert_allclose(found, replayed, rtol=1e-5, atol=1e-5)
    if not watched:  # else work that an update has cut goes on in the next one
        np.testing.assert_allclose(found, ends(schedule), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_all_devices_of_a_worker_draw_as_one():
    runtime = Mesh(
        local_sgd(optax.sgd(RATE)), apart_by_keyword, DATA, SAMPLES, workers=N, mini_batches=M,
        devices_per_worker=2, sharding=slices.fsdp(),
    )  # fmt: skip
    run, schedule = runtime.advance(runtime.start(X0), np.inf, 2)
    found = np.asarray(runtime.models(run))[0]
    np.testing.assert_allclose(found, ends(schedule), rtol=1e-5, atol=1e-5)


def test_a_free_worker_draws_anew_in_every_local_step():
    parts = WorkerParts(local_sgd(optax.sgd(RATE)), apart_by_keyword, DATA, SAMPLES, M, None)
    free = AsynchronousWorker(lambda: parts, 2)
    free.ready(X0)
    for seen in (0, FAR + 1):
        order = Order(seen + 1, 0, (), 0, 0, M, 0, seen, 0.0)
        found = free.step(order, X0).contribution
        np.testing.assert_allclose(-found, moved(2, seen, M), rtol=1e-5, atol=1e-5)


def test_a_node_that_meets_others_draws_anew_in_every_local_step():
    method = swarm(optax.sgd(RATE), topology.ring(N))
    parts = WorkerParts(method, apart_by_keyword, DATA, SAMPLES, M, None)
    rule = planned.rule("random_pairs", delays.deterministic(1.0), N, M, graph=topology.ring(N))
    programs = gossip_worker.compile_programs(gossip_worker.GossipParts(parts, rule, False), X0)
    work = method.work.init(X0)
    for seen in (6, FAR + 1):
        indices = SAMPLES.indices(2, np.arange(M))
        given = (indices, np.int32(M), hashing.words(seen), np.int32(2))
        found, _ = programs.contribute(X0, work, *given)
        np.testing.assert_allclose(-found, moved(2, seen, M), rtol=1e-5, atol=1e-5)


def test_gradients_at_one_point_draw_once_an_update():
    """So that rows of sums stay sparse; with a `worker` every worker draws by itself."""
    method = all_reduce(optax.sgd(1.0))
    rule = planned.rule("barrier", delays.exponential(1.0), N, M)
    for losses, own in ((alike, [0] * N), (apart, range(0, 1000 * N, 1000))):
        found = simulated(losses, rule, 2, method)
        steps = [np.mean([noise(seen + who) for who in own], 0) for seen in (0, N * M * B)]
        np.testing.assert_allclose(found, X0 - np.sum(steps, 0), rtol=1e-5, atol=1e-5)


def test_a_task_that_draws_by_worker_is_measured_as_worker_0():
    task = tasks.Task("drawn", DATA, DATA, np.zeros(48), lambda key: X0, apart, shared_draw=True)
    examples = tasks.take(task.train, slice(B))
    found = tasks.first_draw(task)(X0, examples)
    np.testing.assert_array_equal(found, alike(X0, examples, jnp.uint32(0)))
