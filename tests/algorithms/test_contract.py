"""The battery that every method must pass. A new method adds one row to `METHODS`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import (
    ALGORITHMS,
    ad_psgd,
    all_reduce,
    centred_clipping,
    compensated_rate,
    coordinate_median,
    dc_asgd,
    decentlam,
    delay_adaptive,
    dpsgd,
    ef21,
    ef21_sgdm,
    ef_sign,
    exact_diffusion,
    gradient_tracking,
    hinge_staleness,
    int8_all_reduce,
    inverse_staleness,
    krum,
    local_sgd,
    matcha,
    mg_wfbp,
    natural_compression,
    omnireduce,
    one_bit_adam,
    parallax,
    periodic,
    polynomial_staleness,
    powersgd,
    qg_dsgdm,
    qsgd,
    random_k,
    reducers,
    s2_reducer,
    sgp,
    sketched_sgd,
    sparcml,
    sparse_all_gather,
    swarm,
    top_k,
    trimmed_mean,
)
from algorithms.base import AXIS, scale_by_samples
from algorithms.reducers import bf16, chain, error_feedback, fp16, int8, natural, quantise
from comms import cost, topology
from comms.messages import Row, collective_bytes, exchange_seconds, fallback_bytes, sent_bytes
from experiments.profiling import Profile
from runtimes import simulate, worker
from stragglers import delays
from tests import planned
from tests.algorithms import traced

N, M, B, D = 8, 4, 2, 5  # workers, mini-batches, samples in a mini-batch, parameters
UPDATES = 50


def momentum(rate=0.05):
    return optax.chain(optax.trace(0.9), scale_by_samples(rate))


# So slow a start-up that the two parameters are best sent together.
PROFILE = Profile([["b"], ["w"]], np.array([1.0, 2.0]), np.array([0, 9]), np.array([5.0, 6.0]))

METHODS = {
    "all_reduce": lambda: all_reduce(momentum()),
    "all_reduce/adam": lambda: all_reduce(optax.adam(0.05)),
    "all_reduce/ring": lambda: all_reduce(momentum(), collective="ring"),
    "all_reduce/equal": lambda: all_reduce(momentum(), weighting="equal"),
    "dpsgd": lambda: dpsgd(momentum(), topology.ring(N)),
    "dpsgd/adapt_then_combine": lambda: dpsgd(
        optax.adam(0.05), topology.star(N), order="adapt_then_combine"
    ),
    "dpsgd/confidence": lambda: dpsgd(momentum(), topology.ring(N), weighting="confidence"),
    "dpsgd/local_sum": lambda: dpsgd(
        momentum(), topology.ring(N), weighting="local_sum", mixing_matrix="best_constant"
    ),
    "dpsgd/rounds": lambda: dpsgd(momentum(), topology.one_peer_exponential(N)),
    "gradient_tracking": lambda: gradient_tracking(scale_by_samples(0.02), topology.ring(N)),
    "gradient_tracking/rounds": lambda: gradient_tracking(
        momentum(0.01), topology.one_peer_exponential(N)
    ),
    "exact_diffusion": lambda: exact_diffusion(scale_by_samples(0.02), topology.ring(N)),
    "exact_diffusion/rounds": lambda: exact_diffusion(
        scale_by_samples(0.02), topology.base_k(N, 2), mixing_matrix="best_constant"
    ),
    "qg_dsgdm": lambda: qg_dsgdm(scale_by_samples(0.02), topology.ring(N)),
    "qg_dsgdm/rounds": lambda: qg_dsgdm(scale_by_samples(0.02), topology.hierarchical(N, 2)),
    "decentlam": lambda: decentlam(scale_by_samples(0.02), topology.ring(N)),
    "decentlam/rounds": lambda: decentlam(scale_by_samples(0.02), topology.base_k(N), momentum=0.5),
    "matcha": lambda: matcha(momentum(), topology.matcha_graph(0), budget=0.4),
    "matcha/confidence": lambda: matcha(
        optax.adam(0.05), topology.hypercube(N), budget=1.0, weighting="confidence", seed=3
    ),
    "periodic": lambda: periodic(
        momentum(), topology.ring(N), budget=0.5, order="combine_while_adapting"
    ),
    "local_sgd": lambda: local_sgd(momentum()),
    "local_sgd/ring": lambda: local_sgd(
        optax.adam(0.05), collective="ring", weighting="proportional", server_momentum=0.5
    ),
    "mg_wfbp": lambda: mg_wfbp(momentum(), profile=PROFILE),
    "mg_wfbp/ring": lambda: mg_wfbp(
        optax.adam(0.05), buckets="wfbp", profile=PROFILE, collective="ring"
    ),
    "all_reduce/chain": lambda: all_reduce(
        momentum(), exchange=error_feedback(reducers.random_k(0.5), int8(bucket=2))
    ),
    "all_reduce/bf16": lambda: all_reduce(momentum(), exchange=bf16()),
    "all_reduce/fp16": lambda: all_reduce(momentum(), exchange=error_feedback(fp16())),
    "local_sgd/bf16": lambda: local_sgd(
        momentum(), exchange=error_feedback(reducers.top_k(0.4), bf16())
    ),
    "local_sgd/top_k": lambda: local_sgd(momentum(), exchange=error_feedback(reducers.top_k(0.4))),
    "local_sgd/chain": lambda: local_sgd(
        momentum(0.01), exchange=chain(reducers.random_k(0.8), quantise(bits=8))
    ),
    "local_sgd/lists": lambda: local_sgd(
        momentum(0.01), exchange=error_feedback(reducers.top_k(0.6), natural())
    ),
    "local_sgd/adam server": lambda: local_sgd(
        momentum(), server=optax.chain(optax.scale_by_adam(), scale_by_samples(0.05))
    ),
    "sgp": lambda: sgp(momentum(), N),
    "sgp/overlap": lambda: sgp(momentum(), N, overlap=2),
    "swarm": lambda: swarm(momentum(0.01), topology.hypercube(N), lockstep=True),
    "swarm/8 bits": lambda: swarm(momentum(0.01), topology.ring(N), bits=8, lockstep=True),
    "swarm/unbiased": lambda: swarm(
        momentum(0.01), topology.ring(N), bits=6, rounding="unbiased", lockstep=True
    ),
    "swarm/blocking": lambda: swarm(momentum(0.01), topology.ring(N), blocking=True, lockstep=True),
    "s2_reducer": lambda: s2_reducer(momentum(), sparse=("w",), budget=8),
    "s2_reducer/overloaded": lambda: s2_reducer(
        momentum(), sparse=("w",), ratio=0.6, fallback="dense"
    ),
    "s2_reducer/elements": lambda: s2_reducer(
        momentum(), sparse=("w",), budget=8, rows=4, granularity="element"
    ),
    "s2_reducer/estimated": lambda: s2_reducer(
        momentum(0.02), sparse=("w",), rows=1, budget=5, peel=False
    ),
    "s2_reducer/exact": lambda: s2_reducer(
        optax.adam(0.05), sparse=("w",), exact=True, ratio=1.0, buckets="wfbp"
    ),
    "s2_reducer/too small": lambda: s2_reducer(momentum(), sparse=("w",), exact=True, budget=2),
    "s2_reducer/memory": lambda: s2_reducer(
        momentum(), sparse=("w",), budget=5, peel=False, error_feedback=True, warmup_updates=5
    ),
    "sparse_all_gather": lambda: sparse_all_gather(momentum(), sparse=("w",), ratio=1.0),
    "sparse_all_gather/too small": lambda: sparse_all_gather(
        momentum(), sparse=("w",), budget=1, weighting="equal"
    ),
    "sparcml": lambda: sparcml(momentum(), sparse=("w",), ratio=1.0),
    "sparcml/too small": lambda: sparcml(momentum(), sparse=("w",), budget=1),
    "omnireduce": lambda: omnireduce(momentum(), sparse=("w",), block=2, ratio=1.0),
    "omnireduce/too small": lambda: omnireduce(momentum(), sparse=("w",), ratio=0.01),
    "parallax": lambda: parallax(momentum(), sparse=("w",), ratio=1.0),
    "parallax/too small": lambda: parallax(
        momentum(), sparse=("w",), budget=1, union_ratio=0.5, weighting="equal"
    ),
    "top_k": lambda: top_k(momentum(), ratio=0.4),
    "top_k/momentum": lambda: top_k(
        scale_by_samples(0.05), ratio=0.2, momentum=0.9, warmup_updates=20
    ),
    "random_k": lambda: random_k(momentum(0.01), ratio=0.4),
    "random_k/unbiased": lambda: random_k(scale_by_samples(0.05), ratio=0.4, error_feedback=False),
    "sketched_sgd": lambda: sketched_sgd(scale_by_samples(0.02), ratio=1.0, k_ratio=0.5),
    "sketched_sgd/momentum": lambda: sketched_sgd(
        scale_by_samples(0.01), ratio=1.0, k_ratio=0.5, momentum=0.5
    ),
    "powersgd": lambda: powersgd(momentum(), warmup_updates=10),
    "one_bit_adam": lambda: one_bit_adam(scale_by_samples(0.02), N, warmup_updates=20),
    "one_bit_adam/equal": lambda: one_bit_adam(
        scale_by_samples(0.02), N, warmup_updates=30, weighting="equal"
    ),
    "qsgd": lambda: qsgd(momentum()),
    "natural_compression": lambda: natural_compression(momentum()),
    "ef21": lambda: ef21(momentum(0.01), N, exchange=reducers.top_k(0.4)),
    "ef21/int8": lambda: ef21(momentum(0.01), N, exchange=int8(bucket=2)),
    "ef21_sgdm": lambda: ef21_sgdm(scale_by_samples(0.02), N, exchange=reducers.top_k(0.4)),
    "ef_sign": lambda: ef_sign(scale_by_samples(0.05)),
    "int8_all_reduce": lambda: int8_all_reduce(momentum()),
    "coordinate_median": lambda: coordinate_median(momentum(0.02)),
    "trimmed_mean": lambda: trimmed_mean(momentum(0.02)),
    "krum": lambda: krum(scale_by_samples(0.02), keep=2),
    "centred_clipping": lambda: centred_clipping(momentum(0.02), radius=1.0, iterations=2),
    # In lock-step nothing is stale, and these are all-reduce SGD.
    "compensated_rate": lambda: compensated_rate(momentum(), threshold=0.1),
    "dc_asgd": lambda: dc_asgd(momentum()),
    "delay_adaptive": lambda: delay_adaptive(momentum(), workers=N),
    "hinge_staleness": lambda: hinge_staleness(momentum()),
    "inverse_staleness": lambda: inverse_staleness(momentum()),
    "polynomial_staleness": lambda: polynomial_staleness(momentum()),
}
# A gradient on the edge of two short values may be rounded either way: what that is worth at most.
EDGES = {"all_reduce/bf16": 2e-3, "all_reduce/fp16": 2e-4, "local_sgd/bf16": 2e-3}
# Variants, "method/what is different", and close relatives of others take minutes together.
RELATIVES = {
    "centred_clipping", "decentlam", "delay_adaptive", "ef21_sgdm", "ef_sign", "exact_diffusion",
    "hinge_staleness", "int8_all_reduce", "inverse_staleness", "krum", "natural_compression",
    "periodic", "polynomial_staleness", "qg_dsgdm", "random_k", "trimmed_mean",
}  # fmt: skip
ROWS = [
    pytest.param(name, marks=[pytest.mark.slow] if "/" in name or name in RELATIVES else [])
    for name in METHODS
]


def losses(params, examples):
    """A small non-linear regression, per example."""
    hidden = jnp.tanh(examples["x"] @ params["w"]) + params["b"]
    return (hidden - examples["y"]) ** 2


PARAMS = {"w": np.linspace(-1, 1, D).astype(np.float32), "b": np.float32(0.5)}


def draw(seed=0):
    """[UPDATES, N] finished mini-batches (some 0) and [UPDATES, N, M, B, ...] examples."""
    rng = np.random.default_rng(seed)
    batches = rng.integers(0, M + 1, (UPDATES, N)).astype(np.int32)
    batches[:, 0] = M
    examples = {
        "x": rng.standard_normal((UPDATES, N, M, B, D)).astype(np.float32),
        "y": rng.standard_normal((UPDATES, N, M, B)).astype(np.float32),
    }
    return batches, examples


def one_update(method, params, server, state, me, row):
    """One worker's update, with collectives over AXIS; the same text for every runtime."""
    batches, examples, first, version, samples, active = row
    given = {
        "samples": samples,
        "nominal": M,
        "worker": me,
        "version": version,
        "first": first,
        "staleness": 0,
        "active": active,
    }
    updates, state = worker.update(method, losses, params, state, examples, batches, given)
    if method.server is None:
        return optax.apply_updates(params, updates), server, state
    total = jax.lax.psum(batches, AXIS)
    params, server = worker.serve(method, updates, params, server, total, given)
    return params, server, state


