"""One arm with every entry that an arm needs; a config lists what differs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict, FieldReference

from experiments import registry
from experiments.registry import part


class Variant(SimpleNamespace):
    """A further question of a config file: its text, get_config, and what stands beside that."""

    def __init__(self, about: str, get_config: Callable[[str | None], ConfigDict], **beside: Any):
        super().__init__(__doc__=about, get_config=get_config, **beside)


def arm(**changes: Any) -> ConfigDict:
    """The arm below with `changes`, whole entries each; ValueError for an entry it does not have.

    On the command line parts are written like calls: --config.graph='star'
    """
    entries: dict[str, Any] = {
        "name": "arm",  # method/variant
        "baseline": None,  # the name of the arm that this one is compared with
        "seed": 0,  # of initial parameters, samples, delays and whatever else is drawn
        "task": part("digits", model="mlp"),  # what is minimised, on which data
        "split": part("iid"),  # of the samples over the workers: iid | dirichlet(alpha=...)
        # simulate (virtual time) | mesh (workers on devices, real time) | actors (a worker per
        # process, which nobody marches in step)
        "runtime": "simulate",
        "devices": 1,  # simulate: devices that the worker axis is sharded over
        "devices_per_worker": 1,  # mesh: devices that share a worker's mini-batches
        "sharding": "replicated",  # mesh: the model on each of them, or a part: replicated | fsdp
        "rounds_per_dispatch": 4,  # mesh: rounds between two looks of the host at the clock
        "workers": 8,
        "batch_size": 16,  # samples in a mini-batch
        "mini_batches": 1,  # in a full round, or between two meetings; a number, or one per worker
        "algorithm": part("all_reduce"),  # what a step does with a gradient: see `algorithms`
        "graph": part("ring"),  # whom gossip talks to; a method that does not gossip ignores it
        # An optimizer of optax, or a list of transforms, with learning_rate, warmup_samples and
        # schedule: constant | step(boundaries=[...]) | cosine | one of optax. All of them count
        # the samples that all workers have seen; cosine without samples ends with the run.
        # batch_power=1: in proportion to the mini-batches of an update.
        "optimizer": part("sgd", learning_rate=0.1),
        "wait": part("barrier"),  # who waits for whom: see `stragglers.rules`
        "delay": part("deterministic", value=1.0),  # seconds of a mini-batch; none: the device's
        "draw": "mini_batch",  # a new delay per mini_batch | per round
        # Seconds of an exchange, or a network: link(seconds=...) | network(latency=...,
        # bandwidth=...) | measured(sizes=[...], seconds=[...]), of an all-reduce. On a mesh it is
        # added to what the real exchange takes.
        "communication": 0.0,
        "seconds": 60.0,  # budget on the run's clock
        "updates": 1_000_000,  # budget in updates, whichever comes first
        "evaluate_every": 1.0,  # seconds on the run's clock
        "target_loss": None,  # training loss whose time is compared
        "stop_at_target": False,  # end an arm as soon as it is there
    }
    unknown = [name for name in changes if name not in entries]
    if unknown:
        raise ValueError(
            f"an arm has no entry {unknown[0]!r}; {registry.meant(unknown[0], entries)}"
            f"known entries: {registry.listed(entries)}"
        )
    # As references any entry may become of another type, as a number that a network replaces.
    values = (entries | changes).items()
    return ConfigDict({name: FieldReference(value, object) for name, value in values})
