"""The evidence, a file per paper or family: its sweeps, its claims and its figure."""

import importlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

PAPERS = (
    "nonblocking",
    "matcha",
    "uneven_data",
    "slow_and_stale",
    "adasync",
    "asynchronous",
    "swarm",
    "mg_wfbp",
    "s2_reducer",
    "local_steps",
    "failures",
    "sample_costs",
    "slow_links",
    "frontier",
)


class Judged(NamedTuple):
    """The function `claims(arms)` of a config, which judges a sweep by the claims about a record.

    A command that makes another record of the paper is judged by that record's claims. The paper's
    file, which loads Matplotlib, and the statistics are only loaded when a sweep has ended.
    """

    paper: str
    record: str
    flags: frozenset[str] = frozenset()  # of the command, that say which arms it runs

    def __call__(self, arms: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield claims and measurements; a command that makes no record adds its flags."""
        paper, record, here = _module(f"papers.{self.paper}"), self.record, ""
        made = {_about_arms(shlex.split(one.arguments)): one.name for one in paper.SWEEPS}
        if self.flags in made:
            record = made[self.flags]
        elif any(":" in flag or flag.startswith("--config.") for flag in self.flags):
            here = f"; here {' '.join(sorted(self.flags))}"
        for claim, measured in _module("stats").printed(paper.CLAIMS, record)(arms):
            yield claim + here, measured

    def of(self, config: str, entries: Mapping[str, str | bool]) -> "Judged":
        """Return the claims of a command: its value of --config, and its other config entries."""
        others = [f"--config.{name}={value}" for name, value in entries.items()]
        return self._replace(flags=_about_arms([f"--config={os.path.normpath(config)}", *others]))


def _about_arms(arguments: Sequence[str]) -> frozenset[str]:
    return frozenset(flag for flag in arguments if flag.startswith("--config"))


def analyse(paper: str, function: str = "analyse") -> Callable[[Any], Any]:
    """Return the function `analyse(config)`, or `numbers(arms)`, of a config: a paper's own."""
    return lambda config: getattr(_module(f"papers.{paper}"), function)(config)


def at_best(*quantities: str) -> Callable[..., Iterator[Any]]:
    """Return the function `numbers(arms)` of a config, see `stats.at_best`."""
    return lambda arms: _module("stats").at_best(*quantities)(arms)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}")
