"""One arm, assembled from its config and checked before anything is compiled."""

import contextlib
import functools
import inspect
import json
import resource
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
from flax.errors import FlaxError
from ml_collections import ConfigDict

from algorithms import ALGORITHMS
from algorithms.base import Algorithm
from comms import cost, messages, mixing, topology
from comms.registry import Registry
from experiments import initial, optimizers, registry, tasks
from experiments.registry import Kind
from experiments.runtime_builders import REDUCER, RUNTIMES, Delay, Place, Prepared, build
from experiments.tasks import Task, data, models, sampling
from runtimes import worker
from runtimes.data_feed import Streamed
from stragglers import delays, processes
from stragglers.rule import Cost, Exchange, Rule, Setting, Unfit, hides, most_mini_batches
from stragglers.rules import RULES, showing
from stragglers.schedule import Schedule, concatenate

NETWORKS = {
    "network": cost.uniform_network, "link": cost.uniform_link, "measured": cost.measured_network
}
DELAYS = delays.LAWS | processes.PROCESSES
METHOD = Kind(
    "algorithm",
    ALGORITHMS,
    Algorithm,
    ("optimizer", "graph", "workers", "seed", "sparse", "profile", "matching_seconds"),
)
MIXING = Kind("mixing_matrix", mixing.MIXINGS | {"weights": mixing.weights}, np.ndarray, ("graph",))
MIXED = (*mixing.MIXINGS,)  # matrices that methods know by name
GRAPH = Kind("graph", topology.GRAPHS, nx.Graph, ("n",))
SPLIT = Kind("split", data.SPLITS, list, ("labels", "workers", "seed"))
NETWORK = Kind("communication", NETWORKS, cost.Network, ("workers", "payload"))
SPELLS = Kind(
    "spells",
    Registry({n: f"stragglers.link_spells:{n}" for n in ("markov", "listed", "recorded")}),
    offered=("workers", "seed"),
)
DELAY = Kind("delay", DELAYS, (delays.Law, processes.Process), nested=("law",))
RULE = Kind("wait", RULES, Rule, ("setting",))
# Functions of a module that only arms with a profile import.
_OF_PROFILES = ("check", "for_config", "measures", "save")
PROFILING = Registry({name: f"experiments.profiling:{name}" for name in _OF_PROFILES})

FARTHEST = 1_000_000  # updates, the default of configs; it counts as no limit
AT_ONCE = 4096  # updates that are planned at once
AT_LEAST = 64  # updates planned at first for PILOTED mini-batches; then twice as many
NO_DELAY = "none"  # the delay of workers at their own speed
ALIKE = delays.deterministic(1.0)  # a delay for checks that depend on no times
ANY_SPEED = delays.uniform(0.0, 1.0)  # a delay in place of devices' own speed
SHORTEST_DELAY = 1e-9  # s
LOOKED_AT = 64  # mini-batches of a worker, for the usual time of one
COUNTED = 2**17  # mini-batches for which `kept` counts the kept shares
PILOT = 2**31  # a bit of the seed that differs in the plan for weights of samples
PILOTED = 2**15  # mini-batches of such a plan


