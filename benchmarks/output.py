"""The flag `--output`: a benchmark prints what it measures and, if asked, puts it on record."""

import pathlib
from collections.abc import Sequence

from absl import flags

from benchmarks import points

PATH = flags.DEFINE_string("output", None, "A record, to which what was measured is added.")


def put(benchmark: str, key: Sequence[str], found: Sequence[dict]) -> None:
    """Put points into the record that `--output` names, if it names one; see `points.put`.

    benchmark: the module's name.
    """
    if PATH.value is not None:
        points.put(pathlib.Path(PATH.value), f"python -m benchmarks.{benchmark}", key, found)
