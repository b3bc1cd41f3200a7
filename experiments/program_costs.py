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
    "max", "min", "mul", "ne", "neg", "not", "or", "pow", "pvary", "rem", "rev", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_logical", "sign", "sin", "slice", "sqrt",
    "square", "sub", "tanh", "transpose", "xor",
})  # fmt: skip
_DEAR = frozenset({
    "cos", "div", "erf", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rsqrt", "sin",
    "sqrt", "tanh",
})  # fmt: skip
_SPREADING = frozenset({"broadcast_in_dim", "iota"})
MOST_TIMES = 2  # that a value is computed anew
_WITH_BODIES = frozenset({"cond", "scan", "while"})
_PICKING = frozenset({"dynamic_slice", "gather"})
# Primitives whose result may lie where something that they read ends.
_SHARING = _FUSED | {"dynamic_update_slice", "scan", "scatter", "scatter-add", "while"}
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
    buffers = _Buffers(program)
    in_place = buffers.in_place(given_away)
    ends_at = buffers.ends()
    flops, moved, alive, peak = Counter(), 0.0, 0.0, 0.0
    for t, op in enumerate(buffers.ops):
        inner = _inside(op)
        flops.update(inner.flops)
        if not buffers.makes(op):
            continue
        moved += inner.moved + buffers.moved(op)
        new = [program.bytes[out] for out in op.outputs if out not in in_place]
        ending = [
            program.bytes[value]
            for value in ends_at.get(t, ())
            if value not in in_place and value not in buffers.arguments
        ]
        # Where something that is read ends, a result of its size takes its place.
        taken = Counter(new) & Counter(ending) if buffers.shares(op) else Counter()
        alive += sum(new) - _total(taken)
        peak = max(peak, alive + inner.memory + buffers.transposed(op))
        alive -= sum(ending) - _total(taken)
    return Costs(flops, moved, peak)


def _total(sizes: Counter) -> float:
    return sum(size * count for size, count in sizes.items())