def prepare(
    config: ConfigDict, task: Task | None = None, *, settled: bool = False, kept: Path | None = None
) -> Prepared:
    """Build and check every part of an arm; raises ValueError before anything is compiled.

    task: built from the same `config.task` for another arm, with which this one then shares
    compiled programs. settled: whether to run the model, which measures a profile and decides the
    parameters that a method leaves to a gradient (`Algorithm.decide`). If not, the profile's times
    have no meaning, and such a method cannot run. kept: file of the profile with which the run
    began; if it exists, no profile is measured.
    """
    config = registry.canonical(config)
    registry.check_arm(config)
    place, workers = place_of(config), config.workers
    graph, wanted = None, METHOD.opened(config.algorithm.get("name"))[1].keys()
    if "graph" in wanted:
        graph = GRAPH.build(config.graph, n=workers)
        topology.check(graph, workers, f"graph {registry.text(config.graph)!r}")
    else:  # else an unknown name would be in the records
        GRAPH.checked(registry.spec(config.graph), ("n",))
    task, shapes = _task(config, task)
    shards = SPLIT.build(config.split, labels=task.labels, workers=workers, seed=config.seed)
    data.check_split(config.split.name, shards, workers, len(task.labels))
    sampler = _sampler(config, task, shards)
    delay = _costed(own_delay(config), config, task, sampler)
    profile = None
    if "profile" in wanted:
        profile = PROFILING["for_config"](config, task, settled, kept)
    assembled = functools.partial(_algorithm, task, shapes, graph, wanted, profile)
    if is_open(config):  # its plan depends on no measured profile or gradient
        drafted = _changed(config, **_ends(config, 1))
        rule = _fitted(drafted, assembled(drafted), shapes, delay)[1]
        config = _changed(config, **_ends(config, _planned_samples(config, rule)))
    algorithm, decided = assembled(config), {}
    if settled and algorithm.decide is not None:
        decided = algorithm.decide(first_gradient(config, task, sampler))
        own = registry.spec(config.algorithm) | decided
        algorithm = assembled(_changed(config, algorithm=own))
    exchange, rule = _fitted(config, algorithm, shapes, delay)
    if config.get("sample_weight"):
        task = _weighted(config, task, sampler, algorithm, exchange, delay)
    made = Prepared(task, algorithm, shapes, sampler, rule, exchange, delay, config, decided)
    made = made._replace(runtime=build(made))
    if place.delayed and delay is None:
        build_delay(config.delay)  # refuses it, and names others
    if profile is not None:
        PROFILING["check"](config)
        made = made._replace(profile=profile if settled and PROFILING["measures"](config) else None)
    return made


class LastTask:
    """The task of the last arm, for arms with the same `config.task` after it."""

    _spec: Any = None
    _task: Task | None = None

    def prepare(self, config: ConfigDict, **how) -> Prepared:
        """Return the parts of an arm, and keep its task; how: see `prepare`."""
        if config.get("task") != self._spec:
            self._spec, self._task = None, None
        prepared = prepare(config, self._task, **how)
        self._spec, self._task = config.task, prepared.task
        return prepared


def place_of(config: ConfigDict) -> Place:
    """Return the runtime that a config names; ValueError for an unknown name."""
    if config.runtime not in RUNTIMES:
        raise ValueError(
            f"runtime: unknown name {config.runtime!r}; "
            f"{registry.meant(config.runtime, RUNTIMES)}known names: {', '.join(RUNTIMES)}"
        )
    return RUNTIMES[config.runtime]


def _fitted(
    config: ConfigDict, algorithm: Algorithm, shapes: Any, delay: Delay | None
) -> tuple[Cost, Rule]:
    """Return the cost of an arm's exchange, and its waiting rule.

    Raises ValueError if models, or a worker's sample indices of a round, exceed the free memory.
    """
    exchange = _exchange(config, algorithm, shapes)
    models, whose = 1, "of all"
    if algorithm.own_models:
        models, whose = config.workers, f"of {config.workers} workers with one each"
    held = models * cost.payload_bytes(shapes)
    check_memory(held, f"the model {whose}", "choose a smaller one, or fewer workers")
    # The indices of its samples, before the samples themselves are looked up.
    most = int(np.max(config.mini_batches))
    what = f"a round of a worker, with batch_size={config.batch_size} and mini_batches={most},"
    check_memory(4.0 * config.batch_size * most, what, "lower one of them")
    return exchange, fitting_rule(config, algorithm, shapes, exchange, delay)


def _changed(config: ConfigDict, **entries: Any) -> ConfigDict:
    return registry.canonical(ConfigDict(config.to_dict() | entries))


# --- schedules of a rate that end with the run ---


