"""SwarmSGD and AD-PSGD with nodes that are processes, beside simulations and methods that wait.

Four nodes train an MLP on scikit-learn's digits and meet in pairs, without a server. They sleep for
the delays that the simulated arms have, one of them for four times as long; what is left between
both is what a real meeting takes beside, and how often a busy partner is asked in vain. D-PSGD and
all-reduce, which wait for the slow one, run on a mesh of devices with the same delays. Each method
has the learning rate of its shortest simulated time to the target.

    --config=configs/swarm_real.py                          one arm, 30 s and half a minute to start
    --config=configs/swarm_real.py --sweep                  42 arms, about 7 minutes
    --config=configs/swarm_real.py:nodes=8,graph=ring

A process takes about 350 MB of memory. Real arms count seconds of the wall. What has
happened can be trained once more, to the same bits, from the folder of a real run:

    --config=configs/swarm_real.py --config.runtime=simulate --config.wait="replay(path=...)"
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments import papers, stats
from experiments.parts import part

MEAN = 0.1  # s of a mini-batch
DELAY = part("persistent", law=part("exponential", scale=MEAN), factors={0: 4.0})
FORMS = {
    "float32": {"algorithm": part("swarm")},
    "8 bits": {"algorithm": part("swarm", bits=8)},
    "blocking": {
        "algorithm": part("swarm", blocking=True),
        "wait": part("random_pairs", blocking=True, width=1),
    },
    # Its active and passive nodes need a bipartite graph.
    "ad_psgd": {
        "algorithm": part("ad_psgd"),
        "wait": part("bipartite_pairs", width=1),
        "graph": part("ring"),
        "mini_batches": 1,
    },
    "dpsgd": {
        "algorithm": part("dpsgd"),
        "wait": part("barrier"),
        "mini_batches": 1,
        "runtime": "mesh",
    },
    "all_reduce": {
        "algorithm": part("all_reduce"),
        "wait": part("barrier"),
        "mini_batches": 1,
        "runtime": "mesh",
    },
}
GRID = (0.05, 0.1, 0.2, 0.4, 0.8)  # learning rates, all of which are simulated
RATE = 0.2  # of every real run: the best of each form in the simulation, with 5 seeds


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: non-blocking, 8 bits. Arguments: nodes, graph, seconds (the budget on the clock)."""
    a = arguments.parse(arg, nodes=4, graph="complete", seconds=30.0)
    config = base.arm(
        name="real/8 bits",
        task=part("digits", model="mlp"),
        runtime="actors",
        workers=a["nodes"],
        batch_size=8,
        mini_batches=2,  # local steps between two meetings that a node asks for
        **FORMS["8 bits"],
        graph=part(a["graph"]),
        optimizer=part("momentum", decay=0.9, learning_rate=RATE),
        wait=part("random_pairs", width=1),
        delay=DELAY,
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 30,
        target_loss=0.5,
    )
    config.actors = ConfigDict(
        {
            "cpus": 1.0,  # of a process; Ray starts as many as the machine or the cluster has
            "gpus": 0.0,  # a share below 1 is a part of one, its memory as well
            "least_workers": 2,  # with fewer for a minute the run ends, exit code 3
            "bad_contribution": "end",  # the run where one fails or is not finite; or drop it
            "restore": "neighbour",  # whose model a node takes that has died; or its checkpoint's
        }
    )
    return config


def sweep() -> Iterator[tuple[str, dict]]:
    """Three forms of Swarm, AD-PSGD and two methods that wait: at all rates, then with its twin."""
    for name, form in FORMS.items():
        for rate in GRID:
            tried = {"optimizer.learning_rate": rate, "runtime": "simulate"}
            yield f"tuning/{name}/rate={rate}", form | tried
    for name, form in FORMS.items():
        arm = form | {"optimizer.learning_rate": RATE}
        yield f"simulated/{name}", arm | {"runtime": "simulate"}
        yield f"real/{name}", {"runtime": "actors"} | arm


claims = papers.claims("swarm", "swarm_real")
numbers = stats.at_best(stats.SECONDS, "updates")
