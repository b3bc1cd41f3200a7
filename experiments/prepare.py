"""The parts of one arm, built from its config and checked before anything is compiled."""

import functools
import json
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from algorithms import ALGORITHMS, Algorithm
from algorithms.compression import Reducer
from algorithms.reducers import REDUCERS
from comms import cost, messages, topology
from experiments import data, optimizers, parts, profiling, sampling, sparse_tasks, tasks
from runtimes import mesh, simulate, worker
from stragglers import clock, delays, inject, processes
from stragglers.replay import replay_file


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
    shards = parts.build(
        "split", data.SPLITS, config.split, labels=task.labels, workers=config.workers,
        seed=config.seed,
    )  # fmt: skip
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)

    def assembled(**profile) -> Prepared:
        algorithm = parts.build(
            "algorithm",
            ALGORITHMS,
            _with_built_parts(config.algorithm, config.seed),
            optimizer=optimizers.build(config.optimizer),
            graph=graph,
            workers=config.workers,
            seed=config.seed,
            sparse=task.sparse,
            # Entries that other configs lack.
            **({} if config.get("buckets") is None else {"buckets": config.buckets}),
            **profile,
        )
        # A method may refuse a model when it sees the parameters.
        jax.eval_shape(functools.partial(worker.init, algorithm), shapes)
        seconds = _exchange_seconds(config, algorithm, shapes)
        runtime = RUNTIMES[config.runtime](config, task, algorithm, sampler, seconds)
        return Prepared(task, algorithm, shapes, runtime)

    if not parts.wants(ALGORITHMS, config.algorithm, "profile"):
        return assembled()
    if profiling.measures(config):  # not before all else is known to fit
        assembled(profile=profiling.unmeasured(config, task))
    return assembled(profile=profiling.for_config(config, task))


def build_reducer(part, seed: int) -> Reducer:
    """The reducer that a part describes, with the reducers that it is made of."""
    spec = parts.spec(part)
    if "*" in spec:
        spec["*"] = [build_reducer(inner, seed) for inner in spec["*"]]
    return parts.build("exchange", REDUCERS, spec, seed=seed)


def _with_built_parts(algorithm, seed: int) -> dict:
    """The part of an algorithm in which parts that it holds are what they describe."""
    spec = parts.spec(algorithm)
    if spec.get("exchange") is not None and parts.wants(ALGORITHMS, spec, "exchange"):
        spec["exchange"] = build_reducer(spec["exchange"], seed)
    if spec.get("server") is not None and parts.wants(ALGORITHMS, spec, "server"):
        spec["server"] = optimizers.build(spec["server"], "algorithm.server")
    return spec


def build_delay(part) -> delays.Law | processes.Process:
    """The law or process of delays that a part describes; its `law` may be a part itself."""
    spec = parts.spec(part)
    if "law" in spec:
        spec["law"] = build_delay(spec["law"])
    return parts.build("delay", DELAYS, spec)


def alike(config: ConfigDict) -> str | None:
    """What arms share that can train together: all but what is data to their program.

    Data are the learning rate, delays, budgets, how many gradients a rule of `stragglers.events`,
    adaptive or not, waits for, and the seed, unless the method draws by itself. None: an arm that
    runs alone.
    """
    if config.runtime != "simulate" or config.devices != 1:
        return None
    shared = config.to_dict()
    for name in (
        "name", "baseline", "delay", "draw", "communication", "seconds", "updates",
        "evaluate_every", "target_loss", "stop_at_target",
    ):  # fmt: skip
        del shared[name]
    drawing = "exchange" in parts.spec(config.algorithm)  # a reducer that may draw by itself
    if not (drawing or parts.wants(ALGORITHMS, config.algorithm, "seed")):
        del shared["seed"]  # else a constant of the program, as of which hashes sketch
    shared["optimizer"] = {
        key: value for key, value in parts.spec(config.optimizer).items() if key != "learning_rate"
    }
    wait = parts.spec(config.wait)
    protocol = wait.get("protocol", wait["name"])  # AdaSync's, or the rule itself
    if protocol in clock.PROTOCOLS:
        wait = protocol.rpartition("_")[2]  # sync or async
    shared["wait"] = wait
    return json.dumps(shared, sort_keys=True, default=str)


def network(config: ConfigDict, shapes) -> cost.Network:
    """The network that `communication` describes, for a model of these shapes."""
    return parts.build(
        "communication",
        NETWORKS,
        config.communication,
        workers=config.workers,
        payload=cost.payload_bytes(shapes),
    )


def _exchange_seconds(config, algorithm, shapes):
    """Seconds of a round's exchange: a number, or round -> seconds on a network."""
    if parts.is_number(config.communication):
        return config.communication
    return messages.exchange_seconds(algorithm, shapes, config.workers, network(config, shapes))


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
    if jax.process_count() > 1:
        raise ValueError(
            f"simulate: its workers live in one process, and there are {jax.process_count()}; use "
            "runtime='mesh', or start a single process"
        )
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
    if jax.process_count() > 1 and trigger_spec["name"] not in inject.OWN_WORKERS:
        raise ValueError(
            f"mesh: {parts.spec(config.wait)['name']!r} has to see the workers of all "
            f"{jax.process_count()} processes at once, and delays and triggers live in each of "
            "them; use wait='barrier', 'neighbour_barrier' or 'deadline', or a single process"
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
# Waiting rules that are a trigger which cuts what is under way: its name, what else is fixed.
AS_CUT = {
    "k_sync": ("quorum", {}),
    "k_batch_sync": ("quorum", {}),
    "anytime": ("deadline", {"leftovers": "drop"}),
}
DELAYS = delays.LAWS | processes.PROCESSES
WAITING_RULES = {**clock.RULES, "replay": replay_file}
RUNTIMES = {"simulate": _simulate, "mesh": _mesh}