def activations(method, first, count):
    """[count, matchings] which links the updates use; None: all."""
    return None if method.links is None else method.links.active(first, count)


def trajectory(method, axis):
    """[N, ...] parameters after UPDATES updates under "vmap", "pmap" or "shard_map"."""
    batches, examples = draw()
    samples = np.cumsum(batches.sum(1)).astype(np.float32) * B
    active = activations(method, 0, UPDATES)
    version = np.arange(UPDATES)

    def whole(me, batches, examples):
        """All updates of one worker: arrays without the worker axis."""
        params = jax.tree.map(jnp.asarray, PARAMS)
        server = () if method.server is None else method.server.init(params)
        carry = (params, server, worker.init(method, params))

        def step(carry, row):
            return one_update(method, *carry, me, row), None

        rows = (batches, examples, M * version, version, samples, active)
        return jax.lax.scan(step, carry, rows)[0][0]

    by_worker = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), (batches, examples))
    arguments = (jnp.arange(N), *by_worker)
    if axis == "vmap":
        return jax.jit(jax.vmap(whole, axis_name=AXIS))(*arguments)
    if axis == "pmap":
        return jax.pmap(whole, axis_name=AXIS)(*arguments)
    devices = jax.make_mesh((N,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=devices, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    def run(*stacked):
        return jax.tree.map(lambda a: a[None], whole(*jax.tree.map(lambda a: a[0], stacked)))

    return run(*arguments)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("axis", ["shard_map", pytest.param("pmap", marks=pytest.mark.slow)])
def test_simulated_workers_are_those_of_devices(name, axis):
    """After 50 updates to float32 rounding (rtol 2e-5): the order of a sum differs, no more."""
    method = METHODS[name]()
    simulated, on_devices = trajectory(method, "vmap"), trajectory(method, axis)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(simulated))
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=EDGES.get(name, 2e-6))
    jax.tree.map(near, on_devices, simulated)


