"""Optimizers for configs: optax's by their names or your own, with a rate in samples, not updates.

An update of a non-blocking method holds a varying number of samples, so a rate follows the samples
that all workers have seen (arXiv 2211.00889). An optimizer that takes a rate is made anew in each
update with the rate of that update, as optax's `inject_hyperparams` does.

A part may also be a list, `[clip_by_global_norm(max_norm=1.0), adamw(learning_rate=0.01)]`, which
is `optax.chain`; then exactly one of its members, or the chain itself, has the learning rate.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from algorithms.base import scale_by_samples
from experiments import registry
from experiments.registry import Kind, Part, is_number, is_part, text
from experiments.registry import spec as spec_of

# Parameters of a part about its learning rate.
RATE = ("learning_rate", "schedule", "warmup_samples", "batch_power")


def momentum(decay: float = 0.9, nesterov: bool = False) -> optax.GradientTransformation:
    """Return heavy-ball or Nesterov momentum; decay in [0, 1)."""
    return optax.trace(decay, nesterov)


@functools.wraps(contrib.muon, assigned=())
def muon(*args, **given) -> optax.GradientTransformation:
    """Take Muon on the matrices of a model except embeddings, and AdamW on all other arrays.

    Muon also gets the kernel of the last layer, which the author would leave to AdamW. optax would
    orthogonalise every array of two dimensions, a table of embeddings too, and no other array. (K.
    Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024.)
    """
    given.setdefault("muon_weight_dimension_numbers", hidden_matrices)
    return contrib.muon(*args, **given)


def selective_transform(
    optimizer: optax.GradientTransformation, freeze_mask: Callable | bool
) -> optax.GradientTransformation:
    """Train the parameters that a mask, or a function that makes one, does not freeze.

    optax itself takes only a tree of booleans; a function would count as True.
    """

    def labels(params):
        mask = freeze_mask(params) if callable(freeze_mask) else freeze_mask
        return jax.tree.map(lambda frozen: "freeze" if frozen else "train", mask)

    return optax.partition({"train": optimizer, "freeze": optax.set_to_zero()}, labels)


def hidden_matrices(params: optax.Params) -> Any:
    """Return, for each array, the axes of its rows and columns for Muon, or None for AdamW.

    AdamW gets vectors, and tables whose name begins with "embed", as Flax calls them; Muon gets the
    last layer's kernel, too. The last axis of a convolution's kernel holds the columns; a kernel of
    three axes, such as attention heads have, is cut where the matrix comes closest to a square.
    """

    def axes_of(path, array):
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        if jnp.ndim(array) < 2 or any(name.startswith("embed") for name in names):
            return None
        sizes = np.array(jnp.shape(array))
        cuts = range(1, sizes.size) if sizes.size == 3 else [sizes.size - 1]
        cut = min(cuts, key=lambda n: abs(np.log(sizes[:n].prod() / sizes[n:].prod())))
        return contrib.MuonDimensionNumbers(tuple(range(cut)), tuple(range(cut, sizes.size)))

    return jax.tree_util.tree_map_with_path(axes_of, params)


def _of_optax() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Return all transforms of optax and optax.contrib by their names, with or without a rate."""
    found = {}
    for module in (contrib, optax):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            gives = "GradientTransformation" in str(signature.return_annotation)
            if not name.startswith("_") and (gives or "learning_rate" in signature.parameters):
                found[name] = function
    return found


TRANSFORMS = _of_optax() | {
    "momentum": momentum, "muon": muon, "selective_transform": selective_transform
}
# SCALED: optimizers whose rate only scales their updates, whatever their other numbers are, so that
# they can stand inside of another one that has the rate; a test tries all. Those in APART do so
# unless this is set: a second rate, or what follows the rate.
APART = {
    muon: "adam_learning_rate", optax.rmsprop: "momentum", optax.adafactor: "weight_decay_rate"
}
SCALED = frozenset({
    contrib.acprop, optax.adabelief, optax.adadelta, optax.adafactor, optax.adagrad, optax.adam,
    optax.adamax, optax.adamaxw, optax.adamw, optax.adan, contrib.ademamix, contrib.adopt,
    optax.amsgrad, contrib.dog, contrib.dowg, optax.lamb, optax.lion, muon, optax.novograd,
    optax.optimistic_adam_v2, optax.optimistic_gradient_descent, optax.radam, optax.rmsprop,
    optax.sgd, optax.sign_sgd, optax.signum, contrib.simplified_ademamix, optax.yogi,
})  # fmt: skip
# Parameters of any optimizer that give the share of the past that stays.
SHARES = ("decay", "momentum", "decay_rate", "b1", "b2", "b3")