def to_the_end(config: ConfigDict) -> ConfigDict:
    """Return the config with a number of samples in each schedule that is to end with the run.

    The number is the samples of all workers that the waiting rule plans within the budget. On a
    real clock, whose seconds no plan knows, only `updates` limits the plan.
    Raises ValueError if no plan gives the number.
    """
    config = registry.canonical(config)
    return prepare(config).config if is_open(config) else config


def is_open(config: ConfigDict) -> bool:
    """Return whether a learning-rate schedule is to end with the run; config: canonical."""
    if not all(isinstance(config.get(name), ConfigDict) for name in ("optimizer", "algorithm")):
        return False  # as `registry.check_arm` will say
    return any(config[name].to_dict() != ended for name, ended in _ends(config, 1).items())


def _ends(config: ConfigDict, samples: int) -> dict[str, dict]:
    """Return the parts that have a rate, with schedules that end after `samples`."""
    algorithm = config.algorithm.to_dict()
    server = algorithm.get("server")
    if server is not None and registry.is_part(server) and METHOD.wants(algorithm, "server"):
        algorithm["server"] = optimizers.to_the_end(algorithm["server"], samples)
    return {"algorithm": algorithm, "optimizer": optimizers.to_the_end(config.optimizer, samples)}


def _planned_samples(config: ConfigDict, planned: Rule) -> int:
    seconds = float(config.seconds)
    way = "give the schedule its end, as in cosine(samples=100000)"
    if planned.observe is not None:
        raise ValueError(
            f"optimizer: {config.wait.name} follows the training loss, so that nobody knows how "
            f"many samples come until the end of the run; {way}"
        )
    if not RUNTIMES[config.runtime].delayed:
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


# --- the task and the method ---


def build_task(config: ConfigDict) -> Task:
    """Return the task of a config, within the memory that is free."""
    with rationed():
        return tasks.TASK.build(config.task)


def _task(config: ConfigDict, task: Task | None) -> tuple[Task, Any]:
    """Return the task, with the config's initial parameters, and the shapes of its parameters."""
    task = task or build_task(config)
    task = task.plain or task  # of another arm
    if isinstance(task.init, initial.Given):  # of another arm
        task = task._replace(init=task.init.own)
    shapes = _shapes(config, task)
    if config.get("initial") is not None:
        task = task._replace(init=initial.Given(task.init, initial.read(config.initial, shapes)))
    return task, shapes


def _shapes(config: ConfigDict, task: Task) -> Any:
    """Return the shapes of a task's parameters, which no seed changes; ValueError if bad."""
    checked = [id(field) for field in task]
    if _CHECKED and _CHECKED[0] == checked:
        return _CHECKED[1]
    try:
        shapes = _drawn_shapes(task)
        tasks.check(task, shapes)
    except ValueError as error:
        raise ValueError(f"task {registry.text(config.task)!r}: {error}") from error
    _CHECKED[:] = checked, shapes, (task.init, task.losses)  # kept alive: ids stay unique
    return shapes


def _drawn_shapes(task: Task) -> Any:
    try:
        return jax.eval_shape(lambda: task.init(jax.random.key(0)))
    except models.Refused:
        raise
    except Exception as error:  # a model is code and can raise anything
        said = str(error) if isinstance(error, _PLAIN) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the model cannot be built ({said}); correct its layers or sizes"
        ) from error


_PLAIN = (TypeError, ValueError, ArithmeticError, FlaxError)  # whose texts say what is wrong
_CHECKED: list[Any] = []  # (ids, shapes, functions) of the last task, which arms share


