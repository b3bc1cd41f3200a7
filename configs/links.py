"""Seconds to a target loss on slow links, for methods that send more or fewer bytes.

Workers train an MLP of 1.2 MB on scikit-learn's digits, all at the devices' own speed. The seconds
are measured on hosts whose links have a given rate (as root; a process per host):

    python -m benchmarks.links sweep --hosts=4 --rate=1gbit,100mbit

or simulated, with the measured seconds of a mini-batch:

    --config=configs/links.py:bits=1e8,each=0.004,runtime=simulate --sweep
"""

from comms import cost
from configs import arguments, base
from experiments.registry import part

STEPS = 8  # local steps between two exchanges
LATENCY = 2e-4  # seconds of a message between two network namespaces


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: all-reduce.

    Arguments: workers; runtime, mesh or simulate; for simulate also bits, the bits per second of a
    link, and each, the seconds of a mini-batch.
    """
    a = arguments.parse(arg, workers=4, runtime="mesh", bits=1e9, each=0.004)
    network = part("network", latency=LATENCY, bandwidth=a["bits"] / 8 * cost.PAYLOAD)
    modelled = {"delay": part("deterministic", value=a["each"]), "communication": network}
    real = {"delay": part("none"), "communication": 0.0}  # real links

    return base.arm(
        name="all_reduce",
        baseline="all_reduce",
        task=part("digits", model=part("mlp", hidden=[512, 512])),
        runtime=a["runtime"],
        workers=a["workers"],
        batch_size=16,
        algorithm=part("all_reduce"),
        graph=part("ring"),  # of D-PSGD
        optimizer=part("momentum", decay=0.9, learning_rate=0.02),
        seconds=120.0,
        updates=600,
        evaluate_every=0.1,
        target_loss=0.1,
        stop_at_target=True,
        **arguments.chosen(a, "runtime", {"simulate": modelled, "mesh": real}),
    )


def sweep() -> base.Arms:
    """Yield all-reduce, forms with fewer bytes per gradient, and methods that exchange models."""
    yield "all_reduce", {}
    yield "bf16", {"algorithm": part("all_reduce", exchange=part("bf16"))}
    yield "top_k", {"algorithm": part("top_k", ratio=0.01)}
    yield "local_sgd", {"algorithm": part("local_sgd"), "mini_batches": STEPS, "updates": 200}
    yield "dpsgd", {"algorithm": part("dpsgd"), "wait": part("neighbour_barrier")}
