"""Graphs and weights of one's own, as every method that gossips takes them."""

import functools

import networkx as nx
import numpy as np
import optax
import pytest

from algorithms import (
    ad_psgd,
    choco_sgd,
    decentlam,
    dpsgd,
    exact_diffusion,
    gradient_tracking,
    matcha,
    noloco,
    periodic,
    qg_dsgdm,
    swarm,
)
from algorithms.links import Links, in_turn
from comms import topology

WEIGHED = [dpsgd, gradient_tracking, exact_diffusion, qg_dsgdm, decentlam, choco_sgd]
LOCKSTEP = functools.partial(swarm, lockstep=True)


@pytest.mark.parametrize("make", [*WEIGHED, matcha, periodic, noloco, swarm, LOCKSTEP, ad_psgd])
def test_no_method_takes_a_graph_on_which_workers_cannot_agree(make):
    for graph, message in (
        (nx.Graph([(0, 1), (2, 3)]), "graph: the graph of 4 workers falls into 2 components"),
        (nx.cycle_graph(range(1, 5)), "graph: nodes must be the workers' numbers"),
        (nx.DiGraph([(0, 1), (1, 2), (2, 0)]), "got DiGraph"),
        (nx.Graph([(0, 0), (0, 1)]), "graph: worker 0 has an edge to itself"),
    ):
        with pytest.raises(ValueError, match=message):
            make(optax.sgd(0.1), graph)


@pytest.mark.parametrize("make", WEIGHED)
def test_weights_of_ones_own_are_checked_by_every_method(make):
    W = np.array([[0.5, 0.3, 0.2], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7]])
    make(optax.sgd(0.1), topology.complete(3), mixing_matrix=W)
    with pytest.raises(ValueError, match=r"mixing_matrix: W\[0, 2\] = 0.2, but the graph has no"):
        make(optax.sgd(0.1), nx.path_graph(3), mixing_matrix=W)


def test_links_by_which_workers_never_come_together_are_refused():
    """Two of the three matchings of a square with its diagonals join no more than two pairs."""
    pairs = np.array([[1, 0, 3, 2], [1, 0, 3, 2]])
    weights = np.full((2, 4), 0.5)
    links = Links(pairs, in_turn(2), weights=weights, period=2)
    with pytest.raises(ValueError, match="links: on this graph models do not come together"):
        dpsgd(optax.sgd(0.1), topology.complete(4), links=links)
    pairs = np.array([[1, 0, 3, 2], [3, 2, 1, 0]])
    dpsgd(optax.sgd(0.1), topology.complete(4), links=links._replace(partners=pairs))
