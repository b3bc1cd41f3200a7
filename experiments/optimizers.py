"""Optimizers for configs: a direction, then a learning rate that follows the samples seen."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from algorithms.base import scale_by_samples
from experiments import parts


def sgd() -> optax.GradientTransformation:
    """Plain gradients."""
    return optax.identity()


def momentum(decay: float = 0.9, nesterov: bool = False) -> optax.GradientTransformation:
    """Heavy-ball or Nesterov momentum."""
    return optax.trace(decay, nesterov)


def adam(
    b1: float = 0.9, b2: float = 0.999, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Adam; with `weight_decay` AdamW."""
    return optax.chain(optax.scale_by_adam(b1, b2), optax.add_decayed_weights(weight_decay))


DIRECTIONS = {"sgd": sgd, "momentum": momentum, "adam": adam}


def step(boundaries: tuple[float, ...], factor: float = 0.1) -> Callable[[jax.Array], jax.Array]:
    """The rate times `factor` at each of `boundaries` (in samples)."""
    boundaries = tuple(map(float, boundaries))

    def shape(samples):
        passed = sum(jnp.asarray(samples >= boundary, jnp.float32) for boundary in boundaries)
        return factor**passed

    return shape


def cosine(samples: float, floor: float = 0.0) -> Callable[[jax.Array], jax.Array]:
    """From the rate down to `floor` times the rate over `samples` samples, then flat."""
    if not samples > 0:
        raise ValueError(f"cosine: samples must be positive, got {samples}; set the run's length")
    horizon = float(samples)

    def shape(samples):
        phase = jnp.clip(samples / horizon, 0.0, 1.0)
        return floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * phase))

    return shape


def constant() -> Callable[[jax.Array], float]:
    """The same rate throughout."""
    return lambda samples: 1.0


SCHEDULES = {"constant": constant, "step": step, "cosine": cosine}


def build(part, entry: str = "optimizer") -> optax.GradientTransformation:
    """{name, learning_rate, schedule: {name, ...}, warmup_samples, **direction's own} -> optimizer.

    learning_rate: positive. warmup_samples: the rate grows linearly over this many samples.
    entry: of the config, for errors.
    Anything that does not fit raises ValueError.
    """
    spec = parts.spec(part)
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
    schedule = spec.pop("schedule", "constant")
    shape = parts.build("schedule", SCHEDULES, schedule)

    def warmed(samples):
        return shape(samples) * jnp.clip((samples + 1) / warmup, 0.0, 1.0)

    direction = parts.build(entry, DIRECTIONS, spec)
    return optax.chain(direction, scale_by_samples(learning_rate, warmed if warmup else shape))


def _number(spec: dict, entry: str, name: str, default: float | None) -> float:
    value = spec.pop(name, default)
    if not parts.is_number(value):
        raise ValueError(
            f"{entry}: {name} must be a number, got {value!r}; set config.{entry}.{name}"
        )
    return value
