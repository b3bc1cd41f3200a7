"""The battery that methods of every kind pass; a new method adds one row to `methods.BATTERY`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import ALGORITHMS, ad_psgd
from algorithms.base import AXIS
from comms.messages import Row, collective_bytes, fallback_bytes
from runtimes import simulate, worker
from stragglers import delays
from tests import planned
from tests.algorithms import traced
from tests.algorithms.methods import BATTERY, METHODS, N
from tests.conftest import make_mesh
from tests.runtimes.toy import DATA, SAMPLES, B, D

M = 4  # mini-batches
UPDATES = 50


def rows(slow="", more=(), without=""):
    """Return the rows of the battery; slow: kinds that are, as are the rows `more`.

    without: kinds of which a test with a reference of its own asks the same. All tests of a method
    follow one another, and share what it has been compiled to.
    """
    late, elsewhere = {*slow.split(), *more}, without.split()
    marked = (
        pytest.param(name, marks=[pytest.mark.slow] * bool({name, name.split("/")[0]} & late))
        for name in (*BATTERY, *more)
        if name.split("/")[0] not in elsewhere
    )
    return pytest.mark.parametrize("name", list(marked), scope="module")


# One of every way of `Algorithm.messages` and of what is sent where data do not fit; tests of the
# others have their bytes by hand.
SENDERS = (
    *("powersgd", "sparse_all_gather", "choco_sgd", "qsgd", "streaming_diloco", "demo"),
    *("s2_reducer/too small", "sparcml/too small", "omnireduce/too small", "parallax/too small"),
    *("mg_wfbp/ring", "gradient_tracking", "gasloc/pairs", "all_reduce/ring of int8"),
)


def losses(params, examples):
    """Return the losses of a small non-linear regression."""
    hidden = jnp.tanh(examples["x"] @ params["w"]) + params["b"]
    return (hidden - examples["y"]) ** 2


PARAMS = {"w": np.linspace(-1, 1, D).astype(np.float32), "b": np.float32(0.5)}


def draw(seed=0):
    """Return finished mini-batches [UPDATES, N], some 0, and examples [UPDATES, N, M, B, ...]."""
    rng = np.random.default_rng(seed)
    batches = rng.integers(0, M + 1, (UPDATES, N)).astype(np.int32)
    batches[:, 0] = M
    examples = {
        "x": rng.standard_normal((UPDATES, N, M, B, D)).astype(np.float32),
        "y": rng.standard_normal((UPDATES, N, M, B)).astype(np.float32),
    }
    return batches, examples


def one_update(method, params, server, state, me, row):
    """Make one worker's update, with collectives over AXIS; the same text for every runtime."""
    batches, examples, first, version, samples, active = row
    given = {"samples": samples, "nominal": M, "worker": me, "version": version, "first": first}
    given |= {"staleness": 0, "active": active}
    if method.adopt is not None:
        given["current"] = server.params
    found, state = worker.contribute(method, losses, params, state, examples, batches, given)
    weight = method.weight(batches)
    updates, state = worker.exchange(method, found, params, state, batches, given, weight)
    if method.server is None:
        return optax.apply_updates(params, updates), server, state
    total = jax.lax.psum(batches, AXIS)
    if method.adopt is not None:
        common = worker.serve(method, updates.served, *server, total, given)
        own = optax.apply_updates(params, updates.own)
        own = method.adopt(own, common[0], state.exchange, version + 1)
        return own, worker.Shared(*common), state
    params, server = worker.serve(method, updates, params, server, total, given)
    return params, server, state


class Shared:
    """A method, and the programs that its tests share: each is compiled once."""

    def __init__(self, method):
        self.method = method
        # An update of all workers under vmap, to whom samples and activations are common.
        body, rows = functools.partial(one_update, method), (0, 0, 0, 0, None, None)
        self.step = jax.jit(jax.vmap(body, in_axes=(0, 0, 0, 0, rows), axis_name=AXIS))
        self.run = None  # of the first simulator

    @functools.cached_property
    def start(self):
        """(params, server, state) of the start, with a leading worker axis."""
        return jax.jit(jax.vmap(functools.partial(begun, self.method), axis_size=N))()


