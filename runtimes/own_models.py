"""The models of workers' own that a server of free workers keeps beside its own.

A worker is sent its model, in which it has adopted of the version of the server's that it reads.
Where it goes on before the update that has its last contribution, its model after that is known at
once if it follows from that contribution alone, as in Decoupled DiLoCo (`uplink.alone`).
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import Algorithm
from runtimes import uplink
from runtimes.free_worker import Order
from runtimes.server_programs import State
from runtimes.update_log import Held


class OwnModels:
    """Where the workers of an algorithm with `adopt` are at work, by their orders.

    params: of the server; mini_batches: of a full contribution.
    """

    def __init__(self, algorithm: Algorithm, params: Any, mini_batches: int):
        self._alone = uplink.alone(algorithm, params, mini_batches)
        self._at: dict[tuple[int, int], Any] = {}  # (worker, number of the order) -> parameters

        @jax.jit
        def of(state, who):
            return jax.tree.map(lambda a: a[who], (state.own, state.memory))

        @jax.jit
        def adopted(own, memory, served, version, anew):
            own = jax.tree.map(lambda a, s: jnp.where(anew, s, a), own, served)
            return algorithm.adopt(own, served, memory, version)

        @jax.jit
        def after(memory, fresh, served, point, contribution, batches, known):
            first = algorithm.exchange.init(served)
            memory = jax.tree.map(lambda a, new: jnp.where(fresh, new, a), memory, first)
            known |= {"weight": algorithm.weight(batches), "batches": batches}
            change, memory = self._alone(contribution, memory, point, **known)
            return optax.apply_updates(point, change), memory

        self._of, self._adopted, self._after = of, adopted, after

    @property
    def foreseen(self) -> bool:
        """Whether a worker can go on before its update is made."""
        return self._alone is not None

    def point(self, who: int, order: Order) -> Any:
        """Where the worker carries out the order."""
        return self._at[who, order.number]

    def begin(
        self,
        who: int,
        order: Order,
        state: State,
        served: Any,
        waiting: Sequence[Held],
        anew: bool,
    ) -> None:
        """The worker begins an order.

        served: the server's parameters at the order's version. waiting: the worker's contributions
        that no update has yet, in order. anew: it has lost its process since.
        """
        own, memory = self._of(state, who)
        for held in waiting:
            own, memory = self._went_on(state, memory, self.point(who, held.order), held)
        self._at[who, order.number] = self._adopted(
            own, memory, served, np.int32(order.version), anew
        )

    def compile(self, state: State, held: Held) -> None:
        """Reckon once where a worker goes on after a contribution; nothing is changed."""
        own, memory = self._of(state, held.worker)
        if self.foreseen:
            own, memory = self._went_on(state, memory, own, held)
        anew = np.int32(held.order.version), False
        jax.block_until_ready(self._adopted(own, memory, state.params, *anew))

    def forget(self, used: Collection[tuple[int, int]]) -> None:
        """Keep the points of these orders alone."""
        self._at = {order: self._at[order] for order in used}

    def _went_on(self, state: State, memory: Any, point: Any, held: Held) -> tuple[Any, Any]:
        """(own model, memory) of a worker after a contribution that it has made at `point`."""
        order = held.order
        known = {
            "worker": np.int32(held.worker),
            "version": np.int32(order.version),
            "first": np.int32(order.first),
        }
        given = held.restored, state.params, point, held.contribution
        return self._after(memory, *given, np.int32(order.batches), known)
