"""One arm: build its parts from a config, train on the run's clock, write down what happens."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from algorithms import ALGORITHMS, Algorithm
from comms import cost, topology
from experiments import (
    data,
    optimizers,
    parts,
    profiling,
    records,
    sampling,
    sparse_tasks,
    tasks,
)
from runtimes import batched, mesh, simulate
from stragglers import clock, delays, inject, processes
from stragglers.replay import replay_file
from stragglers.schedule import Schedule, concatenate


class Prepared(NamedTuple):
    """The parts of one run, all checked, nothing compiled."""

    task: tasks.Task
    algorithm: Algorithm
    shapes: Any  # of the parameters
    runtime: simulate.Simulator | mesh.Mesh


def prepare(config: ConfigDict) -> Prepared:
    """Build and check every part of an arm; raises ValueError before anything is compiled.

    Only a profile that the config wants measured takes running the model.
    """
    parts.check_entries(config)
    if config.runtime not in RUNTIMES:
        raise ValueError(
            f"runtime: unknown name {config.runtime!r}; known names: {', '.join(RUNTIMES)}"
        )
    graph = None
    if parts.wants(ALGORITHMS, config.algorithm, "graph"):
        graph = parts.build("graph", topology.GRAPHS, config.graph, n=config.workers)
        if graph.number_of_nodes() != config.workers:
            raise ValueError(
                f"graph {config.graph!r} has {graph.number_of_nodes()} nodes but there are "
                f"{config.workers} workers; set config.workers={graph.number_of_nodes()}"
            )
    task = parts.build("task", TASKS, config.task)
    try:
        shapes = jax.eval_shape(lambda: task.init(jax.random.key(config.seed)))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"task {config.task!r}: the model cannot be built ({error}); correct its sizes"
        ) from error
    algorithm = parts.build(
        "algorithm",
        ALGORITHMS,
        config.algorithm,
        optimizer=optimizers.build(config.optimizer),
        graph=graph,
        workers=config.workers,
        seed=config.seed,
        sparse=task.sparse,
        **_buckets(config, task),
    )
    shards = parts.build(
        "split", data.SPLITS, config.split, labels=task.labels, workers=config.workers,
        seed=config.seed,
    )  # fmt: skip
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    seconds = _exchange_seconds(config, algorithm, shapes)
    runtime = RUNTIMES[config.runtime](config, task, algorithm, sampler, seconds)
    return Prepared(task, algorithm, shapes, runtime)


def _buckets(config, task) -> dict:
    """What is offered to methods that plan buckets, from entries that other configs lack."""
    offered = {} if config.get("buckets") is None else {"buckets": config.buckets}
    if parts.wants(ALGORITHMS, config.algorithm, "profile"):
        offered["profile"] = profiling.for_config(config, task)
    return offered


def build_delay(part) -> delays.Law | processes.Process:
    """The law or process of delays that a part describes; its `law` may be a part itself."""
    spec = parts.spec(part)
    if "law" in spec:
        spec["law"] = build_delay(spec["law"])
    return parts.build("delay", DELAYS, spec)


def _exchange_seconds(config, algorithm, shapes):
    """Seconds of a round's exchange: a number, or round -> seconds on a network."""
    if parts.is_number(config.communication):
        return config.communication
    network = parts.build(
        "communication",
        NETWORKS,
        config.communication,
        workers=config.workers,
        payload=cost.payload_bytes(shapes),
    )
    return algorithm.round_seconds(shapes, config.workers, network)


def _rule(config, delay, algorithm, seconds):
    # Some processes do not know for how many workers they are before they are asked.
    processes.as_process(delay).seeded(config.seed).duration(config.workers - 1, 0.0)
    return parts.build(
        "wait",
        WAITING_RULES,
        config.wait,
        delay=delay,
        workers=config.workers,
        mini_batches=config.mini_batches,
        seed=config.seed,
        graph=algorithm.graph,
        links=algorithm.links,
        communication=seconds,
        draw=config.draw,
    )


