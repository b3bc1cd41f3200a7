"""The parts of one arm, built from its config and checked before anything is compiled."""

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import networkx as nx
from ml_collections import ConfigDict

from algorithms import ALGORITHMS, Algorithm
from algorithms.compression import Reducer
from algorithms.reducers import REDUCERS
from comms import cost, messages, topology
from experiments import entries, limits, optimizers, parts, profiling, ranges, tasks
from experiments.kinds import Kind
from experiments.shared_tally import SharedTally
from experiments.tasks import Task, data, sampling
from runtimes import (
    actors,
    crew,
    free_worker,
    meetings,
    mesh,
    peers,
    serving,
    simulate,
    worker,
)
from runtimes.base import Runtime
from stragglers import delays, inject, processes, rules
from stragglers.rule import Cost, Rule, Setting, Trigger, most_mini_batches
from stragglers.rules import RULES


class Prepared(NamedTuple):
    """The parts of one run, all checked, nothing compiled."""

    task: Task
    algorithm: Algorithm
    shapes: Any  # of the parameters
    runtime: Runtime
    exchange: Cost  # what a round's exchange takes


ANY_SPEED = delays.uniform(0.0, 1.0)  # of devices that take as long as they take


class Place(NamedTuple):
    """A runtime that configs can name."""

    build: Callable[..., Any]  # (config, task, algorithm, sampler, cost of an exchange)
    devices: Callable[[ConfigDict], int]  # how many a run wants
    together: bool = False  # runs that differ only in data can be one program
    cluster: bool = False  # its workers are processes, which may live on a cluster


