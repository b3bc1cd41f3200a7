"""The waiting rules, by the names that configs use."""

import contextlib
import inspect
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

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


def showing(
    wanted: Callable[[Rule], bool],
    setting: Setting,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """The rules of which `wanted` is true in a setting, as calls, for errors that say what fits.

    known: own parameters to try first. Then each is built with the least that these can be, for all
    workers and with what it can switch on; one that needs a file is left out.
    """
    found = []
    for name in sorted(RULES):
        for values in _trials(name, setting.workers, known):
            with contextlib.suppress(ValueError, TypeError):
                if wanted(RULES[name](setting, **values)):
                    shown = [f"{key}={_shown(value)}" for key, value in values.items()]
                    found.append(f"{name}({', '.join(shown)})" if shown else name)
                    break
    return found


def _trials(name: str, workers: int, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Parameters with which a rule may do, the plainest first."""
    choices, switches = {}, []
    for own in inspect.signature(RULES[name], eval_str=True).parameters.values():
        if own.default is own.empty and own.name != "setting":
            least = typing.get_args(own.annotation) or LEAST.get(own.annotation, ())
            given = [known[own.name]] if own.name in known else []
            everybody = [workers] if own.annotation is int else []
            choices[own.name] = [*given, *least, *everybody]
        elif own.default is False:
            switches.append(own.name)
    for values in itertools.product(*choices.values()):
        required = dict(zip(choices, values, strict=True))
        yield required
        yield from (required | {switch: True} for switch in switches)


def _shown(value: Any) -> str:
    """A value as in a config; an amount of seconds is for the user to say."""
    if isinstance(value, bool):
        return str(value).lower()
    return "..." if isinstance(value, float) else str(value)


LEAST = {int: (1,), float: (1e9,)}  # of a number to wait for, and of seconds

__all__ = ["RULES", "showing", *RULES]