def _simulate(config, task, algorithm, sampler, seconds):
    return simulate.simulator(
        algorithm,
        task.losses,
        task.train,
        sampler,
        _rule(config, build_delay(config.delay), algorithm, seconds),
        mini_batches=config.mini_batches,
        devices=config.devices,
    )


def _trigger_spec(config) -> dict:
    """The waiting rule as a trigger that real workers watch."""
    spec = parts.spec(config.wait)
    name = spec["name"]
    if name in AS_CUT:
        trigger, fixed = AS_CUT[name]
        spec |= {"name": trigger, "in_flight": "cut"} | fixed
    elif name not in inject.TRIGGERS:
        raise ValueError(
            f"mesh: its devices move in rounds, which {name!r} does not or not with a trigger; use "
            f"runtime='simulate', or one of {', '.join([*inject.TRIGGERS, *AS_CUT])}"
        )
    return spec


def _mesh(config, task, algorithm, sampler, seconds):
    mesh.check_devices(config.workers)
    trigger_spec = _trigger_spec(config)
    leftovers = trigger_spec.pop("leftovers", "carry")
    in_flight = trigger_spec.pop("in_flight", "finish")
    if jax.process_count() > 1:
        raise ValueError(
            f"mesh: delays, triggers and the log of a run live in one process and there are "
            f"{jax.process_count()}; start a single process"
        )
    delay = None if parts.spec(config.delay)["name"] == "none" else build_delay(config.delay)
    # What the clock would refuse is refused here too. On a mesh the exchange itself is what waits.
    _rule(config, delay or delays.deterministic(1.0), algorithm, seconds)
    trigger = parts.build("wait (mesh)", inject.TRIGGERS, trigger_spec)
    mini_batches, injector = config.mini_batches, None
    if parts.spec(config.wait)["name"] == "k_batch_sync":
        mini_batches = parts.spec(config.wait)["k"]  # one fast worker may push all of a batch
    costly = config.communication != 0
    if delay is not None or costly or trigger_spec["name"] not in ("barrier", "neighbour_barrier"):
        injector = inject.Injector(
            config.workers,
            mini_batches,
            config.seed,
            delay=delay,
            trigger=trigger,
            leftovers=leftovers,
            in_flight=in_flight,
            draw=config.draw,
            communication=seconds,
        )
    return mesh.mesh(
        algorithm,
        task.losses,
        task.train,
        sampler,
        workers=config.workers,
        mini_batches=mini_batches,
        injector=injector,
        rounds_per_dispatch=config.rounds_per_dispatch,
    )


TASKS = tasks.TASKS | sparse_tasks.TASKS
NETWORKS = {"network": cost.uniform_network, "link": cost.uniform_link}
# What it took to reach the target loss: field of the summary, column of the metrics.
TO_TARGET = {
    "seconds": "seconds",
    "updates": "update",
    "samples": "samples",
    "communication_seconds": "communication_seconds",
}
# Waiting rules that are a trigger which cuts what is under way: its name, what else is fixed.
AS_CUT = {
    "k_sync": ("quorum", {}),
    "k_batch_sync": ("quorum", {}),
    "anytime": ("deadline", {"leftovers": "drop"}),
}
DELAYS = delays.LAWS | processes.PROCESSES
WAITING_RULES = {**clock.RULES, "replay": replay_file}
RUNTIMES = {"simulate": _simulate, "mesh": _mesh}


@jax.jit
def _mean_and_spread(models):
    """(mean model, (1/n) sum_i ||x_i - mean||^2) of models with a leading worker axis."""
    mean = jax.tree.map(lambda a: a.mean(0), models)
    squares = jax.tree.map(lambda a, m: jnp.sum((a - m[None]) ** 2), models, mean)
    return mean, jax.tree.reduce(jnp.add, squares) / jax.tree.leaves(models)[0].shape[0]


