"""SwarmSGD's codec between two processes: models meet in 8 bits a coordinate.

    python examples/swarm_codec.py

Each process takes local steps on data of its own and meets the other now and then. It sends its
model as the colours of lattice points, which the other reads next to its own model.
"""

import multiprocessing

import jax.numpy as jnp
import numpy as np

import gossax

SIZE, MEETINGS, LOCAL_STEPS, BITS, RATE = 10_000, 10, 5, 8, 0.1
lattice = gossax.lattice


def node(name: str, seed: int, pipe) -> None:
    """Train one model beside another one."""
    wanted = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)  # its optimum
    model = jnp.zeros(SIZE)
    bound = 2.0  # of the distance to the other model, coordinate by coordinate
    for meeting in range(MEETINGS):
        for _ in range(LOCAL_STEPS):
            model -= RATE * (model - wanted)
        rows = lattice.in_buckets(model)
        message, points = lattice.encode(rows, lattice.side_for(bound, BITS), BITS)
        pipe.send(np.asarray(message))
        received = pipe.recv()
        theirs, ok = lattice.decode(jnp.asarray(received), rows, BITS)
        pipe.send(bool(ok.all()))
        if pipe.recv() and ok.all():  # both could read the other's, or nobody moves
            distance = float(abs(lattice.flat(theirs - rows, SIZE)).max())
            model = lattice.flat(points + theirs, SIZE) / 2
            bound = 1.5 * distance
            said = f"at most {distance:.2f} apart"
        else:
            bound = 2 * bound  # a coarser lattice reaches further
            said = "too far apart to be read"
        if name == "one":
            print(f"meeting {meeting}: {received.nbytes} bytes for {4 * SIZE}, {said}", flush=True)
    pipe.send(wanted)
    error = float(abs(model - (wanted + pipe.recv()) / 2).mean())
    print(f"{name}: {error:.3f} off the optimum of both", flush=True)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=node, args=("the other", 1, there))
    other.start()
    node("one", 0, here)
    other.join()
