"""The parts of one arm, built from its config and checked before anything is compiled."""

import functools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from flax.errors import FlaxError
from ml_collections import ConfigDict

from algorithms import ALGORITHMS, REDUCERS, Algorithm
from algorithms.compression import Reducer
from comms import cost, messages, mixing, topology
from experiments import (
    entries,
    initial,
    limits,
    optimizers,
    parts,
    places,
    profiling,
    tasks,
    texts,
    waiting,
)
from experiments.kinds import Kind
from experiments.tasks import Task, data, modules, sampling
from runtimes import worker
from runtimes.base import Runtime
from stragglers import delays, processes
from stragglers.rule import Cost, Rule, most_mini_batches


class Prepared(NamedTuple):
    """The parts of one run, all checked, nothing compiled."""

    task: Task
    algorithm: Algorithm
    shapes: Any  # of the parameters
    runtime: Runtime
    exchange: Cost  # what a round's exchange takes
    decided: Mapping[str, Any] = MappingProxyType({})  # parameters that a gradient has decided


def prepare(config: ConfigDict, task: Task | None = None, *, settled: bool = False) -> Prepared:
    """Build and check every part of an arm; raises ValueError before anything is compiled.

    task: what has been built of the same `config.task` for another arm, with which this one then
    shares what is compiled. settled: run the model for a profile that is to be measured, and for
    parameters that the method leaves to a gradient (`Algorithm.decide`); else the times of such a
    profile have no meaning, and such a method cannot run.
    """
    config = to_the_end(config, task)
    entries.check_arm(config)
    if config.runtime not in places.RUNTIMES:
        raise ValueError(
            f"runtime: unknown name {config.runtime!r}; "
            f"{texts.meant(config.runtime, places.RUNTIMES)}known names: "
            f"{', '.join(places.RUNTIMES)}"
        )
    graph = _graph(config)
    task, shapes = _task(config, task)
    shards = SPLIT.build(config.split, labels=task.labels, workers=config.workers, seed=config.seed)
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    algorithm = _algorithm(config, task, shapes, graph, settled)
    decided: dict[str, Any] = {}
    if settled and algorithm.decide is not None:
        decided = algorithm.decide(first_gradient(config, task, sampler))
        decidedly = parts.spec(config.algorithm) | decided
        config = parts.canonical(ConfigDict(config.to_dict() | {"algorithm": decidedly}))
        algorithm = _algorithm(config, task, shapes, graph, settled)
    exchange = _exchange(config, algorithm, shapes)
    _check_memory(config, algorithm, shapes)
    delay = waiting.own_delay(config)
    rule = places.decided(config, algorithm, shapes, exchange, delay)
    entries_of_worker = config.to_dict() | {"initial": None}  # it gets its parameters sent
    again = functools.partial(_runtime_again, json.dumps(entries_of_worker))
    runtime = places.build(config, task, algorithm, sampler, rule, delay, exchange, again)
    if METHOD.wants(config.algorithm, "profile"):
        profiling.check(config)
    return Prepared(task, algorithm, shapes, runtime, exchange, decided)


def to_the_end(config: ConfigDict, task: Task | None = None) -> ConfigDict:
    """The config with a number of samples in each schedule of a rate that is to end with the run.

    They are the samples of all workers at the end of the budget, by the plan of the waiting rule;
    on a real clock, where no plan knows the seconds, after `updates`. task: as of `prepare`. Raises
    ValueError where no plan can tell.
    """
    config = parts.canonical(config)
    if not is_open(config):
        return config
    samples = _planned_samples(config, prepare(_with_ends(config, 1), task))
    return _with_ends(config, samples)


def is_open(config: ConfigDict) -> bool:
    """Return whether a schedule of a rate is to end with the run; config: a canonical one."""
    if not parts.is_part(config.get("optimizer")) or not parts.is_part(config.get("algorithm")):
        return False  # as `entries` will say
    return any(config[name].to_dict() != ended for name, ended in _ends(config, 1).items())


def _ends(config: ConfigDict, samples: int) -> dict[str, dict]:
    """The parts that have a rate, with schedules that end after `samples`."""
    algorithm = config.algorithm.to_dict()
    if parts.is_part(algorithm.get("server")) and METHOD.wants(algorithm, "server"):
        algorithm["server"] = optimizers.to_the_end(algorithm["server"], samples)
    return {
        "algorithm": algorithm, "optimizer": optimizers.to_the_end(config.optimizer, samples)
    }  # fmt: skip


def _with_ends(config: ConfigDict, samples: int) -> ConfigDict:
    return parts.canonical(ConfigDict(config.to_dict() | _ends(config, samples)))