def _algorithm(
    task: Task, shapes: Any, graph: nx.Graph | None, wanted: Collection[str], profile: Any,
    config: ConfigDict,
) -> Algorithm:  # fmt: skip
    """Return the method of a config, whose factory has the `wanted` parameters."""
    offered: dict[str, Any] = {"profile": profile, "matching_seconds": None}
    if config.get("buckets") is not None:
        offered["buckets"] = config.buckets
    if isinstance(config.communication, ConfigDict):  # else seconds, which all links share
        size, links = cost.payload_bytes(shapes), functools.partial(network, config, shapes)
        offered["matching_seconds"] = lambda among: cost.matching_seconds(among, size, links())
    written = config.algorithm.to_dict()
    algorithm = METHOD.build(
        written | _built_parts(written.keys() & wanted, written, config.seed, graph),
        optimizer=optimizers.build(config.optimizer), graph=graph, workers=config.workers,
        seed=config.seed, sparse=task.sparse, **offered,
    )  # fmt: skip
    _check_method(config, algorithm, shapes)
    return algorithm


def _check_method(config: ConfigDict, algorithm: Algorithm, shapes: Any) -> None:
    """Raise ValueError if parts of a method are no transforms, or its messages no `Payload`s."""
    who = f"algorithm {config.algorithm.name!r}"
    for name in ("exchange", "work", "server"):
        part = getattr(algorithm, name)
        left_out = part is None and name != "exchange"
        if not (left_out or isinstance(part, optax.GradientTransformation)):
            raise ValueError(f"{who}: its {name} is {type(part).__name__}; give an optax transform")
    accepted = inspect.signature(algorithm.exchange.update).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in accepted):
        raise ValueError(
            f"{who}: its exchange takes no extra arguments, such as `weight`; give an "
            "optax.GradientTransformationExtraArgs whose update ends in **extra"
        )
    # A method may refuse a model when it sees the parameters.
    jax.eval_shape(functools.partial(worker.init, algorithm), shapes)
    try:
        sent = algorithm.messages(shapes, config.workers, messages.Row(algorithm.settled))
        if all(isinstance(payload, messages.Payload) for payload in sent):
            return
        why = f"gives {registry.brief(repr(sent))}"
    except ValueError:
        raise
    except Exception as error:  # a method is code and can raise anything
        why = f"fails with {type(error).__name__}: {registry.brief(error)}"
        why = "is missing" if algorithm.messages is None else why
    raise ValueError(
        f"{who}: its messages(params, workers, row) {why}; return a tuple of "
        "comms.messages.Payload, from which bytes and seconds follow"
    )


def _built_parts(names: Collection[str], written: dict, seed: int, graph: nx.Graph | None) -> dict:
    """Return {parameter: built object} for the parameters of a method that are parts."""
    built = {
        "exchange": lambda part: REDUCER.build(part, seed=seed),
        "broadcast": lambda part: REDUCER._replace(name="broadcast").build(part, seed=seed),
        "server": lambda part: optimizers.build(part, "algorithm.server"),
        "mixing_matrix": lambda W: (
            MIXING.build(W, graph=graph) if registry.is_part(W) and W not in MIXED else W
        ),
    }
    there = [name for name in built if name in names and written[name] is not None]
    return {name: built[name](written[name]) for name in there}


