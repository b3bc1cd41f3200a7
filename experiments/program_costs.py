"""What a traced program costs before anything is compiled: FLOPs, bytes moved, bytes in memory.

The compiler fuses what works element by element into what uses it, writes into buffers that it was
given away, and forgets a buffer after its last use. This walks through a jaxpr as if it did so, in
the order in which the program was written:

    FLOPs    of products and convolutions, by the type that they take; 2 for a multiply-add
    moved    every buffer is written once and read by everything that uses it
    memory   the largest sum of buffers that are alive at one time, beside the arguments

A loop of unknown length counts once, a scan as often as it runs.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jax.extend import core

# Primitives that only give another shape to what is there.
_VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "stop_gradient", "optimization_barrier"})
# Primitives with a body that is a part of the program around them.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
    "remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr", "shard_map": "jaxpr",
}  # fmt: skip
# Primitives that are computed element by element where they are used, and need no buffer.
_FUSED = frozenset({
    "abs", "add", "add_any", "and", "broadcast_in_dim", "ceil", "clamp", "concatenate",
    "convert_element_type", "copy", "copy_p", "cos", "div", "eq", "erf", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt",
    "max", "min", "mul", "ne", "neg", "not", "or", "pad", "pow", "pvary", "rem", "rev", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_logical", "sign", "sin", "slice", "sqrt",
    "square", "sub", "tanh", "transpose", "xor",
})  # fmt: skip
_DEAR = frozenset({
    "cos", "div", "erf", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rsqrt", "sin",
    "sqrt", "tanh",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
    "reduce_sum",
})  # fmt: skip
# Of products: two for every element of the contracted dimensions.
FLOPS_PER_ELEMENT = {
    "dot_general": lambda eqn: (
        2 * math.prod([eqn.invars[0].aval.shape[d] for d in eqn.params["dimension_numbers"][0][0]])
    ),
    # The kernel without its output channels; its input channels belong to one group.
    "conv_general_dilated": lambda eqn: (
        2
        * eqn.invars[1].aval.size
        / eqn.invars[1].aval.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
    ),
}
_IN_PLACE = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter_add"})


class Costs(NamedTuple):
    """Of one run of a program."""

    flops: Counter  # by the name of the type that products take
    moved: float  # bytes
    memory: float  # bytes beside the arguments, at their largest


class _Op(NamedTuple):
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    eqn: core.JaxprEqn


class _Program:
    """A jaxpr without calls: operations on numbered values."""

    def __init__(self, jaxpr: core.Jaxpr):
        self.bytes: list[float] = []
        self.ops: list[_Op] = []
        self.inputs = [self._new(variable.aval) for variable in jaxpr.invars]
        self.outputs = self._add(jaxpr, self.inputs)

    def _new(self, aval: Any, constant: bool = False) -> int:
        self.bytes.append(0.0 if constant else _bytes(aval))
        return len(self.bytes) - 1

    def _add(self, jaxpr: core.Jaxpr, inputs: Iterable[int]) -> list[int]:
        """Append the operations of a jaxpr; the values that it gives."""
        value = dict(zip(jaxpr.invars, inputs, strict=True))
        value |= {variable: self._new(variable.aval, constant=True) for variable in jaxpr.constvars}

        def of(atom):
            if isinstance(atom, core.Literal):
                return self._new(atom.aval, constant=True)
            return value[atom]

        for eqn in jaxpr.eqns:
            given, name = [of(atom) for atom in eqn.invars], eqn.primitive.name
            if name in _CALLS:
                inner = eqn.params[_CALLS[name]]
                made = self._add(getattr(inner, "jaxpr", inner), given)
            else:
                made = [self._new(variable.aval) for variable in eqn.outvars]
                self.ops.append(_Op(name, tuple(given), tuple(made), eqn))
            value |= zip(eqn.outvars, made, strict=True)
        return [of(atom) for atom in jaxpr.outvars]

    def needed(self) -> list[_Op]:
        """The operations whose results are used, in order."""
        used, kept = set(self.outputs), []
        for op in reversed(self.ops):
            if used & set(op.outputs):
                used |= set(op.inputs)
                kept.append(op)
        return kept[::-1]


def of_jaxpr(jaxpr: core.Jaxpr, given_away: Iterable[int] = ()) -> Costs:
    """Costs of a program; given_away: which of its arguments it may write its results into."""
    program = _Program(jaxpr)
    ops = program.needed()
    sources = _sources(program, ops)
    last_use = {value: t for t, op in enumerate(ops) if _makes(op, sources)
                for given in op.inputs for value in sources[given]}  # fmt: skip
    last_use |= {value: len(ops) for out in program.outputs for value in sources[out]}
    arguments = set(program.inputs)
    spare = Counter(program.bytes[program.inputs[place]] for place in given_away)
    results = {value for out in program.outputs for value in sources[out]} - arguments
    in_place = set()
    for value in sorted(results, key=lambda value: -program.bytes[value]):
        if spare[program.bytes[value]]:
            spare[program.bytes[value]] -= 1
            in_place.add(value)
    costs, alive, peak = Costs(Counter(), 0.0, 0.0), 0.0, 0.0
    dying: dict[int, list[int]] = {}
    for value, t in last_use.items():
        if value not in arguments and value not in in_place:
            dying.setdefault(t, []).append(value)
    for t, op in enumerate(ops):
        inner = _inside(op)
        costs.flops.update(inner.flops)
        if not _makes(op, sources):
            continue
        read = {value for given in op.inputs for value in sources[given]}
        costs = costs._replace(moved=costs.moved + inner.moved + _moved(op, read, program))
        ends = dying.get(t, [])
        free = Counter(program.bytes[v] for v in ends) if _shares(op) else Counter()
        new = 0.0
        for out in op.outputs:
            size = program.bytes[out]
            if out in in_place:
                continue
            if free[size]:
                free[size] -= 1
                alive -= size  # the one that ends goes on under another name
            new += size
        alive += new
        peak = max(peak, alive + inner.memory)
        taken = Counter(program.bytes[v] for v in ends) - free if _shares(op) else Counter()
        for value in ends:
            size = program.bytes[value]
            if taken[size]:
                taken[size] -= 1
            else:
                alive -= size
        alive -= sum(
            program.bytes[o] for o in op.outputs if o not in last_use and o not in in_place
        )
    return costs._replace(memory=peak)


def _sources(program: _Program, ops: list[_Op]) -> dict[int, frozenset[int]]:
    """Which buffers a value is read from: its own, or its operands' buffers."""
    users: dict[int, list[_Op]] = {}
    for op in ops:
        for given in set(op.inputs):
            users.setdefault(given, []).append(op)
    results = set(program.outputs)

    def fused(value: int) -> bool:
        """Whether all that uses a value computes it anew where it is used."""
        if value in results:
            return False
        return all(
            fused(op.outputs[0]) if op.name in _VIEWS else op.name in _FUSED | _REDUCTIONS
            for op in users.get(value, ())
        )

    def uses(value: int) -> int:
        return sum(uses(op.outputs[0]) if op.name in _VIEWS else 1 for op in users.get(value, ()))

    found = {value: frozenset([value]) for value in program.inputs}
    for op in ops:
        given = [found.setdefault(value, frozenset()) for value in op.inputs]
        for out, value in zip(op.outputs, op.outputs, strict=True):
            found[out] = frozenset([value])
        if op.name in _VIEWS:
            for out, one in zip(op.outputs, given, strict=False):
                found[out] = one
        elif op.name in _FUSED:
            (out,) = op.outputs
            if fused(out) and not (op.name in _DEAR and uses(out) > 1):
                found[out] = frozenset().union(*given)
    return found


