"""The waiting rules, by the names that configs use."""

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator

import networkx as nx

from stragglers.delays import deterministic
from stragglers.rule import Rule, Setting
from stragglers.rules.adaptive import adaptive_deadline
from stragglers.rules.adasync import adasync
from stragglers.rules.k_protocols import (
    k_async,
    k_batch_async,
    k_batch_sync,
    k_sync,
    quorum_async,
)
from stragglers.rules.pairs import bipartite_pairs, random_pairs
from stragglers.rules.replay import replay
from stragglers.rules.rounds import (
    anytime,
    barrier,
    deadline,
    drop_compute,
    first_finisher,
    neighbour_barrier,
    quorum,
    quorum_grace,
)
from stragglers.rules.staleness import rennala, ringmaster

# (setting, *, own parameters) -> Rule
RULES: dict[str, Callable[..., Rule]] = {
    rule.__name__: rule
    for rule in (
        adaptive_deadline,
        adasync,
        anytime,
        barrier,
        bipartite_pairs,
        deadline,
        drop_compute,
        first_finisher,
        k_async,
        k_batch_async,
        k_batch_sync,
        k_sync,
        neighbour_barrier,
        quorum,
        quorum_async,
        quorum_grace,
        random_pairs,
        rennala,
        replay,
        ringmaster,
    )
}


def showing(wanted: Callable[[Rule], bool]) -> list[str]:
    """The names of the rules of which `wanted` is true, for errors that say what would work.

    Each is built with the least that its own parameters can be; one that this does not build, as
    it needs a file, is left out.
    """
    setting = Setting(deterministic(1.0), 2, 1, 0)
    settings = (setting, setting._replace(graph=nx.path_graph(2)))
    return sorted(name for name in RULES if any(wanted(rule) for rule in _built(name, settings)))


def _built(name: str, settings: Iterable[Setting]) -> Iterator[Rule]:
    values = {}
    for own in inspect.signature(RULES[name], eval_str=True).parameters.values():
        if own.default is own.empty:
            choices = typing.get_args(own.annotation)
            values[own.name] = choices[0] if choices else LEAST.get(own.annotation)
    for setting in settings:
        with contextlib.suppress(ValueError, TypeError):
            yield RULES[name](**values | {"setting": setting})


LEAST = {int: 1, float: 1e9}  # of a number to wait for, and of seconds

__all__ = ["RULES", "showing", *RULES]
