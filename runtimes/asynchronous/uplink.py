"""Both ends of an exchange with a server, cut where it follows from more than its worker knows."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from algorithms.base import AXIS, Algorithm
from comms import collectives
from comms.trees import Tree
from runtimes.equations import PART, inputs, needed, variables
from runtimes.gossip.partition import speaks

Message = tuple[jax.Array, ...]
OWN = ("weight", "batches", "worker", "version", "first")  # extra arguments that a worker knows
TRIED = (1, 2, 3)  # contributions of an update, for which the worker's part must be the same


class Uplink:
    """Both ends of the exchange of a method with a server, for parameters of certain shapes.

    A worker that nobody waits for can encode what it sends if that follows from what it knows
    itself: its contribution, its memory, its parameters and `OWN`. The exchange is traced, and cut
    where it begins to follow from something else: the other workers, or what only the update knows.
    The message is all that the server's part reads of the worker's values, such as the operands of
    collectives. The two parts together compute what the whole exchange does.
    """

    def __init__(self, algorithm: Algorithm, params: Tree, mini_batches: int):
        """Trace and cut; params: or their shapes; mini_batches: of a full round.

        Raises ValueError where the worker's part follows from more than the worker knows.
        """
        self._traced = functools.cache(
            functools.partial(_Exchange, algorithm, params, mini_batches)
        )
        self._encoder = self._traced(TRIED[0]).encoder()
        for contributions in TRIED:
            self._among(contributions)
        self.message = tuple(  # the shapes of a message
            jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
            for var in self._traced(TRIED[0]).message
        )

    @property
    def message_bytes(self) -> int:
        """The size of a message."""
        return sum(shape.size * shape.dtype.itemsize for shape in self.message)

    def encode(
        self, contribution: Tree, state: Any, params: Tree, **own: Any
    ) -> tuple[Message, Any]:
        """Return a worker's message and the new state of its exchange; own: `OWN`, scalars."""
        values = jax.tree.leaves((contribution, state, params, _in_order(own)))
        found, count = _run(self._encoder, values), len(self.message)
        structure = jax.tree.structure(self._traced(TRIED[0]).shapes[1])
        return tuple(found[:count]), jax.tree.unflatten(structure, found[count:])

    def reduce(self, messages: Message, staleness: jax.Array, **update: Any) -> Tree:
        """Return what the exchange returns for the contributions of an update.

        messages: leaves [k, ...]; staleness: [k] int32, updates; update: `samples`, seen before it
        by all workers, their `count`, and `current`, the newest parameters.
        """
        exchange = self._among(len(staleness))
        decoder = exchange.decoder()

        def of_one(message, staleness):
            known = staleness, update["samples"], update["count"], update["current"]
            return _run(decoder, [*message, *jax.tree.leaves(known)])

        reduced = jax.vmap(of_one, axis_name=AXIS)(messages, staleness)
        structure = jax.tree.structure(exchange.shapes[0])
        return jax.tree.unflatten(structure, [leaf[0] for leaf in reduced])

    def _among(self, contributions: int) -> "_Exchange":
        exchange = self._traced(contributions)
        if not _same(exchange.encoder(), self._encoder):
            raise ValueError(
                "uplink: what a worker sends depends on how many there are in an update; let the "
                "server run the whole exchange"
            )
        return exchange


def uplink(algorithm: Algorithm, params: Tree, mini_batches: int) -> Uplink | None:
    """Return the uplink of a method, or None where a contribution is better sent as it is.

    That is where a worker would have to know more than it does, where the server keeps a model of
    the worker's own, or where a message would not be smaller. Arguments as of `Uplink`.
    """
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return None if algorithm.own_models else _uplink(algorithm, shapes, structure, mini_batches)


@functools.cache
def _uplink(algorithm: Algorithm, shapes, structure, mini_batches: int) -> Uplink | None:
    leaves = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    try:
        found = Uplink(algorithm, jax.tree.unflatten(structure, leaves), mini_batches)
    except ValueError:
        return None
    dense = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return found if found.message_bytes < dense else None


def alone(
    algorithm: Algorithm, params: Tree, mini_batches: int
) -> Callable[..., tuple[Tree, Any]] | None:
    """Return what a contribution does to its worker, where methods keep models of workers' own.

    (contribution, state of the exchange, the worker's parameters, `OWN` by name) -> (change of its
    parameters, new state). None where that follows from more than the worker knows. Arguments as
    of `Uplink`.
    """
    try:
        exchanges = [_Exchange(algorithm, params, mini_batches, count) for count in TRIED]
        program, *others = [exchange.own_change() for exchange in exchanges]
    except ValueError:
        return None
    if not all(_same(program, other) for other in others):
        return None
    updates, state = exchanges[0].shapes
    structure = jax.tree.structure((updates.own, state))

    def follows(contribution, state, params, **own):
        values = jax.tree.leaves((contribution, state, params, _in_order(own)))
        return jax.tree.unflatten(structure, _run(program, values))

    return follows