def run(
    config: ConfigDict,
    workdir,
    *,
    overwrite: bool = False,
    on_record: Callable[[dict], None] = lambda record: None,
) -> dict:
    """Train one arm and return its summary; `workdir` gets config, metrics, summary, schedule.

    on_record: called with every metrics record as it is written.
    Raises ValueError, before anything is compiled or written, for a config that cannot run or a
    workdir that belongs to another config. An arm that has finished is not run again.
    """
    arm = prepare(config)
    with records.start(workdir, config, overwrite=overwrite) as recorder:
        if recorder.finished:
            return recorder.summary
        state = arm.runtime.start(arm.task.init(jax.random.key(config.seed)))
        training = _training(config, arm, recorder, on_record, state)
        request = next(training)
        while not isinstance(request, dict):
            request = training.send(arm.runtime.advance(*request))
        return request


def run_together(
    configs: Sequence[ConfigDict],
    workdirs: Sequence,
    *,
    overwrite: bool = False,
    on_record: Sequence[Callable[[dict], None]] | None = None,
) -> list[dict]:
    """Train arms that differ only in data as one compiled program; otherwise as `run` does.

    See `alike` for which arms these are. Times on the wall are those of all together.
    """
    arms = [prepare(config) for config in configs]
    tell = on_record or [lambda record: None] * len(arms)
    with contextlib.ExitStack() as opened:
        recorders = [
            opened.enter_context(records.start(workdir, config, overwrite=overwrite))
            for workdir, config in zip(workdirs, configs, strict=True)
        ]
        going = [r for r, recorder in enumerate(recorders) if not recorder.finished]
        summaries = {
            r: recorder.summary for r, recorder in enumerate(recorders) if recorder.finished
        }
        if going:
            together = batched.batched([arms[r].runtime for r in going])
            batch = together.start(
                [arms[r].task.init(jax.random.key(configs[r].seed)) for r in going]
            )
            trainings = [
                _training(configs[r], arms[r], recorders[r], tell[r], together.one(batch, n))
                for n, r in enumerate(going)
            ]
            requests = [next(training) for training in trainings]
            while any(not isinstance(request, dict) for request in requests):
                plans, seconds, updates = list(batch.plans), [0.0] * len(going), [0] * len(going)
                for n, request in enumerate(requests):
                    if not isinstance(request, dict):
                        state, seconds[n], updates[n] = request
                        plans[n] = state.plan  # it may have been told of the loss
                batch, rows = together.advance(batch._replace(plans=plans), seconds, updates)
                for n, request in enumerate(requests):
                    if not isinstance(request, dict):
                        requests[n] = trainings[n].send((together.one(batch, n), rows[n]))
            summaries |= dict(zip(going, requests, strict=True))
    return [summaries[r] for r in range(len(arms))]


def alike(config: ConfigDict) -> str | None:
    """What arms share that can train together: all but what is data to their program.

    Data are the seed, the learning rate, delays, budgets, and how many gradients a rule of
    `stragglers.events`, adaptive or not, waits for. None: an arm that runs alone.
    """
    if config.runtime != "simulate" or config.devices != 1:
        return None
    shared = config.to_dict()
    for name in (
        "name", "baseline", "seed", "delay", "draw", "communication", "seconds", "updates",
        "evaluate_every", "target_loss", "stop_at_target",
    ):  # fmt: skip
        del shared[name]
    shared["optimizer"] = {
        key: value for key, value in parts.spec(config.optimizer).items() if key != "learning_rate"
    }
    wait = parts.spec(config.wait)
    protocol = wait.get("protocol", wait["name"])  # AdaSync's, or the rule itself
    if protocol in clock.PROTOCOLS:
        wait = protocol.rpartition("_")[2]  # sync or async
    shared["wait"] = wait
    return json.dumps(shared, sort_keys=True, default=str)


