"""`Algorithm`, the parts of every method, and the small transforms that methods share.

A complete method, runnable as it stands: all-reduce SGD on four workers under `vmap`.

>>> import jax, jax.numpy as jnp, optax
>>> from algorithms.all_reduce import all_reduce
>>> method = all_reduce(optax.sgd(0.5))
>>> params, gradients = jnp.zeros(2), jnp.array([[1.0, 0], [3, 0], [0, 2], [0, 2]])
>>> exchange = jax.vmap(
...     lambda g: method.exchange.update(g, method.exchange.init(params), params)[0],
...     axis_name="workers", out_axes=None)
>>> update, _ = method.server.update(exchange(gradients), method.server.init(params), params,
...                                  batches=4)
>>> optax.apply_updates(params, update)
Array([-0.5, -0.5], dtype=float32)

Extra arguments of an exchange, all from the schedule:

    weight      of this worker in a mean; None: all alike
    batches     mini-batches it finished, of `nominal` in a full round
    worker      its identity, not its position in the axis
    version     int32, version of the parameters at which its contribution was taken
    first       int32, counter of the contribution's first mini-batch
    active      bool [M], matchings in use, of a method with `links`
    partner     position in the axis of its partner, where the schedule has pairs
    samples     float32, seen by all workers before this update
    count       `samples` as an exact uint32, from which all workers derive equal random draws
    staleness   updates since the worker read its parameters
    current     the newest parameters, where the worker's may be older

A worker that no other worker waits for does not know `samples`, `count`, `staleness`, `current` and
the other workers of its update: its random draws follow from the other arguments.
"""

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import networkx as nx
import optax

from algorithms.links import Links
from comms.collectives import AXIS as AXIS
from comms.collectives import AllReduce
from comms.messages import Fallbacks, Messages, Row

Choice = TypeVar("Choice")


def proportional(batches) -> jax.Array:
    """Weigh a worker by its finished mini-batches, as if all samples were in one mini-batch."""
    return jnp.asarray(batches, jnp.float32)


def equal(batches) -> jax.Array:
    """Give weight 1 to workers that finished something, so that each contributes its own mean."""
    return jnp.asarray(batches > 0, jnp.float32)


WEIGHTINGS = {"proportional": proportional, "equal": equal}


def choose(what: str, options: Mapping[str, Choice], name: str) -> Choice:
    """Return options[name], or raise a ValueError that begins with `what` and lists the names."""
    if name not in options:
        raise ValueError(f"{what}: unknown choice {name!r}; known choices: {', '.join(options)}")
    return options[name]


def whole(name: str, least: float = -math.inf, **parameters: Any) -> None:
    """Raise ValueError unless parameters are whole numbers of at least `least`; name: for errors.

        >>> whole("krum", 1, keep=0)
        Traceback (most recent call last):
        ValueError: krum: needs keep >= 1, got 0; set 1 or more
    """
    for key, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name}: {key} must be a whole number, got {value}; round it")
        if value < least:
            raise ValueError(f"{name}: needs {key} >= {least}, got {value}; set {least} or more")


def check_shares(name: str, **parameters: float) -> None:
    """Raise ValueError for a parameter, such as a momentum, outside of [0, 1)."""
    for key, value in parameters.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}: needs 0 <= {key} < 1, got {value}; set it in this range")


class Parted(NamedTuple):
    """Result of an exchange where workers keep models beside the server's."""

    served: Any  # the gradient for the server, equal on all workers
    own: Any  # the change of this worker's own parameters


class Needs(NamedTuple):
    """Requirements of a method on the updates that a waiting rule makes.

    everybody: reason in words why an update needs every worker; "": it does not.
    pairs: updates are meetings of two workers; False: an update has any number of workers.
    stopped: both workers of a meeting have ended their local steps.
    workers: number of workers for which the method was built; None: any.
    otherwise: a remedy in words, for the error, besides another waiting rule.
    """

    everybody: str = ""
    pairs: bool = False
    stopped: bool = False
    workers: int | None = None
    otherwise: str = ""


