"""Programs cut into parts that are computed in different processes, and the messages between.

`PairProgram` is half of a program for an axis of two workers, `Uplink` both ends of an exchange
with a server. A jaxpr of a body that runs under a named axis comes from `jax.make_jaxpr(body,
axis_env=...)`; its equations are in an order in which they can be computed.
"""

import collections
import functools
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal

from algorithms.base import AXIS, Algorithm
from comms import collectives
from comms.trees import Tree

Half = Generator[list, Sequence[Any], Any]  # its messages, the partner's messages, its result
Message = tuple[jax.Array, ...]
OWN = ("weight", "batches", "worker", "version", "first")  # extra arguments that a worker knows
TRIED = (1, 2, 3)  # contributions of an update, for which the worker's part must be the same
_PART = DebugInfo("part", "part of a program", None, None)  # of jaxprs that are made by hand


def names_axis(equation: JaxprEqn, axis: str) -> bool:
    """Return whether the equation itself is a collective along `axis`, or asks for the position."""
    named = equation.params.get("axis_name", equation.params.get("axes"))
    return axis == named or (isinstance(named, tuple | list) and axis in named)


def speaks(equation: JaxprEqn, axis: str) -> bool:
    """Return whether the equation names `axis`, or holds an equation that does."""
    return names_axis(equation, axis) or any(
        speaks(inner, axis) for program in programs_in(equation) for inner in program.jaxpr.eqns
    )


def programs_in(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """Return the programs that an equation holds: bodies of loops, branches, functions."""
    leaves = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)
    )
    return [
        leaf if isinstance(leaf, ClosedJaxpr) else ClosedJaxpr(leaf, ())
        for leaf in leaves
        if isinstance(leaf, Jaxpr | ClosedJaxpr)
    ]


def inputs(equation: JaxprEqn) -> list:
    """Return the variables that an equation reads, without constants in their places."""
    return _variables(equation.invars)


def needed(
    wanted: Iterable[Hashable], known: Iterable[Hashable], equations: Sequence[JaxprEqn]
) -> list[JaxprEqn]:
    """Return the equations, in their order, that compute `wanted` from the variables `known`."""
    known = set(known)
    missing, found = set(wanted) - known, []
    for equation in reversed(equations):
        if missing.intersection(equation.outvars):
            found.append(equation)
            missing.update(var for var in inputs(equation) if var not in known)
    return found[::-1]


class PairProgram:
    """Half of a body for an axis of two, as what is computed between its messages.

    Two processes that each play their half, and hand each other what it says, compute what one
    program computes under `jax.vmap(axis_name=...)`, bit for bit: the program is traced for its
    position in the axis and cut at its collectives into segments, all compiled before the first
    message. A half is a generator, which stops where it needs the partner's message:

        half = PairProgram(body, 0, *arguments).begin(*arguments)
        heard = say_and_hear(next(half))
        while True:  # until StopIteration, whose value is the body's result
            heard = say_and_hear(half.send(heard))

    Loops, branches and compiled functions that hold a collective are played on the host, where
    both ends must take the same way.
    """

    def __init__(self, body: Callable, position: int, *examples: Any):
        """Compile a function of arrays that runs under `AXIS`, for its position there, 0 or 1.

        examples: the arguments, or their shapes. Raises ValueError for a collective that cannot be
        cut out.
        """
        traced, outputs = jax.make_jaxpr(body, axis_env=[(AXIS, 2)], return_shape=True)(*examples)
        self._result = jax.tree.structure(outputs)
        self._plan = _Plan(traced, position)

    def begin(self, *arguments: Any) -> Half:
        """Return the half for these arguments; its result is that of the body."""
        results = yield from self._plan.play(jax.tree.leaves(arguments))
        return jax.tree.unflatten(self._result, results)