def step(boundaries: tuple[float, ...], factor: float = 0.1) -> optax.Schedule:
    """Multiply the rate by `factor` at each of `boundaries` (in samples)."""
    return optax.piecewise_constant_schedule(1.0, {float(place): factor for place in boundaries})


def cosine(samples: float, floor: float = 0.0) -> optax.Schedule:
    """Lower the rate to `floor` times itself over `samples` samples, then keep it."""
    if not samples > 0:
        raise ValueError(f"cosine: samples must be positive, got {samples}; set the run's length")
    return optax.cosine_decay_schedule(1.0, float(samples), floor)


def constant() -> optax.Schedule:
    """Keep the same rate throughout."""
    return optax.constant_schedule(1.0)


# Factors of the learning rate, as functions of the samples seen.
SCHEDULES = {
    name: function
    for name, function in inspect.getmembers(optax.schedules, inspect.isfunction)
    if "inject" not in name
} | {"constant": constant, "step": step, "cosine": cosine}


def matrices() -> Callable[[Any], Any]:
    """Choose arrays of two dimensions and more: what weight decay usually applies to."""
    return lambda params: jax.tree.map(lambda array: jnp.ndim(array) >= 2, params)


MASKS = {"matrices": matrices}

TRANSFORM = Kind("optimizer", TRANSFORMS, optax.GradientTransformation, taken_out=RATE)
SCHEDULE = Kind("schedule", SCHEDULES, Callable)
MASK = Kind("mask", MASKS, Callable)


def build(part: Part, entry: str = "optimizer") -> optax.GradientTransformationExtraArgs:
    """Return the optimizer of a part.

    part: {name, learning_rate, schedule: {name, ...}, warmup_samples, batch_power, **others}.
    learning_rate: positive. schedule: its factor, see SCHEDULES. warmup_samples: the rate grows
    linearly over this many samples. batch_power: see `algorithms.base.scale_by_samples`. A list of
    such parts is their chain. entry: the part's entry, for errors. Raises ValueError for
    anything that does not fit.
    """
    described = _Described(part, entry)
    transform = optax.with_extra_args_support(described.transform())
    if not described.has_rate:
        _scale(described.spec, entry)  # says that the rate is missing
    _try(transform, lambda: f"{entry} {text(part)}")
    return transform


def rate_is_data(part: Part) -> bool:
    """Return whether runs of other learning rates can share a program."""
    return not _Described(part, "optimizer").is_fixed


