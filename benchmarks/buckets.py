"""How far MG-WFBP's greedy merging is from the best buckets, and how fast planning is.

    python -m benchmarks.buckets

A gap is the greedy plan's finish over the optimal one's, less one, on random traces: 2 to 64 layers
of 1 kB to 10 MB, 1 ms of backward each on average (exponential), and an all-reduce with alpha of
10 us to 10 ms and 0.1 to 10 ns per byte; uniform logarithms.
"""

import numpy as np
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from comms import buckets
from comms.cost import AlphaBeta
from experiments import stopwatch

_TRACES = flags.DEFINE_integer("traces", 2000, "Random traces.")
_LAYERS = flags.DEFINE_integer("layers", 1000, "Layers of the model whose planning is timed.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed turns of every planner.")

TARGET = 1.0  # s to plan a model of a thousand layers


def random_trace(rng: np.random.Generator, layers: int) -> tuple[np.ndarray, np.ndarray, AlphaBeta]:
    """(sizes, ready, cost) of a random model on a random network."""
    sizes = np.round(10 ** rng.uniform(3, 7, layers))
    ready = np.cumsum(rng.exponential(1e-3, layers))
    return sizes, ready, AlphaBeta(10 ** rng.uniform(-5, -2), 10 ** rng.uniform(-10, -8))


def gaps(traces: int, planner: str = "greedy", seed: int = 0) -> np.ndarray:
    """[traces] how much later a planner's buckets finish than the optimal ones."""
    rng = np.random.default_rng(seed)
    cases = (random_trace(rng, rng.integers(2, 65)) for _ in range(traces))
    plan = buckets.PLANNERS[planner]
    return np.array([plan(*case).finish / buckets.optimal(*case).finish - 1 for case in cases])


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    large = random_trace(np.random.default_rng(0), _LAYERS.value)
    seconds = stopwatch.seconds(
        {name: lambda plan=plan: plan(*large).end for name, plan in buckets.PLANNERS.items()},
        _REPEATS.value,
    )
    table = Table(title=f"gap to optimal on {_TRACES.value} random traces; planning time")
    for column in ("planner", "mean", "p99", "worst", "exact", f"{_LAYERS.value} layers"):
        table.add_column(column, justify="left" if column == "planner" else "right")
    for name in buckets.PLANNERS:
        gap = gaps(_TRACES.value, name)
        of_gap = (gap.mean(), np.percentile(gap, 99), gap.max(), np.mean(gap < 1e-9))
        table.add_row(name, *(f"{100 * x:.2f} %" for x in of_gap), f"{1e3 * seconds[name]:.1f} ms")
    Console(width=100).print(table)
    met = "met" if seconds["optimal"] < TARGET else "missed"
    print(f"optimal, {_LAYERS.value} layers: {seconds['optimal']:.3f} s (target {TARGET} s: {met})")


if __name__ == "__main__":
    app.run(main)
