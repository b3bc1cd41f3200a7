"""The evidence: a file per paper or family of methods, with sweeps, claims and a figure."""

import importlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

PAPERS = (
    "nonblocking", "matcha", "uneven_data", "slow_and_stale", "adasync", "asynchronous", "swarm",
    "mg_wfbp", "s2_reducer", "local_steps", "failures", "sample_costs", "slow_links", "frontier",
)  # fmt: skip


class Judged(NamedTuple):
    """The function `claims(arms)` of a config, which judges a sweep by the claims about a record.

    A command that makes another record of the paper is judged by that record's claims. Without a
    record of the command, claims name its flags. The paper's file, which loads Matplotlib, and the
    statistics are only loaded when a sweep has ended.
    """

    paper: str
    record: str
    flags: frozenset[str] = frozenset()  # of the command: --config=... and --config.ENTRY=...

    def __call__(self, arms: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield pairs (claim, verdict)."""
        paper, here = _module(f"papers.{self.paper}"), ""
        words = {sweep.name: shlex.split(sweep.arguments) for sweep in paper.SWEEPS}
        made = {frozenset(word for word in arguments if word.startswith("--config")): name
                for name, arguments in words.items()}  # fmt: skip
        own = any(":" in flag or flag.startswith("--config.") for flag in self.flags)
        if own and self.flags not in made:
            here = f"; here {' '.join(sorted(self.flags))}"
        judged = _module("stats").printed(paper.CLAIMS, made.get(self.flags, self.record))
        for claim, verdict in judged(arms):
            yield claim + here, verdict


def analyse(paper: str, function: str = "analyse") -> Callable[[Any], Any]:
    """Return a config's `analyse(config)` or `numbers(arms)`, which calls the paper's function."""
    return lambda config: getattr(_module(f"papers.{paper}"), function)(config)


def at_best(*quantities: str) -> Callable[..., Iterator[Any]]:
    """Return the function `numbers(arms)` of a config, see `stats.at_best`."""
    return lambda arms: _module("stats").at_best(*quantities)(arms)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}")
