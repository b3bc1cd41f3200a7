"""Optimizers for configs: optax's by their names or your own, with a rate in samples, not updates.

An update of a non-blocking method holds a varying number of samples, so a rate follows the samples
that all workers have seen (arXiv 2211.00889). An optimizer of optax is therefore built with rate 1
and its updates are scaled. Where that is not the same as its own rate, which is found by trying, it
is built whole, with a constant rate, or refused.

A part may also be a list, `[clip_by_global_norm(max_norm=1.0), adamw(learning_rate=0.01)]`, which
is `optax.chain`; then exactly one of its members, or the chain itself, has the learning rate.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from algorithms.base import scale_by_samples
from experiments import parts
from experiments.entries import is_number
from experiments.kinds import Kind

# What belongs to the rate of a part.
RATE = ("learning_rate", "schedule", "warmup_samples", "batch_power")


def momentum(decay: float = 0.9, nesterov: bool = False) -> optax.GradientTransformation:
    """Heavy-ball or Nesterov momentum; decay in [0, 1)."""
    return optax.trace(decay, nesterov)


@functools.wraps(contrib.muon, assigned=())
def muon(*args, **given) -> optax.GradientTransformation:
    """Muon on the hidden matrices of a model, AdamW on all else, as its author advises.

    optax would orthogonalise every array of two dimensions, a table of embeddings too, and no other
    array. (K. Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024.)
    """
    given.setdefault("muon_weight_dimension_numbers", hidden_matrices)
    return contrib.muon(*args, **given)


def selective_transform(
    optimizer: optax.GradientTransformation, freeze_mask: Callable | bool
) -> optax.GradientTransformation:
    """An optimizer of all but what a mask freezes, a function of the parameters, as `matrices`.

    optax takes a tree of truth values alone, and a function for one that is true.
    """

    def labels(params):
        mask = freeze_mask(params) if callable(freeze_mask) else freeze_mask
        return jax.tree.map(lambda frozen: "freeze" if frozen else "train", mask)

    return optax.partition({"train": optimizer, "freeze": optax.set_to_zero()}, labels)


def hidden_matrices(params: optax.Params) -> Any:
    """Per array the axes that Muon takes as rows and columns, None for what is no hidden matrix.

    Not hidden are tables whose name begins with "embed", as Flax calls them. The last axis of a
    convolution's kernel holds the columns; one of three axes, as that of attention heads, is cut
    where the matrix comes closest to a square.
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
    """All transforms of optax and optax.contrib by their names, with or without a rate."""
    found = {}
    for module in (contrib, optax):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            gives = "GradientTransformation" in str(signature.return_annotation)
            if not name.startswith("_") and (gives or "learning_rate" in signature.parameters):
                found[name] = function
    return found


TRANSFORMS = _of_optax() | {
    "momentum": momentum,
    "muon": muon,
    "selective_transform": selective_transform,
}
# Whose rate only scales their updates, whatever their other numbers are; a test tries them all.
SCALED = frozenset({
    optax.adabelief, optax.adadelta, optax.adagrad, optax.adam, optax.adamax, optax.adamaxw,
    optax.adamw, optax.adan, optax.amsgrad, optax.lamb, optax.lion, muon, optax.novograd,
    optax.radam, optax.rmsprop, optax.sgd, optax.sign_sgd, optax.signum, optax.yogi,
})  # fmt: skip
# Parameters that say how much of the past stays, in whichever optimizer they stand.
SHARES = ("decay", "momentum", "decay_rate", "b1", "b2", "b3")
TRIED = 40  # updates of an optimizer that is not listed


def step(boundaries: tuple[float, ...], factor: float = 0.1) -> optax.Schedule:
    """The rate times `factor` at each of `boundaries` (in samples)."""
    return optax.piecewise_constant_schedule(1.0, {float(place): factor for place in boundaries})


def cosine(samples: float, floor: float = 0.0) -> optax.Schedule:
    """From the rate down to `floor` times the rate over `samples` samples, then flat."""
    if not samples > 0:
        raise ValueError(f"cosine: samples must be positive, got {samples}; set the run's length")
    return optax.cosine_decay_schedule(1.0, float(samples), floor)


def constant() -> optax.Schedule:
    """The same rate throughout."""
    return optax.constant_schedule(1.0)


# Factors of the learning rate, as functions of the samples seen.
SCHEDULES = {
    name: function
    for name, function in inspect.getmembers(optax.schedules, inspect.isfunction)
    if "inject" not in name
} | {"constant": constant, "step": step, "cosine": cosine}


def matrices() -> Callable[[Any], Any]:
    """True for arrays of two dimensions and more: what weight decay usually applies to."""
    return lambda params: jax.tree.map(lambda array: jnp.ndim(array) >= 2, params)


MASKS = {"matrices": matrices}

