"""Methods in a loop that knows optax alone: they do what the simulator does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import (
    ad_psgd,
    all_reduce,
    dpsgd,
    easgd,
    exact_diffusion,
    gasloc,
    local_sgd,
    matcha,
    periodic,
    qg_dsgdm,
    qsgd,
    ringleader,
    s2_reducer,
    swarm,
)
from algorithms import reducers as by
from algorithms.base import AXIS, scale_by_samples
from comms import hashing, topology
from runtimes import own_loop, simulate
from runtimes.own_loop import as_local_steps, as_optax
from stragglers import delays
from tests import planned
from tests.algorithms.methods import METHODS, N
from tests.algorithms.test_contract import PARAMS, losses
from tests.conftest import make_mesh
from tests.marks import slow, slow_but
from tests.refusals import refused
from tests.runtimes.toy import DATA, SAMPLES, B

UPDATES = 50
NEAR = 1e-5
# What rounds to a lattice makes ten times as much of a difference at every meeting.
SHORT = {"swarm/8 bits": 4}
stacked = functools.partial(jax.tree.map, lambda a: jnp.stack([jnp.asarray(a)] * N))


def each(function, in_axes=0):
    """Return the function of all workers, as one program."""
    return jax.jit(jax.vmap(function, in_axes=in_axes, axis_name=AXIS))



def gradient(params, worker, count):
    """Return the mean gradient of a worker's mini-batch, whose samples `SAMPLES` names."""
    places = (count * B + jnp.arange(B) + 5 * worker) % len(DATA["y"])
    examples = {name: jnp.asarray(values)[places] for name, values in DATA.items()}
    return jax.grad(lambda p: losses(p, examples).mean())(params)


def simulated(method, updates, mini_batches=1, wait="barrier", law=None):
    """(parameters that the simulator evaluates at the end, its schedule)."""
    if method.graph is not None and wait == "barrier":
        wait = "neighbour_barrier"
    rule = planned.rule(
        wait, law or delays.deterministic(0.1), N, mini_batches, 3,
        graph=method.graph, links=method.links,
    )  # fmt: skip
    runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=mini_batches)
    run, schedule = runtime.advance(runtime.start(PARAMS), np.inf, updates)
    return runtime.models(run), schedule


def evaluated(method, params, state):
    """Return the parameters that the simulator would evaluate after these updates."""
    state = state if method.work is None else state.method
    if method.adopt is not None:
        params = state.served
    elif method.public is not None and method.grad_params is None:
        params = each(method.public)(state.exchange, params)
    return params if method.server is None else jax.tree.map(lambda a: a[:1], params)


def near(found, expected, within=NEAR):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=within),
                 found, expected)  # fmt: skip


def looped(tx, updates, H=1):
    """(params, state) of all workers after `updates` calls in a plain loop under vmap."""

    def worker(me):
        def step(carry, t):
            params, state = carry
            moved, state = tx.update(gradient(params, me, t), state, params)
            return (optax.apply_updates(params, moved), state), None

        params = jax.tree.map(jnp.asarray, PARAMS)
        return jax.lax.scan(step, (params, tx.init(params)), jnp.arange(updates * H))[0]

    return each(worker)(jnp.arange(N))


# A graph, a centre, pushes, pairs and two phases; a mean, a memory and fragments are below.
OF_KINDS = ("matcha", "easgd", "sgp/overlap", "swarm/8 bits", "one_bit_adam")


@pytest.mark.parametrize("name", slow_but(("matcha",), OF_KINDS))
def test_a_method_needs_no_extra_argument(name):
    """`update(gradients, state, params)` alone does what a launched run of full rounds does."""
    method, updates = METHODS[name](), SHORT.get(name, UPDATES)
    found = evaluated(method, *looped(as_optax(method, batch_size=B), updates))
    near(found, simulated(method, updates)[0])


@pytest.mark.parametrize(("name", "calls"), [("local_sgd", 1), slow("streaming_diloco", 2)])
def test_local_steps_exchange_after_every_H_of_them(name, calls):
    """In one call that counts them, and in two."""
    H, updates = 4, 12
    method = METHODS[name]()
    if calls == 1:
        found = looped(as_optax(method, batch_size=B, local_steps=H), updates, H)
    else:
        local = as_local_steps(method, batch_size=B)

        def round_of(params, state, me, t):
            for h in range(H):
                moved, state = local.step(gradient(params, me, t * H + h), state, params)
                params = optax.apply_updates(params, moved)
            moved, state = local.exchange(state, params)
            return optax.apply_updates(params, moved), state

        one_round = each(round_of, (0, 0, 0, None))
        found = stacked(PARAMS), each(local.init)(stacked(PARAMS))
        for t in range(updates):
            found = one_round(*found, jnp.arange(N), t)
    expected, _ = simulated(method, updates, mini_batches=H)
    near(evaluated(method, *found), expected)


