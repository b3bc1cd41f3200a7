"""What a row of the table of verdicts is."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.premises import Answer

AGAIN = "the same"  # paper as in the row above
UNCLAIMED = "not claimed"  # no paper says so


class Row(NamedTuple):
    """A claim and how it is asked."""

    paper: str
    claim: str
    record: str  # a file in docs/results without its ending; benchmarks/NAME of a benchmark
    ask: Callable[[Mapping[str, Any]], Answer]