def first_gradient(config: ConfigDict, task: Task, sampler: sampling.Sampler) -> Any:
    """Return magnitudes of the first update's gradients, summed over workers and mini-batches.

    They are NumPy arrays in the shapes of the parameters, zero where all gradients are zero.
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


def alike(config: ConfigDict) -> str | None:
    """Return a text that arms share if they can train together: all entries that are not data.

    Data are the learning rate, delays, communication unless weights follow from it, budgets, what a
    waiting rule lists as `data`, and the seed, unless the method draws by itself. None: an arm that
    runs alone, as one whose weights of samples follow from its rule and its delays.
    """
    config = registry.canonical(config)
    place = RUNTIMES.get(config.runtime)
    apart = config.get("sample_weight") or config.devices != 1 or tasks.streams(config.task)
    if place is None or not place.together or apart:
        return None
    shared = config.to_dict()
    for name in (
        "name", "baseline", "delay", "draw", "seconds", "updates", "evaluate_every", "target_loss",
        "stop_at_target",
    ):  # fmt: skip
        del shared[name]
    if not config.algorithm.get("by_seconds"):
        del shared["communication"]  # else constants: weights follow from it
    drawing = {"exchange", "broadcast"} & {*config.algorithm}  # codecs, which may draw
    if not (drawing or METHOD.wants(config.algorithm, "seed")):
        del shared["seed"]  # else a constant of the program, as in a sketch's hashes
        shared.pop("initial", None)  # else it may decide the method's parameters
    if optimizers.rate_is_data(config.optimizer):
        shared["optimizer"].pop("learning_rate", None)
    try:
        rule = _built_rule(config, ALIKE, 0.0)
        constants = {key: value for key, value in shared["wait"].items() if key not in rule.data}
        shared["wait"] = [rule.asynchronous, constants]
    except ValueError:  # it needs a method's graph; all its entries count as constants
        shared["wait"] = [shared["wait"]]
    return json.dumps(shared, sort_keys=True, default=str)


# --- waiting rules, delays and what an exchange takes ---


def network(config: ConfigDict, shapes: Any, pairs: bool = False) -> cost.Network:
    """Return the network that `communication` describes, for a model of these shapes.

    pairs: a slow node slows its own meetings alone, as by spells; else all wait for it.
    """
    written = config.communication.to_dict()
    if pairs and written.get("slow") and written.get("spells") is None:
        changes = [[0.0, *slow] for slow in written.pop("slow").items()]
        written["spells"] = {"name": "listed", "of": "node", "changes": changes}
    if written.get("spells") is not None:
        offered = {"workers": config.workers, "seed": config.seed}
        written["spells"] = SPELLS.build(written["spells"], **offered)
    return NETWORK.build(written, workers=config.workers, payload=cost.payload_bytes(shapes))


def _exchange(config: ConfigDict, algorithm: Algorithm, shapes: Any) -> Cost:
    """Return the cost of a round's exchange: the config's seconds, or seconds on its network."""
    if not isinstance(config.communication, ConfigDict):  # a number of seconds
        return messages.lasting(algorithm, shapes, config.workers, config.communication)
    links = network(config, shapes)
    sent = algorithm.messages(shapes, config.workers, messages.Row(algorithm.settled))
    if any(payload.met for payload in sent):
        links = network(config, shapes, pairs=True)
    sender = algorithm, shapes, config.workers, links
    usual, push = messages.exchange_transfers(*sender), messages.push_seconds(*sender)
    timed = usual if links.spells is None else links.spells.timed(algorithm, shapes, links)
    return Exchange(usual, timed, push, links.spells)


def own_links(config: ConfigDict, prepared: Prepared) -> np.ndarray | None:
    """Return matchings [M, P] of P workers that wait only for their own links; else return None."""
    exchange, algorithm = prepared.exchange, prepared.algorithm
    if getattr(exchange, "spells", None) is None:
        return None  # all wait for the slowest
    if any(hides(transfer) or transfer.others for transfer in exchange.usual(0)):
        return None
    if algorithm.links is not None:
        return algorithm.links.partners
    payloads = algorithm.messages(prepared.shapes, config.workers, messages.Row(algorithm.settled))
    found = [payload.matchings for payload in payloads if payload.exchanged]
    return found[0] if len(found) == 1 else None


def build_delay(part: registry.Part) -> Delay:
    """Return the law or process of delays that a part describes; its `law` may be a part itself."""
    if part == NO_DELAY or (hasattr(part, "get") and part.get("name") == NO_DELAY):
        raise ValueError(
            "delay 'none': simulated workers take as long as a delay says; set config.delay, as to "
            "deterministic(value=1.0), or config.runtime=mesh for workers that take their own time"
        )
    return DELAY.build(part)


def own_delay(config: ConfigDict) -> Delay | None:
    """Return the delay of a config, or None where workers run at their own speed."""
    return None if config.delay.name == NO_DELAY else build_delay(config.delay)


def _sampler(config: ConfigDict, task: Task, shards: list) -> sampling.Sampler:
    """Return the sampler; with `config.balance` it deals the samples of a round by their costs."""
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    if not config.get("balance", False):
        return sampler
    if task.cost is None or np.ndim(config.mini_batches):
        raise ValueError(
            f"balance: needs samples with costs and one number of mini-batches, got "
            f"{registry.text(config.task)!r} and {config.mini_batches}; leave balance out, or "
            "change the two"
        )
    return sampling.Balanced(sampler, task.cost, config.workers, config.mini_batches)


def _costed(
    delay: Delay | None, config: ConfigDict, task: Task, sampler: sampling.Sampler
) -> Delay | None:
    """Return the delay, with the costs of samples if `config.sample_cost` describes them."""
    packing = config.get("sample_cost")
    if packing is None:
        return delay
    if task.cost is None:
        raise ValueError(
            f"sample_cost: samples of {registry.text(config.task)!r} have no costs; leave "
            "sample_cost out, or take a task with lengths, as next_token(packing=False)"
        )
    if delay is None:
        raise ValueError(
            "sample_cost: without a delay devices take as long as they take; set config.delay, or "
            "leave sample_cost out"
        )
    cost, least = sampling.costs_of(sampler, task.cost, packing)
    return processes.as_process(delay).costing(cost, least)


def _costs_of_samples(task: Task, sampler: sampling.Sampler) -> processes.Cost:
    """Return the function (worker, counter) -> costs of a mini-batch's samples, for `by_cost`."""
    return lambda worker, counter: np.asarray(task.cost)[sampler.on_host(worker, counter)]