def test_a_stretch_of_links_does_not_come_again(monkeypatch):
    """Of 8 kept updates the third has all links, and so has no later one; nor has one too late."""
    monkeypatch.setattr(own_loop, "HORIZON", 8)
    graph = topology.ring(N)
    core = own_loop._Core(periodic(optax.sgd(0.1), graph, budget=0, dense=(2, 3)), 1)
    state = core.init(PARAMS)

    def talks(update):
        return core.given(state._replace(updates=update), {})["active"].any()

    assert np.flatnonzero(each(talks)(jnp.arange(20))).tolist() == [2]
    with pytest.raises(ValueError, match="links are chosen for 9 updates, and 8 are kept; give"):
        as_optax(periodic(optax.sgd(0.1), graph, budget=0, dense=(8, 9)))


def test_an_exchange_without_local_steps_changes_nothing():
    """Nor does it leave anything behind that is no number."""
    method = local_sgd(optax.sgd(0.1), exchange=by.error_feedback(by.top_k(0.5)))
    local = as_local_steps(method)

    @each
    def twice(params, state):
        for _ in range(2):
            moved, state = local.exchange(state, params)
            params = optax.apply_updates(params, moved)
        return params, state

    found = twice(stacked(PARAMS), each(local.init)(stacked(PARAMS)))
    jax.tree.map(np.testing.assert_array_equal, found[0], stacked(PARAMS))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found[1]))


LOCAL = {
    "local_sgd": lambda: local_sgd(optax.sgd(0.1), server=optax.sgd(0.7)),
    "swarm": lambda: swarm(optax.sgd(0.1), topology.complete(N), lockstep=True),
    "easgd": lambda: easgd(optax.sgd(0.1), N),
    "gasloc": lambda: gasloc(optax.sgd(0.1), topology.hypercube(N), gamma=0.5, pairs=True),
}


