"""What a person sees while arms run: a bar in a terminal, plain lines in a log."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0


class Watched(NamedTuple):
    """Whom to call as an arm goes on and when it ends."""

    on_record: Callable[[dict], None]
    ended: Callable[[str | None], None]  # with the reason of a failure; None: it has finished
    noted: Callable[[str], None] = lambda text: None  # what else has happened, in a sentence


def _state(record: dict, clock_budget: float) -> str:
    return (
        f"{record['update']:>6} updates  {record['seconds']:7.1f}/{clock_budget:g} s  "
        f"loss {_loss(record['train_loss'])}"
    )


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"  # as it is in the records


def _title(config: ConfigDict) -> str:
    return f"{config.name} seed {config.seed}"


class _Bars:
    """rich's progress bar: one line per arm, the share of the clock budget."""

    def __init__(self, progress: Progress):
        self._progress = progress

    def arm(self, config: ConfigDict) -> Watched:
        task = self._progress.add_task(_title(config), total=config.seconds, state="starting")

        def on_record(record: dict) -> None:
            done = max(record["seconds"], config.seconds * record["update"] / config.updates)
            self._progress.update(task, completed=done, state=_state(record, config.seconds))

        def ended(failure: str | None) -> None:
            if failure is None:
                self._progress.update(task, completed=config.seconds)
            else:
                self._progress.update(task, state=f"failed: {failure}")
                self._progress.stop_task(task)

        def noted(text: str) -> None:
            self._progress.console.print(f"{_title(config)}: {text}", highlight=False, markup=False)

        return Watched(on_record, ended, noted)


class _Lines:
    """A line at the start, every few seconds and at the end of an arm."""

    def __init__(self, console: Console, arms: int):
        self._console, self._arms = console, arms
        self._numbers: dict[str, int] = {}

    def arm(self, config: ConfigDict) -> Watched:
        title = _title(config)
        number = self._numbers.setdefault(title, len(self._numbers) + 1)
        head = f"[{number}/{self._arms}] {title}"
        printed, last = time.monotonic(), None

        def on_record(record: dict) -> None:
            nonlocal printed, last
            last = record
            if time.monotonic() - printed >= SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                self._print(f"{head}: {_state(record, config.seconds)}")

        def ended(failure: str | None) -> None:
            done = "already finished" if last is None else _state(last, config.seconds)
            self._print(f"{head}: {done if failure is None else f'failed: {failure}'}")

        self._print(f"{head}: started")
        return Watched(on_record, ended, lambda text: self._print(f"{head}: {text}"))

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


Shown = _Bars | _Lines


@contextlib.contextmanager
def show(console: Console, arms: int) -> Iterator[Shown]:
    """Progress of this number of arms, as fits the console."""
    if not console.is_terminal:
        yield _Lines(console, arms)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)
