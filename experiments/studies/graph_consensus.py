"""How far workers on a graph are apart after a number of models, when they only average."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from comms import mixing
from experiments.reports.figure import COLOURS, DASHES, save
from experiments.studies import axes as look

ROUNDING = 1e-12  # below it nothing is left of a distance of 1


class Consensus(NamedTuple):
    """A line: after every round how much was sent, and what is left."""

    models: np.ndarray  # [rounds + 1] sent by a worker, in the mean over workers
    distance: np.ndarray  # [rounds + 1] root mean square to the mean of all, 1 at the start


def consensus(graph: nx.Graph, models: float) -> Consensus:
    """Gossip on the graph, with its rounds or with Metropolis weights, until `models` are sent.

    The start is random, independent between workers; a distance is its expectation, in float64.
    """
    matrices = graph.graph.get("rounds", [mixing.metropolis(graph)])
    workers = len(graph)
    off_mean = np.eye(workers) - 1 / workers
    start = np.linalg.norm(off_mean)
    sent, left = [0.0], [1.0]
    while sent[-1] < models:
        W = matrices[(len(sent) - 1) % len(matrices)]
        off_mean = W @ off_mean
        sent.append(sent[-1] + np.count_nonzero(W - np.diag(np.diag(W))) / workers)
        left.append(max(np.linalg.norm(off_mean) / start, ROUNDING))
    return Consensus(np.array(sent), np.array(left))


def sent_until(line: Consensus, distance: float) -> float | None:
    """Models that a worker has sent when the distance is reached; None if it is not."""
    reached = np.flatnonzero(line.distance <= distance)
    return float(line.models[reached[0]]) if len(reached) else None


def draw_consensus(
    panels: Mapping[str, Mapping[str, nx.Graph]], models: float, path: str | os.PathLike
) -> None:
    """Write a PNG: distance to the mean against models sent; title -> name of a line -> graph."""
    canvas = Figure(figsize=(9, 3.2), dpi=150, layout="constrained")
    for axes, (title, graphs) in zip(
        canvas.subplots(1, len(panels), sharey=True), panels.items(), strict=True
    ):
        for (name, graph), colour, dash in zip(
            graphs.items(), COLOURS, _repeated(DASHES), strict=False
        ):
            line = consensus(graph, models)
            axes.plot(line.models, line.distance, color=colour, linestyle=dash, label=name)
        axes.set(yscale="log", ylim=(1e-6, 1.5), xlim=(0, models))
        axes.set_title(title, fontsize=9)
        look.logarithmic(axes)
    canvas.supxlabel("models that a worker has sent", fontsize=9)
    canvas.supylabel("distance to the mean", fontsize=9)
    handles, names = axes.get_legend_handles_labels()
    canvas.legend(
        handles, names, loc="outside upper center", ncols=len(names), fontsize=8, frameon=False
    )
    save(canvas, path)


def _repeated(dashes: Sequence) -> list:
    return [dashes[place % len(dashes)] for place in range(len(COLOURS))]
