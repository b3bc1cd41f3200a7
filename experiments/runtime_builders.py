"""The runtimes that a config can name, each imported when it is built from the parts of an arm."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from algorithms import REDUCERS
from algorithms.base import Algorithm
from algorithms.compression import Reducer
from comms.registry import Registry
from experiments import registry
from experiments.registry import Kind
from experiments.tasks import Task, sampling
from runtimes import base
from runtimes.base import Runtime
from runtimes.data_feed import Streamed
from stragglers import delays, processes
from stragglers.rule import Cost, Rule, most_mini_batches

REDUCER = Kind("exchange", REDUCERS, Reducer, ("seed",), nested=("*",))
SHARDING = Kind("sharding", Registry({
    "fsdp": "runtimes.slices:fsdp", "replicated": "runtimes.slices:replicated",
}))  # fmt: skip
Delay = delays.Law | processes.Process  # seconds of a mini-batch
CODED = ("parameters", "gradients")  # entries of a sharding that name codecs
NEIGHBOUR, OWN = "neighbour", "checkpoint"  # the model from which a lost node begins again


class Place(NamedTuple):
    """A runtime that configs can name."""

    build: Callable[["Prepared"], Runtime]
    misfit: Callable[..., str | None]  # (method, rule, shapes of parameters, config) -> reason
    devices: Callable[[ConfigDict], int]  # the number of devices that a run needs
    delayed: bool = False  # the delay alone gives the times of its workers
    together: bool = False  # runs that differ only in data can be one program
    cluster: bool = False  # its workers are processes, which may live on a cluster
    on_mesh: bool = False  # each worker is one device or several devices
    single: str = ""  # the reason why several processes cannot share its workers


class Prepared(NamedTuple):
    """The parts of one run, all checked, nothing compiled."""

    task: Task
    algorithm: Algorithm
    shapes: Any  # of the parameters
    sampler: sampling.Sampler
    rule: Rule
    exchange: Cost  # the cost of a round's exchange
    delay: Delay | None  # s of mini-batches; None: workers' own speed
    config: ConfigDict  # with the end of every learning-rate schedule
    decided: Mapping[str, Any]  # parameters that a gradient has decided
    runtime: Runtime | None = None
    profile: Any = None  # the profile that was measured for the method


def build(arm: Prepared) -> Runtime:
    """Return the runtime of an arm; ValueError if entries of its config do not fit the runtime."""
    config, place = arm.config, RUNTIMES[arm.config.runtime]
    check_processes(config, jax.process_count())
    size, sharding, overlap = slice_of(config)
    if not place.on_mesh and (size, getattr(sharding, "name", sharding), overlap) != Slice():
        raise ValueError(
            f"{config.runtime}: config.devices_per_worker={size}, config.sharding="
            f"{registry.text(sharding)!r} and config.overlap={overlap!r} are for devices of a "
            "mesh; use runtime='mesh', or leave them out"
        )
    return place.build(arm)


def check_processes(config: ConfigDict, count: int) -> None:
    """Raise ValueError if `count` is above 1 and the runtime runs only in a single process."""
    if count > 1 and (why := RUNTIMES[config.runtime].single):
        raise ValueError(
            f"{config.runtime}: {why}, and there are {count}; use runtime='mesh', or start a "
            "single process"
        )


def devices(config: ConfigDict) -> int:
    """Return the number of devices that a run of this config needs; 1 for an unknown runtime."""
    return RUNTIMES[config.runtime].devices(config) if config.runtime in RUNTIMES else 1


class Slice(NamedTuple):
    """The optional entries of a config about the devices of a mesh."""

    devices_per_worker: int = 1
    sharding: registry.Part = "replicated"  # how the devices of a worker keep its model
    overlap: str = base.NO_OVERLAP  # how buckets travel beside computing


def slice_of(config: ConfigDict) -> Slice:
    """Return the entries of a config about the devices of a mesh."""
    return Slice(**{name: config[name] for name in Slice._fields if name in config})


def sharding_of(config: ConfigDict) -> Any:
    """Return the `runtimes.slices.Sharding` of a config; ValueError for one that it cannot have."""
    written = registry.spec(slice_of(config).sharding)
    codecs = {name: written[name] for name in CODED if written.get(name) is not None}
    built = {name: REDUCER.build(part, seed=config.seed) for name, part in codecs.items()}
    return SHARDING.build(written | built)


def _simulate(arm: Prepared) -> Runtime:
    from runtimes import simulate

    return simulate.Simulator(
        arm.algorithm, arm.task.losses, arm.task.train, arm.sampler, arm.rule,
        mini_batches=most_mini_batches(arm.config.mini_batches), devices=arm.config.devices,
        augment=arm.task.augment,
    )  # fmt: skip


def _in_rounds(algorithm, rule, shapes, config):
    del config
    trigger = rule.trigger
    if trigger is None:
        return "devices move in rounds, which this rule does not or not with a trigger"
    if jax.process_count() > 1 and trigger.stop is not None and trigger.sees_all:
        return (
            f"it looks at single workers of all {jax.process_count()} processes, of which a round "
            "only knows a sum of points"
        )
    several = trigger.whole is not None and (trigger.mini_batches > trigger.whole).any()
    if several and algorithm.work is not None:
        return (
            "a worker may make several contributions in a round, and local steps of the second "
            "would begin where the first ended"
        )
    return base.misfit(algorithm, rule.workers, rule.turnout, shapes)


def _mesh(arm: Prepared) -> Runtime:
    from experiments.distributed import SharedTally
    from runtimes import mesh, slices
    from stragglers import inject

    config, trigger, injector = arm.config, arm.rule.trigger, None
    slices.check_devices(config.workers, slice_of(config).devices_per_worker)
    if arm.delay is not None or config.communication != 0 or trigger.stops:
        injector = inject.Injector(
            config.workers, trigger, config.seed, delay=arm.delay, draw=config.draw,
            communication=arm.exchange, tally=SharedTally() if jax.process_count() > 1 else None,
        )  # fmt: skip
    return mesh.Mesh(
        arm.algorithm, arm.task.losses, arm.task.train, arm.sampler, workers=config.workers,
        mini_batches=most_mini_batches(trigger.mini_batches), injector=injector,
        rounds_per_dispatch=config.rounds_per_dispatch, augment=arm.task.augment,
        **slice_of(config)._replace(sharding=sharding_of(config))._asdict(),
    )  # fmt: skip


def _moving_freely(algorithm, rule, shapes, config):
    from runtimes.asynchronous.runtime import misfit

    return misfit(algorithm, rule, shapes, most_mini_batches(config.mini_batches))


def _actors(arm: Prepared) -> Runtime:
    from runtimes.asynchronous.pool import Options, Resources
    from runtimes.asynchronous.runtime import AsynchronousRuntime
    from runtimes.asynchronous.worker import WorkerParts
    from runtimes.gossip.runtime import GossipRuntime
    from runtimes.gossip.worker import GossipParts

    config, task, algorithm = arm.config, arm.task, arm.algorithm
    given = config.get("actors") or {}
    chosen = ACTORS | dict(given)
    registry.check(chosen, _ENTRIES, "config.actors")
    for misfit, why in (
        (isinstance(task.train, Streamed), "its workers hold their data in memory, and the task "
         "streams it; use reading=memory, or runtime='mesh'"),
        (task.augment is not None, "its workers take their examples as they are, and the task "
         "augments them; leave out augment, or use runtime='mesh'"),
        (not registry.is_number(config.communication), "config.communication="
         f"{registry.text(config.communication)!r} models a network, and the links between "
         "processes are real; set it to a number of seconds that contributions take longer"),
        ("restore" in given and algorithm.server is not None, "config.actors.restore is for "
         "methods with a model per worker; under a server a worker begins anew from the newest "
         "model; leave it out"),
        (chosen["least_workers"] > config.workers, "config.actors.least_workers="
         f"{chosen['least_workers']} is more than config.workers={config.workers}; lower it"),
    ):  # fmt: skip
        if misfit:
            raise ValueError(f"actors: {why}")
    worker = WorkerParts(
        algorithm, task.losses, task.train, arm.sampler, most_mini_batches(config.mini_batches),
        None if arm.delay is None else processes.as_process(arm.delay).seeded(config.seed),
        float(config.communication),
    )  # fmt: skip
    options = Options(
        Resources(chosen["cpus"], chosen["gpus"]),
        chosen["least_workers"],
        chosen["bad_contribution"] == "drop",
        chosen["restore"] == OWN,
    )
    entries = config.to_dict() | {"initial": None}  # initial parameters are sent
    entries["algorithm"] |= arm.decided
    recipe = functools.partial(_parts_of, entries)
    if algorithm.server is None:
        return GossipRuntime(GossipParts(worker, arm.rule, options.drops), recipe, options)
    return AsynchronousRuntime(worker, recipe, arm.rule, options)


def _parts_of(entries: dict[str, Any]) -> Any:
    """Return the parts of a worker or node (see `_actors`) in its process; entries: of a config."""
    from experiments import prepare

    return prepare.prepare(ConfigDict(entries), settled=True).runtime.parts


RUNTIMES = {
    "simulate": Place(
        _simulate,
        lambda method, rule, shapes, _: base.misfit(method, rule.workers, rule.turnout, shapes),
        devices=lambda config: config.devices,
        delayed=True,
        together=True,
        single="its workers live in one process",
    ),
    "mesh": Place(
        _mesh,
        _in_rounds,
        devices=lambda config: config.workers * slice_of(config).devices_per_worker,
        on_mesh=True,
    ),
    "actors": Place(
        _actors,
        _moving_freely,
        devices=lambda config: 1,
        cluster=True,
        single="the launching process starts its workers by itself",
    ),
}


def _is_resource(value: Any) -> bool:
    return registry.is_number(value) and 0 <= value < 1e6


# The entries of config.actors.
ACTORS = {
    "cpus": 1.0, "gpus": 0.0, "least_workers": 1, "bad_contribution": "end", "restore": NEIGHBOUR,
}  # fmt: skip
_ENTRIES: registry.Entries = (
    ("a number of CPUs, 0 or more", _is_resource, ("cpus",)),
    ("a share of a GPU, or a number of them", _is_resource, ("gpus",)),
    ("a positive whole number", registry.is_count, ("least_workers",)),
    ("'end' or 'drop'", lambda v: v in ("end", "drop"), ("bad_contribution",)),
    (f"'{NEIGHBOUR}' or '{OWN}'", lambda v: v in (NEIGHBOUR, OWN), ("restore",)),
)
