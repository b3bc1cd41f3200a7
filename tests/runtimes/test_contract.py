"""Both runtimes, and several runs as one program, keep the contract in `runtimes.base`."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, dpsgd, local_sgd, swarm, top_k
from algorithms.base import scale_by_samples
from comms import topology
from runtimes.mesh import Mesh
from runtimes.simulate import Batched, Simulator
from stragglers import delays, inject
from stragglers.rule import Trigger
from stragglers.rules.replay import recorded
from stragglers.schedule import Event, Schedule, concatenate
from tests import planned
from tests.compilations import compilations
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, B, D, bits, losses, optimizer, replayed
from tests.runtimes.toy import gradient as mean_gradient

N, M = 4, 2
LAW, SHORT = delays.exponential(0.3), delays.deterministic(0.005)


METHODS = {
    "all_reduce": lambda: all_reduce(optimizer(0.02)),
    "top_k": lambda: top_k(optimizer(0.02), ratio=0.5),
    "dpsgd": lambda: dpsgd(optimizer(0.02), topology.ring(N)),
    "swarm": lambda: swarm(optimizer(0.02), topology.complete(N)),
}


def simulator(method, wait="first_finisher", mini_batches=M, **knobs):
    rule = planned.rule(wait, LAW, N, mini_batches, 3, **knobs)
    return Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=mini_batches)


def mesh(method, **options):
    return Mesh(
        method, losses, DATA, SAMPLES, workers=N, mini_batches=M, rounds_per_dispatch=4, **options
    )


RUNTIMES = {"simulator": simulator, "mesh": mesh}


@pytest.fixture(params=RUNTIMES)
def build(request):
    return RUNTIMES[request.param]


def same_schedule(ours, theirs, but=()):
    for field in fields(Schedule):
        if field.name not in but:
            np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name))


def test_two_pieces_are_one(build):
    """By their number of updates, with an end inside of a dispatch, and axes of the contract."""
    runtime = build(METHODS["top_k"]())
    whole, schedule = runtime.advance(runtime.start(X0), np.inf, 11)
    piece, first = runtime.advance(runtime.start(X0), np.inf, 5)
    assert piece.update == first.updates == 5
    piece, second = runtime.advance(piece, np.inf, 6)
    assert piece.update == whole.update == schedule.updates == 11
    assert piece.samples == whole.samples == B * schedule.batches.sum()
    assert bits(runtime.models(piece)) == bits(runtime.models(whole))
    assert bits(runtime.memory(piece)) == bits(runtime.memory(whole))
    assert runtime.models(piece).shape == (1, D)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(runtime.memory(piece))} == {N}
    measured = ("time", "start", "finish", "busy") if runtime.clock == "wall" else ()
    same_schedule(concatenate([first, second]), schedule, but=measured)


def test_nothing_is_compiled_twice(build):
    runtime = build(METHODS["dpsgd"]())

    def train():
        run, _ = runtime.advance(runtime.start(X0), np.inf, 4)
        run, _ = runtime.advance(run, np.inf, 4)
        return runtime.models(run), runtime.memory(run)

    compilations.clear()
    first = train()
    assert compilations and first[0].shape == (N, D)
    compilations.clear()
    assert bits(train()) == bits(first) and not compilations


def test_pieces_of_virtual_time_are_the_whole():
    runtime = simulator(METHODS["dpsgd"]())
    whole, schedule = runtime.advance(runtime.start(X0), 6.0)
    piece, rows = runtime.start(X0), []
    for seconds in (0.01, 2.5, 2.5, 6.0):
        piece, done = runtime.advance(piece, seconds)
        rows += [] if done is None else [done]
        assert piece.seconds == seconds
    assert len(rows) == 2 and bits(runtime.models(piece)) == bits(runtime.models(whole))
    same_schedule(concatenate(rows), schedule)


def test_a_clock_stands_where_it_was_sent_or_at_the_last_update_and_never_goes_back():
    runtime = simulator(METHODS["all_reduce"]())
    run, schedule = runtime.advance(runtime.start(X0), 3.0)
    assert run.seconds == 3.0 > schedule.time[-1]
    run, schedule = runtime.advance(run, 1e9, 2)
    last = run.seconds
    assert last == schedule.time[-1] > 3.0
    run, nothing = runtime.advance(run, 1.0)
    assert nothing is None and run.seconds == last

    runtime = mesh(
        METHODS["all_reduce"](), injector=inject.Injector(N, Trigger(None, M), 0, delay=SHORT)
    )
    run, schedule = runtime.advance(runtime.start(X0), 0.1)
    assert run.seconds == schedule.time[-1] >= 0.1
    again, nothing = runtime.advance(run, 0.05)
    assert nothing is None and again.seconds == run.seconds


def test_a_recorded_schedule_comes_to_its_end():
    schedule = planned.plan("barrier", LAW, N, 7, M, 0)
    schedule = replace(schedule, events=(Event(0.0, 1, "lost"), Event(1e6, 1, "restored", 2)))
    runtime = Simulator(
        METHODS["all_reduce"](), losses, DATA, SAMPLES, recorded(schedule), mini_batches=M
    )
    run, before = runtime.advance(runtime.start(X0), float(schedule.time[4]))
    assert not run.exhausted
    run, after = runtime.advance(run, 1e9)
    assert run.exhausted and run.update == 7 and run.seconds == 1e9
    assert concatenate([before, after]).events == schedule.events


def test_several_runs_as_one_program_are_each_of_them_alone():
    def runs():
        return [
            simulator(METHODS["all_reduce"](), wait="k_async", mini_batches=1, k=k) for k in (1, 3)
        ]

    simulators = runs()
    together = Batched(simulators)
    batch = together.stack([simulator.start(X0) for simulator in simulators])
    batch, first = together.advance(batch, (1.0, 2.0), (np.inf, 3))
    batch, second = together.advance(batch, (4.0, 0.0), (np.inf, 0))
    assert second[1] is None
    batch, third = together.advance(batch, (4.0, 9.0), (0, 1))  # of more workers than updates
    ends = (4.0,), (9.0, first[1].updates + 1)
    for r, (alone, limits) in enumerate(zip(runs(), ends, strict=True)):
        run, schedule = alone.advance(alone.start(X0), *limits)
        ours = together.one(batch, r)
        rows = [done[r] for done in (first, second, third) if done[r] is not None]
        same_schedule(concatenate(rows), schedule)
        assert (ours.update, ours.samples, ours.seconds) == (run.update, run.samples, run.seconds)
        np.testing.assert_allclose(
            simulators[r].models(ours), alone.models(run), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("method", "wait", "mini_batches", "own"),
    [
        slow("dpsgd", "first_finisher", M, {}),
        ("all_reduce", "k_async", 1, {"k": 2}),
        ("swarm", "random_pairs", M, {"graph": topology.complete(N)}),
    ],
)
def test_a_worker_axis_over_many_devices_gives_the_same_trajectory(method, wait, mini_batches, own):
    models = []
    for devices in (1, 2):
        runtime = Simulator(
            METHODS[method](), losses, DATA, SAMPLES,
            planned.rule(wait, LAW, N, mini_batches, 3, **own),
            mini_batches=mini_batches, devices=devices,
        )  # fmt: skip
        run, schedule = runtime.advance(runtime.start(X0), np.inf, 20)
        models.append(runtime.models(run))
    assert (schedule.staleness.max() > 0) == (wait == "k_async")
    np.testing.assert_allclose(*models, rtol=1e-5, atol=1e-6)


def two_momenta(init):
    """Return two sums of gradients; `init` makes their beginnings."""

    def update_fn(updates, state, params=None, **extra):
        del params, extra
        first, second = 0.5 * state[0] + updates, 0.9 * state[1] + updates
        return -0.02 * (first + second), (first, second)

    return optax.GradientTransformationExtraArgs(init, update_fn)


def test_an_optimizer_may_begin_with_one_array_in_two_places(build):
    """Also the caller's own parameters, as the slow copy of an average, which stay theirs."""
    models, params = [], jnp.asarray(X0)
    for init in (lambda p: (jnp.zeros_like(p),) * 2, lambda p: (p * 0, jnp.zeros_like(p))):
        runtime = build(local_sgd(two_momenta(init)))
        run, _ = runtime.advance(runtime.start(X0), np.inf, 3)
        models.append(runtime.models(run))
    assert bits(models[0]) == bits(models[1])
    assert np.abs(np.asarray(models[0]) - X0).max() > 1e-3
    runtime = build(all_reduce(two_momenta(lambda params: (params, params))))
    runtime.advance(runtime.start(params), np.inf, 3)
    np.testing.assert_array_equal(params, X0)