def _planned_samples(config: ConfigDict, made: Prepared) -> int:
    planned, seconds = rule(config, made), float(config.seconds)
    way = "give the schedule its end, as in cosine(samples=100000)"
    if planned.observe is not None:
        raise ValueError(
            f"optimizer: {config.wait.name} follows the training loss, so that nobody knows how "
            f"many samples come until the end of the run; {way}"
        )
    if made.runtime.clock == "wall":
        if config.updates >= FARTHEST:
            raise ValueError(
                "optimizer: on a real clock nobody knows how many samples come in config.seconds; "
                f"set config.updates, or {way}"
            )
        seconds = np.inf
    state, batches, left = planned.init(), 0, config.updates
    while left > 0:
        state, schedule = planned.extend(state, min(left, AT_ONCE))
        within = schedule.time <= seconds
        batches += int(schedule.batches[within].sum())
        left = left - len(within) if len(within) and within.all() else 0  # a replay may end
    return max(1, batches) * config.batch_size


FARTHEST = 1_000_000  # updates, as many as a config has that says nothing of them
AT_ONCE = 4096  # updates that are planned at once


def _graph(config: ConfigDict) -> nx.Graph | None:
    if not METHOD.wants(config.algorithm, "graph"):
        return None
    graph = GRAPH.build(config.graph, n=config.workers)
    topology.check(graph, config.workers, f"graph {parts.text(config.graph)!r}")
    return graph


def build_task(config: ConfigDict) -> Task:
    """The task of a config, within the memory that is free."""
    with limits.rationed():
        return tasks.TASK.build(config.task)


def _task(config: ConfigDict, task: Task | None) -> tuple[Task, Any]:
    """The task, with the initial parameters of the config, and the shapes of its parameters."""
    task = task or build_task(config)
    if isinstance(task.init, initial.Given):  # of another arm
        task = task._replace(init=task.init.own)
    shapes = _shapes(config, task)
    if config.get("initial") is not None:
        task = task._replace(init=initial.Given(task.init, initial.read(config.initial, shapes)))
    return task, shapes


def _algorithm(
    config: ConfigDict, task: Task, shapes: Any, graph: nx.Graph | None, settled: bool
) -> Algorithm:
    offered = {} if config.get("buckets") is None else {"buckets": config.buckets}
    if METHOD.wants(config.algorithm, "profile"):
        offered["profile"] = profiling.for_config(config, task, measured=settled)
    algorithm = METHOD.build(
        _with_built_parts(config.algorithm, config.seed, graph),
        optimizer=optimizers.build(config.optimizer),
        graph=graph,
        workers=config.workers,
        seed=config.seed,
        sparse=task.sparse,
        **offered,
    )
    # A method may refuse a model when it sees the parameters.
    jax.eval_shape(functools.partial(worker.init, algorithm), shapes)
    return algorithm


def _check_memory(config: ConfigDict, algorithm: Algorithm, shapes: Any) -> None:
    """Raise ValueError where models, or one worker's mini-batches, cannot fit into memory."""
    held = cost.payload_bytes(shapes)
    if algorithm.own_models:
        held *= config.workers  # a model each
    whose = f"of {config.workers} workers with one each" if algorithm.own_models else "of all"
    limits.check_memory(held, f"the model {whose}", "choose a smaller one, or fewer workers")
    # The indices of its samples, before the samples themselves are looked up.
    indices = 4.0 * config.batch_size * int(np.max(config.mini_batches))
    limits.check_memory(
        indices,
        f"a round of a worker, with batch_size={config.batch_size} and mini_batches="
        f"{int(np.max(config.mini_batches))},",
        "lower one of them",
    )


def first_gradient(config: ConfigDict, task: Task, sampler: sampling.Sampler) -> Any:
    """Magnitudes of the first update's gradients, summed over all workers and mini-batches.

    NumPy arrays in the shapes of the parameters: zero where nobody's gradient is anything else.
    """
    params = task.init(jax.random.key(config.seed))
    losses = tasks.first_draw(task)

    @jax.jit
    def added(total, params, examples):
        gradient = jax.grad(lambda p: losses(p, examples).mean())(params)
        return jax.tree.map(lambda a, b: a + jnp.abs(b), total, gradient)

    total = jax.tree.map(jnp.zeros_like, params)
    for member in range(config.workers):
        for counter in range(most_mini_batches(config.mini_batches)):
            indices = np.asarray(sampler.indices(np.int32(member), counter))
            examples = jax.tree.map(jnp.asarray, tasks.take(task.train, indices))
            total = added(total, params, examples)
    return jax.tree.map(np.asarray, total)


