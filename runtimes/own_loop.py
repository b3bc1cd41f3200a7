"""Methods as optax transforms, for a training loop that the user writes.

    tx = as_optax(dpsgd(optax.sgd(0.1), topology.ring(8)))
    updates, state = tx.update(gradients, state, params)  # over the axis "workers"

The loop runs under `jax.vmap(axis_name="workers")`, `jax.pmap` or `jax.shard_map`, and every worker
has its own state. The transform supplies the extra arguments that a launched run takes from its
schedule: it counts updates and samples, and looks up the active links. It also applies the server's
optimizer. Extra arguments that are given to `update` take precedence.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.base import AXIS, Algorithm, Parted, freeze_when_idle
from comms import hashing
from comms.trees import check_floats

HORIZON = 2**16  # updates after which links that were drawn at random repeat
OF_LOSS = "value", "grad"  # extra arguments of optax that a server gets as means over workers
Extra = dict[str, Any]


class MethodState(NamedTuple):
    """State of one worker."""

    updates: jax.Array  # [] int32, exchanges so far
    samples: jax.Array  # [2] uint32, both words of the number of samples used by all workers
    exchange: Any  # state of the method's exchange
    optimizer: Any  # state of the server's optimizer, equal on all workers; () without a server
    served: Any  # the server's parameters, if workers have their own beside them; else ()
    raw: Any  # parameters that the exchange mixes, if gradients are taken at others; else ()


class LocalState(NamedTuple):
    """State of one worker of a method with local steps."""

    method: MethodState
    work: Any  # state of the local optimizer
    base: Any  # parameters at which the local steps began
    steps: jax.Array  # [] int32, local steps since then


class LocalSteps(NamedTuple):
    """Functions of a method with local steps; `step` and `exchange` return (updates, state).

    init: params -> state.
    step: (gradients, state, params, **extra), one local step without communication.
    exchange: (state, params, **extra), the exchange after any number of local steps.
    """

    init: Callable[[Any], LocalState]
    step: Callable[..., tuple[Any, LocalState]]
    exchange: Callable[..., tuple[Any, LocalState]]


def as_optax(
    method: Algorithm, *, batch_size: int = 1, local_steps: int = 1
) -> optax.GradientTransformationExtraArgs:
    """Return the method as a transform whose `update(gradients, state, params)` is one update.

    batch_size: samples of a worker's gradient, or of the gradient of a local step. Random draws and
        learning-rate schedules count these samples.
    local_steps: H, the local steps between two exchanges of a method with local steps; `batches` 0
        in a call: no step. The first worker with H steps ends a round. With `as_local_steps` the
        caller chooses the exchanges.

    `algorithms.base` lists the extra arguments. In a non-blocking round, pass the mean gradient of
    the mini-batches that this worker has finished. Pass their number as `batches`, and the number
    in a full round as `nominal`. Random activations repeat after 65,536 updates.

    `params` is the point at which gradients are taken, x / w for push-sum. Tracing of `update`
    raises ValueError for a method that needs arguments that only a launcher knows. Tracing also
    fails on an axis of another size than the method's graph, and inside `optax.apply_if_finite`.
    """
    if _checked(method).work is None:
        if local_steps != 1:
            raise ValueError(
                f"as_optax: local_steps={local_steps}, but this method takes no local steps; leave "
                "it out, or accumulate gradients before the call"
            )
        core = _Core(method, batch_size)
        return optax.GradientTransformationExtraArgs(core.init, core.update)
    if not local_steps >= 1 or local_steps % 1:
        raise ValueError(
            f"as_optax: needs local_steps >= 1, a whole number, got {local_steps}; 1 is no pause"
        )
    local = as_local_steps(method, batch_size=batch_size)

    def update_fn(updates, state, params=None, **extra):
        moved, state = local.step(updates, state, _needed(params), **extra)
        if local_steps > 1:  # `batches` is of this call, and the exchange is of all steps
            extra = {key: extra[key] for key in extra.keys() - {"batches", "nominal"}}

        def exchanged():
            stepped = optax.apply_updates(params, moved)
            change, after = local.exchange(state, stepped, **extra)
            return jax.tree.map(jnp.add, moved, change), after

        if local_steps == 1:
            return exchanged()
        due = (state.steps >= local_steps).astype(jnp.int32)
        # Under vmap the count has an axis of workers, but is equal on all of them.
        due = jax.lax.pmax(due, AXIS)
        return jax.lax.cond(due > 0, exchanged, lambda: (moved, state))

    return optax.GradientTransformationExtraArgs(local.init, update_fn)


def as_local_steps(method: Algorithm, *, batch_size: int = 1) -> LocalSteps:
    """Return a method with local steps, such as DiLoCo, local SGD or Swarm, as `LocalSteps`.

    batch_size: as in `as_optax`. Raises ValueError for a method without local steps.
    """
    if _checked(method).work is None:
        raise ValueError(
            "as_local_steps: this method takes no local steps; use as_optax(method), or local_sgd"
        )
    core = _Core(method, batch_size)
    work = freeze_when_idle(method.work)

    def init_fn(params):
        base = jax.tree.map(jnp.array, params)  # copies, so that params can be donated
        return LocalState(core.init(params), *_varying((work.init(params), base, jnp.int32(0))))

    def step_fn(updates, state, params, **extra):
        params = _needed(params)
        given = core.given(state.method, extra, nominal=1)
        moved, inner = work.update(updates, state.work, params, **given)
        moved = jax.tree.map(lambda m, p: m.astype(jnp.result_type(m, p)), moved, params)
        steps = state.steps + (jnp.asarray(given["batches"]) > 0)
        return moved, state._replace(work=_varying(inner), steps=steps)

    def exchange_fn(state, params, **extra):
        """Exchange base - params; return the change from params to the next steps' beginning."""
        extra = {"batches": state.steps, "nominal": jnp.maximum(state.steps, 1)} | extra
        progress = jax.tree.map(jnp.subtract, state.base, _needed(params))
        moved, inner = core.update(progress, state.method, state.base, **extra)
        base = optax.apply_updates(state.base, moved)
        change = jax.tree.map(jnp.subtract, base, params)
        return change, LocalState(inner, state.work, base, 0 * state.steps)  # varies like steps

    return LocalSteps(init_fn, step_fn, exchange_fn)


