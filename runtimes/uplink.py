"""What a worker sends to a server in place of its contribution, cut out of a method's exchange.

A worker that nobody waits for can encode what it sends if that follows from what it knows itself:
its contribution, its memory, its parameters and what `OWN` names. The exchange is traced, and cut
where it begins to follow from something else: the other workers, or what only the update knows.

    worker   what does not: encoding, and the new memory
    message  what of the worker's values the rest reads, such as the operands of collectives
    server   the rest, for the messages of all contributions of an update under `jax.vmap`

The two parts together compute what the whole exchange does.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from algorithms.base import AXIS, Algorithm
from comms import collectives
from comms.trees import Tree
from runtimes import jaxprs

OWN = ("weight", "batches", "worker", "version", "first")  # extra arguments that a worker knows
TRIED = (1, 2, 3)  # contributions of an update, for which the worker's part must be the same

Message = tuple[jax.Array, ...]


class Uplink:
    """Both ends of the exchange of a replicated method, for parameters of certain shapes."""

    def __init__(self, algorithm: Algorithm, params: Tree, mini_batches: int):
        """params: or their shapes; mini_batches: of a full round.

        Raises ValueError where the worker's part follows from more than the worker knows.
        """
        self._cut = functools.cache(functools.partial(_cut, algorithm, params, mini_batches))
        self._part = self._cut(TRIED[0])
        for contributions in TRIED:
            self._among(contributions)
        self.message = tuple(  # the shapes of a message
            jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in self._part.message
        )

    @property
    def message_bytes(self) -> int:
        """What a message weighs."""
        return sum(shape.size * shape.dtype.itemsize for shape in self.message)

    def encode(
        self, contribution: Tree, state: Any, params: Tree, **own: Any
    ) -> tuple[Message, Any]:
        """A worker's message and the new state of its exchange; own: `OWN`, scalars."""
        values = jax.tree.leaves((contribution, state, params, _in_order(own)))
        found = _run(self._part.worker, values)
        count = len(self.message)
        return tuple(found[:count]), jax.tree.unflatten(self._part.state, found[count:])

    def reduce(self, messages: Message, staleness: jax.Array, **update: Any) -> Tree:
        """What the exchange returns for the contributions of an update.

        messages: leaves [k, ...]; staleness: [k] int32, updates; update: `samples`, seen before it
        by all workers, their `count`, and `current`, the newest parameters.
        """
        part = self._among(len(staleness))

        def of_one(message, staleness):
            known = staleness, update["samples"], update["count"], update["current"]
            return _run(part.server, [*message, *jax.tree.leaves(known)])

        reduced = jax.vmap(of_one, axis_name=AXIS)(messages, staleness)
        return jax.tree.unflatten(part.reduced, [leaf[0] for leaf in reduced])

    def _among(self, contributions: int) -> "_Cut":
        """The parts among `contributions` of them; the worker's part is the same for any number."""
        part = self._cut(contributions)
        if not _same(part.worker, self._part.worker):
            raise ValueError(
                "uplink: what a worker sends depends on how many there are in an update; let the "
                "server run the whole exchange"
            )
        return part


def uplink(algorithm: Algorithm, params: Tree, mini_batches: int) -> Uplink | None:
    """The uplink of a replicated method, or None where a contribution is better sent as it is.

    That is where a worker would have to know more than it does, where the server keeps a model of
    the worker's own, or where a message would not be smaller. Arguments as of `Uplink`.
    """
    if algorithm.own_models:
        return None
    try:
        found = Uplink(algorithm, params, mini_batches)
    except ValueError:
        return None
    dense = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return found if found.message_bytes < dense else None


def alone(
    algorithm: Algorithm, params: Tree, mini_batches: int
) -> Callable[..., tuple[Tree, Any]] | None:
    """What a contribution does to its worker where the method keeps models of the workers' own:
    (contribution, state of the exchange, the worker's parameters, `OWN` by name) -> (change of its
    parameters, new state). None where that follows from more than the worker knows.

    Arguments as of `Uplink`.
    """
    programs = []
    for contributions in TRIED:
        try:
            trace = _trace(algorithm, params, mini_batches, contributions)
        except ValueError:
            return None
        shapes, (updates, state) = trace.shapes, trace.results
        wanted = [*updates[len(jax.tree.leaves(shapes[0].served)) :], *state]
        if not trace.late.isdisjoint(_variables(wanted)):
            return None
        programs.append(_program(trace.program, trace.ours, wanted))
    if not all(_same(programs[0], program) for program in programs[1:]):
        return None
    structure = jax.tree.structure((shapes[0].own, shapes[1]))

    def follows(contribution, state, params, **own):
        values = jax.tree.leaves((contribution, state, params, _in_order(own)))
        return jax.tree.unflatten(structure, _run(programs[0], values))

    return follows


