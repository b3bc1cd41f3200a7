"""How far workers on a graph are apart after a number of models, when they only average."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from algorithms.gossip import graph_matchings
from comms import matcha as sampling
from comms import mixing
from comms.rounds import Round, mixed
from experiments.reports.figure import COLOURS, DASHES, save
from experiments.studies import axes as look

ROUNDING = 1e-12  # below it nothing is left of a distance of 1


class Consensus(NamedTuple):
    """A line: after every round how much was sent, and what is left."""

    models: np.ndarray  # [rounds + 1] sent by a worker, in the mean over workers
    distance: np.ndarray  # [rounds + 1] root mean square to the mean of all, 1 at the start


def of_graph(graph: nx.Graph) -> list[Round]:
    """The rounds that the graph comes with, or all of its links with Metropolis weights."""
    if "rounds" in graph.graph:
        return graph.graph["rounds"]
    _, partners = graph_matchings(graph)
    everyone = np.arange(len(graph))
    heard = mixing.metropolis(graph)[everyone, partners]
    return [Round(partners, np.where(partners == everyone, 0, heard))]


def of_matcha(graph: nx.Graph, budget: float, rounds: int, seed: int = 0) -> list[Round]:
    """Rounds of MATCHA, of which each has the matchings of the graph that were drawn for it."""
    matchings, partners = graph_matchings(graph)
    p = sampling.activation_probabilities(matchings, len(graph), budget)
    alpha, _ = sampling.mixing_weight(matchings, len(graph), p)
    weights = np.where(partners == np.arange(len(graph)), 0, alpha)
    drawn = sampling.activations(p, rounds, (seed, 0))
    return [Round(partners[active], weights[active]) for active in drawn]


def consensus(turn: Sequence[Round], models: float) -> Consensus:
    """Gossip by these rounds, again and again, until a worker has sent `models`.

    The start is random, independent between workers; a distance is its expectation, in float64.
    """
    workers = turn[0].partners.shape[1]
    off_mean = np.eye(workers) - 1 / workers
    start = np.linalg.norm(off_mean)
    sent, left = [0.0], [1.0]
    while sent[-1] < models:
        one = turn[(len(sent) - 1) % len(turn)]
        off_mean = mixed(one, off_mean)
        sent.append(sent[-1] + one.messages)
        left.append(max(np.linalg.norm(off_mean) / start, ROUNDING))
    return Consensus(np.array(sent), np.array(left))


def sent_until(line: Consensus, distance: float) -> float | None:
    """Models that a worker has sent when the distance is reached; None if it is not."""
    reached = np.flatnonzero(line.distance <= distance)
    return float(line.models[reached[0]]) if len(reached) else None


def draw_consensus(
    panels: Mapping[str, Mapping[str, Sequence[Round]]], models: float, path: str | os.PathLike
) -> None:
    """Write a PNG: distance to the mean against models sent; title -> name of a line -> rounds."""
    canvas = Figure(figsize=(9, 3.4), dpi=150, layout="constrained")
    for axes, (title, turns) in zip(
        canvas.subplots(1, len(panels), sharey=True), panels.items(), strict=True
    ):
        for (name, turn), colour, dash in zip(
            turns.items(), COLOURS, _repeated(DASHES), strict=False
        ):
            line = consensus(turn, models)
            axes.plot(line.models, line.distance, color=colour, linestyle=dash, label=name)
        axes.set(yscale="log", ylim=(1e-6, 1.5), xlim=(0, models))
        axes.set_title(title, fontsize=9)
        look.logarithmic(axes)
    canvas.supxlabel("models that a worker has sent", fontsize=9)
    canvas.supylabel("distance to the mean", fontsize=9)
    handles, names = axes.get_legend_handles_labels()
    canvas.legend(handles, names, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    save(canvas, path)


def _repeated(dashes: Sequence) -> list:
    return [dashes[place % len(dashes)] for place in range(len(COLOURS))]