class Counters:
    """A sampler whose sample of (worker, counter, j) is a fixed index of a small data set."""

    batch_size = B

    def indices(self, workers, counters):
        position = np.asarray(counters)[..., None] * B + np.arange(B)
        return ((position + 7 * np.asarray(workers)[..., None]) % len(DATA["y"])).astype(np.int32)


_RNG = np.random.default_rng(1)
DATA = {
    "x": _RNG.standard_normal((64, D)).astype(np.float32),
    "y": _RNG.standard_normal(64).astype(np.float32),
}


def simulated(method, rule, updates=UPDATES, data=DATA):
    runtime = simulate.Simulator(method, losses, data, Counters(), rule, mini_batches=M)
    state, schedule = runtime.advance(runtime.start(PARAMS), np.inf, updates)
    return runtime.models(state), schedule


@pytest.mark.parametrize("name", ROWS)
def test_equal_speeds_make_nonblocking_the_blocking_method_bit_for_bit(name):
    method = METHODS[name]()
    wait = "barrier" if method.graph is None else "neighbour_barrier"
    blocking, schedule = simulated(method, rule(method, wait, delays.deterministic(0.1)))
    first = rule(method, "first_finisher", delays.deterministic(0.1))
    assert (schedule.batches == M).all()
    jax.tree.map(np.testing.assert_array_equal, blocking, simulated(method, first)[0])