def _training(
    config: ConfigDict, arm: Prepared, recorder: records.Recorder, on_record, state
) -> Generator[tuple | dict, tuple, None]:
    """Train from `state`: asks for (state, seconds, updates) and is sent (state, schedule or None).

    What it yields last is the summary.
    """
    began = time.monotonic()
    task, runtime = arm.task, arm.runtime
    history: list[Schedule] = []
    sent = communicated = 0.0

    def method_metrics() -> dict:
        if arm.algorithm.metrics is None:
            return {}
        told = jax.device_get(arm.algorithm.metrics(runtime.memory(state)))
        return {name: float(value) for name, value in told.items()}

    def record(seconds: float, updates: int, samples: int) -> dict:
        mean, distance = jax.device_get(_mean_and_spread(runtime.models(state)))
        entry = {
            "update": updates,
            "samples": samples,
            "seconds": seconds,
            **tasks.evaluate(task, mean),
            "consensus_distance": float(distance),
            "bytes_per_worker": sent,
            "communication_seconds": communicated,
            **method_metrics(),
            "wall_seconds": time.monotonic() - began,
        }
        recorder.append(entry)
        on_record(entry)
        return entry

    last = record(0.0, 0, 0)
    state = runtime.observe(state, 0.0, last["train_loss"])
    steps = math.ceil(config.seconds / config.evaluate_every)
    for step in range(1, steps + 1):
        until = min(step * config.evaluate_every, config.seconds)
        state, schedule = yield state, until, config.updates - state.update
        if schedule is None and runtime.clock == "wall":
            continue  # the last dispatch has run past this evaluation already
        if schedule is not None:
            history.append(schedule)
            sent += float(arm.algorithm.wire_bytes(arm.shapes, schedule).sum())
            communicated += float(schedule.communication.sum()) / config.workers
        seconds = until if runtime.clock == "virtual" else state.seconds
        if schedule is not None and state.update >= config.updates:
            seconds = float(schedule.time[-1])  # the budget of updates ended before `until`
        # Asked before the rule is told of the loss, when it forgets what it had planned.
        ended = schedule is None and runtime.clock == "virtual" and state.exhausted
        last = record(seconds, state.update, state.samples)
        state = runtime.observe(state, seconds, last["train_loss"])
        if state.update >= config.updates or not math.isfinite(last["train_loss"]):
            break
        reached = config.target_loss is not None and last["train_loss"] <= config.target_loss
        if config.stop_at_target and reached:
            break
        if ended:
            break  # a replayed schedule has come to its end
    schedule = concatenate(history) if history else None
    if schedule is not None:
        schedule.save(recorder.workdir / records.SCHEDULE)
    metrics = records.read_metrics(recorder.workdir)
    summary = {
        "name": config.name,
        "baseline": config.baseline,
        "algorithm": parts.spec(config.algorithm)["name"],
        "wait": parts.spec(config.wait)["name"],
        "runtime": config.runtime,
        "workers": config.workers,
        "seed": config.seed,
        "clock": runtime.clock,
        "target_loss": config.target_loss,
        **{
            f"{name}_to_target": records.at_target(metrics, config.target_loss, column)
            for name, column in TO_TARGET.items()
        },
        "updates": last["update"],
        **{k: v for k, v in last.items() if k != "update"},
        **_worker_accuracy(task, runtime.models(state)),
        "final_train_loss": _tail_mean([entry["train_loss"] for entry in metrics]),
        "idle_fraction": None if schedule is None else schedule.idle_fraction,
        "staleness_mean": None if schedule is None else schedule.mean_staleness,
        "wall_seconds": time.monotonic() - began,
    }
    yield recorder.finish(summary)


def _tail_mean(losses: list[float | None]) -> float | None:
    """The mean over the last tenth of the evaluations, as a single one is noisy."""
    tail = losses[-max(1, len(losses) // 10) :]
    return None if None in tail else float(np.mean(tail))


def _worker_accuracy(task: tasks.Task, models) -> dict:
    """The spread over workers: test accuracy of the worst and the best single model."""
    if task.correct is None:
        return {}

    @jax.jit
    def accuracies(models, examples):
        return jax.lax.map(lambda params: task.correct(params, examples).mean(), models)

    values = np.asarray(accuracies(models, jax.tree.map(jnp.asarray, task.test)))
    return {
        "test_accuracy_worst_worker": float(values.min()),
        "test_accuracy_best_worker": float(values.max()),
    }