def _shapes(config: ConfigDict, task: Task) -> Any:
    """The shapes of the parameters, which no seed changes, of a task that can be trained."""
    who = f"task {parts.text(config.task)!r}"
    checked = [id(field) for field in task]
    if _CHECKED and _CHECKED[0] == checked:
        return _CHECKED[1]
    try:
        shapes = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    except modules.Refused as error:
        raise ValueError(f"{who}: {error}") from error
    except Exception as error:  # a model is code and can raise anything
        said = str(error) if isinstance(error, _PLAIN) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{who}: the model cannot be built ({said}); correct its layers or sizes"
        ) from error
    try:
        tasks.check(task, shapes)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error
    _CHECKED[:] = checked, shapes, (task.init, task.losses)  # which keeps their ids theirs
    return shapes


_PLAIN = (TypeError, ValueError, ArithmeticError, FlaxError)  # whose texts say what is wrong
_CHECKED: list[Any] = []  # of the last task: the arms of a sweep share it


def build_reducer(part, seed: int) -> Reducer:
    """The reducer that a part describes, with the reducers that it is made of."""
    spec = parts.spec(part)
    if "*" in spec:
        spec["*"] = [build_reducer(inner, seed) for inner in spec["*"]]
    return REDUCER.build(spec, seed=seed)


def _with_built_parts(algorithm, seed: int, graph: nx.Graph | None) -> dict:
    """The part of an algorithm in which parts that it holds are what they describe."""
    spec = parts.spec(algorithm)
    if spec.get("exchange") is not None and METHOD.wants(spec, "exchange"):
        spec["exchange"] = build_reducer(spec["exchange"], seed)
    if spec.get("server") is not None and METHOD.wants(spec, "server"):
        spec["server"] = optimizers.build(spec["server"], "algorithm.server")
    W = spec.get("mixing_matrix")
    described = parts.is_part(W) and not (isinstance(W, str) and W in mixing.MIXINGS)
    if described and METHOD.wants(spec, "mixing_matrix"):
        spec["mixing_matrix"] = MIXING.build(W, graph=graph)
    return spec


def _runtime_again(text: str) -> Runtime:
    """The runtime of a config as JSON, in another process."""
    return prepare(ConfigDict(json.loads(text)), settled=True).runtime


def alike(config: ConfigDict) -> str | None:
    """What arms share that can train together: all but what is data to their program.

    Data are the learning rate, delays, budgets, what a waiting rule lists as `data`, and the seed,
    unless the method draws by itself. None: an arm that runs alone.
    """
    config = parts.canonical(config)
    place = places.RUNTIMES.get(config.runtime)
    if place is None or not place.together or config.devices != 1 or tasks.streams(config.task):
        return None
    shared = config.to_dict()
    shared.pop("initial", None)
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
        rule = waiting.rule(config, delays.deterministic(1.0), 0.0)
    except ValueError:  # it needs the graph of a method, and shares with nobody but itself
        return [spec]
    return [rule.asynchronous, {key: spec[key] for key in spec if key not in rule.data}]


def network(config: ConfigDict, shapes) -> cost.Network:
    """The network that `communication` describes, for a model of these shapes."""
    return NETWORK.build(
        config.communication, workers=config.workers, payload=cost.payload_bytes(shapes)
    )


def _exchange(config, algorithm, shapes) -> Cost:
    """What a round's exchange costs: seconds from the config, or on its network."""
    if entries.is_number(config.communication):
        return messages.lasting(algorithm, shapes, config.workers, config.communication)
    return messages.exchange_transfers(algorithm, shapes, config.workers, network(config, shapes))


def rule(
    config: ConfigDict, prepared: Prepared, delay: delays.Law | processes.Process | None = None
) -> Rule:
    """The waiting rule of an arm, with another delay than the config's if one is given."""
    config = parts.canonical(config)
    if delay is None:
        delay = waiting.own_delay(config) or waiting.ANY_SPEED
    algorithm = prepared.algorithm
    return waiting.rule(config, delay, prepared.exchange, algorithm.graph, algorithm.links)


NETWORKS = {
    "network": cost.uniform_network,
    "link": cost.uniform_link,
    "measured": cost.measured_network,
}
METHOD = Kind(
    "algorithm",
    ALGORITHMS,
    Algorithm,
    ("optimizer", "graph", "workers", "seed", "sparse", "profile"),
)
REDUCER = Kind("exchange", REDUCERS, Reducer, ("seed",))
MIXING = Kind("mixing_matrix", mixing.MIXINGS | {"weights": mixing.weights}, np.ndarray, ("graph",))
GRAPH = Kind("graph", topology.GRAPHS, nx.Graph, ("n",))
SPLIT = Kind("split", data.SPLITS, list, ("labels", "workers", "seed"))
NETWORK = Kind("communication", NETWORKS, cost.Network, ("workers", "payload"))
