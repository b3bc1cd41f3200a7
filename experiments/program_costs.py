"""Costs of a traced program before anything is compiled, and what devices can do at best.

The compiler fuses elementwise operations into their users, writes into donated buffers, and frees a
buffer after its last use. This module walks through a jaxpr as if it did so, in the order of the
program:

    FLOPs    of products and convolutions, by the type that they take; 2 for a multiply-add
    moved    every buffer is written once and read by everything that uses it
    memory   the largest sum of buffers that are alive at one time, beside the arguments

A scan counts as often as it runs, a loop of unknown length once. Of branches each cost is that of
the most expensive one. XLA's own `cost_analysis` counts every body once, and its `memory_analysis`
wants a compilation. A roofline is the time in which a device can at best compute and move what a
step does (S. Williams et al., *Roofline: an insightful visual performance model*, CACM 2009).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

# Primitives that only give another shape to a value.
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
    "floor", "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic",
    "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "pvary", "rem", "rev", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_logical", "sign", "sin", "slice", "sqrt",
    "square", "sub", "tanh", "transpose", "xor",
})  # fmt: skip
MOST_TIMES = 2  # the most times that a fused value is computed
# Primitives whose result may take the memory of a value that they are the last to read.
_SHARING = _FUSED | {"dynamic_update_slice", "scan", "scatter", "scatter-add", "while"}
# FLOPs for each element of the result: two for each term of a product's sum. A convolution sums
# over the kernel of one output channel, with the input channels of its group. Zeros that dilate the
# input, as in the gradient of a strided convolution, are not multiplied.
FLOPS_PER_ELEMENT = {
    "dot_general": lambda eqn: (
        2 * math.prod([eqn.invars[0].aval.shape[d] for d in eqn.params["dimension_numbers"][0][0]])
    ),
    "conv_general_dilated": lambda eqn: (
        2
        * eqn.invars[1].aval.size
        / eqn.invars[1].aval.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        / math.prod(eqn.params["lhs_dilation"])
    ),
}


class Costs(NamedTuple):
    """Costs of one run of a program."""

    flops: Counter  # by the name of the type that products take
    moved: float  # bytes
    memory: float  # bytes beside the arguments, at their largest


class _Op(NamedTuple):
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    eqn: core.JaxprEqn


class _Program:
    """A jaxpr with its calls inlined: operations on numbered values, some of which lie in memory.

    reads: buffers that each operation reads. makes: the buffers among its results. kept: buffers
    of the results. turned: operands that a product copies.
    """

    def __init__(self, jaxpr: core.Jaxpr):
        self.bytes: list[float] = []
        ops: list[_Op] = []
        self.arguments = [self._new(variable.aval) for variable in jaxpr.invars]
        results = set(self._add(jaxpr, self.arguments, ops))
        self.ops, in_memory = self._needed(ops, results)
        self.turned = {value for op in self.ops for value in _turned(op)}
        self.reads, self.makes = [], []
        # Buffers that a value is read from, its own or its operands'.
        sources = {value: frozenset([value]) for value in self.arguments}
        for op in self.ops:
            given = [sources.get(value, frozenset()) for value in op.inputs]
            read = frozenset().union(*given)
            for place, out in enumerate(op.outputs):
                seen = given[place] if op.name in _VIEWS else read
                sources[out] = frozenset([out]) if out in in_memory else seen
            self.reads.append(read)
            self.makes.append([out for out in op.outputs if out in in_memory])
        self.kept = {value for out in results for value in sources.get(out, ())}

    def _new(self, aval: Any, constant: bool = False) -> int:
        self.bytes.append(0.0 if constant else _bytes(aval))
        return len(self.bytes) - 1

    def _add(self, jaxpr: core.Jaxpr, inputs: Iterable[int], ops: list[_Op]) -> list[int]:
        """Append the operations of a jaxpr, and return the values of its results."""
        value = dict(zip(jaxpr.invars, inputs, strict=True))
        value |= {variable: self._new(variable.aval, constant=True) for variable in jaxpr.constvars}

        def of(atom):
            is_literal = isinstance(atom, core.Literal)
            return self._new(atom.aval, constant=True) if is_literal else value[atom]

        for eqn in jaxpr.eqns:
            given, name = [of(atom) for atom in eqn.invars], eqn.primitive.name
            if name in _CALLS:
                inner = eqn.params[_CALLS[name]]
                made = self._add(getattr(inner, "jaxpr", inner), given, ops)
            else:
                made = [self._new(variable.aval) for variable in eqn.outvars]
                ops.append(_Op(name, tuple(given), tuple(made), eqn))
            value |= zip(eqn.outvars, made, strict=True)
        return [of(atom) for atom in jaxpr.outvars]

    def _needed(self, ops: list[_Op], results: set[int]) -> tuple[list[_Op], set[int]]:
        """Return the operations that results depend on, and the values of these in memory.

        A value is in memory if something reads it there, or computes it too many times anew.
        """
        needed, in_memory, used, read_there = [], set(), set(results), set(results)
        fills: dict[int, set[int]] = {}  # buffers that are computed from a value
        for op in reversed(ops):
            if not used & set(op.outputs):
                continue
            needed.append(op)
            used |= set(op.inputs)
            out, is_view = op.outputs[0], op.name in _VIEWS
            filled = fills.get(out, set())
            if not is_view and (
                op.name not in _FUSED or out in read_there or len(filled) > MOST_TIMES
            ):
                in_memory |= set(op.outputs)
                filled = {out}
            for value in op.inputs:
                fills[value] = fills.get(value, set()) | filled
            if out in read_there if is_view else op.name not in _FUSED:
                read_there |= set(op.inputs)
        return needed[::-1], in_memory


def of_jaxpr(jaxpr: core.Jaxpr, given_away: Iterable[int] = ()) -> Costs:
    """Return the costs of a program, whose results may lie in the arguments `given_away`."""
    program = _Program(jaxpr)
    size, own = program.bytes, set(program.arguments)
    last = {}  # buffer -> place in the program after which nothing reads it
    for t, (makes, reads) in enumerate(zip(program.makes, program.reads, strict=True)):
        last |= dict.fromkeys((*makes, *reads), t) if makes else {}
    last |= dict.fromkeys(program.kept, len(program.ops))
    spare, in_place = Counter(size[program.arguments[place]] for place in given_away), set()
    for value in program.kept - own:
        if spare[size[value]]:
            spare[size[value]] -= 1
            in_place.add(value)
    ends_at: dict[int, list[float]] = {}
    for value in last.keys() - in_place - own:
        ends_at.setdefault(last[value], []).append(size[value])
    flops, moved, alive, peak = Counter(), 0.0, 0.0, 0.0
    for t, op in enumerate(program.ops):
        inner, makes = _inside(op), program.makes[t]
        flops.update(inner.flops)
        if not makes:
            continue
        written = sum(size[out] for out in op.outputs)
        read = sum(size[value] for value in program.reads[t])
        read = written if op.name in ("dynamic_slice", "gather") else read
        moved += inner.moved + (0.0 if op.name in ("cond", "scan", "while") else written + read)
        new, ending = [size[out] for out in makes if out not in in_place], ends_at.get(t, [])
        # A result takes the place of a buffer of its size that is read for the last time, if it is
        # not read in another order.
        shares = op.name in _SHARING and not program.turned & set(op.outputs)
        taken = sum((Counter(new) & Counter(ending)).elements()) if shares else 0.0
        alive += sum(new) - taken
        peak = max(peak, alive + inner.memory + sum(size[value] for value in _turned(op)))
        alive -= sum(ending) - taken
    return Costs(flops, moved, peak)


def _turned(op: _Op) -> list[int]:
    """Return the operands of a product that are copied, as they lie in another order.

    The left one is in order as [batch, rows, depth]; of the right one only the batch has to lead.
    """
    if op.eqn.primitive is not jax.lax.dot_general_p:
        return []
    (contracted, _), batches = op.eqn.params["dimension_numbers"]
    left = len(op.eqn.invars[0].aval.shape)
    leading = [tuple(batch) == tuple(range(len(batch))) for batch in batches]
    trailing = sorted(contracted) == list(range(left - len(contracted), left))
    needs = (not (leading[0] and trailing), not leading[1])
    return [value for value, turned in zip(op.inputs, needs, strict=True) if turned]


def _inside(op: _Op) -> Costs:
    """Return the costs of the bodies of a loop or a branch, or the operation's own FLOPs."""
    params = op.eqn.params
    if op.name == "scan":
        body, length = params["jaxpr"].jaxpr, params["length"]

        def differing(inside, outside):
            """Return what has one more dimension outside of the body: slices, not a carry."""
            pairs = zip(inside, outside, strict=True)
            return [one for one, whole in pairs if one.aval.shape != whole.aval.shape]

        sliced = differing(body.invars, op.eqn.invars)
        carried = len(body.outvars) - len(differing(body.outvars, op.eqn.outvars))
        end = len(body.invars) - len(sliced)
        inner = of_jaxpr(body, range(end - carried, end))
        flops = Counter({name: length * value for name, value in inner.flops.items()})
        slices = sum(_bytes(variable.aval) for variable in sliced)
        return Costs(flops, length * inner.moved, inner.memory + slices)
    if op.name == "while":
        return of_jaxpr(params["body_jaxpr"].jaxpr)  # results are copied to the next turn's place
    if op.name == "cond":
        branches = [of_jaxpr(branch.jaxpr) for branch in params["branches"]]
        flops, moved, memory = zip(*branches, strict=True)
        return Costs(max(flops, key=Counter.total), max(moved), max(memory))
    flops = Counter()
    if op.name in FLOPS_PER_ELEMENT:
        result = op.eqn.outvars[0].aval.size
        flops[str(op.eqn.invars[0].aval.dtype)] = float(FLOPS_PER_ELEMENT[op.name](op.eqn) * result)
    return Costs(flops, 0.0, 0.0)