def to_the_end(part: Part, samples: float) -> dict[str, Any]:
    """Return a part whose schedules end after `samples` if they do not say when.

    These are schedules with a parameter `samples` that the part leaves out, such as `cosine`.
    """

    def ended(value: Any) -> Any:
        if isinstance(value, list):
            return [ended(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        entries = {name: ended(one) for name, one in value.items()}
        written = value.get("schedule")
        if isinstance(written, str | Mapping) and SCHEDULE.wants(written, "samples"):
            schedule = spec_of(written)
            if "samples" not in schedule:
                entries["schedule"] = schedule | {"samples": samples}
        return entries

    return ended(spec_of(part))


class _Described:
    """A transform as a config describes it, with the transforms that it is made of.

    inner: by ("*", place) in a chain, by the name of a parameter, or by that name and the label of
    some of the model's parameters.
    """

    def __init__(self, written: Part, entry: str):
        self.spec, self.entry = spec_of(written), entry
        self.who = f"{entry} {self.spec.get('name')!r}"
        self.kind = TRANSFORM._replace(name=entry)
        self.factory, self.parameters = self.kind.opened(self.spec.get("name"))
        self.own = {name: value for name, value in self.spec.items() if name not in RATE}
        for name in () if self.factory is optax.chain else SHARES:
            value = self.own.get(name)
            usual = name in self.parameters and value == self.parameters[name].default
            if name in self.own and not usual and is_number(value) and not 0 <= value < 1:
                raise ValueError(
                    f"{self.who}: {name} must be 0 or more and below 1, got {value}; set "
                    f"config.{entry}.{name}"
                )
        self.inner = {at: _Described(one, entry) for at, one in self._inside()}
        self.rated = [one for one in self.inner.values() if one.has_rate]
        self.is_rated = "learning_rate" in self.spec
        self.takes_rate = "learning_rate" in self.parameters
        self.has_rate = self.is_rated or bool(self.rated)
        # A constant rate remains a number for a factory of one's own, which may look at it.
        follows = any(self.spec.get(name) for name in ("schedule", "warmup_samples", "batch_power"))
        own = ":" in self.own.get("name", "")
        self.is_fixed = own and self.is_rated and self.takes_rate and not follows

    def _inside(self) -> Iterator[tuple[tuple, Part]]:
        """Yield (key of `inner`, part) of each transform that this one is made of."""
        yield from ((("*", place), one) for place, one in enumerate(self.own.get("*", ())))
        for name, parameter in self.parameters.items():
            value, kind = self.own.get(name), str(parameter.annotation)
            transform = "GradientTransformation" in kind
            if value is None or name.endswith(("mask", "labels")):
                continue
            if transform and "Mapping" in kind and isinstance(value, Mapping):
                yield from (((name, label), one) for label, one in value.items())
            elif (
                (isinstance(value, list) and value and all(map(is_part, value)))
                or (isinstance(value, str) and transform and "Callable" not in kind)
                or (isinstance(value, Mapping) and "name" in value)
            ):
                yield (name,), value

    def transform(self) -> optax.GradientTransformation:
        """Return the transform: its updates descend if it has a rate, and else point uphill."""
        self._check()
        scale = [_scale(self.spec, self.entry)] if self.is_rated else []
        if self.factory is optax.chain:
            return optax.chain(*(one.transform() for one in self.inner.values()), *scale)
        if self.is_fixed:
            return self.make(float(self.spec["learning_rate"]))
        made = self.make(1.0 if self.takes_rate else None)
        if self.takes_rate:
            return _at_rate(self.make, *scale) if scale else optax.chain(made, optax.scale(-1.0))
        return optax.chain(made, *scale) if scale else made

    def _check(self) -> None:
        """Raise ValueError unless one rate, and only one, reaches all parameters."""
        if self.factory is optax.chain:
            if set(self.own) - {"name", "*"} or not self.inner:
                raise ValueError(
                    f"{self.entry}: a chain is made of transforms, and at most of a rate; write it "
                    "as [clip_by_global_norm(max_norm=1.0), adamw(learning_rate=0.01)]"
                )
            if self.is_rated + len(self.rated) > 1:
                raise ValueError(
                    f"{self.entry}: a chain has one learning_rate, and this has more; leave one"
                )
        elif self.is_rated and self.rated:
            raise ValueError(
                f"{self.who}: has a learning_rate, and {text(self.rated[0].spec)} in it has one "
                f"too; write {self._with_one_rate(self.spec['learning_rate'])}"
            )
        elif self.rated and (self.takes_rate or self.factory is optax.masked):
            raise ValueError(
                f"{self.who}: the learning_rate of what is in it does not reach all parameters; "
                f"write {self._with_one_rate(self.rated[0].spec.get('learning_rate', 0.1))}"
            )
        elif self.rated:
            for one in self.inner.values():
                if not one.has_rate and one.factory is not optax.set_to_zero:
                    raise ValueError(
                        f"{self.who}: {text(one.spec)} has no learning_rate, and "
                        f"{text(self.rated[0].spec)} in it has one; give one to each, or one to "
                        f"{self.own['name']} alone"
                    )
        elif self.takes_rate and not self.is_rated and not self.scales():
            raise ValueError(
                f"{self.who}: its rate does more than scale its updates; give it a learning_rate "
                "of its own"
            )
        for name in () if self.is_rated else RATE:
            if name in self.spec:
                raise ValueError(f"{self.who}: {name} needs a learning_rate beside it")

    def scales(self) -> bool:
        """Return whether the updates of rate r are r times the updates of rate 1."""
        apart = self.own.get(APART.get(self.factory)) is not None
        return self.factory in SCALED and not apart and not self.inner

    def _with_one_rate(self, rate: Any) -> str:
        """Return the text of the part with this rate, and without rates inside of it."""
        bare = {at[0]: one.own for at, one in self.inner.items() if len(at) == 1}
        return text(self.spec | bare | {"learning_rate": rate})

    def make(self, rate: Any = None) -> optax.GradientTransformation:
        """Call the factory; transforms and masks among its parameters are built first."""
        made = dict(self.own)
        for name, value in self.own.items():
            names_a_mask = name.endswith(("mask", "labels")) and is_part(value)
            is_brought = isinstance(value, str) and name != "name" and registry.is_brought(value)
            if names_a_mask or (is_brought and ":" not in self.own["name"]):
                made[name] = MASK._replace(name=name).build(value)
            elif isinstance(value, Mapping | list):
                made[name] = value.copy()  # whose members are replaced
        for (name, *label), one in self.inner.items():
            if label:
                made[name][label[0]] = one.transform()
            else:
                made[name] = one.transform()
        return self.kind.build(made, **({} if rate is None else {"learning_rate": rate}))


def _at_rate(
    make: Callable[[Any], optax.GradientTransformation],
    scale: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer that is made anew in each update, with the rate by which `scale` scales.

    If a rate only scales the updates, this has the state and the updates of a chain of the
    optimizer at rate 1, a change of sign, and `scale`.
    """

    def at(state, **extra):
        descent, _ = scale.update(jnp.float32(1), state, **extra)
        return optax.with_extra_args_support(make(-descent))

    def init_fn(params):
        rate = scale.init(params)
        return at(rate).init(params), optax.EmptyState(), rate

    def update_fn(updates, state, params=None, **extra):
        inner, empty, rate = state
        found, inner = at(rate, **extra).update(updates, inner, params, **extra)
        found = jax.tree.map(lambda new, old: new.astype(old.dtype), found, updates)
        return found, (inner, empty, rate)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _try(transform: optax.GradientTransformationExtraArgs, who: Callable[[], str]) -> None:
    """Raise ValueError for a transform that no run can use, as tracing shows; compile nothing."""

    def once(params):
        state = transform.init(params)
        updates, _ = transform.update(params, state, params, samples=jnp.float32(0))
        return state, updates

    shapes = {"matrix": (4, 3), "vector": (5,)}  # differ, so that no axis can be one of examples
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    try:
        state, updates = jax.eval_shape(once, params)
    except Exception as error:  # a transform is code and can raise anything
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{who()}: cannot follow gradients alone ({type(error).__name__}: {reason}); take "
            "another"
        ) from error

    def is_averaged(state: Any) -> bool:
        return isinstance(state, contrib.ScheduleFreeState)

    refused = ""
    if jax.tree.structure(updates) != jax.tree.structure(params):
        refused = "its updates are not of the parameters' form"
    elif any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        refused = "keeps a key of JAX, which no file holds"
    elif any(map(is_averaged, jax.tree.leaves(state, is_leaf=is_averaged))):
        refused = "is evaluated at other parameters than it trains, which a run does not keep"
    if refused:
        raise ValueError(f"{who()}: {refused}; take another")


# Parameter of a part's rate -> its default, a test of a number, and that test in words.
_RATES = {
    "learning_rate": (None, lambda v: 0 < v < math.inf, "positive"),
    "warmup_samples": (0, lambda v: 0 <= v < math.inf, "0 or more"),
    "batch_power": (0, lambda v: 0 <= v <= 1, "from 0, the same rate for every update, to 1, a "
                    "rate in proportion to its mini-batches"),
}  # fmt: skip


def _scale(spec: Mapping, entry: str) -> optax.GradientTransformationExtraArgs:
    """Return the descent by a part's learning_rate, schedule, warmup_samples and batch_power."""
    values = {name: spec.get(name, default) for name, (default, *_) in _RATES.items()}
    for name, value in values.items():
        _, fits, words = _RATES[name]
        words = words if isinstance(value, Real) and not isinstance(value, bool) else "a number"
        if words == "a number" or not fits(value):
            entry = f"config.{entry}.{name}"
            raise ValueError(f"{entry} must be {words}, got {value!r}; set {entry}")
    shape = _schedule(spec["schedule"]) if "schedule" in spec else constant()
    warmup = float(values["warmup_samples"])  # as whole numbers of a device have 32 bits

    def warmed(samples):
        return shape(samples) * jnp.clip((samples + 1) / warmup, 0.0, 1.0)

    shape_of_rate = warmed if warmup else shape
    return scale_by_samples(values["learning_rate"], shape_of_rate, values["batch_power"])


def _schedule(part: Part) -> optax.Schedule:
    """Return a schedule; one of optax begins, or peaks, at 1 unless its part says otherwise."""
    spec = spec_of(part)
    parameters = SCHEDULE.opened(spec.get("name"))[1]
    usual = {"init_value": 0.0 if "peak_value" in parameters else 1.0, "peak_value": 1.0}
    return SCHEDULE.build({name: usual[name] for name in usual if name in parameters} | spec)