class _Core:
    """Exchange and server step of a method, with arguments that a schedule would supply."""

    def __init__(self, method: Algorithm, batch_size: int):
        if not batch_size >= 1 or batch_size % 1:
            raise ValueError(f"as_optax: needs batch_size >= 1, got {batch_size}; give the samples")
        self._method, self._batch_size = method, batch_size
        links = method.links
        if links is not None and links.fixed >= HORIZON:
            raise ValueError(
                f"as_optax: links are chosen for {links.fixed} updates, and {HORIZON} are kept; "
                "give active=method.links.active(update, 1)[0], or end the stretch before"
            )
        self._active = None if links is None else links.active(0, links.period or HORIZON)

    def init(self, params) -> MethodState:
        method, params = self._method, jax.tree.map(jnp.asarray, params)
        check_floats(params)
        start = jnp.int32(0), jnp.asarray(hashing.words(0))
        if not jax.tree.leaves(params):
            return MethodState(*start, (), (), (), ())
        state = MethodState(
            *start,
            method.exchange.init(params),
            () if method.server is None else method.server.init(params),
            () if method.adopt is None else jax.tree.map(jnp.array, params),
            () if method.grad_params is None else jax.tree.map(jnp.array, params),
        )
        return _varying(state)

    def update(self, contribution, state: MethodState, params=None, **extra):
        """Return (the change of the parameters, the state after one exchange)."""
        moved, state = self._update(contribution, state, params, extra)
        return moved, _varying(state)

    def _update(self, contribution, state: MethodState, params, extra: Extra):
        method = self._method
        _needed(params)
        self._check()
        if not jax.tree.leaves(params):  # a label of optax.multi_transform that nothing has
            return contribution, state
        full = "batches" not in extra
        given = self.given(state, extra)
        counted = jnp.asarray(given["batches"], jnp.int32)
        total = counted * jax.lax.axis_size(AXIS) if full else jax.lax.psum(counted, AXIS)
        samples = hashing.plus(state.samples, total * self._batch_size)
        after = state._replace(updates=state.updates + 1, samples=samples)
        if method.adopt is not None:
            given["current"] = state.served
        base = params if method.grad_params is None else state.raw
        weight = {} if full else {"weight": method.weight(given["batches"])}
        moved, exchange = method.exchange.update(
            contribution, state.exchange, base, **(weight | given)
        )
        after = after._replace(exchange=exchange)
        given["batches"] = total
        if method.grad_params is not None:
            raw = optax.apply_updates(base, moved)
            point = method.grad_params(exchange, raw)
            return jax.tree.map(jnp.subtract, point, params), after._replace(raw=raw)
        if method.server is None:
            return moved, after
        server = optax.with_extra_args_support(method.server)
        # Optimizers that look at the loss or at its gradient step alike on all workers, too.
        given |= jax.lax.pmean({key: given[key] for key in OF_LOSS if key in given}, AXIS)
        if method.adopt is None:
            moved, optimizer = server.update(moved, state.optimizer, params, **given)
            return moved, after._replace(optimizer=optimizer)
        assert isinstance(moved, Parted)
        step, optimizer = server.update(moved.served, state.optimizer, state.served, **given)
        served = optax.apply_updates(state.served, step)
        own = optax.apply_updates(params, moved.own)
        own = method.adopt(own, served, exchange, given["version"] + 1)
        change = jax.tree.map(jnp.subtract, own, params)
        return change, after._replace(optimizer=optimizer, served=served)

    def given(self, state: MethodState, extra: Extra, nominal: Any = None) -> Extra:
        """Return the extra arguments of an update: `extra`, and defaults of a full round."""
        if nominal is None:
            if ("batches" in extra) != ("nominal" in extra):
                raise ValueError(
                    "as_optax: `batches` and `nominal`, the mini-batches of a full round, belong "
                    "together; give both, or neither for a full round"
                )
            nominal = extra.get("nominal", 1)
        known = {
            "batches": nominal,
            "nominal": nominal,
            **hashing.counted(state.samples),
            "version": state.updates,
            "first": state.updates * nominal,
            "staleness": 0,
            "worker": jax.lax.axis_index(AXIS),
            "busy": "batches" not in extra,
        }
        if self._active is not None and "active" not in extra:
            rows = jnp.asarray(np.packbits(self._active, axis=1, bitorder="little"))
            again = self._method.links.fixed  # chosen links do not repeat
            later = again + (state.updates - again) % (len(rows) - again)
            row = jnp.unpackbits(
                rows[jnp.where(state.updates < again, state.updates, later)],
                count=self._active.shape[1],
                bitorder="little",
            )
            known["active"] = row.astype(bool)
        if "samples" in extra:  # then random draws follow the caller's number, too
            del known["count"]
        return known | extra

    def _check(self) -> None:
        """Raise ValueError in a wrapper that skips updates, and on an axis of the wrong size."""
        _refuse_conditions()
        workers, graph = jax.lax.axis_size(AXIS), self._method.graph
        built = self._method.needs.workers if graph is None else len(graph)
        if built not in (None, workers):
            raise ValueError(
                f"as_optax: the axis {AXIS!r} has {workers} workers, but the method was built for "
                f"{'' if graph is None else 'a graph of '}{built}; build it for {workers}"
            )


