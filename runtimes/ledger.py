"""What nodes held when all of them stood still last, and what those have counted that have gone."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes.local_steps import Holding
from runtimes.nodes import Traffic
from runtimes.peers import Held


class Counted(NamedTuple):
    """What has been counted since a run has begun."""

    traffic: Traffic  # of all nodes
    deaths: int  # of processes
    moved: float  # how far restored nodes have moved the sum of the models, over its length

    def and_then(self, later: "Counted") -> "Counted":
        """Both after each other."""
        return Counted(_both(self.traffic, later.traffic), self.deaths + later.deaths,
                       self.moved + later.moved)  # fmt: skip


NOTHING = Counted(Traffic(0, 0, 0, 0), 0, 0.0)


class Ledger:
    """The holdings of all nodes after the same rows, of a start, a checkpoint or an evaluation.

    update: how many rows these are.
    """

    def __init__(self, holdings: Sequence[Holding], update: int):
        self.update = update
        self._held = [Held(holding, NOTHING.traffic) for holding in holdings]
        self._gone, self._moved = NOTHING.traffic, 0.0

    def take(self, held: Sequence[Held], update: int) -> None:
        """Note what all nodes hold after `update` rows."""
        self._held, self.update = list(held), update

    def model(self, node: int) -> Any:
        """What the node had as its model after `update` rows."""
        return self._held[node].holding.params

    def replace(self, node: int, params: Any) -> None:
        """Note that a node has gone and begins anew from this model."""
        last, models = self._held[node], [held.holding.params for held in self._held]
        difference = jax.tree.map(np.subtract, params, last.holding.params)
        whole = jax.tree.map(lambda *leaves: sum(leaves), *models)
        self._moved += _length(difference) / _length(whole)
        self._gone = _both(self._gone, last.traffic)
        self._held[node] = Held(last.holding._replace(params=params), NOTHING.traffic)

    def counted(self, held: Sequence[Held], deaths: int) -> Counted:
        """What has been counted by the nodes that there are, and by those that have gone.

        Of the latter until `update`; the models that restored nodes have replaced are of then as
        well.
        """
        traffic = self._gone
        for node in held:
            traffic = _both(traffic, node.traffic)
        return Counted(traffic, deaths, self._moved)


def _both(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(*map(sum, zip(one, other, strict=True)))


def _length(model: Any) -> float:
    return float(np.sqrt(sum(np.vdot(leaf, leaf) for leaf in jax.tree.leaves(model))))