@pytest.mark.parametrize("name", LOCAL)
def test_a_loop_with_local_steps_may_donate_and_take_short_gradients(name):
    """Parameters and state share no memory, and steps are of the parameters' type."""
    tx = as_optax(LOCAL[name](), local_steps=2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    @functools.partial(jax.vmap, axis_name=AXIS)
    def step(params, state):
        short = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        moved, state = tx.update(short, state, params)
        return optax.apply_updates(params, moved), state

    params = {"w": jnp.arange(float(N)) + 1}
    state = each(tx.init)(params)
    for _ in range(3):
        params, state = step(params, state)
    assert params["w"].dtype == jnp.float32 and params["w"].mean() < (N + 1) / 2


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_trace_where_jax_checks_what_varies(name):
    tx = as_optax(LOCAL[name](), local_steps=2)

    def steps(params):
        state = tx.init(params)
        for _ in range(2):
            moved, state = tx.update(params, state, params)
            params = optax.apply_updates(params, moved)
        return params

    mapped = jax.shard_map(steps, mesh=make_mesh(N), in_specs=P(AXIS), out_specs=P(AXIS))
    jax.eval_shape(mapped, jnp.arange(float(N)))


CARRIED = "ringleader", "loscar_sgd", "top_k", "sgp", "swarm/8 bits"  # an exchange with a state


@pytest.mark.parametrize("name", [*CARRIED, *LOCAL])
def test_a_scan_begins_inside_of_a_mesh_that_checks_what_varies(name):
    """A state that `init` makes there has the types that `update` gives it."""
    local = name in LOCAL
    tx = as_optax(LOCAL[name](), local_steps=2) if local else as_optax(METHODS[name]())

    def steps(params):
        def step(carry, _):
            params, state = carry
            moved, state = tx.update(params, state, params)
            return (optax.apply_updates(params, moved), state), None

        return jax.lax.scan(step, (params, tx.init(params)), length=2)[0][0]

    mapped = jax.shard_map(steps, mesh=make_mesh(N), in_specs=P(AXIS), out_specs=P(AXIS))
    jax.eval_shape(mapped, {"w": jnp.arange(2.0 * N)})


OF_MOMENTA = {
    "easgd": lambda optimizer: easgd(optimizer, N, momentum=0.5),
    "exact_diffusion": lambda optimizer: exact_diffusion(optimizer, topology.ring(N)),
    "qg_dsgdm": lambda optimizer: qg_dsgdm(optimizer, topology.ring(N)),
    "ringleader": lambda optimizer: ringleader(optimizer, N),
}


@pytest.mark.parametrize("name", OF_MOMENTA)
def test_steps_in_float32_leave_short_parameters_and_their_state_as_short(name):
    """Of Adam with its momentum in float32; a loop's carry would else change its type."""
    tx = as_optax(OF_MOMENTA[name](optax.adam(0.1, mu_dtype=jnp.float32)))
    params = {"w": jnp.zeros((N, 2), jnp.bfloat16)}
    state = jax.eval_shape(jax.vmap(tx.init), params)
    _, after = jax.eval_shape(jax.vmap(tx.update, axis_name=AXIS), params, state, params)
    assert jax.tree.map(jnp.result_type, after) == jax.tree.map(jnp.result_type, state)


def test_a_worker_that_finished_nothing_takes_no_local_step():
    """Whatever its gradient is, and its momentum stays; the others' mean is everybody's."""
    tx = as_optax(local_sgd(optax.sgd(1.0, 0.5)))

    @each
    def twice(one, two, batches):
        params, state = jnp.zeros(()), tx.init(jnp.zeros(()))
        for gradient, finished in ((one, 1), (two, batches)):
            moved, state = tx.update(gradient, state, params, batches=finished, nominal=1)
            params = optax.apply_updates(params, moved)
        return params, state.work[0].trace

    busy = jnp.arange(N) > 0
    models, momenta = twice(jnp.ones(N), jnp.where(busy, 1.0, jnp.nan), jnp.int32(busy))
    np.testing.assert_allclose(models, -2.5)
    np.testing.assert_allclose(momenta, jnp.where(busy, 1.5, 1))


def test_a_worker_with_fewer_local_steps_keeps_its_progress():
    """The last of two calls is no step of worker 0, and no call is one of worker 1."""
    tx = as_optax(local_sgd(optax.sgd(1.0)), local_steps=2)

    @each
    def twice(finished):
        params, state = jnp.zeros(()), tx.init(jnp.zeros(()))
        for batches in finished:
            moved, state = tx.update(jnp.ones(()), state, params, batches=batches, nominal=1)
            params = optax.apply_updates(params, moved)
        return params, state.method.samples[0]

    steps = np.ones((N, 2), np.int32)
    steps[0, 1] = steps[1] = 0
    models, samples = twice(steps)
    np.testing.assert_allclose(models, -(2 * N - 3) / (N - 1), rtol=1e-6)
    np.testing.assert_array_equal(samples, 2 * N - 3)


def test_a_weight_beside_batches_takes_precedence():
    tx, weight = as_optax(all_reduce(optax.sgd(1.0))), jnp.arange(N) + 1.0

    @each
    def moved(gradient, weight):
        given = {"batches": jnp.int32(1), "nominal": 2, "weight": weight}
        return tx.update(gradient, tx.init(gradient), gradient, **given)[0]

    expected = -np.average(np.arange(N), weights=np.arange(N) + 1)
    np.testing.assert_allclose(moved(jnp.arange(float(N)), weight), expected, rtol=1e-6)


def test_a_round_in_which_workers_finish_different_numbers():
    """Non-blocking rounds: `batches` and `nominal` are given, and samples are counted from them."""
    M, updates = 3, 15
    method = METHODS["dpsgd/confidence"]()
    expected, schedule = simulated(method, updates, M, "first_finisher", delays.exponential(1.0))
    assert schedule.batches.min() < M
    tx = as_optax(method, batch_size=B)

    @each
    def update(params, state, me, first, batches):
        def of(m):
            return jax.tree.map(
                lambda g: jnp.where(m < batches, g, 0), gradient(params, me, first + m)
            )

        total = functools.reduce(optax.tree.add, map(of, range(M)))
        mean = jax.tree.map(lambda g: g / jnp.maximum(batches, 1), total)
        moved, state = tx.update(mean, state, params, batches=batches, nominal=M)
        return optax.apply_updates(params, moved), state

    params = stacked(PARAMS)
    state = each(tx.init)(params)
    for first, batches in zip(schedule.first, schedule.batches, strict=True):
        params, state = update(params, state, jnp.arange(N), first, batches)
    assert (np.asarray(state.samples) == hashing.words(B * schedule.batches.sum())).all()
    near(evaluated(method, params, state), expected)


@pytest.mark.parametrize("name", ["top_k", "easgd", "matcha"])
def test_the_exchange_alone_takes_a_full_round_or_refuses(name):
    """Optax's own call of `Algorithm.exchange`, which ignores arguments that it does not know."""
    method = METHODS[name]()
    params = stacked(PARAMS)
    state = each(method.exchange.init)(params)
    one = functools.partial(method.exchange.update, of_the_user=1)
    if method.links is not None or method.adopt is not None:
        with pytest.raises(ValueError, match="use as_optax"):
            each(one)(params, state, params)
        return

    def spelt_out(gradients, state, params, batches):
        return method.exchange.update(gradients, state, params, batches=batches, nominal=2)

    alone = each(one)(params, state, params)
    full = each(spelt_out)(params, state, params, jnp.full(N, 2))
    near(alone, full, 1e-6)


def test_draws_differ_from_update_to_update_without_any_count():
    """A random codec that is called as optax calls it would else repeat its errors for ever."""
    exchange = qsgd(optax.sgd(0.1)).exchange
    gradients = {"w": np.random.default_rng(0).standard_normal((N, 200)).astype(np.float32)}
    state, update = each(exchange.init)(gradients), each(exchange.update)
    first, state = update(gradients, state, gradients)
    second, _ = update(gradients, state, gradients)
    assert (first["w"] != second["w"]).mean() > 0.5


def on_devices(tx, bad=None, updates=6, **given):
    """Parameters [4, D] after a loop on 4 devices; one worker's third gradient is NaN."""
    target = np.arange(3.0, dtype=np.float32)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=make_mesh(4), in_specs=(P(AXIS), P(AXIS), P()), out_specs=P(AXIS),
        check_vma=False,
    )  # fmt: skip
    def step(params, state, t):
        params, state = jax.tree.map(lambda a: a[0], (params, state))
        gradients = jax.tree.map(lambda x: x - target, params)
        if bad is not None:
            poison = jnp.where((t == 2) & (jax.lax.axis_index(AXIS) == bad), jnp.nan, 0)
            gradients = jax.tree.map(lambda g: g + poison, gradients)
        moved, state = tx.update(gradients, state, params, **given)
        return jax.tree.map(lambda a: a[None], (optax.apply_updates(params, moved), state))

    params = {"w": np.tile(np.linspace(1, 2, 3, dtype=np.float32), (4, 1))}
    state = jax.tree.map(
        lambda a: jnp.stack([a] * 4), tx.init(jax.tree.map(lambda a: a[0], params))
    )
    for t in range(updates):
        params, state = jax.block_until_ready(step(params, state, t))
    return params["w"]