def rule(method, name, law, seed=0):
    """A waiting rule over the method's own graph and links."""
    return planned.rule(name, law, N, M, seed, graph=method.graph, links=method.links)


def stacked_start(method):
    """(params, server, state) with a leading worker axis."""
    params = jax.tree.map(lambda a: jnp.broadcast_to(a, (N, *np.shape(a))), PARAMS)
    server = () if method.server is None else jax.vmap(method.server.init)(params)
    return params, server, jax.vmap(lambda p: worker.init(method, p))(params)


def stacked_step(method):
    """One update of all workers under vmap; the activations are common to them."""
    body = functools.partial(one_update, method)
    rows = (0, 0, 0, 0, None, None)
    return jax.jit(jax.vmap(body, in_axes=(0, 0, 0, 0, rows), axis_name=AXIS))


@pytest.mark.parametrize("name", ROWS)
def test_the_simulator_runs_the_method(name):
    """The compiled loop, with its shortcuts, follows the plain worker body update by update."""
    method = METHODS[name]()
    result, schedule = simulated(method, rule(method, "first_finisher", delays.exponential(1.0), 3))
    assert schedule.batches.min() < M
    carry, step, samples = stacked_start(method), stacked_step(method), 0.0
    for t in range(UPDATES):
        counters = schedule.first[t][:, None] + np.arange(M)
        indices = Counters().indices(np.arange(N)[:, None], counters)
        examples = jax.tree.map(lambda a, i=indices: a[i], DATA)
        active = None if schedule.matchings is None else schedule.matchings[t]
        taken = schedule.batches[t], examples, schedule.first[t], schedule.version[t]
        carry = step(*carry, np.arange(N), (*taken, samples, active))
        samples += float(schedule.batches[t].sum()) * B
    expected = carry[0] if method.server is None else jax.tree.map(lambda a: a[:1], carry[0])
    if method.public is not None:
        expected = jax.vmap(method.public)(carry[2].exchange, carry[0])
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), result, expected
    )


