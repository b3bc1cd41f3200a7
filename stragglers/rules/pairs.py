"""Waiting rules of asynchronous gossip: SwarmSGD (1910.12308) and AD-PSGD (1710.06952).

Every node works through its local steps at its own speed and then meets a random neighbour.

    random_pairs                   the partner never stops; its local steps stay its own
    random_pairs, blocking=True    both have done their local steps; the first one waits
    bipartite_pairs                one side of a bipartite graph asks, the other goes on alone

Partners are drawn uniformly among a node's neighbours in `setting.graph`, or in proportion to the
attribute "weight" of its edges. `setting.communication` is in seconds from the end of the local
steps to the meeting, in which the node does not compute, or a function of the node's number of
meetings; then scalar or [workers]. Both rules take these parameters:

    local_steps    mini-batches before a meeting, by default all of `setting.mini_batches`
    steps          "fixed", or "geometric" with this mean once it is capped at the mini-batches
    width          meetings of a row, by default an eighth of the workers, or fewer where the graph
                   has fewer disjoint edges

Bad values raise ValueError.
"""

import networkx as nx
import numpy as np

from stragglers.pair_clock import PairClock, PairProtocol, check_neighbours
from stragglers.rule import Rule, Setting, Turnout, Unfit


def _rule(clock: PairClock) -> Rule:
    turnout = Turnout(fewest=1, pairs=True, stopped=clock.blocking)
    arrivals = PairProtocol(clock).face()
    return Rule(clock.workers, clock.init, clock.extend, arrivals=arrivals, turnout=turnout)


def random_pairs(
    setting: Setting,
    *,
    local_steps: float | None = None,
    steps: str = "fixed",
    blocking: bool = False,
    width: int | None = None,
) -> Rule:
    """Let a node meet a random neighbour whenever it has done its local steps (1910.12308).

    blocking: the partner has to end its local steps, too. If it waits for another node the two meet
    at once; otherwise it meets, when it has ended them, the node that has waited longest for it,
    instead of drawing. Both go on when the slower of them has communicated.
    Source: arXiv 1910.12308, Algorithms 1 and 2.
    """
    check_neighbours("random_pairs", setting)
    everybody = np.ones(setting.workers, bool)
    options = {"local_steps": local_steps, "steps": steps, "width": width}
    return _rule(PairClock("random_pairs", setting, everybody, blocking=blocking, **options))


def bipartite_pairs(
    setting: Setting,
    *,
    local_steps: float | None = None,
    steps: str = "fixed",
    width: int | None = None,
) -> Rule:
    """Let active nodes meet random passive neighbours; both sides compute (1710.06952).

    Worker 0, and the smallest worker of any further component, is active, its neighbours are
    passive, and so on. A passive node applies its own work alone: it meets itself, which takes no
    communication. A graph without such sides raises ValueError. Source: arXiv 1710.06952, Section 3
    (implementation).
    """
    check_neighbours("bipartite_pairs", setting)
    graph = setting.graph
    if not nx.is_bipartite(graph):
        raise Unfit(
            "bipartite_pairs",
            "the graph has a cycle of odd length, so that two nodes of one side share an edge",
            "take a bipartite graph as a ring of even length, or random_pairs",
        )
    active = np.zeros(setting.workers, bool)
    for part in nx.connected_components(graph):
        depth = nx.single_source_shortest_path_length(graph, min(part))
        active[[i for i, hops in depth.items() if hops % 2 == 0]] = True
    options = {"local_steps": local_steps, "steps": steps, "width": width}
    return _rule(PairClock("bipartite_pairs", setting, active, **options))
