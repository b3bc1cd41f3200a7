"""The evidence, a file per paper or family: its sweeps, its claims and its figure."""

import importlib
from collections.abc import Callable, Iterator, Sequence
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
)


def claims(paper: str, record: str) -> Callable[..., Iterator[tuple[str, str]]]:
    """Return the function `claims(arms)` of a config whose sweeps are judged as this record is.

    The paper's file, which draws as well, and the tests are loaded when a sweep has ended.
    """

    def judged(arms: Sequence[Any]) -> Iterator[tuple[str, str]]:
        rows = importlib.import_module(f"experiments.papers.{paper}").CLAIMS
        yield from importlib.import_module("experiments.stats").printed(rows, record)(arms)

    return judged


def analyse(paper: str, function: str = "analyse") -> Callable[[Any], Any]:
    """Return the function `analyse(config)` of a config, which is one of a paper's file."""

    def found(config: Any) -> Any:
        return getattr(importlib.import_module(f"experiments.papers.{paper}"), function)(config)

    return found


def at_best(*quantities: str) -> Callable[..., Iterator[Any]]:
    """Return the function `numbers(arms)` of a config, see `stats.at_best`."""

    def found(arms: Sequence[Any]) -> Iterator[Any]:
        yield from importlib.import_module("experiments.stats").at_best(*quantities)(arms)

    return found


def numbers(paper: str) -> Callable[..., Iterator[Any]]:
    """Return the function `numbers(arms)` of a config, which is that of a paper's file.

    It yields `stats.Numbers`.
    """

    def found(arms: Sequence[Any]) -> Iterator[Any]:
        yield from importlib.import_module(f"experiments.papers.{paper}").numbers(arms)

    return found