class Bucketed(NamedTuple):
    """Stateless exchange: a mean in buckets, which may begin before all gradients are known."""

    buffers_of: Callable[[Any], list]  # parameters -> `comms.buckets.buffers`, as they are sent
    all_reduce: AllReduce  # of a flat buffer
    eager: bool = False  # the next forward pass begins before everything has arrived


class Details(NamedTuple):
    """Facts that few methods state; `Algorithm` has a property for each.

    mean_only: the exchange of contributions that are not stale is exactly their weighted mean and
        keeps no state, so that a simulator may take one gradient of the weighted mean loss over
        all samples.
    settled: from this update on, messages no longer depend on the number of earlier updates.
    metrics: exchange state with a leading axis of workers -> numbers for the records. Where pairs
        repeat unreadable messages, `extra_messages_per_worker` and `extra_bytes_per_worker` come
        on top of `messages`, and a run records the seconds of the repeats.
    fallbacks: (exchange state with a leading axis of workers, params or their shapes, workers,
        row) -> messages sent so far in place of planned ones, which did not fit the data; row: the
        planned messages. None: plans always fit.
    decide: gradient of the first mini-batches of all workers -> values, by name, of the parameters
        that the method leaves open; the method is built again with them. None: nothing is open.
    buckets: the mean in buckets, for a runtime that sends each bucket itself; None: no buckets.
    """

    mean_only: bool = False
    settled: int = 0
    metrics: Callable[[Any], dict[str, jax.Array]] | None = None
    fallbacks: Callable[[Any, Any, int, Row], Fallbacks] | None = None
    decide: Callable[[Any], dict[str, Any]] | None = None
    buckets: Bucketed | None = None


