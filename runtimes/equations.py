"""Equations of traced programs (jaxprs): their inputs, inner programs and evaluation."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal

from algorithms.base import AXIS

PART = DebugInfo("part", "part of a program", None, None)  # for jaxprs that are made by hand
CALLS = ("jit", "pjit", "closed_call")  # primitives that only call another program


def programs_in(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """Return the programs inside an equation: loop bodies, branches and functions."""
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
    return [
        leaf if isinstance(leaf, ClosedJaxpr) else ClosedJaxpr(leaf, ())
        for leaf in leaves
        if _is_program(leaf)
    ]


def _is_program(x: Any) -> bool:
    return isinstance(x, Jaxpr | ClosedJaxpr)


def names_axis(equation: JaxprEqn) -> bool:
    """Return whether the equation itself is a collective or an `axis_index` over the workers."""
    named = equation.params.get("axis_name", equation.params.get("axes"))
    return named == AXIS or (isinstance(named, tuple | list) and AXIS in named)


def speaks(equation: JaxprEqn) -> bool:
    """Return whether the equation or one inside it names the axis of workers."""
    return names_axis(equation) or any(
        speaks(inner) for program in programs_in(equation) for inner in program.jaxpr.eqns
    )


def inputs(equation: JaxprEqn) -> list:
    """Return the variables that an equation reads, without literals."""
    return variables(equation.invars)


def variables(values: Iterable[Any]) -> list:
    return [var for var in values if not isinstance(var, Literal)]


def value(var: Any, values: dict) -> Any:
    """Return the value of a variable or of a literal."""
    return var.val if isinstance(var, Literal) else values[var]


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


def computed(equation: JaxprEqn, values: dict) -> Sequence[Any]:
    """Return the outputs of an equation, given the values of variables."""
    given = {var: values[var] for var in inputs(equation)}
    lone = Jaxpr((), list(given), equation.outvars, [equation], equation.effects, PART)
    return jax.core.eval_jaxpr(lone, (), *given.values())


def evaluated(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    compute: Callable[[JaxprEqn, dict], Sequence[Any]] = computed,
) -> list:
    """Return the outputs of a program, computed equation by equation, also inside its calls."""
    jaxpr = program.jaxpr
    values = dict(zip(jaxpr.invars, arguments, strict=True))
    values |= dict(zip(jaxpr.constvars, program.consts, strict=True))
    for e in jaxpr.eqns:
        if e.primitive.name in CALLS:
            given = [value(var, values) for var in e.invars]
            found = evaluated(programs_in(e)[0], given, compute)
        else:
            found = compute(e, values)
        values.update(zip(e.outvars, found, strict=True))
    return [value(var, values) for var in jaxpr.outvars]


def channels_last(function: Callable) -> Callable:
    """Return a function of equal values whose convolutions have the channels-last layout.

    On a CPU, XLA has fast convolutions for this layout. XLA converts operands to the layout only at
    the top level of a program. In a loop, such as the one over updates, gradients of convolutions
    in other layouts take 10 to 50 times as long (JAX 0.10.2 and 0.12.0.1, two cores). On other
    backends the function is unchanged.
    """

    def run(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return function(*arguments)
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        given = jax.tree.leaves(arguments)
        if _convolves(program.jaxpr):
            found = evaluated(program, given, _channels_last)
        else:
            found = jax.core.eval_jaxpr(program.jaxpr, program.consts, *given)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return run


def _convolves(jaxpr: Jaxpr) -> bool:
    return any(
        e.primitive is jax.lax.conv_general_dilated_p
        or any(_convolves(program.jaxpr) for program in programs_in(e))
        for e in jaxpr.eqns
    )


def _channels_last(equation: JaxprEqn, values: dict) -> Sequence[Any]:
    if equation.primitive is not jax.lax.conv_general_dilated_p:
        params = jax.tree.map(_rewritten, equation.params, is_leaf=_is_program)
        return computed(equation.replace(params=params), values)
    images, kernel = (value(var, values) for var in equation.invars)
    of_images, of_kernel, of_result = equation.params["dimension_numbers"]
    space = range(1, images.ndim - 1)
    numbers = jax.lax.ConvDimensionNumbers(
        lhs_spec=(0, images.ndim - 1, *space),
        rhs_spec=(images.ndim - 1, images.ndim - 2, *range(images.ndim - 2)),
        out_spec=(0, images.ndim - 1, *space),
    )
    result = jax.lax.conv_general_dilated_p.bind(
        images.transpose(of_images[0], *of_images[2:], of_images[1]),
        kernel.transpose(*of_kernel[2:], of_kernel[1], of_kernel[0]),
        **{**equation.params, "dimension_numbers": numbers},
    )
    places = (of_result[0], *of_result[2:], of_result[1])  # axes of the wanted result
    return [result.transpose(sorted(range(images.ndim), key=places.__getitem__))]


def _rewritten(param: Any) -> Any:
    """Return an equation's parameter; programs with convolutions are put in channels-last form."""
    if not _is_program(param):
        return param
    closed = param if isinstance(param, ClosedJaxpr) else ClosedJaxpr(param, ())
    if not _convolves(closed.jaxpr):
        return param
    found = jax.make_jaxpr(lambda *values: evaluated(closed, values, _channels_last))(
        *closed.in_avals
    )
    return found if isinstance(param, ClosedJaxpr) else found.jaxpr
