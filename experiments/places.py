"""The runtimes that a config can name, each built from the parts of an arm."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from experiments import entries, parts, waiting
from experiments.shared_tally import SharedTally
from runtimes import (
    actors,
    free_worker,
    meetings,
    mesh,
    overseer,
    peers,
    session,
    simulate,
    slices,
)
from runtimes.base import Runtime
from runtimes.feeding import Streamed
from stragglers import inject, processes, rules
from stragglers.rule import Rule, Trigger, most_mini_batches

NEIGHBOUR, OWN = "neighbour", "checkpoint"  # from whose model a node begins that has gone


class Place(NamedTuple):
    """A runtime that configs can name."""

    build: Callable[..., Any]  # see `build`
    devices: Callable[[ConfigDict], int]  # how many a run wants
    together: bool = False  # runs that differ only in data can be one program
    cluster: bool = False  # its workers are processes, which may live on a cluster
    slices: bool = False  # a worker may be several devices


def build(config: ConfigDict, *parts_of_arm: Any) -> Runtime:
    """The runtime that the config names.

    parts_of_arm: task, algorithm, sampler, what an exchange costs, and a picklable function that
    builds the same runtime in another process.
    """
    place = RUNTIMES[config.runtime]
    _check_slices(config, place)
    return place.build(config, *parts_of_arm)


def devices(config: ConfigDict) -> int:
    """How many devices a run of this config wants; 1 for a runtime that does not exist."""
    return RUNTIMES[config.runtime].devices(config) if config.runtime in RUNTIMES else 1


def devices_per_worker(config: ConfigDict) -> int:
    """How many devices a worker is; a config may leave it out."""
    return config.get("devices_per_worker", 1)


def sharding(config: ConfigDict) -> str:
    """How the devices of a worker keep its model; a config may leave it out."""
    return config.get("sharding", slices.DEFAULT)


def _check_slices(config: ConfigDict, place: Place) -> None:
    """Raise ValueError for workers of several devices where there are none."""
    several = devices_per_worker(config) > 1 or sharding(config) != slices.DEFAULT
    if several and not place.slices:
        raise ValueError(
            f"{config.runtime}: config.devices_per_worker={devices_per_worker(config)} and "
            f"config.sharding={sharding(config)!r} are for workers that are slices of a mesh; use "
            "runtime='mesh', or leave them out"
        )


def _simulate(config, task, algorithm, sampler, communication, again):
    del again
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
        waiting.rule(
            config,
            waiting.build_delay(config.delay),
            communication,
            algorithm.graph,
            algorithm.links,
        ),
        mini_batches=most_mini_batches(config.mini_batches),
        devices=config.devices,
        augment=task.augment,
    )


def _mesh(config, task, algorithm, sampler, communication, again):
    del again
    slices.check_devices(config.workers, devices_per_worker(config))
    delay = waiting.own_delay(config)
    rule = waiting.rule(
        config,
        delay or waiting.ANY_SPEED,
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
        augment=task.augment,
        devices_per_worker=devices_per_worker(config),
        sharding=sharding(config),
    )


def _actors(config, task, algorithm, sampler, communication, again):
    del communication
    if jax.process_count() > 1:
        raise ValueError(
            f"actors: the launching process starts its workers by itself, and there are "
            f"{jax.process_count()}; start a single one"
        )
    if isinstance(task.train, Streamed):
        raise ValueError(
            "actors: its workers hold their data in memory, and the task streams it; use "
            "reading=memory, or runtime='mesh'"
        )
    if task.augment is not None:
        raise ValueError(
            "actors: its workers take their examples as they are, and the task augments them; "
            "leave out augment, or use runtime='mesh'"
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
    if "restore" in chosen:
        entries.check(config, RESTORE)
        if algorithm.server is not None:
            raise ValueError(
                "actors: config.actors.restore is for methods with a model per worker; under a "
                "server a worker begins anew from the newest model; leave it out"
            )
    delay = waiting.own_delay(config)
    rule = waiting.rule(
        config, delay or waiting.ANY_SPEED, config.communication, algorithm.graph, algorithm.links
    )
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
    resources = session.Resources(chosen.get("cpus", 1.0), chosen.get("gpus", 0.0))
    options = overseer.Options(
        resources,
        chosen.get("least_workers", 1),
        chosen.get("bad_contribution", "end") == "drop",
        chosen.get("restore", NEIGHBOUR) != NEIGHBOUR,
    )
    recipe = functools.partial(_parts_of, again)
    if algorithm.server is None:
        parts_of_node = peers.PeerParts(parts_of_worker, rule, options.drops)
        return meetings.Meetings(parts_of_node, recipe, options)
    return actors.Actors(parts_of_worker, recipe, rule, options)


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


def _parts_of(again: Callable[[], Runtime]) -> free_worker.Parts | peers.PeerParts:
    return again().parts


RUNTIMES = {
    "simulate": Place(_simulate, devices=lambda config: config.devices, together=True),
    "mesh": Place(
        _mesh, devices=lambda config: config.workers * devices_per_worker(config), slices=True
    ),
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
RESTORE: entries.Entries = (  # of methods with a model per worker, which may leave it out
    (f"'{NEIGHBOUR}' or '{OWN}'", lambda v: v in (NEIGHBOUR, OWN), ("actors.restore",)),
)
