"""What a person sees while arms run: a bar in a terminal, plain lines in a log."""

import contextlib
import time
from collections.abc import Iterator

from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0


def _state(record: dict, clock_budget: float) -> str:
    return (
        f"{record['update']:>6} updates  {record['seconds']:7.1f}/{clock_budget:g} s  "
        f"loss {record['train_loss']:.4f}"
    )


class _Bars:
    """rich's progress bar: one line per arm, the share of the clock budget."""

    def __init__(self, progress: Progress):
        self._progress = progress

    @contextlib.contextmanager
    def arm(self, config: ConfigDict) -> Iterator:
        title = f"{config.name} seed {config.seed}"
        task = self._progress.add_task(title, total=config.seconds, state="compiling")

        def on_record(record: dict) -> None:
            done = max(record["seconds"], config.seconds * record["update"] / config.updates)
            self._progress.update(task, completed=done, state=_state(record, config.seconds))

        yield on_record
        self._progress.update(task, completed=config.seconds)


class _Lines:
    """A line at the start, every few seconds and at the end of an arm."""

    def __init__(self, console: Console, arms: int):
        self._console, self._arms, self._started = console, arms, 0

    @contextlib.contextmanager
    def arm(self, config: ConfigDict) -> Iterator:
        self._started += 1
        head = f"[{self._started}/{self._arms}] {config.name} seed {config.seed}"
        printed, last = time.monotonic(), None

        def on_record(record: dict) -> None:
            nonlocal printed, last
            last = record
            if time.monotonic() - printed >= SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                self._print(f"{head}: {_state(record, config.seconds)}")

        self._print(f"{head}: started")
        yield on_record
        done = "already finished" if last is None else _state(last, config.seconds)
        self._print(f"{head}: {done}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def show(console: Console, arms: int) -> Iterator[_Bars | _Lines]:
    """Progress of so many arms, as fits the console."""
    if not console.is_terminal:
        yield _Lines(console, arms)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)
