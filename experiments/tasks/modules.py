"""Models of tasks: flax modules of either interface, linen's or nnx's, that are parameters alone.

Workers exchange parameters, and a model is called with its examples alone, in training as in
evaluation. One that keeps other state, or draws at random when it is called, is refused.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import errors, nnx
from flax import linen as nn

from experiments.registry import Kind

GIVES = (nn.Module, nnx.Module)  # what a factory of models may return
RANDOM = (
    "the model has random layers, as Dropout, and gets no keys for them; leave them out, see "
    "docs/extend.md"
)


class Refused(ValueError):
    """A model that is more than its parameters."""


class Split(NamedTuple):
    """An nnx module that is called as one of linen: its variables stand apart from it."""

    make: Callable[[jax.Array], nnx.Module]  # from a key
    graph: nnx.GraphDef
    constants: nnx.State  # arrays that are no variables
    others: tuple[str, ...]  # types of variables that are no parameters

    def init(self, key: jax.Array, inputs: jax.Array) -> dict[str, Any]:
        """The variables by collections, of which only the parameters are filled."""
        params = nnx.to_pure_dict(nnx.state(self.make(key), nnx.Param))
        return {"params": params, **dict.fromkeys(self.others)}

    def apply(self, variables: Mapping[str, Any], inputs: jax.Array) -> jax.Array:
        return nnx.merge(self.graph, variables["params"], self.constants)(inputs)


Model = nn.Module | Split


def build(kind: Kind, part: str | Mapping, **available: Any) -> Model:
    """The module that `part` describes.

    A factory of nnx modules that takes `rngs` is called again with the key of `init`; the module of
    another one starts from the weights that it has.
    """

    drawn = kind.wants(part, "rngs")

    def make(key: jax.Array | int) -> Any:
        return kind.build(part, **available, **({"rngs": nnx.Rngs(key)} if drawn else {}))

    built = make(0)
    if not isinstance(built, nnx.Module):
        return built
    graph, _, variables, constants = nnx.split(built, nnx.Param, nnx.Variable, ...)
    others = {type(variable).__name__ for _, variable in nnx.to_flat_state(variables)}
    return Split(make if drawn else lambda key: built, graph, constants, tuple(sorted(others)))


def init(module: Model, key: jax.Array, inputs: jax.Array) -> Any:
    """The parameters of a module; Refused for one that has more than these."""
    with nn.intercept_methods(_refuse_dropout):
        variables = module.init(key, inputs)
    others = variables.keys() - {"params"}
    if any(name.startswith("Rng") for name in others):
        raise Refused(RANDOM)
    if others:
        raise Refused(
            f"the model keeps {', '.join(sorted(others))} beside its parameters, as BatchNorm "
            "does, and workers exchange parameters alone; use GroupNorm or LayerNorm, see "
            "docs/extend.md"
        )
    try:
        jax.eval_shape(module.apply, variables, inputs)
    except errors.InvalidRngError as error:
        raise Refused(RANDOM) from error
    return variables.get("params", {})


def _refuse_dropout(call: Callable, args: tuple, given: dict, context: Any) -> Any:
    """Refuse linen's layers that would be silent where a call does not ask for them."""
    if isinstance(context.module, nn.Dropout) and context.module.rate:
        raise Refused(RANDOM)
    return call(*args, **given)