def _weighted(
    config: ConfigDict,
    task: Task,
    sampler: sampling.Sampler,
    algorithm: Algorithm,
    exchange: Cost,
    delay: Delay | None,
) -> Task:
    """Return the task with larger weights for samples that are dropped more often for their cost.

    The shares that are kept come from a plan of the rule with other delays.
    """
    if config.get("sample_cost") is None or isinstance(task.train, Streamed):
        raise ValueError(
            "sample_weight: needs samples in memory, and a time of each that says which are "
            "dropped; set config.sample_cost and reading=memory, or leave sample_weight out"
        )
    from stragglers import kept

    pilot = _built_rule(_changed(config, seed=config.seed ^ PILOT), delay, exchange, algorithm)
    if pilot.observe is not None:
        raise ValueError(
            f"sample_weight: {config.wait.name} follows the training loss, so that no plan knows "
            "which samples it keeps; leave sample_weight out, or take another rule"
        )
    state, rows, planned, missing = pilot.init(), [], AT_LEAST, PILOTED
    while missing > 0 and planned <= PILOTED:
        state, schedule = pilot.extend(state, planned)
        rows.append(schedule)
        missing -= int(schedule.batches.sum())
        planned = 2 * planned if schedule.updates == planned else np.inf  # a replay has ended
    lost = config.mini_batches if pilot.turnout.cancels else 0
    found = kept.by_cost(concatenate(rows), _costs_of_samples(task, sampler), lost=lost)
    if found is None or not found.by_part.all():
        shares = "nothing" if found is None else found.by_part.round(3).tolist()
        raise ValueError(
            f"sample_weight: {registry.text(config.wait)} keeps {shares} of the samples, in tenths "
            "by their time, and no weight makes up for what is never kept; give rounds more time, "
            "or let them finish or carry on what they have begun"
        )
    return tasks.weighted(task, kept.weights(found, task.cost))