@functools.lru_cache(maxsize=2)
def shared(name):
    """Return what the tests of a row share, for as long as they follow one another."""
    return Shared(METHODS[name]())


def begun(method):
    """Return (params, server, state) of one worker that has made no update."""
    params = jax.tree.map(jnp.asarray, PARAMS)
    return params, worker.init_server(method, params), worker.init(method, params)


def schedule_rows(method):
    """Return what updates are given besides, [UPDATES, ...]: first, version, seen, active."""
    batches, _ = draw()
    version = np.arange(UPDATES)
    samples = np.cumsum(batches.sum(1)).astype(np.float32) * B
    active = None if method.links is None else method.links.active(0, UPDATES)
    return M * version, version, samples, active


def on_devices(method):
    """Return the parameters after all updates, of one worker on each device."""
    over = P(AXIS)

    def of_worker(*stacked):
        def step(carry, row):
            return one_update(method, *carry, me, row), None

        me, batches, examples = jax.tree.map(lambda a: a[0], stacked)
        rows = (batches, examples, *schedule_rows(method))
        found = jax.lax.scan(step, begun(method), rows)[0][0]
        return jax.tree.map(lambda a: a[None], found)

    by_worker = jax.tree.map(lambda a: np.swapaxes(a, 0, 1), draw())
    mapped = jax.shard_map(
        of_worker, mesh=make_mesh(N), in_specs=over, out_specs=over, check_vma=False
    )
    return jax.jit(mapped)(np.arange(N), *by_worker)


@rows(slow="easgd matcha sgp one_bit_adam", without="all_reduce swarm")
def test_simulated_workers_are_those_of_devices(name):
    """After 50 updates to float32 rounding (rtol 2e-5): the order of a sum differs, no more."""
    row = shared(name)
    simulated, (batches, examples) = row.start, draw()
    rows = (batches, examples, *schedule_rows(row.method))
    for t in range(UPDATES):
        *taken, first, version, seen, active = jax.tree.map(lambda a, t=t: a[t], rows)
        counters = np.full(N, first), np.full(N, version)
        simulated = row.step(*simulated, np.arange(N), (*taken, *counters, seen, active))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(simulated[0]))
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    jax.tree.map(near, on_devices(row.method), simulated[0])


def simulated(row, rule, updates=UPDATES):
    """(models, schedule) of a run; later runs of a method take the program of its first one."""
    runtime = simulate.Simulator(row.method, losses, DATA, SAMPLES, rule, mini_batches=M)
    row.run = runtime._run = row.run or runtime._run
    state, schedule = runtime.advance(runtime.start(PARAMS), np.inf, updates)
    return runtime.models(state), schedule


def rule(method, name, law, seed=0):
    """Return a waiting rule over the method's own graph and links."""
    return planned.rule(name, law, N, M, seed, graph=method.graph, links=method.links)


@rows(slow="all_reduce local_sgd top_k one_bit_adam", without="easgd sgp swarm")
def test_the_simulator_runs_the_method(name):
    """The compiled loop, with its shortcuts, follows the plain worker body update by update."""
    row = shared(name)
    method = row.method
    waiting = rule(method, "first_finisher", delays.exponential(1.0), 3)
    result, schedule = simulated(row, waiting)
    assert schedule.batches.min() < M
    carry, samples = row.start, 0.0
    for t in range(UPDATES):
        counters = schedule.first[t][:, None] + np.arange(M)
        indices = SAMPLES.indices(np.arange(N)[:, None], counters)
        examples = jax.tree.map(lambda a, i=indices: a[i], DATA)
        active = None if schedule.matchings is None else schedule.matchings[t].astype(bool)
        taken = schedule.batches[t], examples, schedule.first[t], schedule.version[t]
        carry = row.step(*carry, np.arange(N), (*taken, np.float32(samples), active))
        samples += float(schedule.batches[t].sum()) * B
    expected = carry[0] if method.adopt is None else carry[1].params
    if method.server is not None:
        expected = jax.tree.map(lambda a: a[:1], expected)
    if method.public is not None:
        expected = jax.vmap(method.public)(carry[2].exchange, carry[0])
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), result, expected
    )