class _Exchange:
    """An exchange that is traced among a number of contributions, and cut.

    shapes: of what it returns, and of the state. message: variables.
    """

    def __init__(self, algorithm: Algorithm, params: Tree, mini_batches: int, contributions: int):
        params = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), params
        )
        number, real = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32))
        given = _in_order(dict.fromkeys(OWN, number) | {"weight": real})
        own = params, jax.eval_shape(algorithm.exchange.init, params), params, given
        update = number, real, jax.ShapeDtypeStruct((), jnp.uint32), params

        def exchange(own, update):
            contribution, state, params, given = own
            staleness, samples, count, current = update
            return algorithm.exchange.update(
                contribution, state, params,
                nominal=mini_batches, active=None, staleness=staleness, samples=samples,
                count=count, current=current, **dict(zip(OWN, given, strict=True)),
            )  # fmt: skip

        trace = jax.make_jaxpr(exchange, axis_env=[(AXIS, contributions)], return_shape=True)
        try:
            with collectives.on_one_device():
                self._traced, self.shapes = trace(own, update)
        except TypeError as error:  # shapes that follow from a number of workers
            raise ValueError(
                f"uplink: there is no exchange of {contributions} contributions; let the server "
                "run the whole exchange of all workers"
            ) from error
        program, count = self._traced.jaxpr, len(jax.tree.leaves(own))
        self._ours, self._theirs = program.invars[:count], program.invars[count:]
        count = len(jax.tree.leaves(self.shapes[0]))
        self._reduced, self._state = program.outvars[:count], program.outvars[count:]
        equations = needed(variables(program.outvars), [], program.eqns)
        self._late, workers = set(self._theirs), set(self._ours)  # what follows from more, or not
        for e in equations:
            if speaks(e, AXIS) or not self._late.isdisjoint(inputs(e)):
                self._late.update(e.outvars)
            elif not workers.isdisjoint(inputs(e)):
                workers.update(e.outvars)
        served = [e for e in equations if not self._late.isdisjoint(e.outvars)]
        read = [var for e in served for var in inputs(e)] + variables(self._reduced)
        self.message = list(dict.fromkeys(var for var in read if var in workers))

    def encoder(self) -> ClosedJaxpr:
        """Return what the worker knows -> the message, its new state."""
        return self._of_worker([*self.message, *self._state], self._state)

    def decoder(self) -> ClosedJaxpr:
        """Return the message, what the update knows -> what the exchange returns."""
        return self._program([*self.message, *self._theirs], self._reduced)

    def own_change(self) -> ClosedJaxpr:
        """Return what the worker knows -> the change of its own model, its new state."""
        served = len(jax.tree.leaves(self.shapes[0].served))
        wanted = [*self._reduced[served:], *self._state]
        return self._of_worker(wanted, wanted)

    def _of_worker(self, results: Sequence[Any], remembered: Sequence[Any]) -> ClosedJaxpr:
        if not self._late.isdisjoint(variables(remembered)):
            raise ValueError(
                "uplink: what a worker remembers depends on the others; let the server run the "
                "whole exchange"
            )
        return self._program(self._ours, results)

    def _program(self, reads: Sequence[Any], results: Sequence[Any]) -> ClosedJaxpr:
        """Return the part of the program that computes `results` from `reads`."""
        program = self._traced.jaxpr
        equations = needed(variables(results), reads, program.eqns)
        read = {var for e in equations for var in inputs(e)} | set(variables(results))
        pairs = zip(program.constvars, self._traced.consts, strict=True)
        constants = {var: value for var, value in pairs if var in read}
        ends = list(constants), list(reads), list(results)
        part = Jaxpr(*ends, equations, program.effects, PART)
        return ClosedJaxpr(part, list(constants.values()))


def _same(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    constants = zip(one.consts, other.consts, strict=False)
    return str(one.jaxpr) == str(other.jaxpr) and all(np.array_equal(a, b) for a, b in constants)


def _run(program: ClosedJaxpr, values: Sequence[Any]) -> list:
    return jax.core.eval_jaxpr(program.jaxpr, program.consts, *values)


def _in_order(own: dict) -> list:
    return [own[name] for name in OWN]
