"""The evidence: a file per paper or family of methods, with sweeps, claims and a figure."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

PAPERS = (
    "nonblocking", "matcha", "uneven_data", "slow_and_stale", "adasync", "asynchronous", "swarm",
    "mg_wfbp", "s2_reducer", "local_steps", "failures", "sample_costs", "slow_links", "frontier",
)  # fmt: skip


class Judged(NamedTuple):
    """The function `claims(arms)` of a config, which judges a sweep by the claims about a record.

    A command that makes another record of the paper is judged by that record's claims. The paper's
    file, which loads Matplotlib, and the statistics are only loaded when a sweep has ended.
    """

    paper: str
    record: str
    flags: frozenset[str] = frozenset()  # of the command: --config=... and --config.ENTRY=...

    def __call__(self, arms: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield pairs (claim, verdict); without a record of the command, claims name its flags."""
        found = _module("papers.base").judged(_module(f"papers.{self.paper}"), *self[1:])
        return found(arms)


def analyse(paper: str, function: str = "analyse") -> Callable[[Any], Any]:
    """Return a config's `analyse(config)` or `numbers(arms)`, which calls the paper's function."""
    return lambda config: getattr(_module(f"papers.{paper}"), function)(config)


def at_best(*quantities: str) -> Callable[..., Iterator[Any]]:
    """Return the function `numbers(arms)` of a config, see `stats.at_best`."""
    return lambda arms: _module("stats").at_best(*quantities)(arms)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}")