class _Plan:
    """The order in which a program is played: messages and containers, each after its inputs.

    All collectives whose inputs need equally many messages go in one.
    """

    def __init__(self, program: ClosedJaxpr, position: int):
        self._program, self._position = program.jaxpr, position
        self._constants = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        self._left = list(program.jaxpr.eqns)  # what no segment has computed so far
        self._known = {*program.jaxpr.invars, *self._constants}
        depth: dict[Hashable, int] = {}  # steps before a variable is known
        levels = collections.defaultdict(lambda: ([], []))  # collectives and containers
        for e in self._left:
            at = max((depth[var] for var in inputs(e) if var in depth), default=0)
            waits = speaks(e, AXIS) and e.primitive.name != "axis_index"
            if waits:
                levels[at][not names_axis(e, AXIS)].append(e)
            depth |= dict.fromkeys(e.outvars, at + waits)
        self._waiting = {id(e) for level in levels.values() for es in level for e in es}
        self._steps = []
        for _, (said, containers) in sorted(levels.items()):
            self._steps += [self._message(said)] if said else []
            self._steps += map(self._played, containers)
        self._last = self._segment(program.jaxpr.outvars)

    def play(self, arguments: Sequence[Any]) -> Half:
        """Return a half whose result are the outputs of the program."""
        values = dict(zip(self._program.invars, arguments, strict=True)) | self._constants
        for step in self._steps:
            yield from step(values)
        self._last(values)
        return [_value(var, values) for var in self._program.outvars]

    def _message(self, said: Sequence[JaxprEqn]) -> Callable[[dict], Half]:
        """Return a step in which both say the operands of collectives."""
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
            heard = yield [_value(var, values) for var in operands.values()]
            values.update(zip(operands, heard, strict=True))

        return step

    def _played(self, container: JaxprEqn) -> Callable[[dict], Half]:
        """Return a step in which the programs of a container are played."""
        name = container.primitive.name
        if name not in _players():
            raise ValueError(
                f"pairs: a message inside of a {name!r} cannot be cut out; send it outside of it, "
                f"or inside of one of {', '.join(sorted(_players()))}"
            )
        compute = self._segment(container.invars)
        self._left = [e for e in self._left if e is not container]
        self._known.update(container.outvars)
        plans = [_Plan(program, self._position) for program in programs_in(container)]

        def step(values: dict) -> Half:
            compute(values)
            given = [_value(var, values) for var in container.invars]
            found = yield from _players()[name](container.params, plans, given)
            values.update(zip(container.outvars, found, strict=True))

        return step

    def _segment(self, wanted: Iterable[Any]) -> Callable[[dict], None]:
        """Compile the computation of `wanted`, and of what it has by the way for later ones."""
        wanted = set(_variables(wanted))
        possible = [e for e in self._left if id(e) not in self._waiting]
        equations = needed(wanted, self._known, possible)
        if not equations:
            return lambda values: None
        taken = set(map(id, equations))
        self._left = [e for e in self._left if id(e) not in taken]
        later = {var for e in self._left for var in inputs(e)} | wanted
        later.update(_variables(self._program.outvars))
        computed = [var for e in equations for var in e.outvars]
        read = {var: var.aval for e in equations for var in inputs(e)}
        for e in equations:
            if names_axis(e, AXIS):
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
        """Return the outputs of an equation; of a collective from the operands of both."""
        mine = [_value(var, values) for var in equation.invars]
        if equation.primitive.name == "axis_index":
            return [jnp.int32(self._position)]
        if not names_axis(equation, AXIS):
            pairs = zip(equation.invars, mine, strict=True)
            given = {var: value for var, value in pairs if not isinstance(var, Literal)}
            lone = Jaxpr((), list(given), equation.outvars, [equation], equation.effects, _PART)
            return jax.core.eval_jaxpr(lone, (), *given.values())
        combine, order = _COMBINED[equation.primitive.name], 1 - 2 * self._position
        theirs = [values[name] for name in _operands(equation)]
        return [
            combine((a, b)[::order], self._position, equation.params)
            for a, b in zip(mine, theirs, strict=True)
        ]


def _operands(collective: JaxprEqn) -> dict[tuple[int, int], Any]:
    """Return its operands by the names under which the partner's operands are known."""
    return {(id(collective), i): var for i, var in enumerate(collective.invars)}


def _called(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    del params
    return (yield from plans[0].play(values))


def _branched(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    del params
    index, *operands = values
    return (yield from plans[min(max(int(index), 0), len(plans) - 1)].play(operands))


def _looped(params: dict, plans: Sequence[_Plan], values: list) -> Half:
    named = dict(zip([name for name in params if name.endswith("_jaxpr")], plans, strict=True))
    tested, repeated = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body = values[:tested], values[tested : tested + repeated]
    carry = values[tested + repeated :]
    while (yield from named["cond_jaxpr"].play([*for_test, *carry]))[0]:
        carry = yield from named["body_jaxpr"].play([*for_body, *carry])
    return carry


def _players() -> dict[str, Callable]:
    """Return by primitives of containers: (parameters, plans of programs, inputs) -> a half."""
    return {"jit": _called, "pjit": _called, "cond": _branched, "while": _looped}


def _gathered(both: tuple, position: int, params: dict) -> jax.Array:
    del position
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
        equations = needed(_variables(program.outvars), [], program.eqns)
        self._late, workers = set(self._theirs), set(self._ours)  # what follows from more, or not
        for e in equations:
            if speaks(e, AXIS) or not self._late.isdisjoint(inputs(e)):
                self._late.update(e.outvars)
            elif not workers.isdisjoint(inputs(e)):
                workers.update(e.outvars)
        served = [e for e in equations if not self._late.isdisjoint(e.outvars)]
        read = [var for e in served for var in inputs(e)] + _variables(self._reduced)
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
        if not self._late.isdisjoint(_variables(remembered)):
            raise ValueError(
                "uplink: what a worker remembers depends on the others; let the server run the "
                "whole exchange"
            )
        return self._program(self._ours, results)

    def _program(self, reads: Sequence[Any], results: Sequence[Any]) -> ClosedJaxpr:
        """Return the part of the program that computes `results` from `reads`."""
        program = self._traced.jaxpr
        equations = needed(_variables(results), reads, program.eqns)
        read = {var for e in equations for var in inputs(e)} | set(_variables(results))
        pairs = zip(program.constvars, self._traced.consts, strict=True)
        constants = {var: value for var, value in pairs if var in read}
        variables = list(constants), list(reads), list(results)
        part = Jaxpr(*variables, equations, program.effects, _PART)
        return ClosedJaxpr(part, list(constants.values()))


def _same(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    constants = zip(one.consts, other.consts, strict=False)
    return str(one.jaxpr) == str(other.jaxpr) and all(np.array_equal(a, b) for a, b in constants)


def _run(program: ClosedJaxpr, values: Sequence[Any]) -> list:
    return jax.core.eval_jaxpr(program.jaxpr, program.consts, *values)


def _in_order(own: dict) -> list:
    return [own[name] for name in OWN]


def _variables(values: Iterable[Any]) -> list:
    return [var for var in values if not isinstance(var, Literal)]


def _value(var: Any, values: dict) -> Any:
    return var.val if isinstance(var, Literal) else values[var]