def kept(config: ConfigDict, prepared: Prepared, schedule: Schedule) -> dict[str, Any]:
    """Return shares of samples, by cost, that a schedule's first rows have kept; {} without costs.

    kept_long, kept_short: shares of the most expensive tenth and of the cheaper half.
    kept_by_tenth: shares of all tenths. kept_cost: mean cost of kept samples over the mean cost of
    offered samples. effective_share: `stragglers.kept.effective_share` of the kept samples, if they
    have weights.
    """
    if prepared.delay is None or processes.as_process(prepared.delay).costs is None:
        return {}
    from stragglers import kept as shares

    rows = 1 + np.searchsorted(schedule.batches.sum(axis=1).cumsum(), COUNTED)
    rows, task, sampler = schedule.slice(0, rows), prepared.task, prepared.sampler
    costs = processes.as_process(prepared.delay).seeded(config.seed).cost
    if config.get("sample_cost") is not None:
        costs = _costs_of_samples(task, sampler)
    lost = config.mini_batches if prepared.rule.turnout.cancels else 0
    found = shares.by_cost(rows, costs, lost=lost)
    if found is None:
        return {}
    effective = {}
    if task.plain is not None:
        worker, counter, taken = shares.offered(rows)
        weight = task.train.weight[sampler.on_host(worker[taken], counter[taken])]
        effective = {"effective_share": shares.effective_share(weight)}
    return effective | {
        "kept_long": float(found.by_part[-1]),
        "kept_short": float(found.by_part[: len(found.by_part) // 2].mean()),
        "kept_by_tenth": found.by_part.tolist(),
        "kept_cost": found.mean_cost,
    }


def traces(configs: Iterable[ConfigDict]) -> Iterator[str]:
    """Yield a line for every trace that configs replay: what was read of it, and who takes part."""
    distinct = {(registry.text(config.delay), config.workers): config for config in configs}
    for config in distinct.values():
        delay = own_delay(config)
        if getattr(delay, "read", ""):
            spare, known = ", ".join(delay.names[config.workers :]), len(delay.names)
            others = f"; {spare} take no part among {config.workers} workers" if spare else ""
            if delay.names and config.workers > known:
                others = f"; workers from {known} on have the same durations in turn"
            yield delay.read + others


def rule(config: ConfigDict, prepared: Prepared, delay: Delay | None = None) -> Rule:
    """Return the waiting rule of an arm, with another delay than the config's if one is given."""
    config = registry.canonical(config)
    delay = delay or prepared.delay or ANY_SPEED
    return _built_rule(config, delay, prepared.exchange, prepared.algorithm)


def _built_rule(
    config: ConfigDict, delay: Delay, communication: Cost, algorithm: Algorithm | None = None
) -> Rule:
    _check_delay(config, processes.as_process(delay))
    return RULE.build(config.wait, setting=_setting(config, delay, communication, algorithm))


def _setting(config, delay, communication, algorithm) -> Setting:
    return Setting(
        delay, config.workers, config.mini_batches, config.seed,
        graph=algorithm and algorithm.graph, links=algorithm and algorithm.links,
        communication=communication, draw=config.draw,
    )  # fmt: skip


def _check_delay(config: ConfigDict, process: processes.Process) -> None:
    """Raise ValueError for delays of missing workers, or too short for a clock in float64 s."""
    if process.workers > config.workers:
        raise ValueError(
            f"delay {registry.text(config.delay)!r}: names worker {process.workers - 1}, but there "
            f"are {config.workers} workers, from 0 to {config.workers - 1}; leave it out"
        )
    # Some processes do not know for how many workers they are before they are asked.
    workers = np.append(np.zeros(LOOKED_AT, int), config.workers - 1)
    drawn = process.seeded(config.seed).duration(workers, 0.0, np.arange(LOOKED_AT + 1))
    usual = float(np.median(drawn[:-1]))
    counts = config.updates * float(np.max(config.mini_batches))
    horizon = min(float(config.seconds), counts * usual)
    if not usual >= max(SHORTEST_DELAY, horizon * np.finfo(np.float64).eps):
        raise ValueError(
            f"delay {registry.text(config.delay)!r}: a mini-batch usually takes {usual:.3g} s, "
            f"which a clock that runs to {horizon:.3g} s cannot tell from nothing; delays are in "
            f"seconds, {SHORTEST_DELAY} or more"
        )


def fitting_rule(
    config: ConfigDict,
    algorithm: Algorithm,
    shapes: Any,
    communication: Cost,
    delay: Delay | None = None,
) -> Rule:
    """Return the rule of a config, which its method and its runtime can use; else ValueError.

    The decision follows from what rule, method and runtime declare, not from any plan. The error
    names alternatives, which pass the same test.
    """
    try:
        rule = _built_rule(config, delay or ANY_SPEED, communication, algorithm)
        reason = RUNTIMES[config.runtime].misfit(algorithm, rule, shapes, config)
    except Unfit as error:
        rule, reason = None, error.cause
    if reason is None:
        return rule
    setting = _setting(config, ALIKE, 0.0, algorithm)

    def fits(name: str, rule: Rule) -> bool:
        return RUNTIMES[name].misfit(algorithm, rule, shapes, config) is None

    def others(name: str) -> list[str]:
        return showing(functools.partial(fits, name), setting, config.wait)

    fitting = others(config.runtime)
    ways = [f"wait for {_listed(fitting)}"] if fitting else []
    for name in RUNTIMES:
        if rule is not None and fits(name, rule):
            ways.append(f"take runtime={name!r}")
            break
        elsewhere = [] if fitting else others(name)
        if elsewhere:
            ways.append(f"take runtime={name!r} and wait for {_listed(elsewhere)}")
            break
    if algorithm.needs.otherwise:
        ways.append(algorithm.needs.otherwise)
    raise ValueError(
        f"{config.runtime}: {config.algorithm.name} cannot wait for {config.wait.name}: {reason}; "
        f"{', or '.join(ways) or 'take another method'}"
    )


def _listed(calls: Sequence[str]) -> str:
    *others, last = calls
    return f"{', '.join(others)} or {last}" if others else last


# --- memory ---

CGROUP = Path("/sys/fs/cgroup")
# Limit and use of a control group, version 2 and version 1.
ACCOUNTS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_memory() -> int | None:
    """Return the bytes that this process may still take, as machine and control group say.

    Cached files count as free, as the system drops them if memory is short. None if neither of the
    two can be read.
    """
    available = _number(Path("/proc/meminfo"), "MemAvailable")
    found = [] if available is None else [1024 * available]
    for limit, used in ACCOUNTS:
        with contextlib.suppress(OSError, ValueError):  # "max": there is no limit
            most = int((CGROUP / limit).read_text(encoding="ascii"))
            taken = int((CGROUP / used).read_text(encoding="ascii"))
            files = _number(
                (CGROUP / used).with_name("memory.stat"), "inactive_file", "total_inactive_file"
            )
            found.append(max(0, most - taken + (files or 0)))
    return min(found, default=None)


def _number(file: Path, *names: str) -> int | None:
    """Return the number after one of the names in a file of the system, None where it has none."""
    with contextlib.suppress(OSError, ValueError):
        lines = file.read_text(encoding="ascii").replace(":", " ").splitlines()
        found = (words[1] for words in map(str.split, lines) if {*words[:1]} & {*names})
        return int(next(found, ""))
    return None


def check_memory(estimate: float, what: str, way_out: str) -> None:
    """Raise ValueError where something takes more than the free memory; estimate: bytes."""
    free = free_memory()
    if free is not None and estimate > free:
        raise ValueError(
            f"{what} takes at least {size(estimate)} of memory, and {size(free)} are free; "
            f"{way_out}"
        )


def size(number: float) -> str:
    """Return a number of bytes as a text with its unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


@contextlib.contextmanager
def rationed() -> Iterator[None]:
    """Let an allocation beyond the free memory raise MemoryError at once.

    Otherwise the system overcommits, and ends the process when the memory is used.
    """
    free, taken = free_memory(), _number(Path("/proc/self/status"), "VmData")
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if free is None or taken is None:
        yield
        return
    most = 1024 * taken + free
    most = most if before == resource.RLIM_INFINITY else min(most, before)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
