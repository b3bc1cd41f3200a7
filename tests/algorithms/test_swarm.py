"""SwarmSGD and AD-PSGD on schedules of pairs, against a sequential loop in NumPy."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from algorithms import ad_psgd, dpsgd, matcha, sgp, swarm
from algorithms.base import AXIS
from algorithms.swarm import Quantised, meet, meet_stopped
from comms import cost, topology
from comms.messages import exchange_seconds, sent_bytes
from runtimes import simulate
from stragglers import wavefront
from tests import planned
from tests.algorithms.nodes import DECAY, LAW, MODELS, RATE, STEPS, N, gradient, optimizer
from tests.runtimes.toy import DATA, SAMPLES, X0, losses

GRAPHS = {"complete": nx.complete_graph(N), "ring": topology.ring(N), "cube": topology.hypercube(N)}


def sequential(schedule, blocking):
    """(comm, base) [N, d] after all meetings of the schedule, one after the other."""
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


def run(method, rule, updates):
    runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=STEPS)
    state, schedule = runtime.advance(runtime.start(X0), np.inf, updates)
    return runtime, state, schedule


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "blocking"), zip(GRAPHS, (False, True, False), strict=True))
def test_wavefronts_train_as_meetings_one_after_the_other(graph, blocking):
    """To float32 rounding for 300 meetings and more."""
    graph = GRAPHS[graph]
    rule = planned.rule("random_pairs", LAW, N, STEPS, 3, graph=graph, blocking=blocking, width=2)
    method = swarm(optimizer(), graph, blocking=blocking)
    runtime, state, schedule = run(method, rule, 200)
    assert len(wavefront.interactions(schedule).time) >= 300
    comm, base = sequential(schedule, blocking)
    np.testing.assert_allclose(state.model.params, base, rtol=5e-4, atol=5e-5)
    np.testing.assert_allclose(runtime.models(state), comm, rtol=5e-4, atol=5e-5)


def test_geometric_local_steps_and_rows_that_are_not_full():
    graph = topology.star(N)
    rule = planned.rule(
        "random_pairs", LAW, N, 4, 1, graph=graph, steps="geometric", local_steps=2, width=3
    )
    runtime = simulate.Simulator(
        swarm(optimizer(), graph), losses, DATA, SAMPLES, rule, mini_batches=4
    )
    state, schedule = runtime.advance(runtime.start(X0), np.inf, 120)
    assert (schedule.workers == N).any()  # all meetings of a star share its centre
    comm, base = sequential(schedule, False)
    np.testing.assert_allclose(state.model.params, base, rtol=5e-4, atol=5e-5)
    np.testing.assert_allclose(runtime.models(state), comm, rtol=5e-4, atol=5e-5)


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
    """comm [n, d] after one update in which position i meets partner[i]."""

    def one(comm, partner, progress, busy):
        state = transform.init(comm)
        moved, state = transform.update(
            progress, state, comm, batches=busy, partner=partner, active=None
        )
        return comm + moved, state

    return jax.jit(jax.vmap(one, axis_name=AXIS))(
        jnp.asarray(comm), jnp.asarray(partner), jnp.asarray(progress), jnp.asarray(busy, jnp.int32)
    )


def gamma(x):
    return ((x - x.mean(0)) ** 2).sum()


def test_averaging_a_pair_keeps_the_mean_and_lowers_gamma_by_half_its_squared_distance():
    partner = np.array([3, 1, 2, 0, 4, 5, 6, 7])
    x, _ = meeting(meet_stopped(), MODELS, partner, np.zeros_like(MODELS), np.ones(N))
    x = np.asarray(x, np.float64)
    np.testing.assert_allclose(x.mean(0), MODELS.mean(0, dtype=np.float64), atol=1e-6)
    fallen = ((MODELS[0] - MODELS[3]) ** 2).sum() / 2
    assert gamma(MODELS) - gamma(x) == pytest.approx(fallen, rel=1e-5)


@pytest.mark.parametrize("graph", ["complete", "ring"])
def test_random_pairs_contract_as_the_spectral_gap_says(graph):
    """E Gamma' <= (1 - lambda_2 / (r n)) Gamma, with equality on the complete graph."""
    graph = GRAPHS[graph]
    x = MODELS.astype(np.float64)
    after = []
    for i, j in graph.edges:
        y = x.copy()
        y[i] = y[j] = (x[i] + x[j]) / 2
        after.append(gamma(y))
    # How often the schedule draws each edge.
    schedule = planned.random_pairs(LAW, graph, 1, 40_000, 0)
    counts = wavefront.meetings(schedule, N)[tuple(zip(*graph.edges, strict=True))]
    np.testing.assert_allclose(counts / counts.mean(), 1, atol=0.1)
    degree = graph.degree[0]
    bound = 1 - nx.laplacian_spectrum(graph)[1] / (degree * N)
    ratio = np.average(after, weights=counts) / gamma(x)
    assert ratio == pytest.approx(np.mean(after) / gamma(x), rel=0.005)
    assert ratio <= bound * 1.005
    if degree == N - 1:
        assert ratio == pytest.approx(bound, rel=0.005) and bound == pytest.approx(1 - 1 / (N - 1))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "quantised", [None, Quantised(8), Quantised(4), Quantised(4, "unbiased", 2)]
)
def test_the_sum_of_public_copies_changes_by_the_progress_alone(quantised):
    """Exactly but for float32 sums, however coarse the codec and however it rounds."""
    partner = np.array([1, 0, 3, 2, 5, 4, 6, 7])
    progress = np.random.default_rng(1).normal(size=MODELS.shape).astype(np.float32)
    busy = np.array([1, 0, 1, 1, 0, 0, 1, 0])
    _, state = meeting(meet(quantised), MODELS, partner, progress, busy)
    change = np.asarray(state.comm, np.float64).sum(0) - MODELS.sum(0, dtype=np.float64)
    np.testing.assert_allclose(change, -progress[busy > 0].sum(0, dtype=np.float64), atol=1e-5)


