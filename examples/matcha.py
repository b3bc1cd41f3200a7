"""MATCHA on a graph of your own: half of the communication of D-PSGD, spread over its matchings.

    python examples/matcha.py
"""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

import gossax

graph = nx.barbell_graph(4, 0)  # two groups of four workers that one link joins
matchings = gossax.matchings.decompose(graph)
probabilities = gossax.activation_probabilities(matchings, len(graph), budget=0.5)
for matching, probability in zip(matchings, probabilities, strict=True):
    print(f"in {probability:4.0%} of the updates: {matching}")

wanted = np.random.default_rng(0).standard_normal((len(graph), 10)).astype(np.float32)  # by each
for name, method in (
    ("D-PSGD", gossax.dpsgd(optax.sgd(0.05), graph)),
    ("MATCHA", gossax.matcha(optax.sgd(0.05), graph, budget=0.5)),
):
    tx = gossax.as_optax(method)

    def step(params, state, wanted, tx=tx):
        updates, state = tx.update(params - wanted, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(jax.vmap(step, axis_name="workers"))  # workers that one device simulates
    params = jnp.zeros_like(wanted)
    state = jax.vmap(tx.init)(params)
    for _ in range(200):
        params, state = step(params, state, wanted)
    error = float(jnp.linalg.norm(params.mean(0) - wanted.mean(0)))
    distance = float(jnp.sqrt(jnp.mean(jnp.sum((params - params.mean(0)) ** 2, axis=1))))
    print(f"{name}: the mean is {error:.1e} off its optimum, consensus distance {distance:.2f}")