def mean(optimizer=None):
    return as_optax(all_reduce(optax.sgd(0.1) if optimizer is None else optimizer))


@pytest.mark.slow
def test_a_method_inside_of_a_wrapper_does_the_same():
    """Also a gradient that is not finite, which comes to all workers and stops no collective."""
    gossip = as_optax(matcha(optax.sgd(0.1), topology.ring(4)))
    by_parameter = optax.multi_transform({"slow": gossip, "unused": mean()}, {"w": "slow"})
    np.testing.assert_allclose(on_devices(by_parameter), on_devices(gossip), rtol=1e-6)
    assert np.isnan(on_devices(by_parameter, bad=1, updates=12)).all()


@pytest.mark.parametrize("name", ["ringleader", "choco_sgd", "edit", "loscar_sgd", "mg_wfbp/ring"])
def test_a_label_that_no_parameter_has_is_no_error(name):
    """Of `optax.multi_transform`, whose method then gets nothing."""
    labelled = {"all": mean(), "none": as_optax(METHODS[name]())}
    tx = optax.multi_transform(labelled, {"w": "all"})

    def step(params):
        return tx.update(params, tx.init(params), params)[0]

    found = each(step)({"w": jnp.ones(N)})
    np.testing.assert_allclose(found["w"], -0.1, rtol=1e-6)


def test_a_method_alone_says_how_it_becomes_a_transform():
    with pytest.raises(AttributeError, match=r"no 'init'; gossax.as_optax\(method\) is an optax"):
        optax.chain(optax.clip(1.0), all_reduce(optax.sgd(0.1)))


def test_a_gradient_that_is_not_finite_skips_inside_of_a_method():
    """After a mean all workers skip; in gossip the worker that has it does, and mixes."""
    skipping = optax.apply_if_finite(optax.sgd(0.1), 5)
    found = on_devices(mean(skipping), bad=1)
    np.testing.assert_allclose(found, on_devices(mean(), updates=5), rtol=1e-6)
    assert np.isfinite(on_devices(as_optax(dpsgd(skipping, topology.ring(4))), bad=1)).all()


UNDECIDED = s2_reducer(optax.sgd(0.1), sparse=("w",), granularity="auto")


