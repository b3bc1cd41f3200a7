"""Programs for an axis of two workers, cut at their messages into halves for two processes."""

import collections
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from algorithms.base import AXIS
from runtimes.equations import (
    computed,
    inputs,
    names_axis,
    needed,
    programs_in,
    speaks,
    value,
    variables,
)

Half = Generator[list, Sequence[Any], Any]  # own messages, the partner's messages, own result


class PairProgram:
    """Half of a program for an axis of two workers: the segments between its messages.

    Two processes each play a half and exchange messages. Their results equal the program's
    under `jax.vmap(axis_name=...)`, bit for bit. The program is traced, and cut at its collectives
    into segments for a position on the axis. All segments are compiled before the first message. A
    half is a generator that stops when it needs the partner's message:

        half = PairProgram(body, 0, *arguments).begin(*arguments)
        heard = say_and_hear(next(half))
        while True:  # until StopIteration, whose value is the body's result
            heard = say_and_hear(half.send(heard))

    Loops, branches and compiled functions that contain a collective are played on the host. Both
    ends must take the same branches there.
    """

    def __init__(self, body: Callable, position: int, *examples: Any):
        """Compile a function of arrays that runs under `AXIS`, for its position there, 0 or 1.

        examples: the arguments, or their shapes. Raises ValueError for a collective that cannot
        become a message.
        """
        traced, outputs = jax.make_jaxpr(body, axis_env=[(AXIS, 2)], return_shape=True)(*examples)
        self._result = jax.tree.structure(outputs)
        self._plan = _Plan(traced, position)

    def begin(self, *arguments: Any) -> Half:
        """Return the half for these arguments; the half returns the result of the body."""
        results = yield from self._plan.play(jax.tree.leaves(arguments))
        return jax.tree.unflatten(self._result, results)