class _Cut(NamedTuple):
    """An exchange among a number of contributions, in two parts."""

    worker: ClosedJaxpr  # what the worker knows -> the message, its new state
    server: ClosedJaxpr  # the message, what the update knows -> what the exchange returns
    message: Sequence[Any]  # variables
    state: Any  # structure
    reduced: Any  # structure


class _Trace(NamedTuple):
    """An exchange among a number of contributions."""

    program: ClosedJaxpr
    ours: Sequence[Any]  # variables that a worker knows
    theirs: Sequence[Any]  # variables that the update knows
    equations: Sequence[Any]  # that anything follows from
    late: set  # variables that follow from more than the worker knows
    worker: set  # variables that follow from what it knows, and from nothing else
    shapes: tuple[Tree, Any]  # of what the exchange returns, and of the state

    @property
    def results(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Variables of what the exchange returns, and of the state."""
        count = len(jax.tree.leaves(self.shapes[0]))
        return self.program.jaxpr.outvars[:count], self.program.jaxpr.outvars[count:]


def _trace(algorithm: Algorithm, params: Tree, mini_batches: int, contributions: int) -> _Trace:
    params = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), params)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    real = jax.ShapeDtypeStruct((), jnp.float32)
    given = dict.fromkeys(OWN, number) | {"weight": real}
    own = params, jax.eval_shape(algorithm.exchange.init, params), params, _in_order(given)
    update = number, real, jax.ShapeDtypeStruct((), jnp.uint32), params

    def exchange(own, update):
        contribution, state, params, given = own
        staleness, samples, count, current = update
        reduced, state = algorithm.exchange.update(
            contribution, state, params,
            nominal=mini_batches, active=None, staleness=staleness, samples=samples,
            count=count, current=current, **dict(zip(OWN, given, strict=True)),
        )  # fmt: skip
        return reduced, state

    trace = jax.make_jaxpr(exchange, axis_env=[(AXIS, contributions)], return_shape=True)
    try:
        with collectives.on_one_device():
            traced, shapes = trace(own, update)
    except TypeError as error:  # shapes that follow from a number of workers
        raise ValueError(
            f"uplink: there is no exchange of {contributions} contributions; let the server run "
            "the whole exchange of all workers"
        ) from error
    program, count = traced.jaxpr, len(jax.tree.leaves(own))
    ours, theirs = program.invars[:count], program.invars[count:]
    equations = jaxprs.needed(_variables(program.outvars), [], program.eqns)

    late, worker = set(theirs), set(ours)  # variables that follow from more, or from the worker
    for e in equations:
        read = jaxprs.inputs(e)
        if jaxprs.speaks(e, AXIS) or not late.isdisjoint(read):
            late.update(e.outvars)
        elif not worker.isdisjoint(read):
            worker.update(e.outvars)
    return _Trace(traced, ours, theirs, equations, late, worker, shapes)


def _cut(algorithm: Algorithm, params: Tree, mini_batches: int, contributions: int) -> _Cut:
    """Trace the exchange and cut it."""
    trace = _trace(algorithm, params, mini_batches, contributions)
    late, (reduced, state) = trace.late, trace.results
    if not late.isdisjoint(_variables(state)):
        raise ValueError(
            "uplink: what a worker remembers depends on the others; let the server run the whole "
            "exchange"
        )
    served = [e for e in trace.equations if not late.isdisjoint(e.outvars)]
    read = [var for e in served for var in jaxprs.inputs(e)] + _variables(reduced)
    message = list(dict.fromkeys(var for var in read if var in trace.worker))
    return _Cut(
        _program(trace.program, trace.ours, [*message, *state]),
        _program(trace.program, [*message, *trace.theirs], reduced),
        message,
        jax.tree.structure(trace.shapes[1]),
        jax.tree.structure(trace.shapes[0]),
    )


def _program(traced: ClosedJaxpr, reads: Sequence[Any], results: Sequence[Any]) -> ClosedJaxpr:
    """The part of a traced program that computes `results` from `reads`."""
    program = traced.jaxpr
    equations = jaxprs.needed(_variables(results), reads, program.eqns)
    read = {var for e in equations for var in jaxprs.inputs(e)} | set(_variables(results))
    constants = {
        var: value
        for var, value in zip(program.constvars, traced.consts, strict=True)
        if var in read
    }
    variables = list(constants), list(reads), list(results)
    part = Jaxpr(*variables, equations, program.effects, jaxprs.PART)
    return ClosedJaxpr(part, list(constants.values()))


def _same(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Whether two programs do the same."""
    constants = zip(one.consts, other.consts, strict=False)
    return str(one.jaxpr) == str(other.jaxpr) and all(np.array_equal(a, b) for a, b in constants)


def _run(program: ClosedJaxpr, values: Sequence[Any]) -> list:
    return jax.core.eval_jaxpr(program.jaxpr, program.consts, *values)


def _in_order(own: dict) -> list:
    return [own[name] for name in OWN]


def _variables(values: Sequence[Any]) -> list:
    """All but the constants that stand in places of variables."""
    return [var for var in values if not isinstance(var, Literal)]
