"""Half of a program for an axis of two, as what is computed between its messages.

Two processes that each play their half, and hand each other what it says, compute what one program
computes under `jax.vmap(axis_name=...)`, bit for bit: the program is traced for its position in
the axis and cut at its collectives into segments, all compiled before the first message. A half is
a generator, which stops where it needs what the partner says:

    half = Conversation(body, 0, *arguments).begin(*arguments)
    heard = say_and_hear(next(half))
    while True:  # until StopIteration, whose value is the body's result
        heard = say_and_hear(half.send(heard))

All collectives whose inputs can be computed go in one message. Loops, branches and compiled
functions that hold a collective are played on the host, where both ends must take the same way.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from comms.collectives import AXIS
from runtimes import jaxprs

Half = Generator[list, Sequence[Any], Any]  # what it says, what it hears, its result


class Conversation:
    """One end of a body for an axis of two, compiled for arguments of certain shapes.

    body: a function of arrays that runs under the axis `AXIS`; position: in it, 0 or 1; examples:
    the arguments, or their shapes. Raises ValueError for a collective that cannot be cut out.
    """

    def __init__(self, body: Callable, position: int, *examples: Any):
        traced, outputs = jax.make_jaxpr(body, axis_env=[(AXIS, 2)], return_shape=True)(*examples)
        self._result = jax.tree.structure(outputs)
        self._plan = _Plan(traced, position)

    def begin(self, *arguments: Any) -> Half:
        """The half for these arguments; its result is that of the body."""
        results = yield from self._plan.play(jax.tree.leaves(arguments))
        return jax.tree.unflatten(self._result, results)


class _Heard(NamedTuple):
    """Stands among the variables for what the partner says of an operand of a collective."""

    equation: int  # its place in the program
    operand: int


class _Segment(NamedTuple):
    """What is computed at once."""

    reads: list
    computes: list
    run: Callable | None  # compiled: the values read -> the values computed; None: nothing to do


class _Step(NamedTuple):
    """A segment and what comes after it: a message, or a container that is played."""

    segment: _Segment
    said: dict[_Heard, Any]  # the operands
    container: JaxprEqn | None = None
    plans: Sequence["_Plan"] = ()  # of the programs that it holds


class _Plan:
    """The order in which a program is played."""

    def __init__(self, program: ClosedJaxpr, position: int):
        self._program, self._position = program.jaxpr, position
        self._constants = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        self._places = {id(e): place for place, e in enumerate(program.jaxpr.eqns)}
        self._pending = list(program.jaxpr.eqns)  # not computed yet
        self._known = {*program.jaxpr.invars, *self._constants}
        waiting = {
            id(e): e
            for e in self._pending
            if jaxprs.speaks(e, AXIS) and e.primitive.name != "axis_index"
        }
        self._waiting = waiting  # has not been said, or not been played
        self._steps = []
        while waiting:
            ready = self._ready()
            said = [e for e in ready if jaxprs.names_axis(e, AXIS)]
            self._steps.append(self._message(said) if said else self._played(ready[0]))
        self._last = self._segment(program.jaxpr.outvars)

    def play(self, arguments: Sequence[Any]) -> Half:
        """A half whose result are the outputs of the program."""
        values = dict(zip(self._program.invars, arguments, strict=True)) | self._constants
        for step in self._steps:
            _compute(step.segment, values)
            if step.container is None:
                heard = yield [jaxprs.read(var, values) for var in step.said.values()]
                values.update(zip(step.said, heard, strict=True))
            else:
                given = [jaxprs.read(var, values) for var in step.container.invars]
                played = _players()[step.container.primitive.name]
                found = yield from played(step.container.params, step.plans, given)
                values.update(zip(step.container.outvars, found, strict=True))
        _compute(self._last, values)
        return [jaxprs.read(var, values) for var in self._program.outvars]

    def _ready(self) -> list[JaxprEqn]:
        """What waits, and needs nothing else that waits; in the order of the program."""
        late, ready = set(), []
        for e in self._pending:
            waits = id(e) in self._waiting
            if late.isdisjoint(jaxprs.inputs(e)):
                ready += [e] if waits else []
                late.update(e.outvars if waits else ())
            else:
                late.update(e.outvars)
        return ready

    def _message(self, collectives: list[JaxprEqn]) -> _Step:
        for e in collectives:
            _check_collective(e)
            del self._waiting[id(e)]
        said = {heard: var for e in collectives for heard, var in self._operands(e).items()}
        segment = self._segment(said.values())
        self._known.update(said)
        return _Step(segment, said)

    def _played(self, container: JaxprEqn) -> _Step:
        name = container.primitive.name
        if name not in _players():
            raise ValueError(
                f"conversation: a message inside of a {name!r} cannot be cut out; send it outside "
                f"of it, or inside of one of {', '.join(sorted(_players()))}"
            )
        segment = self._segment(container.invars)
        del self._waiting[id(container)]
        self._pending = [e for e in self._pending if e is not container]
        self._known.update(container.outvars)
        plans = [_Plan(program, self._position) for program in jaxprs.programs_in(container)]
        return _Step(segment, {}, container, plans)

    def _segment(self, wanted: Sequence[Any]) -> _Segment:
        """What computes `wanted`, and keeps of it what will be wanted later."""
        wanted = {var for var in wanted if not isinstance(var, Literal)}
        possible = [e for e in self._pending if id(e) not in self._waiting]
        equations = jaxprs.needed(wanted, self._known, possible)
        taken = {id(e) for e in equations}
        self._pending = [e for e in self._pending if id(e) not in taken]
        if not equations:
            return _Segment([], [], None)
        later = wanted | {var for e in self._pending for var in jaxprs.inputs(e)}
        later.update(var for var in self._program.outvars if not isinstance(var, Literal))
        computed = [var for e in equations for var in e.outvars]
        read = {var: var.aval for e in equations for var in jaxprs.inputs(e)}
        for e in equations:
            if jaxprs.names_axis(e, AXIS):
                read |= {heard: var.aval for heard, var in self._operands(e).items()}
        reads = {
            name: jax.ShapeDtypeStruct(aval.shape, aval.dtype)
            for name, aval in read.items()
            if name not in self._constants and name not in set(computed)
        }
        computes = [var for var in computed if var in later]
        self._known.update(computes)

        def run(*given):
            values = self._constants | dict(zip(reads, given, strict=True))
            for e in equations:
                values.update(zip(e.outvars, self._computed(e, values), strict=True))
            return [values[var] for var in computes]

        return _Segment(list(reads), computes, jax.jit(run).lower(*reads.values()).compile())

    def _computed(self, equation: JaxprEqn, values: dict) -> Sequence[Any]:
        mine = [jaxprs.read(var, values) for var in equation.invars]
        if equation.primitive.name == "axis_index":
            return [jnp.int32(self._position)]
        if not jaxprs.names_axis(equation, AXIS):
            return jaxprs.bind(equation, mine)
        combine = _COMBINED[equation.primitive.name]
        theirs = [values[heard] for heard in self._operands(equation)]
        return [
            combine((a, b)[:: 1 - 2 * self._position], self._position, equation.params)
            for a, b in zip(mine, theirs, strict=True)
        ]

    def _operands(self, collective: JaxprEqn) -> dict[_Heard, Any]:
        place = self._places[id(collective)]
        return {_Heard(place, i): var for i, var in enumerate(collective.invars)}


def _compute(segment: _Segment, values: dict) -> None:
    if segment.run is not None:
        found = segment.run(*[values[name] for name in segment.reads])
        values.update(zip(segment.computes, found, strict=True))


def _called(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    del params
    return (yield from plans[0].play(values))


def _branched(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    del params
    index, *operands = values
    return (yield from plans[min(max(int(index), 0), len(plans) - 1)].play(operands))


def _looped(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    test, body = (plans[i] for i in _order_of_loop(params))
    tested, repeated = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body = values[:tested], values[tested : tested + repeated]
    carry = values[tested + repeated :]
    while (yield from test.play([*for_test, *carry]))[0]:
        carry = yield from body.play([*for_body, *carry])
    return carry


def _order_of_loop(params: dict) -> tuple[int, int]:
    """Which of the programs of a loop, in the order of its parameters, are its test and body."""
    names = [name for name in params if name in ("cond_jaxpr", "body_jaxpr")]
    return names.index("cond_jaxpr"), names.index("body_jaxpr")


def _players() -> dict[str, Callable]:
    """How a container is played, by the name of its primitive.

    (its parameters, plans of what it holds, inputs) -> a half.
    """
    return {"jit": _called, "pjit": _called, "cond": _branched, "while": _looped}


def _gathered(members: tuple, position: int, params: dict) -> jax.Array:
    del position
    join = jnp.concatenate if params["tiled"] else jnp.stack
    return join(members, params["all_gather_dimension"])


def _permuted(members: tuple, position: int, params: dict) -> jax.Array:
    return members[{target: source for source, target in params["perm"]}[position]]


# What a collective makes of the operand of both: (in their order, position, parameters) -> value.
_COMBINED = {
    "all_gather": _gathered,
    "ppermute": _permuted,
    "psum": lambda members, *_: members[0] + members[1],
    "pmax": lambda members, *_: jnp.maximum(*members),
    "pmin": lambda members, *_: jnp.minimum(*members),
}


def _check_collective(equation: JaxprEqn) -> None:
    name = equation.primitive.name
    if name not in _COMBINED or equation.params.get("axis_index_groups") is not None:
        raise ValueError(
            f"conversation: the collective {name!r} is not one that two can say to each other; "
            f"known, without groups: {', '.join(sorted(_COMBINED))}"
        )
