"""How noisy a mini-batch's gradient is, which says how many of them an update should have."""

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments import prepare, tasks
from experiments.tasks import sampling

MINI_BATCHES = 64
LEAST, MOST = 1e-2, 1e6  # of what is believed


def ratio(config: ConfigDict, prepared: prepare.Prepared) -> float:
    """Variance of a mini-batch's gradient over the squared length of its mean, at the start.

    Both are unbiased estimates from MINI_BATCHES mini-batches of all workers at the initial
    parameters. An update of as many mini-batches has as much noise as signal (the simple noise
    scale of 1812.06162, in mini-batches). It grows as training goes on.
    """
    task = prepared.task
    shards = prepare.SPLIT.build(
        config.split, labels=task.labels, workers=config.workers, seed=config.seed
    )
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    params = task.init(jax.random.key(config.seed))
    losses = tasks.first_draw(task)

    @jax.jit
    def added(total, squares, examples):
        gradient = jax.grad(lambda p: losses(p, examples).mean())(params)
        return jax.tree.map(jnp.add, total, gradient), squares + _squared(gradient)

    total, squares = jax.tree.map(jnp.zeros_like, params), jnp.float32(0)
    for number in range(MINI_BATCHES):
        worker, counter = number % config.workers, number // config.workers
        indices = np.asarray(sampler.indices(np.int32(worker), counter))
        examples = jax.tree.map(jnp.asarray, tasks.take(task.train, indices))
        total, squares = added(total, squares, examples)
    each, together = float(squares) / MINI_BATCHES, float(_squared(total)) / MINI_BATCHES**2
    variance = (each - together) * MINI_BATCHES / (MINI_BATCHES - 1)
    signal = max(together - variance / MINI_BATCHES, 0.0)
    return float(np.clip(variance / signal, LEAST, MOST)) if signal else MOST


def _squared(tree) -> jax.Array:
    return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree))