def _bytes(aval: Any) -> float:
    if not hasattr(aval, "shape") or jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 0.0
    return float(math.prod(aval.shape)) * aval.dtype.itemsize


# --- devices ---


class Peak(NamedTuple):
    """One device by its maker's data sheet: dense FLOP/s, without sparsity, and its memory."""

    bfloat16: float
    default: float  # of products of float32 arrays at JAX's default precision
    precision: str  # what that precision is
    bandwidth: float  # bytes per second
    memory: float  # bytes


def _nvidia(bfloat16: float, bandwidth: float, memory: float) -> Peak:
    """Return the peak of tensor cores, whose TF32 has half the rate of bfloat16."""
    return Peak(bfloat16, bfloat16 / 2, "TF32", bandwidth, memory)


def _tpu(bfloat16: float, bandwidth: float, memory: float) -> Peak:
    """Return the peak of a TPU, which rounds float32 to bfloat16 by default."""
    return Peak(bfloat16, bfloat16, "bfloat16", bandwidth, memory)


# By a part of jax.Device.device_kind; of several that occur in it the longest counts.
PEAKS = {
    "A100": _nvidia(312e12, 1.555e12, 40e9),
    "A100-SXM4-80GB": _nvidia(312e12, 2.039e12, 80e9),
    "A100 80GB": _nvidia(312e12, 1.935e12, 80e9),  # PCIe
    "H100": _nvidia(989.4e12, 3.35e12, 80e9),  # SXM
    "H100 PCIe": _nvidia(756e12, 2.0e12, 80e9),
    "H100 NVL": _nvidia(835e12, 3.9e12, 94e9),
    "H200": _nvidia(989.4e12, 4.8e12, 141e9),
    "GH200": _nvidia(989.4e12, 4.0e12, 96e9),
    "TPU v4 lite": _tpu(138e12, 0.614e12, 8e9),
    "TPU v4": _tpu(275e12, 1.2e12, 32e9),
    "TPU v5 lite": _tpu(197e12, 0.819e12, 16e9),
    "TPU v5e": _tpu(197e12, 0.819e12, 16e9),
    "TPU v5": _tpu(459e12, 2.765e12, 95e9),
    "TPU v5p": _tpu(459e12, 2.765e12, 95e9),
    "TPU v6 lite": _tpu(918e12, 1.64e12, 32e9),
    "TPU v6e": _tpu(918e12, 1.64e12, 32e9),
}


def peak_of(kind: str) -> Peak | None:
    """Return what is known of a device of this kind; None: nothing."""
    known = [name for name in PEAKS if re.search(rf"\b{re.escape(name)}\b", kind, re.IGNORECASE)]
    return PEAKS[max(known, key=len)] if known else None


def roofline(flops: Mapping[str, float], moved: float, peak: Peak) -> float:
    """Return the seconds of a step at best: the longer of computing and of moving bytes.

    flops: by the name of the type that products take; all 16-bit types have the rate of bfloat16.
    """
    rates = {
        name: peak.bfloat16 if jnp.dtype(name).itemsize == 2 else peak.default for name in flops
    }
    return max(sum(flops[name] / rates[name] for name in flops), moved / peak.bandwidth)
