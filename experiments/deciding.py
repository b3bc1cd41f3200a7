"""Parameters that a method leaves to a gradient, decided before a run and written down with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments import parts, prepare, tasks
from experiments.tasks import Task, sampling
from stragglers.rule import most_mini_batches


def prepared(
    config: ConfigDict, task: Task | None = None
) -> tuple[prepare.Prepared, dict[str, Any]]:
    """The parts of an arm with everything decided, and what was, by name; {} if nothing was open.

    A method that leaves parameters open (`Algorithm.decide`) costs an update's gradients, which
    follow from the config alone. task: as of `prepare.prepare`, whose ValueError this raises.
    """
    made = prepare.prepare(config, task)
    if made.algorithm.decide is None:
        return made, {}
    decided = made.algorithm.decide(first_gradient(config, made.task))
    algorithm = parts.spec(config.algorithm) | decided
    decidedly = ConfigDict(config.to_dict() | {"algorithm": algorithm})
    return prepare.prepare(decidedly, made.task), decided


def first_gradient(config: ConfigDict, task: Task) -> Any:
    """Magnitudes of the first update's gradients, summed over all workers and mini-batches.

    NumPy arrays in the shapes of the parameters: zero where nobody's gradient is anything else.
    """
    shards = prepare.SPLIT.build(
        config.split, labels=task.labels, workers=config.workers, seed=config.seed
    )
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    params = task.init(jax.random.key(config.seed))
    losses = tasks.first_draw(task)

    @jax.jit
    def added(total, params, examples):
        gradient = jax.grad(lambda p: losses(p, examples).mean())(params)
        return jax.tree.map(lambda a, b: a + jnp.abs(b), total, gradient)

    total = jax.tree.map(jnp.zeros_like, params)
    for worker in range(config.workers):
        for counter in range(most_mini_batches(config.mini_batches)):
            indices = np.asarray(sampler.indices(np.int32(worker), counter))
            examples = jax.tree.map(jnp.asarray, tasks.take(task.train, indices))
            total = added(total, params, examples)
    return jax.tree.map(np.asarray, total)