test_what_cannot_run_here_says_so = refused(
    (lambda: on_devices(as_optax(dpsgd(optax.sgd(0.1), topology.ring(8)))),
     "has 4 workers, but the method was built for a graph of 8"),
    (lambda: on_devices(as_optax(ad_psgd(optax.sgd(0.1), topology.ring(4)))),
     "lockstep=true"),
    (lambda: on_devices(mean(), batches=2), "`nominal`.* belong together"),
    (lambda: on_devices(as_optax(UNDECIDED)),
     "left to a gradient"),
    (lambda: as_optax(all_reduce(optax.sgd(0.1)), local_steps=2), "takes no local steps"),
    (lambda: as_optax(local_sgd(optax.sgd(0.1)), local_steps=0), "needs local_steps >= 1"),
    (lambda: on_devices(optax.apply_if_finite(mean(), 5)),
     "optax.apply_if_finite.*put it around the optimizer"),
    (lambda: on_devices(
        optax.MultiSteps(mean(), 2, should_skip_update_fn=optax.skip_not_finite)),
     "optax.MultiSteps.*put it around the optimizer"),
    (lambda: as_optax(easgd(optax.sgd(0.1), 4), batch_size=0), "needs batch_size >= 1"),
    (lambda: as_optax(local_sgd(optax.sgd(0.1)), local_steps=2.5), "a whole number, got 2.5"),
    (lambda: as_optax(optax.sgd(0.1)), "needs a method, got Grad.*; make one"),
    (lambda: as_local_steps(local_sgd), "needs a method, got <func.*; make one"),
    (lambda: as_local_steps(local_sgd(0.1)), "optimizer: 0.1 is no transform of optax; write"),
    (lambda: dpsgd(0.1, topology.ring(4)), "optimizer: 0.1 is no transform of optax; write"),
    (lambda: all_reduce(optax.sgd(0.1), exchange="bf16"), "exchange=bf16 is no reducer; write"),
    *((lambda dtype=dtype: mean().init({"w": jnp.ones(3, dtype)}), f"'w' is {dtype}, and")
      for dtype in ("int32", "complex64")),
    *((lambda tx=tx: jax.vmap(tx.update, axis_name="batch")(
        jnp.ones(4), jax.vmap(tx.init)(jnp.ones(4)), jnp.ones(4)), "outside of the axis 'workers'")
      for tx in (mean(), as_optax(local_sgd(optax.sgd(0.1))))),
    (lambda: jax.vmap(lambda g: mean().update(g, mean().init(g)), axis_name=AXIS)(jnp.ones(4)),
     "`params` is missing"),
)  # fmt: skip


def test_a_rate_follows_the_samples_of_all_workers():
    """`scale_by_samples` sees the samples of earlier updates, `batch_size` of each worker."""
    seen = scale_by_samples(1.0, shape=lambda samples: samples)
    tx = as_optax(all_reduce(seen), batch_size=5)
    params = jnp.zeros(N)
    state = each(tx.init)(params)
    update = each(tx.update)
    for t in range(3):
        moved, state = update(jnp.ones(N), state, params)
        np.testing.assert_array_equal(moved, np.full(N, -t * 5.0 * N))


@pytest.mark.parametrize("own_models", [False, True])
def test_an_optimizer_that_looks_at_the_loss_gets_the_mean_loss(own_models):
    """Of workers that share a model; a worker that has a model of its own gets its own loss.

    Polyak's step length is loss / |gradient|^2, for the losses 0, 1, 2, 3 and gradients 1, 1, 1, 5.
    """
    polyak = optax.polyak_sgd(max_learning_rate=9.0)
    method = local_sgd(polyak) if own_models else all_reduce(polyak)
    local = as_local_steps(method) if own_models else as_optax(method)
    update = local.step if own_models else local.update
    values, gradients = jnp.arange(4.0), jnp.array([1.0, 1, 1, 5])

    def moved(value, gradient):
        return update(gradient, local.init(gradient), gradient, value=value)[0]

    found = jax.vmap(moved, axis_name=AXIS)(values, gradients)
    expected = -values / gradients if own_models else np.full(4, -1.5 / 2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_pairs_of_a_schedule_are_given():
    tx = as_optax(swarm(optax.sgd(0.1), topology.ring(N)))
    params = jnp.arange(float(N))
    state = each(tx.init)(params)
    partner = jnp.arange(N) ^ 1

    def update(gradient, state, params, partner):
        return tx.update(gradient, state, params, partner=partner)[0]

    moved = each(update)(jnp.zeros(N), state, params, partner)
    np.testing.assert_allclose(params + moved, (params + params[partner]) / 2)