@rows(more=("gradient_tracking", "coordinate_median", "ringleader"), without="sgp swarm")
def test_samples_of_unfinished_mini_batches_add_nothing(name):
    """Of a worker that finished some or none: NaN and inf in them change nothing."""
    row = shared(name)
    method = row.method
    batches, examples = jax.tree.map(lambda a: a[0], draw())
    batches[1], nothing = 0, np.zeros(N, np.int32)
    unfinished = np.arange(M) >= batches[:, None]
    assert ((batches > 0) & unfinished.any(1)).any()
    changed = jax.tree.map(np.copy, examples)
    changed["x"][unfinished], changed["y"][unfinished] = np.nan, np.inf
    active = None if method.links is None else np.ones(len(method.links.partners), bool)
    common = nothing, nothing, np.float32(0), active
    one, two = (
        row.step(*row.start, np.arange(N), (batches, e, *common)) for e in (examples, changed)
    )
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one))


LARGE = {"w": np.zeros((400, 1024), np.float32), "b": np.zeros((), np.float32)}


def exchange_program(method, update, active):
    """Return the compiled exchange of a round on a mesh, and its arguments, [N, ...] each."""
    over = {"mesh": make_mesh(N), "in_specs": P(AXIS), "out_specs": P(AXIS), "check_vma": False}

    @jax.jit
    @functools.partial(jax.shard_map, **over)
    def program(contribution, params, state, batches):
        contribution, params, state, batches = jax.tree.map(
            lambda a: a[0], (contribution, params, state, batches)
        )
        if method.settled:  # a constant, so that XLA drops what is for other updates
            state = state._replace(update=jnp.int32(update))
        given = {"samples": update * 64.0, "nominal": M, "worker": jax.lax.axis_index(AXIS)}
        given |= {"version": update, "first": update * M, "staleness": 0, "active": active}
        if method.adopt is not None:
            given["current"] = params
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


@rows(slow="easgd sgp local_sgd swarm one_bit_adam", more=SENDERS)
def test_what_is_said_to_be_sent_is_what_the_compiled_exchange_sends(name):
    """Within 2 % of 4e5 coordinates; where data decide, of what is sent when all goes well."""
    method = shared(name).method
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
        if method.fallbacks is None:
            continue
        _, state = program(*arguments)  # ones everywhere, which only a full budget holds
        found = method.fallbacks(state, LARGE, N, Row(update))
        if found.updates:
            claimed += fallback_bytes(found, N)
            assert traced.sent_bytes(text, N, fallback=True) == pytest.approx(claimed, rel=0.02)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", [n for n in METHODS if METHODS[n]().own_models and (n in BATTERY or "/" not in n)]
)
def test_what_may_be_sent_beside_the_gradient_is_known_before_it(name):
    """Of what leaves with the round others hear nothing of a worker's gradient, else they do."""
    row = shared(name)
    method = row.method
    active = None if method.links is None else np.ones(len(method.links.partners), bool)
    params, _, state = row.start

    @jax.jit
    @functools.partial(jax.vmap, axis_name=AXIS)
    def heard(contribution, params, state, me):
        given = {"samples": 0.0, "nominal": M, "worker": me, "version": 0, "first": 0}
        given |= {"weight": 1.0, "batches": jnp.int32(M), "staleness": 0, "active": active}
        if method.adopt is not None:
            given["current"] = params
        return method.exchange.update(contribution, state, params, **given)

    ones = jax.tree.map(jnp.ones_like, params)
    of_others = jax.tree.map(lambda a: a.at[1:].multiply(-3.0), ones)
    one, two = (
        jax.tree.leaves(
            jax.tree.map(lambda a: a[0], heard(g, params, state.exchange, jnp.arange(N)))
        )
        for g in (ones, of_others)
    )
    waits = any((a != b).any() for a, b in zip(one, two, strict=True))
    payloads = method.messages(PARAMS, N, Row(0, active))
    assert {payload.beside_gradient for payload in payloads} == {not waits}


def test_every_method_has_a_row():
    # AD-PSGD is Swarm with pairs of a schedule, for which there is no lock-step.
    assert {name.split("/")[0] for name in METHODS} | {ad_psgd.__name__} == set(ALGORITHMS)
