"""A transform, a method, a waiting rule, a task and a model of your own, for docs/extend.md."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from gossax.algorithms import Algorithm, all_reduce
from gossax.experiments.tasks import Task
from gossax.stragglers.rule import Rule, Setting
from gossax.stragglers.rules import quorum


def sign_of() -> optax.GradientTransformation:
    """Replace every entry of the gradient by its sign."""
    return optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))


def unit_length(optimizer: optax.GradientTransformation, longest: float = 1.0) -> Algorithm:
    """All-reduce SGD that clips every worker's gradient to the norm `longest`."""
    plain = all_reduce(optimizer)
    exchange = optax.chain(optax.clip_by_global_norm(longest), plain.exchange)
    return Algorithm(exchange=exchange, server=plain.server, messages=plain.messages)


def half(setting: Setting) -> Rule:
    """Stop a round when all workers together have finished half of its mini-batches."""
    return quorum(setting, k=max(1, setting.workers * setting.mini_batches // 2))


def line(samples: int = 256, noise: float = 0.1) -> Task:
    """Fit a line to points; w = [slope, intercept] starts at 0."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, samples).astype(np.float32)
    y = 2 * x + 1 + np.float32(noise) * rng.standard_normal(samples, "f4")

    def losses(w, points):
        x, y = points
        return 0.5 * (w[0] * x + w[1] - y) ** 2

    points, labels = (x, y), np.int32(y > 1)
    return Task("line", points, points, labels, init=lambda key: jnp.zeros(2), losses=losses)


def narrow(classes: int, width: int = 16) -> nn.Module:
    """One hidden layer; images [b, height, width, channels] -> logits [b, classes]."""
    flat = lambda images: images.reshape(len(images), -1)  # noqa: E731
    return nn.Sequential([flat, nn.Dense(width), nn.relu, nn.Dense(classes)])