class Algorithm(NamedTuple):
    """Distributed method, as parts that do not depend on where the workers run.

    exchange: optax transform over the axis `AXIS`, called once per update with the worker's
        contribution; the only part whose collectives name the axis.
    work: optimizer of a worker's local steps between exchanges; the contribution is then the
        parameters before these steps minus the parameters after them. None: the contribution is the
        mean gradient at one point.
    server: optimizer that is applied, outside the axis, to the result of the exchange: one copy of
        parameters and optimizer state (*replicated*). None: every worker has its own copy, and the
        exchange returns the change of its parameters (*local*).
    adopt: (own parameters, the server's, exchange state, number of the server's updates) -> new own
        parameters, called when a worker begins a contribution (on a mesh: when a round ends). With
        `adopt`, workers keep models beside the server's, the server's model is evaluated, and the
        exchange returns a `Parted`. None: workers take the server's parameters.
    grad_params: (exchange state, params) -> the point at which gradients are taken; None: params.
    weight: finished mini-batches -> weight of a worker in an all-reduce.
    messages: (params or their shapes, workers, row) -> the messages of a worker in an update, in
        order: a tuple of `comms.messages.Payload`. Bytes and seconds follow from these messages; a
        method that a config names must have `messages`.
    graph, links: pairs of workers that exchange, and the matchings of `graph` that each update
        uses; None: all, always.
    public: (exchange state, params) -> the model that a worker of a local method shows to others;
        None: params.
    needs: requirements on the updates that a waiting rule makes.
    details: facts that only some methods state, see `Details`.
    """

    exchange: optax.GradientTransformationExtraArgs
    work: optax.GradientTransformation | None = None
    server: optax.GradientTransformation | None = None
    adopt: Callable[[Any, Any, Any, jax.Array], Any] | None = None
    grad_params: Callable[[Any, Any], Any] | None = None
    weight: Callable[[jax.Array], jax.Array] = proportional
    messages: Messages | None = None
    graph: nx.Graph | None = None
    links: Links | None = None
    public: Callable[[Any, Any], Any] | None = None
    needs: Needs = Needs()
    details: Details = Details()

    mean_only = property(lambda self: self.details.mean_only)
    settled = property(lambda self: self.details.settled)
    metrics = property(lambda self: self.details.metrics)
    fallbacks = property(lambda self: self.details.fallbacks)
    decide = property(lambda self: self.details.decide)
    buckets = property(lambda self: self.details.buckets)

    def __getattr__(self, name: str) -> Any:
        if name in ("init", "update"):
            raise AttributeError(
                f"a method has no {name!r}; gossax.as_optax(method) is an optax transform"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def own_models(self) -> bool:
        """True if every worker has a model of its own."""
        return self.server is None or self.adopt is not None


def map_columns(leaf: Callable, tree: Any, *others: Any) -> tuple:
    """Map a function with several results over leaves; return one tree per result."""
    leaves, structure = jax.tree.flatten(tree)
    rows = [leaf(*row) for row in zip(leaves, *map(jax.tree.leaves, others), strict=True)]
    return tuple(jax.tree.unflatten(structure, column) for column in zip(*rows, strict=True))


def extended(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Return `inner`, made to take extra arguments; ValueError if it is no transform."""
    if not hasattr(inner, "update"):
        raise ValueError(f"optimizer: {inner} is no transform of optax; write optax.sgd(0.1)")
    return optax.with_extra_args_support(inner)


def freeze_when_idle(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Leave parameters and the state of `inner` untouched where `batches` is 0.

    A worker that finished nothing must not decay its momentum or count a step (Non-blocking SGD,
    arXiv 2211.00889). The extra argument `busy`, a Python bool, asserts that `batches` is never 0;
    without `batches`, `busy` counts as true. A true `busy` omits the choice between old and new
    values, because this choice keeps XLA from updating in place.
    """
    inner = extended(inner)

    def update_fn(updates, state, params=None, *, batches=None, busy=False, **extra):
        if batches is None:
            batches, busy = 1, True
        extra |= {"batches": batches, "busy": busy}
        new_updates, new_state = inner.update(updates, state, params, **extra)
        if busy:
            return new_updates, new_state
        busy = jnp.asarray(batches) > 0
        return (
            jax.tree.map(lambda u: jnp.where(busy, u, jnp.zeros_like(u)), new_updates),
            jax.tree.map(lambda new, old: jnp.where(busy, new, old), new_state, state),
        )

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)


def servers_own(name: str, *values) -> None:
    """Raise ValueError unless the extra arguments that only a server knows are given."""
    if any(value is None for value in values):
        raise ValueError(
            f"{name}: its exchange needs `current`, the server's parameters, and `version`, its "
            "updates; give both, or use as_optax(method), which keeps them"
        )


class RateState(NamedTuple):
    """Learning rate as data, so that runs with other rates share a compiled program."""

    learning_rate: jax.Array  # [] float32


def scale_by_samples(
    learning_rate: float,
    shape: Callable[[jax.Array], jax.Array] | None = None,
    batch_power: float = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """Descend at the rate learning_rate * shape(samples seen so far).

    optax schedules count updates, but an update of a non-blocking method holds a varying number of
    samples, so the schedule follows the extra argument `samples` (arXiv 2211.00889). An update of b
    mini-batches, the extra argument `batches`, has the rate of one mini-batch times b**batch_power:
    1 is the linear scaling rule (P. Goyal et al., arXiv 1706.02677, Sec. 2.1), 0.5 the square root.
    """

    def init_fn(params):
        del params
        return RateState(jnp.asarray(learning_rate, jnp.float32))

    def update_fn(updates, state, params=None, *, samples=0, batches=1, **extra):
        del params, extra
        rate = state.learning_rate if shape is None else state.learning_rate * shape(samples)
        if batch_power:
            rate = rate * jnp.asarray(batches, jnp.float32) ** batch_power
        return jax.tree.map(lambda u: (-rate * u).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
