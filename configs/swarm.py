"""SwarmSGD and its rivals (Nadiradze et al., arXiv 1910.12308; AD-PSGD 1710.06952, SGP 1811.10792).

Sixteen nodes train an MLP on scikit-learn's digits. All arms see the same number of samples in
all, the same delays, initial parameters and order of samples at a node, and a learning rate that
falls over these samples. One model over one link takes a tenth of a mini-batch's time.

What a node sends per mini-batch, in models: 2 with D-PSGD on a ring, 1 with SGP, 1 / H with
blocking Swarm, whose meetings follow H local steps of both nodes as in the paper's Algorithm 1, and
2 / H with non-blocking Swarm, where a node asks somebody after every H steps and is asked as often.
So as many steps lie between two meetings of a node with H = 4 as with H = 2 if it blocks.

The digits have 359 test images, of which one is .3 points of accuracy. `task=gaussians` has 10,000
test points of a mixture of Gaussians, and reports what the best classifier has on them.

    --config=configs/swarm.py:split=dirichlet,delay=slow4,graph=ring --sweep --seeds=3

256 nodes, a single arm: --config=configs/swarm.py:nodes=256,model=logistic
"""

from collections.abc import Iterator

import networkx as nx
from ml_collections import ConfigDict

from configs import arguments, base
from experiments import papers, prepare
from experiments.parts import as_part, part

EACH = 0.1  # seconds of a mini-batch
BATCH = 8  # samples of a mini-batch
MINI_BATCHES = 600  # of a node, in the mean over nodes
EIGHTHS = 8  # a row of a schedule of pairs holds one meeting per 8 nodes

JITTER = part("jitter", mean=EACH, sigma=0.1)
DELAYS = {
    "equal": JITTER,
    "slow4": part("persistent", law=JITTER, factors={0: 4.0}),
}
SPLITS = {"iid": part("iid"), "dirichlet": part("dirichlet", alpha=0.3)}

# What is classified, and the training loss whose time is compared.
TASKS = {"digits": 0.05, "gaussians": 0.15}

# Chosen with seed 0, digits, iid, equal delays, by final test accuracy: all-reduce over 0.0125 ...
# 0.1, Swarm with H = 2, D-PSGD and SGP over 0.1 ... 0.6. The other arms use these rates untuned, as
# all arms do with the Gaussians, whose examples have about the length of the digits.
RATES = {
    "all_reduce": 0.025,  # times NODES, linear scaling; more nodes have the same rate
    "local": 0.2,
}
NODES = 16  # of the sweep


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: non-blocking, 8 bits, two local steps.

    Arguments: nodes, a multiple of 8 (the sweep's rates were tuned at 16); graph, a name of
    `comms.topology.GRAPHS` without parameters; split, a key of SPLITS; delay, a key of DELAYS;
    task, a key of TASKS; model, mlp or logistic.
    """
    a = arguments.parse(
        arg,
        nodes=NODES,
        graph="complete",
        split="iid",
        delay="equal",
        task="digits",
        model="mlp",
    )
    for name, known in (("delay", DELAYS), ("split", SPLITS), ("task", TASKS)):
        if a[name] not in known:
            raise ValueError(f"unknown {name} {a[name]!r}; choose one of {', '.join(known)}")
    if a["nodes"] < EIGHTHS or a["nodes"] % EIGHTHS:
        raise ValueError(
            f"nodes must be a multiple of {EIGHTHS}, got {a['nodes']}: a row of a schedule of "
            f"pairs holds a meeting for every {EIGHTHS} nodes; set nodes"
        )
    graph = prepare.GRAPH.build(a["graph"], n=a["nodes"])
    if len(nx.maximal_matching(graph)) < a["nodes"] // EIGHTHS:
        raise ValueError(
            f"graph {a['graph']!r}: all meetings share a few nodes, so that pairs would see fewer "
            "samples than rounds; take another graph"
        )
    samples = a["nodes"] * BATCH * MINI_BATCHES

    return base.arm(
        name="swarm/H=2/8 bits",
        baseline="dpsgd/ring",
        task=part(a["task"], model=a["model"]),
        split=SPLITS[a["split"]],
        workers=a["nodes"],
        batch_size=BATCH,
        mini_batches=2,  # local steps H between two meetings, or mini-batches of a round
        algorithm=part("swarm", bits=8),
        graph=part(a["graph"]),  # whom Swarm's nodes meet
        optimizer=part(
            "momentum",  # local: it never leaves the node
            decay=0.9,
            learning_rate=RATES["local"],
            schedule=part("cosine", samples=samples),
            warmup_samples=samples // 20,  # linear scaling needs it, the others do not mind
        ),
        wait=part(
            "random_pairs"
        ),  # random_pairs(blocking=true) | bipartite_pairs | neighbour_barrier
        delay=DELAYS[a["delay"]],
        # 38 kB, the MLP in 32 bits, take 0.01 s.
        communication=part("network", latency=0.001, bandwidth=4.3e6),
        seconds=1000.0,  # nobody needs them
        updates=EIGHTHS * MINI_BATCHES // 2,  # the same samples for every arm
        target_loss=TASKS[a["task"]],
    )


def sweep() -> Iterator[tuple[str, dict]]:
    """Rivals in rounds, rivals in pairs, then Swarm by local steps, bits and blocking."""
    yield (
        "all_reduce",
        _rounds("all_reduce", 1, "barrier")
        | {"optimizer.learning_rate": NODES * RATES["all_reduce"]},
    )
    yield "local_sgd/H=2", _rounds("local_sgd", 2, "barrier")
    # On a ring, where it sends least; on a complete graph it would send 15 models a round.
    # As published its exchange goes on beside the gradient; in the other order it comes after it.
    for name, steps, order in (
        ("dpsgd/ring", 1, "combine_while_adapting"),
        ("dpsgd/ring/serial", 1, "adapt_then_combine"),
        ("dpsgd/ring/H=2", 2, "combine_while_adapting"),
    ):
        method = f"dpsgd(order={order})"
        yield name, _rounds(method, steps, "neighbour_barrier") | {"graph": part("ring")}
    yield "sgp", _rounds("sgp", 1, "neighbour_barrier")
    yield "sgp/overlap", _rounds("sgp(overlap=1)", 1, "neighbour_barrier")
    # Its active and passive nodes need a bipartite graph.
    yield "ad_psgd", _pairs("ad_psgd", 1, "bipartite_pairs") | {"graph": part("hypercube")}
    for steps in (1, 2, 4):
        yield f"swarm/H={steps}", _pairs("swarm", steps)
    for steps in (1, 2, 4):
        yield f"swarm/H={steps}/8 bits", _pairs("swarm(bits=8)", steps)
    blocking = _pairs("swarm(blocking=true)", 2, "random_pairs(blocking=true)")
    # Both nodes of a meeting bring their steps along.
    yield "swarm/H=2/blocking", blocking | {"updates": blocking["updates"] // 2}


def _rounds(algorithm: str, steps: int, wait: str) -> dict:
    updates = MINI_BATCHES // steps
    return {
        "algorithm": as_part(algorithm), "mini_batches": steps, "wait": as_part(wait),
        "updates": updates,
    }  # fmt: skip


def _pairs(algorithm: str, steps: int, wait: str = "random_pairs") -> dict:
    return _rounds(algorithm, steps, wait) | {"updates": EIGHTHS * MINI_BATCHES // steps}


claims = papers.claims("swarm", "swarm")
numbers = papers.numbers("swarm")