TRANSFORM = Kind("optimizer", TRANSFORMS, optax.GradientTransformation)
SCHEDULE = Kind("schedule", SCHEDULES, Callable)
_MASK = Kind("mask", MASKS, Callable)


def build(part: parts.Part, entry: str = "optimizer") -> optax.GradientTransformationExtraArgs:
    """{name, learning_rate, schedule: {name, ...}, warmup_samples, batch_power, **its own}.

    learning_rate: positive. schedule: a factor of it, see SCHEDULES. warmup_samples: the rate grows
    linearly over this many samples. batch_power: see `algorithms.base.scale_by_samples`. A list of
    such parts is their chain. entry: of the config, for errors. Anything that does not fit raises
    ValueError.
    """
    spec = parts.spec(part)
    _check(spec, entry)
    if not _is_rated(spec, entry):
        _scale(spec, entry)  # says that the rate is missing
    transform = optax.with_extra_args_support(_transform(spec, entry))
    _try(transform, f"{entry} {parts.text(part)}")
    return transform


def _transform(spec: Mapping, entry: str) -> optax.GradientTransformation:
    """Return what a part describes: with a rate in it, it descends, and else it points uphill."""
    if _kind(entry).factory(spec["name"]) is not optax.chain:
        return _rated(spec, entry) if "learning_rate" in spec else _direction(spec, entry)
    members = spec["*"]
    own = "learning_rate" in spec
    if own + sum(_is_rated(member, entry) for member in members) > 1:
        raise ValueError(f"{entry}: a chain has one learning_rate, and this has more; leave one")
    built = [_transform(member, entry) for member in members]
    return optax.chain(*built, *([_scale(spec, entry)] if own else []))


def _inner(spec: Mapping, entry: str) -> dict[Any, Mapping]:
    """The transforms among the parameters of a part, by the names of these or by labels."""
    found = {}
    for parameter in inspect.signature(_kind(entry).factory(spec["name"])).parameters.values():
        value, kind = spec.get(parameter.name), str(parameter.annotation)
        if "GradientTransformation" in kind and "Mapping" in kind and isinstance(value, Mapping):
            found |= {(parameter.name, label): parts.spec(one) for label, one in value.items()}
            continue
        listed = isinstance(value, list) and value and all(map(parts.is_part, value))
        named = isinstance(value, str) and "GradientTransformation" in kind
        if listed or (named and "Callable" not in kind) or _is_described(value):
            found[parameter.name] = parts.spec(value)
    found.pop("schedule", None)
    return {at: one for at, one in found.items() if not _names_a_mask(at)}


def _is_described(value: Any) -> bool:
    return isinstance(value, Mapping) and "name" in value


def _names_a_mask(parameter: Any) -> bool:
    return isinstance(parameter, str) and parameter.endswith(("mask", "labels"))


def _is_rated(spec: Mapping, entry: str) -> bool:
    """Return whether a part, one of its members or a transform inside of it has a learning rate."""
    below = (*spec.get("*", ()), *_inner(spec, entry).values())
    return "learning_rate" in spec or any(_is_rated(one, entry) for one in below)


def _check(spec: Mapping, entry: str) -> None:
    """Raise ValueError for a chain of no members, and a share of the past that is none."""
    chained = _kind(entry).factory(spec["name"]) is optax.chain
    if chained and (set(spec) - {"name", "*", *RATE} or not spec.get("*")):
        raise ValueError(
            f"{entry}: a chain is made of transforms, and at most of a rate; write it as "
            "[clip_by_global_norm(max_norm=1.0), adamw(learning_rate=0.01)]"
        )
    parameters = _kind(entry).parameters(spec["name"])
    for name in SHARES:
        usual = name in parameters and spec.get(name) == parameters[name].default
        if is_number(spec.get(name)) and not 0 <= spec[name] < 1 and not usual:
            raise ValueError(
                f"{entry} {spec['name']!r}: {name} must be 0 or more and below 1, got "
                f"{spec[name]}; set config.{entry}.{name}"
            )
    for one in (*spec.get("*", ()), *_inner(spec, entry).values()):
        _check(one, entry)


def to_the_end(part: parts.Part, samples: float) -> dict[str, Any]:
    """Return a part whose schedules end after `samples` where they do not say when.

    That is a schedule which counts `samples`, as `cosine`, without that parameter.
    """
    return _to_the_end(parts.spec(part), samples)


def _to_the_end(value: Any, samples: float) -> Any:
    if isinstance(value, list):
        return [_to_the_end(one, samples) for one in value]
    if not isinstance(value, Mapping):
        return value
    entries = {name: _to_the_end(one, samples) for name, one in value.items()}
    if parts.is_part(value.get("schedule")) and SCHEDULE.wants(value["schedule"], "samples"):
        schedule = parts.spec(value["schedule"])
        if "samples" not in schedule:
            entries["schedule"] = schedule | {"samples": samples}
    return entries


