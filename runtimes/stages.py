"""A function in stages, between which parts of its result leave and parts of its input arrive.

The gradient of a model, for example, is cut where the gradients of its last layers are known, which
can then be on their way while the stages for the layers before go on.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn

from algorithms.base import AXIS
from runtimes.equations import PART, evaluated, inputs, needed, variables


class Stage(NamedTuple):
    """Equations that are computed in a row, from known values to values that others read."""

    awaits: int | None  # group of inputs that has to be there
    leaves: int | None  # group of outputs that is known after it; the last one is the rest
    program: Jaxpr  # its inputs and outputs are variables of the whole
    frees: list  # variables whose values nobody reads any more


class Stages:
    """A function of (groups that arrive, *given) that returns (groups that leave, rest), in stages.

    Each stage computes what the next group that leaves needs, as far as the groups that have
    arrived allow. Groups arrive and leave in their order. The function is cut between equations:
    a loop, such as a scan over layers, is one piece. However its stages are computed, the values
    are what the function gives but for roundings that compilers choose.
    """

    def __init__(self, function: Callable, workers: int, arriving: Sequence, *given: Any):
        """Trace and cut a function under the axis of workers, of which it may ask for the index.

        arriving, given: arrays or their shapes, as one worker has them.
        """
        nested, (leaving, rest) = jax.make_jaxpr(
            function, axis_env=[(AXIS, workers)], return_shape=True
        )(list(arriving), *given)
        flat = jax.make_jaxpr(lambda *values: evaluated(nested, values), axis_env=[(AXIS, workers)])
        whole = flat(*nested.in_avals)
        self.consts, self._rest = whole.consts, jax.tree.structure(rest)
        *self._arriving, self.given = _groups(whole.jaxpr.invars, arriving)
        *self._leaving, kept = _groups(whole.jaxpr.outvars, leaving)
        self.stages = self._cut(whole.jaxpr, kept)

    def _cut(self, program: Jaxpr, kept: list) -> list[Stage]:
        level = {var: k for k, group in enumerate(self._arriving) for var in group}
        for e in program.eqns:  # the group after which it can be computed
            latest = max((level[var] for var in inputs(e) if var in level), default=-1)
            level |= dict.fromkeys(e.outvars, latest)
        left, known = list(program.eqns), {*self.given, *program.constvars}
        pieces: list[tuple[int | None, int | None, list[JaxprEqn]]] = []

        def take(awaits, leaves, found):
            nonlocal left
            pieces.append((awaits, leaves, found))
            known.update(var for e in found for var in e.outvars)
            taken = set(map(id, found))
            left = [e for e in left if id(e) not in taken]

        wanted = variables(self._leaving[0])
        if self._arriving:
            early = [e for e in needed(wanted, known, left) if level[e.outvars[0]] < 0]
            take(None, None, early)
        for k, group in enumerate(self._arriving):
            known.update(group)
            path = needed(wanted, known, left)
            take(k, None, [e for e in path if level[e.outvars[0]] <= k])
        for b, group in enumerate([*self._leaving, kept]):
            take(None, b, needed(variables(group), known, left))

        stages: list[Stage] = []
        later: set = set()  # what the stages behind read, or the result has
        for awaits, leaves, equations in reversed(pieces):
            rest = leaves == len(self._leaving)
            outside = [] if leaves is None else kept if rest else self._leaving[leaves]
            computed = dict.fromkeys(var for e in equations for var in e.outvars)
            read = [var for e in equations for var in inputs(e)]
            if rest:
                read += variables(outside)
            reads = [v for v in dict.fromkeys(read) if v not in {*computed, *program.constvars}]
            frees = [var for var in reads if var not in later.union(variables(outside))]
            later.update(variables(outside))
            outputs = outside if rest else [var for var in computed if var in later]
            body = Jaxpr(program.constvars, reads, outputs, equations, program.effects, PART)
            if outputs or awaits is not None or not (leaves is None or rest):
                stages.append(Stage(awaits, leaves, body, frees))
            later.update(reads)
        return stages[::-1]

    def play(
        self,
        compute: Sequence[Callable],
        given: Any,
        arrived: Callable[[int], Any] = lambda group: (),
        leave: Callable[[int, list], None] = lambda group, values: None,
    ) -> Any:
        """Return the rest of the result.

        compute: of each stage, inputs -> outputs. given: a tuple of the other arguments. arrived:
        a group -> its values, called once they are needed. leave: called with each group of
        outputs as soon as a stage has it.
        """
        values = dict(zip(self.given, jax.tree.leaves(given), strict=True))
        rest: Sequence[Any] = ()
        for stage, run in zip(self.stages, compute, strict=True):
            if stage.awaits is not None:
                group = jax.tree.leaves(arrived(stage.awaits))
                values.update(zip(self._arriving[stage.awaits], group, strict=True))
            found = run(*[values[var] for var in stage.program.invars])
            for var in stage.frees:
                del values[var]
            if stage.leaves == len(self._leaving):
                rest = found
                continue
            values.update(zip(stage.program.outvars, found, strict=True))
            if stage.leaves is not None:
                leave(stage.leaves, [values[var] for var in self._leaving[stage.leaves]])
        return jax.tree.unflatten(self._rest, rest)

    def traced(self, stage: Stage) -> Callable:
        """Return a stage as a function for the program that is being traced."""
        return lambda *values: jax.core.eval_jaxpr(stage.program, self.consts, *values)


def _groups(flat: Sequence, groups: Sequence) -> list[list]:
    """Return variables by the groups that they are the leaves of, the others last."""
    ends = np.cumsum([len(jax.tree.leaves(group)) for group in groups], dtype=int).tolist()
    return [list(flat[i:j]) for i, j in zip([0, *ends], [*ends, len(flat)], strict=True)]