def prepare(config: ConfigDict) -> Prepared:
    """Build and check every part of an arm; raises ValueError before anything is compiled.

    Only a profile that the config wants measured takes running the model.
    """
    config = parts.canonical(config)
    entries.check_arm(config)
    if config.runtime not in RUNTIMES:
        raise ValueError(
            f"runtime: unknown name {config.runtime!r}; known names: {', '.join(RUNTIMES)}"
        )
    graph = None
    if METHOD.wants(config.algorithm, "graph"):
        graph = GRAPH.build(config.graph, n=config.workers)
        if graph.number_of_nodes() != config.workers:
            raise ValueError(
                f"graph {parts.text(config.graph)!r} has {graph.number_of_nodes()} nodes but there "
                f"are {config.workers} workers; set config.workers={graph.number_of_nodes()}"
            )
    with limits.rationed():
        task = tasks.TASK.build(config.task)
    try:
        shapes = jax.eval_shape(lambda: task.init(jax.random.key(config.seed)))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"task {parts.text(config.task)!r}: the model cannot be built ({error}); "
            "correct its sizes"
        ) from error
    shards = SPLIT.build(config.split, labels=task.labels, workers=config.workers, seed=config.seed)
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)

    def assembled(**profile) -> Prepared:
        algorithm = METHOD.build(
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
        exchange = _exchange(config, algorithm, shapes)
        ranges.check_memory(config, algorithm, shapes)
        runtime = RUNTIMES[config.runtime].build(config, task, algorithm, sampler, exchange)
        return Prepared(task, algorithm, shapes, runtime, exchange)

    if not METHOD.wants(config.algorithm, "profile"):
        return assembled()
    if profiling.measures(config):  # not before all else is known to fit
        assembled(profile=profiling.unmeasured(config, task))
    return assembled(profile=profiling.for_config(config, task))


def build_reducer(part, seed: int) -> Reducer:
    """The reducer that a part describes, with the reducers that it is made of."""
    spec = parts.spec(part)
    if "*" in spec:
        spec["*"] = [build_reducer(inner, seed) for inner in spec["*"]]
    return REDUCER.build(spec, seed=seed)


def _with_built_parts(algorithm, seed: int) -> dict:
    """The part of an algorithm in which parts that it holds are what they describe."""
    spec = parts.spec(algorithm)
    if spec.get("exchange") is not None and METHOD.wants(spec, "exchange"):
        spec["exchange"] = build_reducer(spec["exchange"], seed)
    if spec.get("server") is not None and METHOD.wants(spec, "server"):
        spec["server"] = optimizers.build(spec["server"], "algorithm.server")
    return spec


def build_delay(part) -> delays.Law | processes.Process:
    """The law or process of delays that a part describes; its `law` may be a part itself."""
    spec = parts.spec(part)
    if "law" in spec:
        spec["law"] = build_delay(spec["law"])
    return DELAY.build(spec)


def alike(config: ConfigDict) -> str | None:
    """What arms share that can train together: all but what is data to their program.

    Data are the learning rate, delays, budgets, what a waiting rule lists as `data`, and the seed,
    unless the method draws by itself. None: an arm that runs alone.
    """
    config = parts.canonical(config)
    place = RUNTIMES.get(config.runtime)
    if place is None or not place.together or config.devices != 1:
        return None
    shared = config.to_dict()
    for name in (
        "name", "baseline", "delay", "draw", "communication", "seconds", "updates",
        "evaluate_every", "target_loss", "stop_at_target",
    ):  # fmt: skip
        del shared[name]
    drawing = "exchange" in config.algorithm  # a reducer that may draw by itself
    if not (drawing or METHOD.wants(config.algorithm, "seed")):
        del shared["seed"]  # else a constant of the program, as of which hashes sketch
    if optimizers.rate_is_data(config.optimizer):
        del shared["optimizer"]["learning_rate"]
    shared["wait"] = _constants(config)
    return json.dumps(shared, sort_keys=True, default=str)


def _constants(config: ConfigDict) -> list:
    """What of the waiting rule is a constant of a compiled program."""
    spec = config.wait.to_dict()
    try:
        rule = _rule(config, delays.deterministic(1.0), 0.0)
    except ValueError:  # it needs the graph of a method, and shares with nobody but itself
        return [spec]
    return [rule.asynchronous, {key: spec[key] for key in spec if key not in rule.data}]


def devices(config: ConfigDict) -> int:
    """How many devices a run of this config wants; 1 for a runtime that does not exist."""
    return RUNTIMES[config.runtime].devices(config) if config.runtime in RUNTIMES else 1


def network(config: ConfigDict, shapes) -> cost.Network:
    """The network that `communication` describes, for a model of these shapes."""
    return NETWORK.build(
        config.communication, workers=config.workers, payload=cost.payload_bytes(shapes)
    )


def _exchange(config, algorithm, shapes) -> Cost:
    """What a round's exchange costs: the number of seconds in the config, or those of a network."""
    if entries.is_number(config.communication):
        return messages.lasting(algorithm, shapes, config.workers, config.communication)
    return messages.exchange_transfers(algorithm, shapes, config.workers, network(config, shapes))


def rule(
    config: ConfigDict, prepared: Prepared, delay: delays.Law | processes.Process | None = None
) -> Rule:
    """The waiting rule of an arm, with another delay than the config's if one is given."""
    config = parts.canonical(config)
    if delay is None:
        own = config.delay.name == NO_DELAY
        delay = ANY_SPEED if own else build_delay(config.delay)
    algorithm = prepared.algorithm
    return _rule(config, delay, prepared.exchange, algorithm.graph, algorithm.links)


def _rule(config, delay, communication, graph=None, links=None) -> Rule:
    ranges.check_delay(config, processes.as_process(delay))
    setting = Setting(
        delay,
        config.workers,
        config.mini_batches,
        config.seed,
        graph=graph,
        links=links,
        communication=communication,
        draw=config.draw,
    )
    return RULE.build(config.wait, setting=setting)


def _simulate(config, task, algorithm, sampler, communication):
    if jax.process_count() > 1:
        raise ValueError(
            f"simulate: its workers live in one process, and there are {jax.process_count()}; use "
            "runtime='mesh', or start a single process"
        )
    return simulate.Simulator(
        algorithm,
        task.losses,
        task.train,
        sampler,
        _rule(config, build_delay(config.delay), communication, algorithm.graph, algorithm.links),
        mini_batches=most_mini_batches(config.mini_batches),
        devices=config.devices,
    )


def _mesh(config, task, algorithm, sampler, communication):
    mesh.check_devices(config.workers)
    delay = None if config.delay.name == NO_DELAY else build_delay(config.delay)
    rule = _rule(
        config,
        delay or ANY_SPEED,
        communication,
        algorithm.graph,
        algorithm.links,
    )
    trigger = _trigger(config, algorithm, rule)
    watched = delay is not None or config.communication != 0 or trigger.stops
    return mesh.Mesh(
        algorithm,
        task.losses,
        task.train,
        sampler,
        workers=config.workers,
        mini_batches=most_mini_batches(trigger.mini_batches),
        injector=inject.Injector(
            config.workers,
            trigger,
            config.seed,
            delay=delay,
            draw=config.draw,
            communication=communication,
            tally=SharedTally() if jax.process_count() > 1 else None,
        )
        if watched
        else None,
        rounds_per_dispatch=config.rounds_per_dispatch,
    )


def _actors(config, task, algorithm, sampler, communication):
    del communication
    if jax.process_count() > 1:
        raise ValueError(
            f"actors: the launching process starts its workers by itself, and there are "
            f"{jax.process_count()}; start a single one"
        )
    if not entries.is_number(config.communication):
        raise ValueError(
            f"actors: config.communication={parts.text(config.communication)!r} models a network, "
            "and the links between processes are real; set it to a number of seconds that "
            "contributions take longer"
        )
    chosen = config.get("actors")
    entries.check(config, () if chosen is None else ACTORS)
    chosen = chosen or {}
    delay = None if config.delay.name == NO_DELAY else build_delay(config.delay)
    rule = _rule(config, delay or ANY_SPEED, config.communication, algorithm.graph, algorithm.links)
    if rule.arrivals is None:
        known = rules.showing(lambda rule: rule.arrivals is not None)
        raise ValueError(
            f"actors: its workers move freely, which {config.wait.name!r} does not; use "
            f"runtime='mesh', or one of {', '.join(known)}"
        )
    parts_of_worker = free_worker.Parts(
        algorithm,
        task.losses,
        task.train,
        sampler,
        most_mini_batches(config.mini_batches),
        None if delay is None else processes.as_process(delay).seeded(config.seed),
        float(config.communication),
    )
    resources = crew.Resources(chosen.get("cpus", 1.0), chosen.get("gpus", 0.0))
    options = serving.Options(
        resources,
        chosen.get("least_workers", 1),
        chosen.get("bad_contribution", "end") == "drop",
    )
    recipe = functools.partial(parts_in_process, json.dumps(config.to_dict()))
    if algorithm.server is None:
        parts_of_node = peers.PeerParts(parts_of_worker, rule, options.drops)
        return meetings.Meetings(parts_of_node, recipe, options)
    return actors.Actors(parts_of_worker, recipe, rule, options)


def parts_in_process(text: str) -> free_worker.Parts | peers.PeerParts:
    """The parts of a worker, built in its own process from the config of its run as JSON."""
    return prepare(ConfigDict(json.loads(text))).runtime.parts


def _trigger(config, algorithm, rule: Rule) -> Trigger:
    """The trigger of a rule, where devices can keep it; else ValueError."""
    name, trigger = config.wait.name, rule.trigger
    if trigger is None:
        known = rules.showing(lambda rule: rule.trigger is not None)
        raise ValueError(
            f"mesh: its devices move in rounds, which {name!r} does not or not with a trigger; use "
            f"runtime='simulate', or one of {', '.join(known)}"
        )
    if jax.process_count() > 1 and trigger.stop is not None and trigger.sees_all:
        known = rules.showing(lambda rule: rule.trigger is not None and not rule.trigger.sees_all)
        raise ValueError(
            f"mesh: {name!r} looks at single workers of all {jax.process_count()} processes, of "
            "which a round only knows a sum of points; use a single process, or one of "
            f"{', '.join(known)}"
        )
    several = trigger.whole is not None and (trigger.mini_batches > trigger.whole).any()
    if several and algorithm.work is not None:
        raise ValueError(
            f"mesh: under {name!r} a worker may make several contributions in a round, and local "
            "steps of the second would begin where the first ended; use runtime='simulate', "
            "k_sync, or a method without local steps"
        )
    return trigger


NETWORKS = {"network": cost.uniform_network, "link": cost.uniform_link}
DELAYS = delays.LAWS | processes.PROCESSES
NO_DELAY = "none"  # of a mesh: its devices take as long as they take
METHOD = Kind(
    "algorithm",
    ALGORITHMS,
    Algorithm,
    ("optimizer", "graph", "workers", "seed", "sparse", "profile"),
)
REDUCER = Kind("exchange", REDUCERS, Reducer, ("seed",))
RULE = Kind("wait", RULES, Rule, ("setting",))
DELAY = Kind("delay", DELAYS, (delays.Law, processes.Process))
GRAPH = Kind("graph", topology.GRAPHS, nx.Graph, ("n",))
SPLIT = Kind("split", data.SPLITS, list, ("labels", "workers", "seed"))
NETWORK = Kind("communication", NETWORKS, cost.Network, ("workers", "payload"))
RUNTIMES = {
    "simulate": Place(_simulate, devices=lambda config: config.devices, together=True),
    "mesh": Place(_mesh, devices=lambda config: config.workers),
    "actors": Place(_actors, devices=lambda config: 1, cluster=True),
}
# Of config.actors, which a config may leave out.
ACTORS: entries.Entries = (
    ("a number of CPUs, 0 or more", lambda v: entries.is_number(v) and 0 <= v < 1e6,
     ("actors.cpus",)),
    ("a share of a GPU, or a number of them", lambda v: entries.is_number(v) and 0 <= v < 1e6,
     ("actors.gpus",)),
    ("a positive whole number", entries.is_count, ("actors.least_workers",)),
    ("'end' or 'drop'", lambda v: v in ("end", "drop"), ("actors.bad_contribution",)),
)  # fmt: skip
