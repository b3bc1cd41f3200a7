"""Gains of non-blocking rounds, in theory and simulated; nothing is trained.

The theory is the run-time analysis of Non-blocking SGD (arXiv 2211.00889).
"""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from experiments import entries, parts, waiting
from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look
from experiments.studies.study import Study
from stragglers import delays, processes
from stragglers.theory import rounds as theory


def _is_cost(value) -> bool:
    return entries.is_number(value) and 0 <= value < np.inf


ENTRIES = (
    ("positive whole numbers", entries.several(entries.is_count), ("workers",)),
    ("seconds, 0 or more", entries.several(_is_cost), ("communication",)),
    (
        "a positive whole number",
        entries.is_count,
        ("at_workers", "mini_batches", "rounds", "rounds_in_time"),
    ),
    ("seconds, 0 or more", _is_cost, ("at_communication",)),
    entries.SEED,
    ("delays by name", lambda v: hasattr(v, "items") and len(v), ("delays",)),
)


class Gain(NamedTuple):
    """Samples per second of non-blocking over blocking rounds, expected and simulated."""

    delay: str
    workers: int
    communication: float  # s per round
    source: str  # of what is expected: "closed form", or "estimate" from another simulation
    expected: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative error of the simulation."""
        return self.simulated / self.expected - 1


class Gains(NamedTuple):
    """The gains under every delay, along two axes."""

    by_workers: list[Gain]  # one communication cost
    by_communication: list[Gain]  # one number of workers


def analyse(config: ConfigDict) -> Study:
    """The gains as `compare_gains` has them, with tables and a figure."""
    gains = compare_gains(config)
    summary = {
        axis: [gain._asdict() | {"error": gain.error} for gain in several]
        for axis, several in gains._asdict().items()
    }
    return Study(summary, tables(gains), functools.partial(draw_gains, gains))


def compare_gains(config: ConfigDict) -> Gains:
    """Theory and simulation of the run-time model (2211.00889), with the same draws for all rules.

    config: `delays` {name: part}; `workers` and `communication` (s per round), which vary one at
    a time, and `at_workers` and `at_communication` for where the other one stays; `mini_batches`,
    `draw` and `in_flight` as in `stragglers.rules.rounds`; `rounds` of a simulation,
    `rounds_in_time` of it where durations have a memory; `seed`. Raises ValueError, before the
    first long simulation, for what makes no sense.
    """
    entries.check(config, ENTRIES)
    built = {name: waiting.build_delay(part) for name, part in config.delays.items()}
    brief = ConfigDict(config)
    brief.update(rounds=1, rounds_in_time=1)
    for name, delay in built.items():
        _gain(brief, name, delay, max(*config.workers, config.at_workers), 0.0)
    return Gains(
        [
            _gain(config, name, delay, workers, config.at_communication)
            for name, delay in built.items()
            for workers in config.workers
        ],
        [
            _gain(config, name, delay, config.at_workers, seconds)
            for name, delay in built.items()
            for seconds in config.communication
        ],
    )


def _gain(config, name: str, delay, workers: int, communication: float) -> Gain:
    place = (workers, config.mini_batches, communication)
    in_time = processes.as_process(delay).uses_time
    simulation = {
        "rounds": config.rounds_in_time if in_time else config.rounds,
        # A slow spell ends within a round only where durations are drawn within it.
        "draw": "mini_batch" if in_time else config.draw,
        "in_flight": config.in_flight,
    }
    part = parts.spec(config.delays[name])
    law = waiting.build_delay(part["law"]) if "factors" in part else None
    source = "closed form"
    if isinstance(delay, delays.Law):
        expected = theory.throughput_gain(
            delay, *place, draw=config.draw, in_flight=config.in_flight
        )
    elif isinstance(law, delays.Law) and len(law.atoms) == 1:  # speeds that never change
        seconds = delay.seeded(config.seed).duration(np.arange(workers), 0.0)
        expected = theory.speeds_gain(
            seconds, config.mini_batches, communication, in_flight=config.in_flight
        )
    else:
        source = "estimate"
        expected = theory.estimate_gain(delay, *place, seed=config.seed + 1, **simulation)
    simulated = theory.estimate_gain(delay, *place, seed=config.seed, **simulation)
    return Gain(name, workers, communication, source, expected, simulated)


def tables(gains: Gains) -> list[Table | str]:
    """Two tables, a delay in every row: expected gains and the simulation's errors."""
    made: list[Table | str] = []
    for title, axis, shown, column in (
        (f"by workers, at {gains.by_workers[0].communication:g} s of communication",
         gains.by_workers, "n = {:g}", "workers"),
        (f"by communication per round, with {gains.by_communication[0].workers} workers",
         gains.by_communication, "{:g} s", "communication"),
    ):  # fmt: skip
        places = list(dict.fromkeys(getattr(gain, column) for gain in axis))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"throughput gain {title}")
        table.add_column("delay")
        for place in places:
            table.add_column(shown.format(place), justify="right", no_wrap=True)
        for name, row in _by_delay(axis).items():
            mark = "*" if row[0].source == "estimate" else ""
            table.add_row(
                _words(name) + mark,
                *(f"{g.expected:.2f}x ({round(100 * g.error, 1) + 0.0:+.1f}%)" for g in row),
            )
        made.append(table)
    return [*made, "in brackets: the simulation's error; * estimate from another simulation"]


def draw_gains(gains: Gains, path: str | os.PathLike) -> None:
    """Write a PNG of 1200x600 pixels: gains against workers and against communication."""
    canvas = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    for axes, axis, column in (
        (left, gains.by_workers, "workers"),
        (right, gains.by_communication, "communication"),
    ):
        for (name, row), colour in zip(_by_delay(axis).items(), _colours(), strict=False):
            x = [getattr(gain, column) for gain in row]
            estimated = row[0].source == "estimate"
            axes.plot(
                x,
                [gain.expected for gain in row],
                color=colour,
                linestyle=(0, (4, 1.5)) if estimated else "-",
                linewidth=1.4,
                label=_words(name) if axes is left else None,
            )
            simulated = [gain.simulated for gain in row]
            axes.plot(x, simulated, "o", markersize=4.5, markeredgewidth=1.1, color=colour,
                      markerfacecolor="white")  # fmt: skip
        axes.axhline(1, color="0.35", linewidth=0.8, linestyle="--")
        look.linear(axes)
    left.set_xscale("log", base=2)
    look.ticks(left, [gain.workers for gain in gains.by_workers])
    seconds, workers = gains.by_workers[0].communication, gains.by_communication[0].workers
    left.set(
        xlabel=f"workers, at {seconds:g} s of communication",
        ylabel="throughput: non-blocking / blocking",
    )
    look.ticks(right, [gain.communication for gain in gains.by_communication])
    right.set(xlabel=f"communication per round [s], {workers} workers")
    handles, _ = left.get_legend_handles_labels()
    handles += [
        Line2D([], [], color="0.2", label="closed form"),
        Line2D([], [], color="0.2", linestyle=(0, (4, 1.5)), label="estimate"),
        Line2D([], [], color="0.2", marker="o", linestyle="", markersize=4.5,
               markerfacecolor="white", label="simulated"),
    ]  # fmt: skip
    canvas.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save(canvas, path)


def _by_delay(axis: Sequence[Gain]) -> dict[str, list[Gain]]:
    rows: dict[str, list[Gain]] = {}
    for gain in axis:
        rows.setdefault(gain.delay, []).append(gain)
    return rows


def _colours():
    while True:
        yield from COLOURS


def _words(name: str) -> str:
    return name.replace("_", " ")
