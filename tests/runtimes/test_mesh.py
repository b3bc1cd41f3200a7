"""The mesh: real collectives and real delays on eight devices, replayed by the simulator."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, dpsgd, local_sgd, matcha, mg_wfbp, sgp, swarm
from benchmarks.floors import hand_written
from comms import topology
from runtimes import mesh, simulate
from runtimes.equations import inputs, needed, programs_in
from runtimes.rounds import Table
from stragglers import delays, inject, processes
from tests import planned
from tests.marks import slow
from tests.runtimes.toy import DATA, SAMPLES, X0, losses, optimizer, replayed

N, M = 8, 4


METHODS = {
    "all_reduce": lambda: all_reduce(optimizer(), collective="ring"),
    "matcha": lambda: matcha(optimizer(), topology.matcha_graph(0), weighting="confidence"),
    "sgp": lambda: sgp(optimizer(), N),
    "swarm": lambda: swarm(optimizer(), topology.hypercube(N), lockstep=True),
}


def run(method, injector, updates=24):
    runtime = mesh.Mesh(method, losses, DATA, SAMPLES, workers=N, mini_batches=M, injector=injector)
    state, schedule = runtime.advance(runtime.start(X0), np.inf, updates)
    return np.asarray(runtime.models(state)), schedule


def injector(wait="barrier", delay=None, mini_batches=M, communication=0.0, **own):
    """Delays of workers that keep a waiting rule."""
    rule = planned.rule(wait, delay or delays.deterministic(1.0), N, mini_batches, **own)
    return inject.Injector(N, rule.trigger, 0, delay=delay, communication=communication)


def uneven():
    """5 ms a mini-batch; worker 0 is six times slower."""
    return processes.persistent(delays.deterministic(0.005), {0: 6.0})


@pytest.mark.parametrize(
    ("name", "leftovers"), [("matcha", "carry"), slow("sgp", "carry"), slow("swarm", "drop")]
)
def test_what_really_happened_is_replayed_to_the_same_parameters(name, leftovers):
    """To float32 rounding: the mesh adds up mini-batches, the simulator takes them at once."""
    watched = injector("first_finisher", uneven(), leftovers=leftovers)
    real, schedule = run(METHODS[name](), watched)
    schedule.validate()
    assert (schedule.batches.max(1) == M).all() and (schedule.batches < M).any()
    replay = replayed(METHODS[name](), schedule, M)
    np.testing.assert_allclose(replay, real, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_the_plain_round_and_the_watched_round_agree():
    method = METHODS["matcha"]()
    plain, schedule = run(method, None)
    schedule.validate()
    watched, happened = run(method, injector())
    for column in ("workers", "first", "batches", "version"):
        np.testing.assert_array_equal(getattr(schedule, column), getattr(happened, column))
    # The same as if there had been a single dispatch.
    np.testing.assert_array_equal(schedule.matchings, method.links.active(0, schedule.updates))
    np.testing.assert_allclose(plain, watched, rtol=2e-4, atol=2e-5)


SHORT_FLOATS = {
    "ring": lambda sgd: all_reduce(sgd, collective="ring"),
    "buckets": lambda sgd: mg_wfbp(sgd, buckets="wfbp"),
    "dpsgd": lambda sgd: dpsgd(sgd, topology.ring(N)),
    "local_sgd": lambda sgd: local_sgd(sgd),
}


@pytest.mark.parametrize(
    ("name", "dtype", "watched"),
    [
        ("ring", jnp.float16, True), slow("buckets", jnp.float16, False),
        slow("dpsgd", jnp.float16, False), slow("local_sgd", jnp.bfloat16, True),
    ],
)  # fmt: skip
def test_gradients_of_two_bytes_do_not_overflow_in_their_sums(name, dtype, watched):
    """A mesh adds up mini-batches and workers, where a simulator takes one mean."""
    method = SHORT_FLOATS[name](optax.sgd(1e-5))
    wait = "barrier" if method.graph is None else "neighbour_barrier"
    rule = planned.rule(wait, delays.deterministic(1.0), N, M, graph=method.graph)
    given = {"examples": DATA, "sampler": SAMPLES, "mini_batches": M}

    def steep(w, examples):
        return 1e4 * losses(w, examples)

    def trained(runtime):
        state, _ = runtime.advance(runtime.start(X0.astype(dtype)), np.inf, 2)
        return np.asarray(runtime.models(state), np.float32)

    expected = trained(simulate.Simulator(method, steep, rule=rule, **given))
    on_devices = injector() if watched else None
    found = trained(mesh.Mesh(method, steep, workers=N, injector=on_devices, **given))
    assert np.isfinite(expected).all() and not np.allclose(expected, X0, atol=0.05)
    np.testing.assert_allclose(found, expected, atol=4 * float(jnp.finfo(dtype).eps), rtol=0)


def test_workers_outside_the_first_k_are_cut():
    """Exactly k mini-batches count; a slow worker is let go long before its delay is over."""
    k = most = 10
    slow = processes.persistent(delays.jitter(0.02, 0.2), {0: 1e4})  # some 200 s
    watched = injector("k_batch_sync", slow, 1, k=k)
    method = METHODS["all_reduce"]()
    runtime = mesh.Mesh(
        method, losses, DATA, SAMPLES, workers=N, mini_batches=most, injector=watched
    )
    state, schedule = runtime.advance(runtime.start(X0), np.inf, 16)
    schedule.validate()
    assert (schedule.batches.sum(1) == k).all() and (schedule.batches <= most).all()
    assert state.samples == 16 * k * SAMPLES.batch_size
    assert not schedule.batches[:, 0].any() and (schedule.busy[:, 0] < 60.0).all()
    replay = replayed(method, schedule, most)
    np.testing.assert_allclose(replay, runtime.models(state), rtol=2e-4, atol=2e-5)


def test_mini_batches_take_as_long_as_their_samples():
    """Whatever is cut: K-sync takes new samples after it."""
    delay = processes.by_sample(delays.jitter(0.02, 0.5))
    watched = injector("k_sync", delay, 2, k=6)
    method = METHODS["all_reduce"]()
    runtime = mesh.Mesh(method, losses, DATA, SAMPLES, workers=N, mini_batches=2, injector=watched)
    state, schedule = runtime.advance(runtime.start(X0), np.inf, 8)
    schedule.validate()
    cost = delay.seeded(0).cost
    step = np.arange(2)
    for row in range(8):
        whole = schedule.batches[row] == 2
        counter = schedule.first[row, whole, None] + step
        least = cost(schedule.workers[row, whole, None], counter).sum(1)
        assert (schedule.busy[row, whole] >= least - 1e-3).all()
    ends = schedule.first + schedule.batches
    assert (schedule.first[1:] > ends[:-1]).any()
    replay = replayed(method, schedule, 2)
    np.testing.assert_allclose(replay, runtime.models(state), rtol=2e-4, atol=2e-5)


def test_devices_know_what_samples_cost():
    """A worker goes on until its mini-batches cost 3: two or three of them."""
    base = processes.as_process(delays.deterministic(0.002))
    delay = base.costing(lambda worker, counter: 0.5 + (worker + counter) % 3, 0.5)
    plan = planned.plan("equal_work", delay, N, 6, M, cost=3.0)
    _, schedule = run(METHODS["all_reduce"](), injector("equal_work", delay, cost=3.0), 6)
    assert set(plan.batches.ravel()) == {2, 3}
    np.testing.assert_array_equal(schedule.batches, plan.batches)
    np.testing.assert_array_equal(schedule.first, plan.first)


def a_round(wait, **own):
    """Return (whether a round sums over all workers, whether its landing waits for that)."""
    graph = topology.ring(N)
    rule = planned.rule(wait, delays.deterministic(1.0), N, M, graph=graph, **own)
    runtime = mesh.Mesh(
        dpsgd(optimizer(), graph), losses, DATA, SAMPLES, workers=N, mini_batches=M,
        injector=inject.Injector(N, rule.trigger, 0),
    )  # fmt: skip
    run = runtime.start(X0)
    examples, table = runtime._input.take(run.consumed, None)
    traced = jax.make_jaxpr(runtime.dispatch)(run.model, table, examples, None, np.int32(1))

    def programs(program):
        yield program
        for equation in program.eqns:
            for inner in programs_in(equation):
                yield from programs(inner.jaxpr)

    def callbacks(program):
        return [e for e in program.eqns if e.primitive.name == "io_callback"]

    (body,) = [found for found in programs(traced.jaxpr) if len(callbacks(found)) == 2]
    before = needed(inputs(callbacks(body)[-1]), [], body.eqns)
    return tuple(
        any("psum" in equation.primitive.name for equation in equations)
        for equations in (body.eqns, before)
    )


def test_a_round_waits_for_all_workers_only_where_its_rule_does():
    """An exchange with neighbours alone would not: on accelerators they may be far ahead."""
    assert a_round("barrier") == (True, True)
    assert a_round("first_finisher", landing="all") == (True, True)
    assert a_round("first_finisher") == (True, False)  # samples of all are counted for the next
    assert a_round("neighbour_barrier") == (False, False)


def collectives(compiled):
    """Return the collectives of a compiled program, with the element counts of what they move."""
    text = compiled.as_text()
    found = Counter()
    for line in text.splitlines():
        match = re.search(
            r"= (.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)\(", line
        )
        if match:
            shapes = sorted(re.findall(r"\w+\[[\d,]*\]", match.group(1)))
            found[match.group(2), tuple(shapes)] += 1
    return found


def test_the_plain_step_has_the_collectives_of_the_hand_written_one():
    runtime = mesh.Mesh(all_reduce(optimizer()), losses, DATA, SAMPLES, workers=N, mini_batches=M)
    state = runtime.start(X0)
    table = SAMPLES.indices(np.arange(N)[:, None], np.arange(8 * M)[None] + np.zeros((N, 1), int))
    rows = Table(table, np.zeros(N, np.int32))
    ours = runtime.dispatch.lower(state.model, rows, DATA, None, np.int32(1)).compile()
    plain = optimizer()
    params = jnp.tile(X0, (N, 1))
    memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (N, *a.shape)), plain.init(jnp.asarray(X0)))
    step = hand_written(losses, plain, N, M)
    expected = collectives(step.lower(params, memory, table, DATA, np.int32(1)).compile())
    assert sum(expected.values()) == 1
    assert collectives(ours) == expected
