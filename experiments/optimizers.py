"""Optimizers for configs: a direction, then a learning rate that follows the samples seen."""

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


def adam(b1: float = 0.9, b2: float = 0.999, weight_decay: float = 0.0):
    """Adam; with `weight_decay` AdamW."""
    return optax.chain(optax.scale_by_adam(b1, b2), optax.add_decayed_weights(weight_decay))


DIRECTIONS = {"sgd": sgd, "momentum": momentum, "adam": adam}


def constant(learning_rate):
    """The same rate throughout."""
    return lambda samples: learning_rate


def step(learning_rate, boundaries: tuple[float, ...], factor: float = 0.1):
    """The rate times `factor` at each of `boundaries` (in samples)."""

    def rate(samples):
        passed = sum(jnp.asarray(samples >= boundary, jnp.float32) for boundary in boundaries)
        return learning_rate * factor**passed

    return rate


def cosine(learning_rate, samples: float, floor: float = 0.0):
    """From the rate down to `floor` times the rate over `samples` samples, then flat."""
    horizon = float(samples)

    def rate(samples):
        phase = jnp.clip(samples / horizon, 0.0, 1.0)
        return learning_rate * (floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * phase)))

    return rate


SCHEDULES = {"constant": constant, "step": step, "cosine": cosine}


def build(spec) -> optax.GradientTransformation:
    """{name, learning_rate, schedule: {name, ...}, warmup_samples, **direction's own} -> optimizer.

    warmup_samples: the rate grows linearly from 0 over this many samples.
    """
    spec = dict(spec)
    learning_rate = spec.pop("learning_rate", None)
    if not isinstance(learning_rate, int | float) or not learning_rate > 0:
        raise ValueError(
            f"optimizer: learning_rate must be a positive number, got {learning_rate!r}; "
            "set config.optimizer.learning_rate"
        )
    schedule = spec.pop("schedule", None) or {"name": "constant"}
    warmup = spec.pop("warmup_samples", 0)
    rate = parts.build("schedule", SCHEDULES, schedule, learning_rate=learning_rate)

    def warmed(samples):
        return rate(samples) * jnp.clip((samples + 1) / warmup, 0.0, 1.0)

    direction = parts.build("optimizer", DIRECTIONS, spec)
    return optax.chain(direction, scale_by_samples(warmed if warmup else rate))