@pytest.mark.parametrize("name", ["all_reduce", "all_reduce/adam", "mg_wfbp", "qsgd", "top_k"])
def test_a_replicated_model_rests_where_nobody_finished_anything(name):
    """Its momentum neither moves it nor decays."""
    server = METHODS[name]().server
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    update, before = server.update(ones, server.init(PARAMS), PARAMS, batches=N, samples=0.0)
    assert all(np.all(leaf) for leaf in jax.tree.leaves(update))
    update, after = server.update(ones, before, PARAMS, batches=0, samples=0.0)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(update))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.parametrize("name", ROWS)
def test_a_worker_that_finished_nothing_adds_nothing(name):
    """Its samples do not matter, and nothing becomes NaN."""
    method = METHODS[name]()
    batches, examples = jax.tree.map(lambda a: a[0], draw())
    batches[1], nothing = 0, np.zeros(N, np.int32)
    changed = {**examples, "x": examples["x"].copy()}
    changed["x"][1] = 1e3
    active = None if method.links is None else np.ones(len(method.links.partners), bool)
    step = stacked_step(method)
    one, two = (
        step(*stacked_start(method), np.arange(N), (batches, e, nothing, nothing, 0.0, active))
        for e in (examples, changed)
    )
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one))


@pytest.mark.parametrize("name", ROWS)
def test_bytes_and_seconds_are_counted_for_every_update(name):
    method = METHODS[name]()
    waiting = rule(method, "barrier", delays.deterministic(1.0))
    _, schedule = waiting.extend(waiting.init(), 30)
    sent = sent_bytes(method, PARAMS, schedule)
    assert sent.shape == (30,) and (sent >= 0).all() and sent.any()
    network = cost.uniform_network(0.0, 1.0, workers=N)
    seconds = np.array([exchange_seconds(method, PARAMS, N, network)(t) for t in range(30)])
    # Whoever sends takes time, whoever does not takes none.
    np.testing.assert_array_equal(seconds > 0, sent > 0)


