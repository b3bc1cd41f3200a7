"""The pay of compressing where an arm will run: its codec is measured, its network is modelled."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from algorithms.all_reduce import all_reduce
from algorithms.base import AXIS
from comms import compression_cost, cost, messages
from experiments import entries, optimizers, parts, prepare, stopwatch, tasks

GIGABIT = 1e9 / 8  # bytes per second
LATENCY = 50e-6  # seconds per message
TURNS = 15


def forecasts(configs: Sequence[ConfigDict]) -> Iterator[str]:
    """Yield a line for each method that compresses: its gain over all-reduce.

    On the config's network, if it has one, else on links of 1 and 10 Gbit/s. Arms that differ in
    other things are reported once.
    """
    subjects = {}
    for config in configs:
        subject = parts.text(config.task), parts.text(config.algorithm), config.workers
        subjects.setdefault(subject, config)
    for config in subjects.values():
        arm = prepare.prepare(config, settled=True)
        if not compresses(arm, config.workers):
            continue
        dense = arm._replace(algorithm=all_reduce(optimizers.build(config.optimizer)))
        try:
            one = ConfigDict(config.to_dict() | {"workers": 1})
            alone = prepare.prepare(one, arm.task, settled=True)
            codec = step_seconds(alone, config)[1] - step_seconds(dense, config)[1]
        except (TypeError, ValueError) as error:  # a forecast ends no run
            yield f"{config.name}: its codec cannot be timed by one worker ({error})"
            continue
        found = []
        for rate, network in networks(config, arm.shapes, (1, 10)).items():
            place = f"at {rate}" if entries.is_number(config.communication) else "on its network"
            gained = gain(arm, dense, codec, config.workers, network)
            found.append(f"{place} {compression_cost.verdict(gained)}")
        yield f"{config.name}: {'; '.join(found)}"


def gain(
    arm: prepare.Prepared,
    dense: prepare.Prepared,
    codec: float,
    workers: int,
    network: cost.Network,
) -> compression_cost.Gain:
    """Return an exchange of `arm` against one of `dense`; codec: seconds to encode and decode.

    Measured as a difference, these can be negative, and count as 0 then.
    """
    sent, plain = (
        messages.exchange_seconds(method, arm.shapes, workers, network)(method.settled)
        for method in (arm.algorithm, dense.algorithm)
    )
    return compression_cost.Gain(plain, max(0.0, codec) + sent, max(0.0, codec))


def compresses(arm: prepare.Prepared, workers: int) -> bool:
    """Return whether gradients are encoded for a server, so that all-reduce is an alternative."""
    return not arm.algorithm.own_models and messages.compresses(arm.algorithm, arm.shapes, workers)


def link(gigabits: float, workers: int) -> cost.Network:
    """Return links of this number of Gbit/s."""
    return cost.uniform_network(LATENCY, gigabits * GIGABIT, workers=workers)


def networks(config: ConfigDict, shapes, gigabits: Sequence[float]) -> dict[str, cost.Network]:
    """Return the config's network by the rate of its slowest link, or links of these rates."""
    if entries.is_number(config.communication):
        return {f"{rate:g} Gbit/s": link(rate, config.workers) for rate in gigabits}
    network = prepare.network(config, shapes)
    return {f"{8e-9 / float(network.beta.max()):.3g} Gbit/s": network}


def step_seconds(arm: prepare.Prepared, config: ConfigDict) -> tuple[float, float]:
    """Measure seconds of a worker's gradient, and of its exchange with nobody else and its step.

    Arms differ in the second by their encoding and decoding; of what is gathered from others, by
    that of one message. What a worker does only for others is left out, as the rounding of
    `int8_all_reduce` and the lists of `sparcml`.
    """
    (taken,) = step_rounds({"arm": (arm, config)}, 1)["arm"]
    return taken


def step_rounds(
    arms: Mapping[str, tuple[prepare.Prepared, ConfigDict]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Measure `step_seconds` of several arms in each of some rounds, in which all take turns.

    What slows a round down slows all its arms, so that rounds tell how far their ratios can be
    trusted.
    """
    programs = {
        (name, what): program
        for name, (arm, config) in arms.items()
        for what, program in _programs(arm, config).items()
    }
    found = [stopwatch.seconds(programs, TURNS) for _ in range(rounds)]
    return {name: [(r[name, "gradient"], r[name, "step"]) for r in found] for name in arms}


def _programs(arm: prepare.Prepared, config: ConfigDict) -> dict[str, Callable[[], object]]:
    """Return the programs that `step_seconds` measures."""
    params = arm.task.init(jax.random.key(config.seed))
    examples = jax.tree.map(jnp.asarray, tasks.take(arm.task.train, slice(config.batch_size)))
    losses = tasks.first_draw(arm.task)
    gradient = jax.jit(jax.grad(lambda p: losses(p, examples).mean()))
    state = arm.algorithm.exchange.init(params), arm.algorithm.server.init(params)
    if arm.algorithm.settled:  # after a warm-up, as bytes are counted
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
