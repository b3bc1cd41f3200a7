"""What theory says, drawn without training: gains of non-blocking rounds, mixing rates of MATCHA.

The gains are those of Non-blocking SGD's run-time analysis (arXiv 2211.00889), beside simulated
rounds; the mixing rates rho those of MATCHA (arXiv 1905.09435), of periodic and of vanilla D-PSGD.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from algorithms.gossip import graph_matchings
from comms import matcha
from experiments import parts, records, report
from stragglers import delays, processes, theory

# --- gains of non-blocking rounds ---


class Gain(NamedTuple):
    """Throughput of non-blocking over blocking rounds, expected and simulated."""

    delay: str
    workers: int
    communication: float  # s per round
    theory: float
    simulated: float
    method: str  # of `theory`: quadrature | fixed_speeds | estimate

    @property
    def relative_error(self) -> float:
        """Of the simulation, against the theory."""
        return self.simulated / self.theory - 1


def compare_gains(config: ConfigDict, workdir: str | os.PathLike, console: Console) -> list[Gain]:
    """Write config.json, summary.json and figure.png of theory against simulation; print tables.

    config: delays {name: part}, workers and communication (s) to vary, workers_fixed and
    communication_fixed for the other one, mini_batches, draw, in_flight, rounds, rounds_in_time
    and seed. Raises ValueError, before anything is written, for entries that make no sense.
    """
    check_gains(config)
    cases = [
        (name, workers, communication)
        for name in config.delays
        for workers, communication in _axes_of(config)
    ]
    with console.status("simulating rounds"):
        gains = [gain(config, *case) for case in cases]
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    records.write_json(workdir / records.CONFIG, config.to_dict())
    points = [each._asdict() | {"relative_error": each.relative_error} for each in gains]
    largest = {
        method: max(abs(each.relative_error) for each in gains if each.method == method)
        for method in sorted({each.method for each in gains})
    }
    records.write_json(
        workdir / records.SUMMARY,
        {"name": config.name, "largest_relative_error": largest, "points": points},
    )
    draw_gains(config, gains, workdir / "figure.png")
    print_gains(config, gains, console)
    worst = ", ".join(f"{100 * error:.1f} % ({method})" for method, error in largest.items())
    console.print(f"largest relative error by kind of theory: {worst}", highlight=False)
    console.print(f"records: {workdir}   figure: {workdir / 'figure.png'}", highlight=False)
    return gains


def check_gains(config: ConfigDict) -> None:
    """Raise ValueError for a config that `compare_gains` cannot work with."""
    whole = lambda v: parts.is_number(v, Integral) and v > 0  # noqa: E731
    seconds = lambda v: parts.is_number(v) and 0 <= v < np.inf  # noqa: E731
    several = lambda v, fits: isinstance(v, list | tuple) and v and all(map(fits, v))  # noqa: E731
    for name, words, fits in (
        ("workers", "positive whole numbers", lambda v: several(v, whole)),
        ("communication", "seconds, 0 or more", lambda v: several(v, seconds)),
        ("workers_fixed", "a positive whole number", whole),
        ("communication_fixed", "seconds, 0 or more", seconds),
        ("mini_batches", "a positive whole number", whole),
        ("rounds", "a positive whole number", whole),
        ("rounds_in_time", "a positive whole number", whole),
        ("seed", "a whole number, 0 or more", lambda v: parts.is_number(v, Integral) and v >= 0),
        ("delays", "a mapping from names to delays", lambda v: hasattr(v, "items") and len(v)),
    ):
        if name not in config or not fits(config[name]):
            raise ValueError(
                f"config.{name} must be {words}, got {config.get(name)!r}; set config.{name}"
            )
    for part in config.delays.values():
        process = processes.as_process(_delay(part)).seeded(config.seed)
        process.duration(max(*config.workers, config.workers_fixed) - 1, 0.0)
    for law in config.delays.values():  # of draw and in_flight, and of laws without a mean
        _expected(config, law, 2, 0.0, rounds=1)


def gain(config: ConfigDict, name: str, workers: int, communication: float) -> Gain:
    """The throughput gain under the delay that `name` names; communication in seconds."""
    part = config.delays[name]
    rounds = config.rounds_in_time if _delay_uses_time(part) else config.rounds
    expected, method = _expected(config, part, workers, communication, rounds)
    simulated = _simulated(config, part, workers, communication, rounds, config.seed)
    return Gain(name, workers, communication, expected, simulated, method)


def _expected(config, part, workers: int, communication: float, rounds: int) -> tuple[float, str]:
    """The gain without simulation where there is a way, and what the way is called."""
    spec, options = parts.spec(part), {"in_flight": config.in_flight}
    delay = _delay(part)
    if isinstance(delay, delays.Law):
        options |= {"draw": config.draw}
        value = theory.throughput_gain(
            delay, workers, config.mini_batches, communication, **options
        )
        return value, "quadrature"
    law = spec.get("law")
    if spec["name"] == "persistent" and parts.spec(law)["name"] == "deterministic":
        process = delay.seeded(config.seed)
        seconds = process.duration(np.arange(workers), 0.0)
        value = theory.speeds_gain(seconds, config.mini_batches, communication, **options)
        return value, "fixed_speeds"
    # Other seeds than the simulation's: how far two estimates lie apart is their error.
    return _simulated(config, part, workers, communication, rounds, config.seed + 1), "estimate"


def _simulated(config, part, workers, communication, rounds, seed) -> float:
    """The gain in simulated rounds; the blocking and the other rounds see the same draws."""
    delay = _delay(part)
    return theory.estimate_gain(
        delay,
        workers,
        config.mini_batches,
        communication,
        rounds=rounds,
        seed=seed,
        # A slow spell can end within a round only if durations are drawn within it.
        draw="mini_batch" if _uses_time(delay) else config.draw,
        in_flight=config.in_flight,
    )
