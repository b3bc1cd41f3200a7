"""D-PSGD in a training loop of your own: eight workers of a ring, a device each.

    python examples/dpsgd.py

Every worker fits a curve to samples of its own and averages with its two neighbours.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # of a CPU
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import gossax

WORKERS, STEPS = 8, 200
rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, (WORKERS, 64, 1)).astype(np.float32)
y = np.sin(2 * x) + 0.1 * rng.standard_normal(x.shape, np.float32)

model = nn.Sequential([nn.Dense(32), nn.tanh, nn.Dense(1)])
tx = gossax.as_optax(gossax.dpsgd(optax.sgd(0.1, momentum=0.9), gossax.graphs.ring(WORKERS)))


def loss(params, x, y):
    return jnp.mean((model.apply(params, x) - y) ** 2)


def step(params, state, x, y):
    """Take a step on one worker; its arrays have a leading axis of length one."""
    own = jax.tree.map(lambda a: a[0], (params, state, x, y))
    value, gradients = jax.value_and_grad(loss)(own[0], *own[2:])
    updates, state = tx.update(gradients, own[1], own[0])
    return jax.tree.map(lambda a: a[None], (optax.apply_updates(own[0], updates), state, value))


mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
spec = P("workers")
step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))

params = jax.vmap(model.init, (0, None))(jax.random.split(jax.random.key(0), WORKERS), x[0])
state = jax.vmap(tx.init)(params)
for at in range(STEPS):
    params, state, losses = jax.block_until_ready(step(params, state, x, y))
    if (at + 1) % 50 == 0:
        mean = jax.tree.map(lambda a: a.mean(0), params)
        square = jax.tree.map(lambda a, m: jnp.sum((a - m) ** 2) / WORKERS, params, mean)
        distance = float(jnp.sqrt(sum(jax.tree.leaves(square))))
        print(f"step {at + 1:3}: loss {losses.mean():.4f}, consensus distance {distance:.2e}")
