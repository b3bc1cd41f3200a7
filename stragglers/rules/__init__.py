"""Waiting rules by the names that configs use; a rule is imported when its name is looked up."""

import contextlib
import functools
import inspect
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from comms.registry import Registry
from stragglers.rule import Rule, Setting

# Factories (setting, *, own parameters) -> Rule.
RULES = Registry({
    "adaptive_deadline": "stragglers.rules.rounds:adaptive_deadline",
    "adasync": "stragglers.rules.server:adasync",
    "anytime": "stragglers.rules.rounds:anytime",
    "ata": "stragglers.rules.allocation:ata",
    "barrier": "stragglers.rules.rounds:barrier",
    "bipartite_pairs": "stragglers.rules.pairs:bipartite_pairs",
    "deadline": "stragglers.rules.rounds:deadline",
    "drop_compute": "stragglers.rules.rounds:drop_compute",
    "equal_work": "stragglers.rules.rounds:equal_work",
    "first_finisher": "stragglers.rules.rounds:first_finisher",
    "k_async": "stragglers.rules.server:k_async",
    "k_batch_async": "stragglers.rules.server:k_batch_async",
    "k_batch_sync": "stragglers.rules.server:k_batch_sync",
    "k_sync": "stragglers.rules.server:k_sync",
    "mindflayer": "stragglers.rules.trials:mindflayer",
    "neighbour_barrier": "stragglers.rules.rounds:neighbour_barrier",
    "quorum": "stragglers.rules.rounds:quorum",
    "quorum_async": "stragglers.rules.server:quorum_async",
    "quorum_grace": "stragglers.rules.rounds:quorum_grace",
    "random_pairs": "stragglers.rules.pairs:random_pairs",
    "rennala": "stragglers.rules.server:rennala",
    "replay": "stragglers.rules.replay:replay",
    "ringmaster": "stragglers.rules.server:ringmaster",
})


def showing(
    wanted: Callable[[Rule], bool],
    setting: Setting,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Return the rules for which `wanted` is true in a setting, as calls for an error message.

    known: values of own parameters to try first. Each rule is then tried with the smallest values,
    with the number of workers, and with each of its switches; a rule that needs a file is left out.
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
    """Yield parameter values with which a rule may be built, the plainest first."""
    needed, switches = _own(RULES[name])
    choices = []
    for key, kind in needed.items():
        first = [known[key]] if key in known else []
        least = typing.get_args(kind) or LEAST.get(kind, ())
        choices.append([*first, *least, *([workers] if kind is int else [])])
    for values in itertools.product(*choices):
        required = dict(zip(needed, values, strict=True))
        yield required
        yield from (required | {switch: True} for switch in switches)


@functools.cache
def _own(factory: Callable[..., Rule]) -> tuple[dict[str, Any], list[str]]:
    """Return the types of a rule's required own parameters, and the names of its switches."""
    own = list(inspect.signature(factory, eval_str=True).parameters.values())[1:]
    needed = {one.name: one.annotation for one in own if one.default is one.empty}
    return needed, [one.name for one in own if one.default is False]


def _shown(value: Any) -> str:
    """Return a value as in a config; "..." for seconds, which the user has to choose."""
    if isinstance(value, bool):
        return str(value).lower()
    return "..." if isinstance(value, float) else str(value)


LEAST = {int: (1,), float: (1e9,)}  # type -> trial values: a number to wait for; seconds

__all__ = ["RULES", "showing", *RULES]

RULES.as_attributes_of(__name__)