# --- samples that were seen when a contribution was taken

ROW = ("workers", "version", "first", "samples")


def drawn_losses(w, examples, samples):
    """Larger, the more samples have been seen."""
    return losses(w, examples) * (1 + samples / 100)


def gradient(w, worker, counters, seen):
    """Return the same in NumPy, float64, over some mini-batches of a worker."""
    return mean_gradient(w, SAMPLES.indices(worker, np.asarray(counters))) * (1 + seen / 100)


def with_samples(schedule):
    """Return the knowledge of every worker when it began: two updates before, or nothing."""
    before = np.concatenate([[0], schedule.samples_used(B)])
    return replace(schedule, samples=before[np.maximum(schedule.version - 2, 0)].astype(np.int64))


def rate(samples):
    return 0.05 / (1 + samples / 50)


def test_losses_that_draw_follow_each_contribution_and_the_server_follows_the_row():
    schedule = with_samples(planned.plan("k_async", LAW, N, 30, k=2))
    assert schedule.staleness.max() > 0
    total = np.concatenate([[0], schedule.samples_used(B)])
    versions = [X0.astype(np.float64)]
    for t in range(30):
        row = zip(*(getattr(schedule, c)[t] for c in ROW), strict=True)
        taken = [gradient(versions[v], i, [c], seen) for i, v, c, seen in row]
        versions.append(versions[-1] - rate(total[t]) * np.mean(taken, axis=0))

    method = all_reduce(scale_by_samples(1.0, rate))
    found = replayed(method, schedule, 1, drawn_losses)[0]
    np.testing.assert_allclose(found, versions[-1], rtol=2e-4, atol=2e-5)
    plain = replayed(method, replace(schedule, samples=None), 1, drawn_losses)[0]
    assert np.abs(plain - versions[-1]).max() > 1e-3


def test_rates_of_local_steps_follow_each_contribution():
    schedule = with_samples(planned.plan("barrier", LAW, N, 20, M, 0))
    w = X0.astype(np.float64)
    for t in range(20):
        row = zip(*(getattr(schedule, c)[t] for c in ROW), strict=True)
        ends = []
        for i, _, first, seen in row:
            live = w
            for step in range(M):
                live = live - rate(seen) * gradient(live, i, [first + step], 0.0)
            ends.append(live)
        w = np.mean(ends, axis=0)
    method = local_sgd(scale_by_samples(1.0, rate))
    np.testing.assert_allclose(replayed(method, schedule, M)[0], w, rtol=2e-4, atol=2e-5)
