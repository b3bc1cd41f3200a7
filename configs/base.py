"""Default arm with every entry that an arm needs; a config only lists what differs from it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict, FieldReference

from experiments import registry
from experiments.registry import part

Arms = Iterator[tuple[str, dict]]  # of a sweep: name, changes to the config


class Variant(SimpleNamespace):
    """Further experiment of a config file: description, `get_config`, `sweep` and the like."""

    def __init__(self, about: str, get_config: Callable[[str | None], ConfigDict], **beside: Any):
        super().__init__(__doc__=about, get_config=get_config, **beside)


def at_rates(
    name: str, changes: Mapping[str, Any], rates: Iterable[float], form: str = ""
) -> Arms:
    """Yield an arm of a sweep, name/rate=RATE, for every learning rate; form: format of RATE."""
    for rate in rates:
        yield f"{name}/rate={rate:{form}}", {**changes, "optimizer.learning_rate": rate}


def nominal(runtime: str, seconds: float) -> ConfigDict:
    """Return a constant delay per mini-batch for simulate; none for runtimes in real time."""
    return {"simulate": part("deterministic", value=seconds)}.get(runtime, part("none"))


def actors(least_workers: int, **more: Any) -> ConfigDict:
    """Return the entry `actors` of a config whose workers are processes."""
    return ConfigDict({
        "cpus": 1.0,  # of a process; a new local Ray grants any number, a cluster what it has
        "gpus": 0.0,  # of a process; below 1: a share of one GPU and of its memory
        "least_workers": least_workers,  # a minute with fewer workers ends the run, exit code 3
        "bad_contribution": "end",  # the run if one fails or is not finite; or drop this one
        **more,
    })  # fmt: skip


def arm(**changes: Any) -> ConfigDict:
    """Return the default arm with whole entries replaced or added; ValueError for unknown ones.

    On the command line parts are written like calls: --config.graph='star'
    """
    entries: dict[str, Any] = {
        "name": "arm",  # method/variant
        "baseline": None,  # name of the arm for comparison
        "seed": 0,  # of initial parameters, samples, delays and all other draws
        "task": part("digits", model="mlp"),  # loss and data
        "split": part("iid"),  # of the samples over the workers: iid | dirichlet(alpha=...)
        # simulate (virtual time) | mesh (workers on devices, real time) | actors (a worker per
        # process, not in step)
        "runtime": "simulate",
        "devices": 1,  # simulate: devices that the worker axis is sharded over
        "devices_per_worker": 1,  # mesh: devices that share a worker's mini-batches
        "sharding": "replicated",  # mesh: each device has all of a model, or a part: fsdp(...)
        "overlap": "none",  # mesh: buckets of mg_wfbp beside computing: none | threads | program
        "rounds_per_dispatch": 4,  # mesh: rounds between two checks of the clock by the host
        "workers": 8,
        "batch_size": 16,  # samples in a mini-batch
        "mini_batches": 1,  # in a full round, or between two meetings; a number, or one per worker
        "algorithm": part("all_reduce"),  # treatment of a gradient: see `algorithms`
        "graph": part("ring"),  # neighbours in gossip; other methods ignore it
        # An optimizer of optax, or a list of transforms, with learning_rate, warmup_samples and
        # schedule: constant | step(boundaries=[...]) | cosine | one of optax. All of them count the
        # samples that all workers have seen; a cosine without samples ends with the run.
        # batch_power=1 is a rate in proportion to the mini-batches of an update.
        "optimizer": part("sgd", learning_rate=0.1),
        "wait": part("barrier"),  # waiting rule: see `stragglers.rules`
        "delay": part("deterministic", value=1.0),  # seconds of a mini-batch; none: the device's
        "draw": "mini_batch",  # a new delay per mini_batch | per round
        # Seconds of an exchange, or a network: link(seconds=...) | network(latency=...,
        # bandwidth=...) | measured(sizes=[...], seconds=[...]), of an all-reduce; each with spells
        # of slowness, as spells=markov(...). On a mesh they come on top of the real exchange.
        "communication": 0.0,
        "seconds": 60.0,  # budget on the run's clock
        "updates": 1_000_000,  # budget in updates; the first budget to run out ends the arm
        "evaluate_every": 1.0,  # seconds on the run's clock
        "target_loss": None,  # training loss; arms are compared by the time to reach it
        "stop_at_target": False,  # end an arm as soon as it reaches target_loss
    }
    known = {**entries, **dict.fromkeys((*sorted(registry.OPTIONAL), "actors", "buckets"))}
    for name in changes:
        if name not in known:
            raise ValueError(
                f"an arm has no entry {name!r}; {registry.meant(name, known)}"
                f"known entries: {registry.listed(known)}"
            )
    # A reference lets an entry change its type, as where a network replaces a number.
    values = (entries | changes).items()
    return ConfigDict({name: FieldReference(value, object) for name, value in values})