class _Buffers:
    """Which values of a program lie in memory, and when."""

    def __init__(self, program: _Program):
        self.program, self.ops = program, program.needed()
        self.arguments = set(program.inputs)
        self._results = set(program.outputs)
        self._users: dict[int, list[_Op]] = {}
        for op in self.ops:
            for given in set(op.inputs):
                self._users.setdefault(given, []).append(op)
        self._makers: dict[int, _Op] = {out: op for op in self.ops for out in op.outputs}
        self._readers: dict[int, frozenset[int]] = {}
        kept = {out for op in reversed(self.ops) for out in self._kept(op)}
        # Buffers that a value is read from: its own, or its operands' buffers.
        self.sources = {value: frozenset([value]) for value in program.inputs}
        for op in self.ops:
            given = [self.sources.setdefault(value, frozenset()) for value in op.inputs]
            if op.name in _VIEWS:
                self.sources |= zip(op.outputs, given, strict=True)
            else:
                self.sources |= {
                    out: frozenset([out]) if out in kept else frozenset().union(*given)
                    for out in op.outputs
                }

    def _kept(self, op: _Op) -> Iterable[int]:
        """Results of an operation that need a buffer; the buffers of what follows are known."""
        if op.name in _VIEWS:
            return ()
        if op.name not in _FUSED:
            return op.outputs
        (out,) = op.outputs
        fills = self._filled(out)
        again = len(fills) > 1 and (op.name in _DEAR or self._of_several(op))
        if again or len(fills) > MOST_TIMES or not self._fused(out):
            return op.outputs
        self._readers[out] = fills
        return ()

    def _filled(self, value: int) -> frozenset[int]:
        """Buffers that are computed from a value, directly or through what is fused."""
        found = set()
        for op in self._users.get(value, ()):
            out = op.outputs[0]
            found |= self._filled(out) if op.name in _VIEWS else self._readers.get(out, {out})
        return frozenset(found)

    def _fused(self, value: int) -> bool:
        """Whether all that uses a value can compute it anew where it is used."""
        return value not in self._results and all(
            self._fused(op.outputs[0]) if op.name in _VIEWS else op.name in _FUSED
            for op in self._users.get(value, ())
        )

    def _of_several(self, op: _Op) -> bool:
        """Whether an operation reads several values of its result's size."""
        size = self.program.bytes[op.outputs[0]]
        spread = {out for out in op.inputs if self._makers.get(out, op).name in _SPREADING}
        return sum(self.program.bytes[value] >= size for value in set(op.inputs) - spread) > 1

    def makes(self, op: _Op) -> bool:
        """Whether an operation fills a buffer of its own."""
        return any(out in self.sources[out] for out in op.outputs)

    def ends(self) -> dict[int, list[int]]:
        """By place in the program: buffers that nothing after it reads."""
        last = {out: t for t, op in enumerate(self.ops) if self.makes(op) for out in op.outputs}
        for t, op in enumerate(self.ops):
            if self.makes(op):
                last |= {value: t for given in op.inputs for value in self.sources[given]}
        last |= {value: len(self.ops) for out in self._results for value in self.sources[out]}
        found: dict[int, list[int]] = {}
        for value, t in last.items():
            found.setdefault(t, []).append(value)
        return found

    def in_place(self, given_away: Iterable[int]) -> set[int]:
        """Results that are written into arguments of their size."""
        spare = Counter(self.program.bytes[self.program.inputs[place]] for place in given_away)
        found = set()
        for value in {value for out in self._results for value in self.sources[out]}:
            size = self.program.bytes[value]
            if value not in self.arguments and spare[size]:
                spare[size] -= 1
                found.add(value)
        return found

    def moved(self, op: _Op) -> float:
        """Bytes that an operation reads and writes, but for what is inside of it."""
        if op.name in _WITH_BODIES:
            return 0.0
        written = sum(self.program.bytes[out] for out in op.outputs)
        if op.name in _PICKING:
            return 2 * written
        read = {value for given in op.inputs for value in self.sources[given]}
        return written + sum(self.program.bytes[value] for value in read)

    def shares(self, op: _Op) -> bool:
        """Whether results may lie where something ends that is read; turned ones cannot."""
        return op.name in _SHARING and not any(
            out in _turned(user) for out in op.outputs for user in self._users.get(out, ())
        )

    def transposed(self, op: _Op) -> float:
        """Bytes of the copies that a product needs whose operands lie in another order."""
        return sum(self.program.bytes[value] for value in _turned(op))


def _turned(op: _Op) -> list[int]:
    """Operands of a product that are not in the order [batch, rows, depth]; the right one may be
    [batch, depth, columns] as well."""
    if op.eqn.primitive is not jax.lax.dot_general_p:
        return []
    (contracted, _), batches = op.eqn.params["dimension_numbers"]
    left = len(op.eqn.invars[0].aval.shape)
    leading = [tuple(batch) == tuple(range(len(batch))) for batch in batches]
    trailing = sorted(contracted) == list(range(left - len(contracted), left))
    needs = (not (leading[0] and trailing), not leading[1])
    return [value for value, turned in zip(op.inputs, needs, strict=True) if turned]


def _inside(op: _Op) -> Costs:
    """Of the bodies of a loop or a branch, or the operation's own FLOPs."""
    params = op.eqn.params
    if op.name == "scan":
        body, length = params["jaxpr"].jaxpr, params["length"]
        # What is sliced, or stacked, has a dimension more outside of the body; the carry has not.
        sliced = [
            inside
            for inside, whole in zip(body.invars, op.eqn.invars, strict=True)
            if inside.aval.shape != whole.aval.shape
        ]
        carried = sum(
            inside.aval.shape == whole.aval.shape
            for inside, whole in zip(body.outvars, op.eqn.outvars, strict=True)
        )
        end = len(body.invars) - len(sliced)
        inner = of_jaxpr(body, range(end - carried, end))
        flops = Counter({name: length * value for name, value in inner.flops.items()})
        slices = sum(_bytes(variable.aval) for variable in sliced)
        return Costs(flops, length * inner.moved, inner.memory + slices)
    if op.name == "while":
        body = params["body_jaxpr"].jaxpr
        return of_jaxpr(body)  # results are copied to where the next turn reads them
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
