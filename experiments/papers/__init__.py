"""The evidence, a file per paper or family: its sweeps, its claims and its figure."""

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

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


def claims(paper: str, record: str) -> Callable[..., Iterator[tuple[str, str]]]:
    """Return the function `claims(arms)` of a config whose sweeps are judged as this record is.

    The paper's file, which draws as well, and the tests are loaded when a sweep has ended.
    """
    return lambda arms: _module("stats").printed(_module(f"papers.{paper}").CLAIMS, record)(arms)


def analyse(paper: str, function: str = "analyse") -> Callable[[Any], Any]:
    """Return the function `analyse(config)`, or `numbers(arms)`, of a config: a paper's own."""
    return lambda config: getattr(_module(f"papers.{paper}"), function)(config)


def at_best(*quantities: str) -> Callable[..., Iterator[Any]]:
    """Return the function `numbers(arms)` of a config, see `stats.at_best`."""
    return lambda arms: _module("stats").at_best(*quantities)(arms)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}")