@pytest.mark.parametrize(
    "name",
    [
        "all_reduce",
        "compensated_rate",
        "mg_wfbp",
        "omnireduce",
        "parallax",
        "sketched_sgd",
        "sparcml",
        "sparse_all_gather",
    ],
)
def test_a_server_gets_every_contribution_once(name):
    """One worker alone has nobody to reduce with, but its push is sent all the same."""
    method = METHODS[name]()
    one, three = (
        sent_bytes(method, PARAMS, planned.plan("k_async", delays.exponential(1.0), N, 20, k=k))
        for k in (1, 3)
    )
    assert (one > 0).all()
    np.testing.assert_allclose(three, 3 * one)
    if name == "all_reduce":
        np.testing.assert_array_equal(one, 4 * (D + 1) / N)  # float32, mean over the workers


LARGE = {"w": np.zeros((400, 1024), np.float32), "b": np.zeros((), np.float32)}


def exchange_program(method, update, active):
    """The exchange as a round of a mesh runs it, on arguments with a leading worker axis."""
    devices = jax.make_mesh((N,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=devices, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    def program(contribution, params, state, batches):
        contribution, params, state, batches = jax.tree.map(
            lambda a: a[0], (contribution, params, state, batches)
        )
        if method.settled:  # a constant, so that XLA drops what is for other updates
            state = state._replace(update=jnp.int32(update))
        given = {
            "samples": update * 64.0,
            "nominal": M,
            "worker": jax.lax.axis_index(AXIS),
            "version": update,
            "first": update * M,
            "staleness": 0,
            "active": active,
        }
        moved, state = method.exchange.update(
            contribution, state, params, weight=method.weight(batches), batches=batches, **given
        )
        return jax.tree.map(lambda a: a[None], (moved, state))

    stacked = jax.tree.map(
        lambda a: np.broadcast_to(a, (N, *np.shape(a))), (LARGE, method.exchange.init(LARGE))
    )
    contribution = jax.tree.map(lambda a: np.ones_like(a), stacked[0])
    arguments = (contribution, *stacked, np.full(N, M, np.int32))
    return program.lower(*arguments).compile(), arguments


@pytest.mark.parametrize("name", ROWS)
def test_what_is_said_to_be_sent_is_what_the_compiled_exchange_sends(name):
    """Within 2 % of 4e5 coordinates; where data decide, of what is sent when all goes well."""
    method = METHODS[name]()
    for update in {0, method.settled}:
        active = None
        if method.links is not None:
            rows = method.links.active(update, 50)
            active = rows[rows.any(1).argmax()]
        claimed = sum(
            collective_bytes(payload, N)
            for payload in method.messages(LARGE, N, Row(update, active))
        )
        program, arguments = exchange_program(method, update, active)
        text = program.as_text()
        assert traced.sent_bytes(text, N) == pytest.approx(claimed, rel=0.02)
        _, state = program(*arguments)  # ones everywhere, which only a full budget holds
        if method.fallbacks is None:
            continue
        found = method.fallbacks(state, LARGE, N, Row(update))
        if found.updates:
            claimed += fallback_bytes(found, N)
            assert traced.sent_bytes(text, N, fallback=True) == pytest.approx(claimed, rel=0.02)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name]().server is None])
def test_what_may_be_sent_beside_the_gradient_is_known_before_it(name):
    """What leaves with the round does not depend on the gradient, and all else does."""
    method = METHODS[name]()
    active = None if method.links is None else np.ones(len(method.links.partners), bool)
    payloads = method.messages(LARGE, N, Row(0, active))

    def sent(contribution, params, state):
        given = {"samples": 0.0, "nominal": M, "worker": 0, "version": 0, "first": 0}
        given |= {"weight": 1.0, "batches": jnp.int32(M), "staleness": 0, "active": active}
        return method.exchange.update(contribution, state, params, **given)

    arguments = LARGE, LARGE, method.exchange.init(LARGE)
    waits = traced.sends_what_depends(sent, *arguments, axis_env=[(AXIS, N)])
    assert {payload.beside_gradient for payload in payloads} == {not waits}


def test_every_method_has_a_row():
    # AD-PSGD is Swarm with pairs of a schedule, for which there is no lock-step.
    assert {name.split("/")[0] for name in METHODS} | {ad_psgd.__name__} == set(ALGORITHMS)
