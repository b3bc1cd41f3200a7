"""What an arm of a sweep costs when it trains with others as one program, over one alone.

    python -m benchmarks.together [--output=FILE]

Arms differ in their seeds, so that each has its own data, delays and initial model. Both sides are
what `launch.py` does with and without `--together`: prepare, trace, train, evaluate, write. The
first turn compiles and is not counted.
"""

import functools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from benchmarks import output
from benchmarks.together_arms import CASES, arms_of
from experiments import compiled, train

_ARMS = flags.DEFINE_integer("arms", 32, "How many train together.", lower_bound=2)
_TIMES = flags.DEFINE_integer("times", 3, "Counted turns of each side.", lower_bound=1)

GOAL = 0.3


def timed(run: Callable[[pathlib.Path], object]) -> float:
    """Seconds of a run in an empty workdir."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run(pathlib.Path(folder))
        return time.perf_counter() - began


def of_case(case: str, count: int, turns: int) -> tuple[float, float]:
    """Seconds of an arm (alone, of `count` together)."""
    arms = arms_of(case, count)
    alone = functools.partial(train.run, arms[0])

    def together(folder: pathlib.Path) -> None:
        train.run_together(arms, [folder / str(number) for number in range(count)])

    taken = [(timed(alone), timed(together) / count) for _ in range(turns + 1)]
    one, many = zip(*taken[1:], strict=True)
    return statistics.median(one), statistics.median(many)


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    compiled.keep_programs()
    table = Table(title=f"seconds of an arm, {_ARMS.value} together, {_TIMES.value} turns")
    columns = ("arms", "alone", "together", "over alone", "goal")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    found = []
    for case in CASES:
        alone, together = of_case(case, _ARMS.value, _TIMES.value)
        numbers = f"{alone:.2f}", f"{together:.2f}", f"{together / alone:.2f}"
        table.add_row(case, *numbers, f"<= {GOAL:g}")
        found.append({"case": case, "arms": _ARMS.value, "alone": alone, "together": together})
    Console(width=100).print(table)
    output.put("together", ("case", "arms"), found)


if __name__ == "__main__":
    app.run(main)
