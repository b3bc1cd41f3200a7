"""Seconds of codecs on the device at hand, and network links for their comparison."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from algorithms.base import AXIS
from comms import cost, messages
from experiments import prepare, registry, stopwatch, tasks

GIGABIT = 1e9 / 8  # bytes per second
LATENCY = 50e-6  # seconds per message
TURNS = 15


def compresses(arm: prepare.Prepared, workers: int) -> bool:
    """Return whether gradients are encoded for a server, so that all-reduce is an alternative."""
    return not arm.algorithm.own_models and messages.compresses(arm.algorithm, arm.shapes, workers)


def link(gigabits: float, workers: int) -> cost.Network:
    """Return a network of equal links with this rate in Gbit/s."""
    return cost.uniform_network(LATENCY, gigabits * GIGABIT, workers=workers)


def networks(config: ConfigDict, shapes, gigabits: Sequence[float]) -> dict[str, cost.Network]:
    """Return {slowest rate: network}: the config's network, or without one a network per rate."""
    if registry.is_number(config.communication):
        return {f"{rate:g} Gbit/s": link(rate, config.workers) for rate in gigabits}
    network = prepare.network(config, shapes)
    return {f"{8e-9 / float(network.beta.max()):.3g} Gbit/s": network}


def step_rounds(
    arms: Mapping[str, tuple[prepare.Prepared, ConfigDict]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return seconds (gradient, step) of each arm in each round; in a round all arms take turns.

    A disturbance slows all arms of a round, so that the spread over rounds shows how far their
    ratios can be trusted.
    """
    compared = {
        (name, what): program
        for name, (arm, config) in arms.items()
        for what, program in programs(arm, config).items()
    }
    found = [stopwatch.seconds(compared, TURNS) for _ in range(rounds)]
    return {name: [(r[name, "gradient"], r[name, "step"]) for r in found] for name in arms}


def programs(arm: prepare.Prepared, config: ConfigDict) -> dict[str, Callable[[], object]]:
    """Return two programs of a lone worker: "gradient", and "step", which exchanges a gradient.

    The step encodes the gradient, and decodes one message where messages of several workers are
    gathered. Work only for other workers is left out, such as the rounding of `int8_all_reduce` and
    the lists of `sparcml`.
    """
    params = arm.task.init(jax.random.key(config.seed))
    examples = jax.tree.map(jnp.asarray, tasks.take(arm.task.train, slice(config.batch_size)))
    losses = tasks.first_draw(arm.task)
    gradient = jax.jit(jax.grad(lambda p: losses(p, examples).mean()))
    state = arm.algorithm.exchange.init(params), arm.algorithm.server.init(params)
    if arm.algorithm.settled:  # the state after a warm-up, for which bytes are counted, too
        state = state[0]._replace(update=jnp.int32(arm.algorithm.settled)), state[1]

    @jax.jit
    def step(updates, state, params):
        def alone(updates, state):
            return arm.algorithm.exchange.update(
                updates, state, params, samples=0.0, version=0, weight=1.0
            )

        lead = jax.tree.map(lambda a: jnp.asarray(a)[None], (updates, state[0]))
        met, _ = jax.tree.map(lambda a: a[0], jax.vmap(alone, axis_name=AXIS)(*lead))
        return arm.algorithm.server.update(met, state[1], params, samples=0.0, batches=1)

    updates = gradient(params)
    return {"gradient": lambda: gradient(params), "step": lambda: step(updates, state, params)}
