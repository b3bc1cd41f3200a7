"""Programs as jaxprs: which equations speak to the other workers, and which the others need.

A jaxpr of a body that runs under a named axis comes from `jax.make_jaxpr(body, axis_env=...)`. Its
equations are in an order in which they can be computed.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal

PART = DebugInfo("part", "part of a program", None, None)  # of jaxprs that are made by hand


def names_axis(equation: JaxprEqn, axis: str) -> bool:
    """Whether the equation itself is a collective along `axis`, or asks for the position in it."""
    named = equation.params.get("axis_name", equation.params.get("axes"))
    return axis == named or (isinstance(named, tuple | list) and axis in named)


def speaks(equation: JaxprEqn, axis: str) -> bool:
    """Whether the equation names `axis`, or holds an equation that does."""
    return names_axis(equation, axis) or any(
        speaks(inner, axis) for program in programs_in(equation) for inner in program.jaxpr.eqns
    )


def programs_in(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """The programs that an equation holds: bodies of loops, branches, compiled functions."""
    leaves = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)
    )
    return [
        leaf if isinstance(leaf, ClosedJaxpr) else ClosedJaxpr(leaf, ())
        for leaf in leaves
        if isinstance(leaf, Jaxpr | ClosedJaxpr)
    ]


def inputs(equation: JaxprEqn) -> list:
    """The variables that an equation reads; constants in their places are left out."""
    return [var for var in equation.invars if not isinstance(var, Literal)]


def needed(
    wanted: Iterable[Hashable], known: Iterable[Hashable], equations: Sequence[JaxprEqn]
) -> list[JaxprEqn]:
    """The equations, in their order, that compute the variables `wanted` from those `known`."""
    known = set(known)
    missing, found = set(wanted) - known, []
    for equation in reversed(equations):
        if missing.intersection(equation.outvars):
            found.append(equation)
            missing.update(var for var in inputs(equation) if var not in known)
    return found[::-1]


def bind(equation: JaxprEqn, values: Sequence[Any]) -> list:
    """The outputs of an equation; values: one per entry of its `invars`."""
    pairs = zip(equation.invars, values, strict=True)
    given = {var: value for var, value in pairs if not isinstance(var, Literal)}
    lone = Jaxpr((), list(given), equation.outvars, [equation], equation.effects, PART)
    return jax.core.eval_jaxpr(lone, (), *given.values())


def read(var: Any, values: Mapping[Hashable, Any]) -> Any:
    """The value of a variable, or the constant that stands in its place."""
    return var.val if isinstance(var, Literal) else values[var]