def _makes(op: _Op, sources) -> bool:
    """Whether an operation fills a buffer of its own."""
    return any(out in sources[out] for out in op.outputs)


def _shares(op: _Op) -> bool:
    """Whether it may write where something that it reads ends."""
    return op.name in _FUSED or op.name in _IN_PLACE or op.name in ("while", "scan")


def _moved(op: _Op, read: Iterable[int], program: _Program) -> float:
    written = sum(program.bytes[out] for out in op.outputs)
    if op.name in ("while", "scan", "cond"):
        return 0.0  # what is inside moves it
    if op.name in ("gather", "dynamic_slice"):
        return 2 * written
    return written + sum(program.bytes[value] for value in read)


def _inside(op: _Op) -> Costs:
    """Of the bodies of a loop or a branch, or the operation's own FLOPs."""
    params = op.eqn.params
    if op.name == "scan":
        body, length = params["jaxpr"].jaxpr, params["length"]
        first = params["num_consts"]
        inner = of_jaxpr(body, range(first, first + params["num_carry"]))
        sliced = sum(_bytes(v.aval) for v in body.invars[first + params["num_carry"] :])
        flops = Counter({name: length * value for name, value in inner.flops.items()})
        return Costs(flops, length * inner.moved, inner.memory + sliced)
    if op.name == "while":
        body = params["body_jaxpr"].jaxpr
        return of_jaxpr(body, range(params["body_nconsts"], len(body.invars)))
    if op.name == "cond":
        branches = [of_jaxpr(branch.jaxpr) for branch in params["branches"]]
        return max(branches, key=lambda branch: branch.memory)
    flops = Counter()
    if op.name in FLOPS_PER_ELEMENT:
        result = op.eqn.outvars[0].aval.size
        flops[str(op.eqn.invars[0].aval.dtype)] = float(FLOPS_PER_ELEMENT[op.name](op.eqn) * result)
    return Costs(flops, 0.0, 0.0)


def _bytes(aval: Any) -> float:
    if not hasattr(aval, "shape") or jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 0.0
    return float(math.prod(aval.shape)) * aval.dtype.itemsize
