"""How fast MATCHA mixes beside periodic and vanilla D-PSGD (arXiv 1905.09435)."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from algorithms.gossip import graph_matchings
from comms import matcha
from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look


class Mixing(NamedTuple):
    """rho, the contraction per round of the squared distance to consensus; smaller is faster."""

    matcha: np.ndarray  # [budgets]
    periodic: np.ndarray  # [budgets]
    vanilla: float  # all links in every round


def mixing_rates(graph: nx.Graph, budgets: Sequence[float]) -> Mixing:
    """rho of the three methods on a graph, MATCHA with its best probabilities and edge weight.

    Budgets are shares of the graph's communication in (0, 1]; 1905.09435.
    """
    matchings, _ = graph_matchings(graph)
    _, vanilla = matcha.vanilla(graph)

    def sampled(budget: float) -> float:
        p = matcha.activation_probabilities(matchings, len(graph), budget)
        return matcha.mixing_weight(matchings, len(graph), p)[1]

    return Mixing(
        np.array([sampled(budget) for budget in budgets]),
        np.array([matcha.periodic_rho(budget, vanilla) for budget in budgets]),
        vanilla,
    )


def draw_mixing_rates(graphs: Mapping[str, nx.Graph], path: str | os.PathLike) -> None:
    """Write a PNG of 1200x675 pixels: rho against the budget, a panel for each of eight graphs."""
    budgets = np.linspace(0.05, 1, 20)
    canvas = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    panels = canvas.subplots(2, 4, sharex=True)
    lines = (("matcha", COLOURS[0], "-"), ("periodic", COLOURS[1], (0, (5, 1.5))))
    for axes, (title, graph) in zip(panels.flat, graphs.items(), strict=True):
        rates = mixing_rates(graph, budgets)
        for method, colour, dashes in lines:
            axes.plot(budgets, getattr(rates, method), color=colour, linestyle=dashes)
        axes.axhline(rates.vanilla, color="0.2", linestyle=(0, (1, 1.2)))
        axes.set_title(title, fontsize=8)
        look.linear(axes)
        axes.set(xlim=(0, 1))
        look.ticks(axes, [0, 0.5, 1])
    canvas.supxlabel("budget: share of vanilla's communication", fontsize=9)
    canvas.supylabel("rho per round (smaller: faster consensus)", fontsize=9)
    handles = [Line2D([], [], color=c, linestyle=d, label=name) for name, c, d in lines]
    handles.append(Line2D([], [], color="0.2", linestyle=(0, (1, 1.2)), label="vanilla D-PSGD"))
    canvas.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    save(canvas, path)