class _Plan:
    """Steps of a program: messages and containers (equations with messages), after their inputs.

    All collectives whose inputs need the same number of earlier messages share one message.
    """

    def __init__(self, program: ClosedJaxpr, position: int):
        self._program, self._position = program.jaxpr, position
        self._constants = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        self._left = list(program.jaxpr.eqns)  # equations that are in no segment so far
        self._known = {*program.jaxpr.invars, *self._constants}
        depth: dict[Hashable, int] = {}  # steps before a variable is known
        levels = collections.defaultdict(lambda: ([], []))  # collectives and containers
        for e in self._left:
            at = max((depth[var] for var in inputs(e) if var in depth), default=0)
            waits = speaks(e) and e.primitive.name != "axis_index"
            if waits:
                levels[at][not names_axis(e)].append(e)
            depth |= dict.fromkeys(e.outvars, at + waits)
        self._waiting = {id(e) for level in levels.values() for es in level for e in es}
        self._steps = []
        for _, (said, containers) in sorted(levels.items()):
            self._steps += [self._message(said)] if said else []
            self._steps += map(self._played, containers)
        self._last = self._segment(program.jaxpr.outvars)

    def play(self, arguments: Sequence[Any]) -> Half:
        """Return a half that returns the outputs of the program."""
        values = dict(zip(self._program.invars, arguments, strict=True)) | self._constants
        for step in self._steps:
            yield from step(values)
        self._last(values)
        return [value(var, values) for var in self._program.outvars]

    def _message(self, said: Sequence[JaxprEqn]) -> Callable[[dict], Half]:
        """Return a step in which both ends exchange the operands of these collectives."""
        for e in said:
            name = e.primitive.name
            if name not in _COMBINED or e.params.get("axis_index_groups") is not None:
                raise ValueError(
                    f"pairs: the collective {name!r} is not one that two can say to each other; "
                    f"known, without groups: {', '.join(sorted(_COMBINED))}"
                )
        operands = {name: var for e in said for name, var in _operands(e).items()}
        compute = self._segment(operands.values())
        self._waiting.difference_update(map(id, said))
        self._known.update(operands)

        def step(values: dict) -> Half:
            compute(values)
            heard = yield [value(var, values) for var in operands.values()]
            values.update(zip(operands, heard, strict=True))

        return step

    def _played(self, container: JaxprEqn) -> Callable[[dict], Half]:
        """Return a step that plays the programs in a loop, a branch or a compiled function."""
        name = container.primitive.name
        if name not in _PLAYERS:
            raise ValueError(
                f"pairs: a message inside of a {name!r} cannot be cut out; send it outside of it, "
                f"or inside of one of {', '.join(sorted(_PLAYERS))}"
            )
        compute = self._segment(container.invars)
        self._left = [e for e in self._left if e is not container]
        self._known.update(container.outvars)
        plans = [_Plan(program, self._position) for program in programs_in(container)]

        def step(values: dict) -> Half:
            compute(values)
            given = [value(var, values) for var in container.invars]
            found = yield from _PLAYERS[name](container.params, plans, given)
            values.update(zip(container.outvars, found, strict=True))

        return step

    def _segment(self, wanted: Iterable[Any]) -> Callable[[dict], None]:
        """Compile the computation of `wanted`; it also keeps values that later segments read."""
        wanted = set(variables(wanted))
        possible = [e for e in self._left if id(e) not in self._waiting]
        equations = needed(wanted, self._known, possible)
        if not equations:
            return lambda values: None
        taken = set(map(id, equations))
        self._left = [e for e in self._left if id(e) not in taken]
        later = {var for e in self._left for var in inputs(e)} | wanted
        later.update(variables(self._program.outvars))
        computed = [var for e in equations for var in e.outvars]
        read = {var: var.aval for e in equations for var in inputs(e)}
        for e in equations:
            if names_axis(e):
                read |= {name: var.aval for name, var in _operands(e).items()}
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

        program = jax.jit(run).lower(*reads.values()).compile()

        def compute(values: dict) -> None:
            found = program(*[values[name] for name in reads])
            values.update(zip(computes, found, strict=True))

        return compute

    def _computed(self, equation: JaxprEqn, values: dict) -> Sequence[Any]:
        """Return the outputs of an equation; a collective combines the operands of both ends."""
        if equation.primitive.name == "axis_index":
            return [jnp.int32(self._position)]
        if not names_axis(equation):
            return computed(equation, values)
        mine = [value(var, values) for var in equation.invars]
        combine, order = _COMBINED[equation.primitive.name], 1 - 2 * self._position
        theirs = [values[name] for name in _operands(equation)]
        return [
            combine((a, b)[::order], self._position, equation.params)
            for a, b in zip(mine, theirs, strict=True)
        ]


def _operands(collective: JaxprEqn) -> dict[tuple[int, int], Any]:
    """Return a collective's operands, by the names that the partner's operands get here."""
    return {(id(collective), i): var for i, var in enumerate(collective.invars)}


def _called(_: dict, plans: Sequence[_Plan], values: list) -> Half:
    return plans[0].play(values)


def _branched(_: dict, plans: Sequence[_Plan], values: list) -> Half:
    index, *operands = values
    return plans[min(max(int(index), 0), len(plans) - 1)].play(operands)


def _looped(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    named = dict(zip([name for name in params if name.endswith("_jaxpr")], plans, strict=True))
    tested, repeated = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body = values[:tested], values[tested : tested + repeated]
    carry = values[tested + repeated :]
    while (yield from named["cond_jaxpr"].play([*for_test, *carry]))[0]:
        carry = yield from named["body_jaxpr"].play([*for_body, *carry])
    return carry


# By primitive of a container: (parameters, plans of its programs, inputs) -> a half.
_PLAYERS = {"jit": _called, "pjit": _called, "cond": _branched, "while": _looped}


def _gathered(both: tuple, _: int, params: dict) -> jax.Array:
    join = jnp.concatenate if params["tiled"] else jnp.stack
    return join(both, params["all_gather_dimension"])


def _permuted(both: tuple, position: int, params: dict) -> jax.Array:
    return both[{target: source for source, target in params["perm"]}[position]]


# A collective of two: (operands in the order of the axis, position, parameters) -> its value.
_COMBINED = {
    "all_gather": _gathered,
    "ppermute": _permuted,
    "psum": lambda both, *_: both[0] + both[1],
    "pmax": lambda both, *_: jnp.maximum(*both),
    "pmin": lambda both, *_: jnp.minimum(*both),
}