def test_pulling_alone_would_not_keep_the_mean():
    """Were only the one who asks to average, the mean would move: both ends have to."""
    pulled = MODELS.copy()
    pulled[0] = (MODELS[0] + MODELS[3]) / 2
    assert np.abs(pulled.mean(0) - MODELS.mean(0)).max() > 1e-2


def test_a_partner_keeps_working_from_its_own_base():
    partner, busy = np.array([1, 0]), np.array([1, 0])
    x, state = meeting(meet(), MODELS[:2], partner, np.ones((2, 40), np.float32), busy)
    np.testing.assert_array_equal(x[1], MODELS[1])
    np.testing.assert_allclose(state.comm[1], MODELS[:2].mean(0), atol=1e-6)
    np.testing.assert_allclose(x[0], state.comm[0], atol=1e-6)
    np.testing.assert_allclose(state.comm[0], MODELS[:2].mean(0) - 1, atol=1e-6)


@pytest.mark.parametrize("transform", [meet, pytest.param(meet_stopped, marks=pytest.mark.slow)])
def test_who_meets_nobody_sends_and_learns_nothing(transform):
    """Even weights that the codec cannot send at its first bound count for a real meeting only."""
    far = MODELS[:4] * 1e6
    partner, busy = np.array([1, 0, 2, 3]), np.array([1, 0, 1, 0])
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
    """(squared distances to the mean [rounds], over the first one, and the state in the end).

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
    ("quantised", "most"),
    [
        (Quantised(3), 300),
        (Quantised(8), 40),
        (Quantised(16), 20),
        (Quantised(4, "unbiased"), 90),
    ],
)
def test_models_meet_in_few_bits_without_gradients(quantised, most):
    """Down to a millionth of the first distance, for a codec follows what is left of it.

    Only the first meetings, which know nothing of the distance, send anything again.
    """
    distance, state = pure_gossip(quantised, most)
    assert distance.min() < 1e-6
    np.testing.assert_array_equal(state.codec.failed, 4)  # all buckets of a node, once


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "rounding"), [(2, "nearest"), (3, "unbiased")])
def test_bits_with_which_models_do_not_meet_are_refused(bits, rounding):
    assert pure_gossip(Quantised(bits, rounding), 300)[0].min() > 1e-6
    with pytest.raises(ValueError, match=f"bits={bits}, but with rounding '{rounding}' two models"):
        swarm(optimizer(), topology.ring(N), bits=bits, rounding=rounding)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 17}, "bits=17, but .* 3 to 16 bits a coordinate only; set bits"),
        ({"bits": 4.5}, "bits=4.5, but"),
        ({"bits": 8, "rounding": "up"}, "rounding: unknown choice 'up'; known choices: nearest"),
        ({"rounding": "unbiased"}, "without bits rounds nothing; set bits"),
    ],
)
def test_codecs_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        swarm(optimizer(), topology.ring(N), **options)


def test_a_single_worker_has_nobody_to_meet():
    with pytest.raises(ValueError, match="swarm: a single worker has nobody to meet"):
        swarm(optimizer(), topology.ring(1), lockstep=True)


def test_bytes_are_those_of_the_messages():
    """Of 100 float32 parameters, per update in the mean over workers."""
    params = np.zeros(100, np.float32)

    def sent(method, name, **options):
        rule = planned.rule(name, LAW, N, 1, 0, graph=method.graph, links=method.links, **options)
        _, schedule = rule.extend(rule.init(), 60)
        return sent_bytes(method, params, schedule), schedule

    ring, star = topology.ring(N), topology.star(N)
    for method, models in (
        (dpsgd(optimizer(), ring), 2),
        (dpsgd(optimizer(), star), 2 * 7 / N),
        (swarm(optimizer(), ring, lockstep=True), 1),
        (swarm(optimizer(), star, lockstep=True), 2 / N),
    ):
        np.testing.assert_allclose(sent(method, "neighbour_barrier")[0], 400 * models)
    method = matcha(optimizer(), topology.matcha_graph(0), budget=0.5)
    found, schedule = sent(method, "neighbour_barrier")
    links = [2 * len(matching) for matching in method.graph.graph["matchings"]]
    np.testing.assert_allclose(found, 400 * (schedule.matchings @ links) / N)
    np.testing.assert_array_equal(sent(sgp(optimizer(), N), "neighbour_barrier")[0], 404)
    one = sgp(optimizer(), 1)
    assert not sent_bytes(one, params, planned.plan("barrier", LAW, 1, 3, 1, 0)).any()
    # 8 bits each, with a side and two sums for the one bucket; the answer is a byte.
    for bits, message in ((None, 400), (8, 100 + 12 + 1)):
        for name in ("random_pairs", "bipartite_pairs"):
            found, schedule = sent(swarm(optimizer(), ring, bits=bits), name, width=2)
            met = wavefront.interactions(schedule)
            asked = np.bincount(met.row[met.pairs[:, 0] != met.pairs[:, 1]], minlength=60)
            np.testing.assert_allclose(found, 2 * asked * message / N)


def test_seconds_are_those_of_the_links_in_use():
    """A second a byte, but five over the link of workers 0 and 1, and 100 float32 parameters."""
    beta = np.ones((N, N))
    beta[0, 1] = beta[1, 0] = 5.0
    network = cost.Network(0.0, beta)
    params = np.zeros(100, np.float32)

    def seconds(method, count=4):
        of_round = exchange_seconds(method, params, N, network)
        return [of_round(t) for t in range(count)]

    assert seconds(sgp(optimizer(), N)) == [5 * 404, 404, 404, 5 * 404]  # 1, 2, 4, 1 places ahead
    assert seconds(dpsgd(optimizer(), topology.ring(N)), 1) == [5 * 400 + 400]
    assert seconds(swarm(optimizer(), topology.ring(N)), 1) == [5 * 400]
    assert seconds(swarm(optimizer(), topology.ring(N), bits=8), 1) == [5 * (100 + 12) + 5]
    method = matcha(optimizer(), topology.matcha_graph(0), budget=0.5)
    slowest = [5 * 400 if (0, 1) in m else 400 for m in method.graph.graph["matchings"]]
    assert seconds(method, 40) == (method.links.active(0, 40) @ slowest).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "rounding"), [(4, "nearest"), (8, "unbiased")])
def test_a_quantised_swarm_stays_near_the_exact_one(bits, rounding):
    """The codec learns its range, counts its failures, and costs fewer bytes."""
    graph = topology.hypercube(N)
    rule = planned.rule("random_pairs", LAW, N, STEPS, 3, graph=graph)
    exact = swarm(optimizer(), graph)
    quantised = swarm(optimizer(), graph, bits=bits, rounding=rounding)
    runtime, state, _ = run(exact, rule, 400)
    ours, ours_state, schedule = run(quantised, rule, 400)
    there, here = np.asarray(runtime.models(state)), np.asarray(ours.models(ours_state))
    assert np.abs(here.mean(0) - there.mean(0)).max() < np.abs(there - there.mean(0)).max()
    counts = quantised.metrics(ours.memory(ours_state))
    assert 0 < counts["decode_failures"] < 0.2 * schedule.batches.size
    assert counts["skipped_buckets"] == 0
    large = np.zeros(4096, np.float32)
    sent, full = (sent_bytes(m, large, schedule).sum() for m in (quantised, exact))
    assert sent < (bits / 32 + 0.02) * full


@pytest.mark.parametrize(
    ("method", "wait", "words"),
    [
        (lambda g: swarm(optimizer(), g), "barrier", "this rule makes none"),
        (lambda g: swarm(optimizer(), g, blocking=True), "random_pairs", "a partner goes on"),
        (lambda g: sgp(optimizer(), N), "random_pairs", "meetings of pairs"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(method, wait, words):
    graph = topology.ring(N)
    options = {"graph": graph} if wait == "random_pairs" else {}
    rule = planned.rule(wait, LAW, N, 1, 0, **options)
    with pytest.raises(ValueError, match=words):
        simulate.Simulator(method(graph), losses, DATA, SAMPLES, rule, mini_batches=1)


@pytest.mark.slow
def test_doubling_the_rate_quadruples_the_steady_distance_and_a_ring_is_farther_than_complete():
    def steady(graph, rate):
        rule = planned.rule("random_pairs", LAW, N, 1, 0, graph=graph)
        method = swarm(optimizer(rate, 0.0), graph)
        runtime = simulate.Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=1)
        state, _ = runtime.advance(runtime.start(X0), np.inf, 3000)
        seen = []
        for _ in range(150):
            state, _ = runtime.advance(state, np.inf, 16)
            seen.append(gamma(np.asarray(runtime.models(state))))
        return np.mean(seen)

    complete, doubled = (steady(GRAPHS["complete"], rate) for rate in (0.02, 0.04))
    assert doubled / complete == pytest.approx(4, rel=0.25)
    assert steady(GRAPHS["ring"], 0.02) > complete
