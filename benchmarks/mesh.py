"""What the mesh runtime adds to a hand-written step, and whether real delays are kept.

    python -m benchmarks.mesh            # on a CPU: eight virtual devices

Three parts. Overhead: our plain round against a hand-written `shard_map` + `pmean` step, turn by
turn in one process, without callbacks. Delays: measured round times against the injected ones,
blocking and non-blocking. Endurance: 1,000 rounds with callbacks. Virtual CPU devices share the
cores, so their times say nothing about speed; only the ratios do.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

from algorithms import all_reduce
from algorithms.base import AXIS, scale_by_samples
from benchmarks import timing
from experiments import tasks
from experiments.tasks import data, sampling
from runtimes import mesh
from stragglers import delays, inject, processes
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

_WORKERS = flags.DEFINE_integer("workers", 8, "Workers, one per device.")
_ROUNDS = flags.DEFINE_integer("rounds", 1000, "Rounds of the endurance run.")

MINI_BATCHES, BATCH = 8, 16


def optimizer():
    return optax.chain(optax.trace(0.9), scale_by_samples(0.05))


def hand_written(losses, optimizer, workers: int, mini_batches: int):
    """The step that one would write by hand: (params, state, table, examples, count) -> same.

    Stacked params and optimizer state; table [workers, rounds * mini_batches, b] of sample
    indices; `count` rounds in one dispatch.
    """
    devices = jax.make_mesh(
        (workers,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:workers]
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    @functools.partial(
        jax.shard_map,
        mesh=devices,
        in_specs=(P(AXIS), P(AXIS), P(AXIS), P(), P()),
        out_specs=P(AXIS),
        check_vma=False,
    )
    def rounds(params, state, table, examples, count):
        params, state, table = jax.tree.map(lambda a: a[0], (params, state, table))

        def step(t, carry):
            params, state = carry
            rows = jax.lax.dynamic_slice_in_dim(table, t * mini_batches, mini_batches).ravel()
            batch = jax.tree.map(lambda a: a[rows], examples)
            gradient = jax.grad(lambda p: losses(p, batch).mean())(params)
            gradient = jax.lax.pmean(gradient, AXIS)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        carry = jax.lax.fori_loop(0, count, step, (params, state))
        return jax.tree.map(lambda a: a[None], carry)

    return rounds


def task_and_sampler(workers: int):
    task = tasks.build("digits(model=mlp)")
    return task, sampling.Sampler(data.iid(task.labels, workers, 0), BATCH, 0)


def overhead(workers: int) -> float:
    """Median time of our plain rounds over that of the hand-written ones."""
    task, sampler = task_and_sampler(workers)
    devices = jax.make_mesh(
        (workers,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:workers]
    )
    stacked, everywhere = NamedSharding(devices, P(AXIS)), NamedSharding(devices, P())
    runtime = mesh.Mesh(
        all_reduce(optimizer()), task.losses, task.train, sampler,
        workers=workers, mini_batches=MINI_BATCHES, rounds_per_dispatch=1,
    )  # fmt: skip
    model = runtime.start(task.init(jax.random.key(0))).model
    counters = np.arange(MINI_BATCHES) + np.zeros((workers, 1), np.int64)
    table = jax.device_put(sampler.indices(np.arange(workers)[:, None], counters), stacked)
    examples = jax.device_put(jax.tree.map(jnp.asarray, task.train), everywhere)
    count = np.int32(1)
    ours = runtime.dispatch.lower(model, table, examples, None, count).compile()

    plain = optimizer()
    carry = task.init(jax.random.key(0))
    carry = (carry, plain.init(carry))
    carry = jax.tree.map(
        lambda a: jax.device_put(jnp.broadcast_to(a, (workers, *a.shape)), stacked), carry
    )
    step = hand_written(task.losses, plain, workers, MINI_BATCHES)
    by_hand = step.lower(*carry, table, examples, np.int32(1)).compile()

    def our_turn():
        nonlocal model
        for _ in range(20):
            model = jax.block_until_ready(ours(model, table, examples, None, count))
        return model

    def hand_turn():
        nonlocal carry
        for _ in range(20):
            carry = jax.block_until_ready(by_hand(*carry, table, examples, np.int32(1)))
        return carry

    taken = timing.seconds({"ours": our_turn, "by hand": hand_turn}, 25)
    return taken["ours"] / taken["by hand"]


def delayed(workers: int, wait: str, delay, rounds: int):
    """The schedule that really happened, and the one that the virtual clock plans."""
    task, sampler = task_and_sampler(workers)
    rule = RULES[wait](Setting(delay, workers, MINI_BATCHES, 0, communication=0.02))
    injector = inject.Injector(workers, rule.trigger, 0, delay=delay, communication=0.02)
    runtime = mesh.Mesh(
        all_reduce(optimizer()), task.losses, task.train, sampler,
        workers=workers, mini_batches=MINI_BATCHES, injector=injector,
    )  # fmt: skip
    _, real = runtime.advance(runtime.start(task.init(jax.random.key(0))), np.inf, rounds)
    return real, whole(rule, rounds)


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    workers = _WORKERS.value
    if jax.config.jax_platforms == "cpu" or not jax.config.jax_platforms:
        jax.config.update("jax_num_cpu_devices", workers)
    console = Console()

    def say(line):
        console.print(line, highlight=False)

    say(f"{workers} workers on {jax.default_backend()} devices")
    say(f"plain round / hand-written step: {overhead(workers):.3f} (target <= 1.05)")
    jitter = processes.persistent(delays.jitter(0.02, 0.1), {0: 4.0})
    for wait in ("barrier", "first_finisher"):
        real, planned = delayed(workers, wait, jitter, 40)
        measured, wanted = np.median(np.diff(real.time)), np.median(np.diff(planned.time))
        say(
            f"{wait}: median round {1e3 * measured:.1f} ms, injected {1e3 * wanted:.1f} ms "
            f"({measured / wanted - 1:+.1%}, target within 10 %); mini-batches per round: "
            f"slow worker {real.batches[:, 0].mean():.2f}, others {real.batches[:, 1:].mean():.2f}"
        )
    quick = processes.persistent(delays.jitter(0.002, 0.1), {0: 4.0})
    real, _ = delayed(workers, "first_finisher", quick, _ROUNDS.value)
    say(f"endurance: {real.updates} rounds in {real.time[-1]:.0f} s, none stuck")


if __name__ == "__main__":
    app.run(main)
