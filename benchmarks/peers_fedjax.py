"""FedJAX's federated averaging, as a side of `benchmarks.peers`, in an environment of its own."""

import sys

import fedjax
import jax
import jax.numpy as jnp
import peers_data as data
from fedjax.algorithms import fed_avg

jax.tree_map = jax.tree.map  # which the library calls, and newer versions of JAX have not


def main(rounds: int) -> None:
    """A turn is a number of rounds of all clients; the library compiles a step of a client."""
    inputs, labels = data.images()
    each = data.SAMPLES // data.CLIENTS
    rows = [slice(i * each, (i + 1) * each) for i in range(data.CLIENTS)]
    sets = [fedjax.ClientDataset({"x": inputs[r], "y": labels[r]}) for r in rows]

    def loss(params, batch, rng):
        logits = batch["x"] @ params["w"] + params["b"]
        taken = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)
        return -taken.mean()

    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(data.RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=data.BATCH, num_steps=data.STEPS, seed=0),
    )
    shape = (data.INPUTS, data.CLASSES)
    state = algorithm.init({"w": jnp.zeros(shape), "b": jnp.zeros(data.CLASSES)})
    keys = jax.random.split(jax.random.PRNGKey(0), data.CLIENTS)
    clients = [(b"%d" % i, one, key) for i, (one, key) in enumerate(zip(sets, keys, strict=True))]

    def turn():
        nonlocal state
        for _ in range(rounds):
            state, _ = algorithm.apply(state, clients)
        return jax.block_until_ready(state.params)

    data.take_turns(turn)


if __name__ == "__main__":
    main(int(sys.argv[2]))