def rate_is_data(part: parts.Part) -> bool:
    """Whether runs that differ in the learning rate can share a program: it scales the updates."""
    spec = parts.spec(part)
    return "learning_rate" in spec and (not _takes_rate(spec, "") or _scales(spec, ""))


def _rated(spec: dict, entry: str) -> optax.GradientTransformation:
    """A transform with a learning rate of its own."""
    scale = _scale(spec, entry)
    inner = _inner(spec, entry)
    for one in inner.values():
        if _is_rated(one, entry):
            raise ValueError(
                f"{entry} {spec['name']!r}: has a learning_rate, and {parts.text(one)} in it has "
                f"one too; write {_with_one_rate(spec, inner, spec['learning_rate'])}"
            )
    if not _takes_rate(spec, entry):
        return optax.chain(_make(spec, entry), scale)
    if _scales(spec, entry):
        return optax.chain(_make(spec, entry, 1.0), optax.scale(-1.0), scale)
    if not _steady(spec):
        raise ValueError(
            f"{entry} {spec['name']!r}: its rate does more than scale its updates, so that no "
            "schedule can be put on it; leave out schedule, warmup_samples and batch_power"
        )
    return _make(spec, entry, spec["learning_rate"])


def _direction(spec: dict, entry: str) -> optax.GradientTransformation:
    """A transform without a learning rate: what comes out still points uphill."""
    for name in RATE:
        if name in spec:
            raise ValueError(f"{entry} {spec['name']!r}: {name} needs a learning_rate beside it")
    inner = _inner(spec, entry)
    rated = [one for one in inner.values() if _is_rated(one, entry)]
    if rated:
        _check_inside(spec, inner, rated, entry)
    if not _takes_rate(spec, entry):
        return _make(spec, entry)
    if not _scales(spec, entry):
        raise ValueError(
            f"{entry} {spec['name']!r}: its rate does more than scale its updates; give it a "
            "learning_rate of its own"
        )
    return optax.chain(_make(spec, entry, 1.0), optax.scale(-1.0))


def _check_inside(spec: dict, inner: Mapping, rated: list, entry: str) -> None:
    """Raise ValueError where a rate inside of a transform would leave out some parameters."""
    name = spec["name"]
    if _takes_rate(spec, entry) or _kind(entry).factory(name) is optax.masked:
        way = _with_one_rate(spec, inner, rated[0].get("learning_rate", 0.1))
        raise ValueError(
            f"{entry} {name!r}: the learning_rate of what is in it does not reach all parameters; "
            f"write {way}"
        )
    for one in inner.values():
        if one not in rated and _kind(entry).factory(one["name"]) is not optax.set_to_zero:
            raise ValueError(
                f"{entry} {name!r}: {parts.text(one)} has no learning_rate, and "
                f"{parts.text(rated[0])} in it has one; give one to each, or one to {name} alone"
            )


def _with_one_rate(spec: Mapping, inner: Mapping, rate: Any) -> str:
    """Return the text of a part in which what is inside of it has no rate, but the part has."""
    bare = {
        at: {key: value for key, value in one.items() if key not in RATE}
        for at, one in inner.items()
        if isinstance(at, str)
    }
    return parts.text({**spec, **bare, "learning_rate": rate})


def _kind(entry: str) -> Kind:
    return TRANSFORM._replace(name=entry)


def _takes_rate(spec: dict, entry: str) -> bool:
    return "learning_rate" in _kind(entry).parameters(spec["name"])


def _make(spec: dict, entry: str, rate: Any = None) -> optax.GradientTransformation:
    """Call the factory; transforms and masks among its parameters are built first."""
    own = {name: value for name, value in spec.items() if name not in RATE}
    for name, value in own.items():
        brought = name != "name" and spec["name"] in TRANSFORMS and _is_brought(value)
        if (_names_a_mask(name) and parts.is_part(value)) or brought:
            own[name] = _MASK._replace(name=name).build(value)
    for at, one in _inner(spec, entry).items():
        if isinstance(at, tuple):  # of several transforms by their labels
            own[at[0]] = {**own[at[0]], at[1]: _transform(one, entry)}
        else:
            own[at] = _transform(one, entry)
    return _kind(entry).build(own, **({} if rate is None else {"learning_rate": rate}))


def _is_brought(value: Any) -> bool:
    return isinstance(value, str) and parts.is_brought(value)


def _steady(spec: Mapping) -> bool:
    return "schedule" not in spec and not spec.get("warmup_samples") and not spec.get("batch_power")


def _scales(spec: dict, entry: str) -> bool:
    """Whether a transform of rate r gives r times what it gives with rate 1."""
    own = {name: value for name, value in spec.items() if name not in RATE}
    plain = not any(isinstance(value, dict) for value in own.values())
    if plain and _kind(entry).factory(spec["name"]) in SCALED:
        return True
    return found_to_scale(parts.text(own), entry, steady=_steady(spec))


