"""Quantised Swarm wherever its workers live: the same bits, and the bytes that it says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import swarm
from algorithms.base import AXIS, scale_by_samples
from comms import lattice, topology
from comms.messages import Row, collective_bytes
from runtimes import mesh, simulate, worker
from stragglers import delays
from tests import planned
from tests.algorithms import traced
from tests.marks import slow

N, D, UPDATES = 8, 2_500, 12
# Three buckets: one that is read at once, one that starts to differ, one that differs by far.
_RNG = np.random.default_rng(0)
TARGETS = (_RNG.normal(size=(N, D)) * np.repeat([0.01, 5.0, 5e3], D // 3 + 1)[:D]).astype(
    np.float32
)


def losses(params, targets):
    """[b] squares of what two leaves are off, whose gradient needs no sum over coordinates."""
    joined = jnp.concatenate([params["b"], params["w"].ravel()])
    return 0.5 * ((joined[None] - targets) ** 2).sum(1)


PARAMS = {"w": np.zeros((124, 20), np.float32), "b": np.zeros(20, np.float32)}


class OwnTarget:
    """A worker has one sample."""

    batch_size = 1

    def indices(self, workers, counters):
        return np.broadcast_to(np.asarray(workers)[..., None], (*np.shape(counters), 1)) + np.zeros(
            (*np.shape(counters), 1), np.int32
        )


def simulated(method):
    graph, links = method.graph, method.links
    rule = planned.rule("barrier", delays.deterministic(1.0), N, 1, 0, graph=graph, links=links)
    runtime = simulate.Simulator(method, losses, TARGETS, OwnTarget(), rule, mini_batches=1)
    state, schedule = runtime.advance(runtime.start(PARAMS), np.inf, UPDATES)
    assert (schedule.batches == 1).all()
    return runtime.models(state), runtime.memory(state)


def on_devices(method):
    runtime = mesh.Mesh(method, losses, TARGETS, OwnTarget(), workers=N, mini_batches=1)
    state, _ = runtime.advance(runtime.start(PARAMS), np.inf, UPDATES)
    return runtime.models(state), runtime.memory(state)


def by_hand(method):
    """A loop over updates, each of all workers under vmap."""

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None), axis_name=AXIS)
    def update(params, state, me, target, samples, active):
        given = {"samples": samples, "nominal": 1, "worker": me, "staleness": 0, "active": active}
        moved, state = worker.update(
            method, losses, params, state, target[None, None], jnp.int32(1), given
        )
        return optax.apply_updates(params, moved), state

    params = jax.tree.map(lambda a: jnp.broadcast_to(a, (N, *a.shape)), PARAMS)
    state = jax.vmap(functools.partial(worker.init, method))(params)
    for t, active in enumerate(method.links.active(0, UPDATES)):
        params, state = update(params, state, jnp.arange(N), TARGETS, float(N * t), active)
    models = params
    if method.public is not None:
        models = jax.vmap(method.public)(state.exchange, params)
    return models, state.exchange


@pytest.mark.parametrize(
    ("rounding", "blocking"),
    [
        slow("nearest", True),
        slow("unbiased", False),
    ],
)
def test_simulator_vmap_and_mesh_agree_bit_for_bit(rounding, blocking):
    """Models, bounds and counts after twelve updates, in which all rungs are climbed."""
    method = swarm(
        optax.chain(optax.trace(0.5), scale_by_samples(0.125)),
        topology.ring(N),
        bits=8,
        rounding=rounding,
        blocking=blocking,
        lockstep=True,
    )
    expected = by_hand(method)
    counted = method.metrics(expected[1])
    assert counted["decode_failures"] > counted["full_precision_buckets"] > 0
    for found in (simulated(method), on_devices(method)):
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def compiled_exchange(method, size):
    """HLO of a lock-step exchange on a device per worker."""
    params = jnp.zeros((N, size))
    state = jax.vmap(method.exchange.init)(params)
    active = np.arange(len(method.links.partners)) == 0
    devices = jax.make_mesh((N,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))

    @functools.partial(
        jax.shard_map, mesh=devices, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    def exchange(params, state):
        params, state = jax.tree.map(lambda a: a[0], (params, state))
        moved = method.exchange.update(
            params, state, params, batches=jnp.int32(1), active=jnp.asarray(active)
        )[0]
        return moved[None]

    return jax.jit(exchange).lower(params, state).compile().as_text(), active


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 3])
def test_a_mesh_sends_the_codes_that_are_counted(bits):
    """Per worker the message and the answer, and nothing as wide as the model in float32."""
    size = 32_832
    method = swarm(optax.sgd(0.1), topology.hypercube(N), lockstep=True, bits=bits)
    text, active = compiled_exchange(method, size)
    claimed = [
        collective_bytes(payload, N)
        for payload in method.messages(np.zeros(size, np.float32), N, Row(0, active))
    ]
    count = lattice.buckets(size)
    assert claimed == [lattice.payload_bytes(size, bits), lattice.flag_bytes(count)]
    assert claimed[0] == pytest.approx(size * bits / 8 + 12 * count, rel=0.003)
    # The scalar on which all agree aside.
    assert traced.sent_bytes(text, N) == pytest.approx(sum(claimed), abs=16)