def _varying(tree):
    """Return the tree as values of each worker, where `jax.shard_map` checks what varies.

    A state that is equal on all workers would change its type in the carry of a `jax.lax.scan`.
    """
    try:
        worker = jax.lax.axis_index(AXIS)
    except NameError:  # in jax.vmap(tx.init), which needs no axis
        return tree
    if jax.typeof(worker) == jax.typeof(jnp.int32(0)):  # nothing is checked
        return tree

    def leaf(value):
        try:
            return jax.lax.pcast(value, AXIS, to="varying")
        except ValueError:  # it varies already
            return value

    return jax.tree.map(leaf, tree)


def _checked(method):
    if not isinstance(method, Algorithm):
        raise ValueError(
            f"as_optax: needs a method, got {' '.join(f'{method}'.split()):.60}; make one, as "
            "all_reduce(optax.sgd(0.1))"
        )
    return method


def _needed(params):
    """Return `params`; raise ValueError if they or the axis of workers are missing."""
    if params is None:
        raise ValueError("as_optax: `params` is missing; call update(gradients, state, params)")
    try:
        jax.lax.axis_size(AXIS)
    except NameError as error:
        raise ValueError(
            f"as_optax: update is called outside of the axis {AXIS!r}; call it in "
            f"jax.vmap(step, axis_name={AXIS!r}), or in jax.shard_map over a mesh with this axis"
        ) from error
    return params


def _refuse_conditions() -> None:
    """Raise ValueError inside optax wrappers that let a single worker skip an update.

    The other workers would wait for its collectives for ever. Both wrappers trace the method in
    their own functions. Only the names of these functions on the stack reveal a wrapper.
    """
    frame = sys._getframe()
    while frame is not None:
        name, wrapper = frame.f_code.co_qualname, None
        if frame.f_globals.get("__name__", "").startswith("optax."):
            if name.startswith("apply_if_finite."):
                wrapper = "optax.apply_if_finite"
            elif name == "MultiSteps.update":
                skips = frame.f_locals["self"]._should_skip_update_fn
                if not skips.__qualname__.startswith("MultiSteps."):
                    wrapper = "optax.MultiSteps(should_skip_update_fn=...)"
        if wrapper is not None:
            raise ValueError(
                f"as_optax: {wrapper} around a method would skip an update on one worker while the "
                "others wait for it; put it around the optimizer inside, as in "
                "all_reduce(optax.apply_if_finite(optax.sgd(0.1), 5))"
            )
        frame = frame.f_back