@functools.cache
def found_to_scale(text: str, entry: str, steady: bool) -> bool:
    """By trying it on a quadratic, with a constant rate or with one that falls; compiles."""
    spec = parts.spec(text)
    rates = np.full(TRIED, 0.3, np.float32) if steady else np.geomspace(0.5, 0.1, TRIED, dtype="f4")
    rng = np.random.default_rng(0)
    params, target = (
        {"matrix": rng.standard_normal((4, 3), "f4"), "vector": rng.standard_normal(4, "f4")}
        for _ in range(2)
    )
    schedule = 0.3 if steady else lambda count: jnp.asarray(rates)[count]
    unit = optax.with_extra_args_support(_make(spec, entry, 1.0))
    try:
        whole = optax.with_extra_args_support(_make(spec, entry, schedule))
        whole_state, unit_state = whole.init(params), unit.init(params)
        for rate in rates:
            grads = jax.tree.map(np.subtract, params, target)
            ours, unit_state = unit.update(grads, unit_state, params)
            theirs, whole_state = whole.update(grads, whole_state, params)
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                if not np.allclose(rate * a, b, rtol=1e-3, atol=1e-7):
                    return False
            params = jax.tree.map(lambda p, u: np.asarray(p + u), params, theirs)
    except Exception:  # as for a rate that it cannot follow
        return False
    return True


def _try(transform: optax.GradientTransformationExtraArgs, who: str) -> None:
    """Refuse what needs more than gradients and parameters, with nothing compiled."""

    def once(params):
        state = transform.init(params)
        updates, _ = transform.update(params, state, params, samples=jnp.float32(0))
        return state, updates

    shapes = {"matrix": (4, 3), "vector": (5,)}  # what wants examples in the first axis finds none
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    try:
        state, updates = jax.eval_shape(once, params)
    except Exception as error:  # a transform is code and can raise anything
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{who}: cannot follow gradients alone ({type(error).__name__}: {reason}); take another"
        ) from error
    if jax.tree.structure(updates) != jax.tree.structure(params):
        raise ValueError(f"{who}: its updates are not of the parameters' form; take another")
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise ValueError(f"{who}: keeps a key of JAX, which no file holds; take another")
    if any(map(_is_averaged, jax.tree.leaves(state, is_leaf=_is_averaged))):
        raise ValueError(
            f"{who}: is evaluated at other parameters than it trains, which a run does not keep; "
            "take another"
        )


def _is_averaged(state: Any) -> bool:
    return isinstance(state, contrib.ScheduleFreeState)


def _scale(spec: Mapping, entry: str) -> optax.GradientTransformationExtraArgs:
    """Descend by the rate of a part: learning_rate, schedule, warmup_samples and batch_power."""
    learning_rate = _number(spec, entry, "learning_rate", None)
    if not 0 < learning_rate < math.inf:
        raise ValueError(
            f"{entry}: learning_rate must be positive, got {learning_rate}; "
            f"set config.{entry}.learning_rate"
        )
    warmup = _number(spec, entry, "warmup_samples", 0)
    if not 0 <= warmup < math.inf:
        raise ValueError(
            f"{entry}: warmup_samples must be 0 or more, got {warmup}; "
            f"set config.{entry}.warmup_samples"
        )
    power = _number(spec, entry, "batch_power", 0)
    if not 0 <= power <= 1:
        raise ValueError(
            f"{entry}: batch_power must be from 0, the same rate for every update, to 1, a rate in "
            f"proportion to its mini-batches, got {power}; set config.{entry}.batch_power"
        )
    shape = _schedule(spec.get("schedule", "constant"))

    warmup = float(warmup)  # whole numbers beyond 32 bits are none to a device

    def warmed(samples):
        return shape(samples) * jnp.clip((samples + 1) / warmup, 0.0, 1.0)

    return scale_by_samples(learning_rate, warmed if warmup else shape, power)


def _schedule(part: parts.Part) -> optax.Schedule:
    """A schedule of optax begins, or peaks, at 1 where nothing else is said."""
    spec = parts.spec(part)
    if SCHEDULE.wants(spec, "peak_value"):
        spec = {"init_value": 0.0, "peak_value": 1.0} | spec
    elif SCHEDULE.wants(spec, "init_value"):
        spec = {"init_value": 1.0} | spec
    return SCHEDULE.build(spec)


def _number(spec: Mapping, entry: str, name: str, default: float | None) -> float:
    value = spec.get(name, default)
    if not is_number(value):
        raise ValueError(
            f"{entry}: {name} must be a number, got {value!r}; set config.{entry}.{name}"
        )
    return value
