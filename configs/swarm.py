"""SwarmSGD and its rivals (Nadiradze et al., arXiv 1910.12308; AD-PSGD 1710.06952, SGP 1811.10792).

Sixteen nodes train an MLP on scikit-learn's digits. All arms see the same total number of samples,
the same delays, initial parameters and order of samples at a node, and a learning rate that falls
over these samples. Sending a model over a link takes a tenth of a mini-batch's time.

Models that a node sends per mini-batch:

    D-PSGD on a ring      2
    SGP                   1
    blocking Swarm        1 / H    meetings follow H local steps of both nodes (Algorithm 1)
    non-blocking Swarm    2 / H    a node asks another after H steps, and is asked as often

The digits have 359 test images, each worth .3 points of accuracy. `task=gaussians` has 10,000 test
points of a mixture of Gaussians, and reports the accuracy of the best classifier on them.

    --config=configs/swarm.py:split=dirichlet,delay=slow4,graph=ring --sweep --seeds=3
    --config=configs/swarm.py:nodes=256,model=logistic   a single arm
    --config=configs/swarm.py:tuned --sweep --seeds=10 --together

VARIANTS are further experiments; `real` trains with nodes that are processes, of about 350 MB each.
The schedule of a real run can be trained again, bit for bit, from the run's folder:

    --config=configs/swarm.py:real --config.runtime=simulate --config.wait="replay(path=...)"
"""

import networkx as nx

from configs import arguments, base
from experiments import papers, prepare
from experiments.registry import as_part, part

EACH = 0.1  # seconds of a mini-batch
BATCH = 8  # samples of a mini-batch
MINI_BATCHES = 600  # of a node, in the mean over nodes
EIGHTHS = 8  # a row of a schedule of pairs holds one meeting per 8 nodes

JITTER = part("jitter", mean=EACH, sigma=0.1)
DELAYS = {"equal": JITTER, "slow4": part("persistent", law=JITTER, factors={0: 4.0})}
SPLITS = {"iid": part("iid"), "dirichlet": part("dirichlet", alpha=0.3)}

# Data to classify, and the training loss at which arms are compared by their time.
TASKS = {"digits": 0.05, "gaussians": 0.15}

# Chosen with seed 0, digits, iid, equal delays, by final test accuracy: all-reduce over 0.0125 ...
# 0.1 (times NODES by linear scaling), Swarm with H = 2, D-PSGD and SGP over 0.1 ... 0.6. The other
# arms, and the Gaussians, use these rates untuned.
RATES = {"all_reduce": 0.025, "local": 0.2}
NODES = 16  # of the sweep's arms


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: non-blocking Swarm, 8 bits, two local steps.

    Arguments: nodes, a multiple of 8 (the sweep's rates were tuned at 16); graph, a name of
    `comms.topology.GRAPHS` without parameters; split, a key of SPLITS; delay, a key of DELAYS;
    task, a key of TASKS; model, mlp or logistic.
    """
    a = arguments.parse(
        arg, nodes=NODES, graph="complete", split="iid", delay="equal", task="digits", model="mlp"
    )
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
        split=arguments.chosen(a, "split", SPLITS),
        workers=a["nodes"],
        batch_size=BATCH,
        mini_batches=2,  # local steps H between two meetings, or mini-batches of a round
        algorithm=part("swarm", bits=8),
        graph=part(a["graph"]),  # possible partners of Swarm's nodes
        optimizer=part(
            "momentum",  # local: it never leaves the node
            decay=0.9,
            learning_rate=RATES["local"],
            schedule=part("cosine", samples=samples),
            warmup_samples=samples // 20,  # needed for linear scaling; the others bear it
        ),
        wait=part("random_pairs"),  # random_pairs(blocking=true) | bipartite_pairs | ...
        delay=arguments.chosen(a, "delay", DELAYS),
        # 38 kB, the MLP in 32 bits, take 0.01 s.
        communication=part("network", latency=0.001, bandwidth=4.3e6),
        seconds=1000.0,  # long enough for every arm
        updates=EIGHTHS * MINI_BATCHES // 2,  # equal samples for every arm
        target_loss=arguments.chosen(a, "task", TASKS),
    )


def sweep() -> base.Arms:
    """Yield rivals in rounds, rivals in pairs, then Swarm by local steps, bits and blocking."""
    yield (
        "all_reduce",
        _rounds("all_reduce", 1, "barrier")
        | {"optimizer.learning_rate": NODES * RATES["all_reduce"]},
    )
    yield "local_sgd/H=2", _rounds("local_sgd", 2, "barrier")
    # On a ring, where D-PSGD sends least; on a complete graph it would send 15 models a round.
    # D-PSGD's published order exchanges beside the gradient, adapt_then_combine after it.
    for name, steps, order in (
        ("dpsgd/ring", 1, "combine_while_adapting"),
        ("dpsgd/ring/serial", 1, "adapt_then_combine"),
        ("dpsgd/ring/H=2", 2, "combine_while_adapting"),
    ):
        method = f"dpsgd(order={order})"
        yield name, _rounds(method, steps, "neighbour_barrier") | {"graph": part("ring")}
    yield "sgp", _rounds("sgp", 1, "neighbour_barrier")
    yield "sgp/overlap", _rounds("sgp(overlap=1)", 1, "neighbour_barrier")
    # Active and passive nodes of AD-PSGD need a bipartite graph.
    yield "ad_psgd", _pairs("ad_psgd", 1, "bipartite_pairs") | {"graph": part("hypercube")}
    for steps in (1, 2, 4):
        yield f"swarm/H={steps}", _pairs("swarm", steps)
    for steps in (1, 2, 4):
        yield f"swarm/H={steps}/8 bits", _pairs("swarm(bits=8)", steps)
    yield "swarm/H=2/16 bits", _pairs("swarm(bits=16)", 2)
    blocking = _pairs("swarm(blocking=true)", 2, "random_pairs(blocking=true)")
    # Both nodes of a meeting bring their local steps along.
    yield "swarm/H=2/blocking", blocking | {"updates": blocking["updates"] // 2}


def _rounds(algorithm: str, steps: int, wait: str) -> dict:
    return {
        "algorithm": as_part(algorithm), "mini_batches": steps, "wait": as_part(wait),
        "updates": MINI_BATCHES // steps,
    }  # fmt: skip


def _pairs(algorithm: str, steps: int, wait: str = "random_pairs") -> dict:
    return _rounds(algorithm, steps, wait) | {"updates": EIGHTHS * MINI_BATCHES // steps}


claims = papers.Judged("swarm", "swarm")
numbers = papers.at_best(
    "test_accuracy", "test_accuracy_worst_worker", "consensus_distance", "bytes_per_worker",
    "decode_failures", "extra_bytes_per_worker",
)  # fmt: skip


# --- every method at its best rate, and more and fewer epochs ---

TUNED_RATES = (0.1, 0.14, 0.2, 0.28, 0.4, 0.57, 0.8)  # factors of sqrt(2) around the best
TUNED_METHODS = (
    "all_reduce", "dpsgd/ring", "sgp", "sgp/overlap", "ad_psgd", "swarm/H=1", "swarm/H=2",
    "swarm/H=4", "swarm/H=1/8 bits", "swarm/H=2/8 bits", "swarm/H=4/8 bits", "swarm/H=2/16 bits",
)  # fmt: skip


def _tuned_sweep() -> base.Arms:
    """Yield every method at every rate."""
    arms = dict(sweep())
    for method in TUNED_METHODS:
        yield from base.at_rates(method, arms[method], TUNED_RATES)


ACCURATE = ("all_reduce", "dpsgd/ring", "swarm/H=2", "swarm/H=2/8 bits", "swarm/H=2/16 bits")


def _accuracy_sweep() -> base.Arms:
    """Yield the methods whose accuracy is compared, at lower rates, which are more accurate."""
    arms = dict(sweep())
    for method in ACCURATE:
        rates = (0.018, 0.025, 0.035, 0.05, 0.07, *TUNED_RATES[:2])
        yield from base.at_rates(method, arms[method], rates)


LENGTHS = (75, 150, 300, 600, 1200)  # mini-batches of a node


def _gaussians(arg: str | None = None) -> base.ConfigDict:
    return get_config(f"task=gaussians,{arg or ''}")


def _epochs_sweep(config: base.ConfigDict) -> base.Arms:
    """Yield all-reduce and every number of local steps, for every number of mini-batches."""
    arms = dict(sweep())
    for method in ("all_reduce", "swarm/H=1", "swarm/H=2", "swarm/H=4"):
        for length in LENGTHS:
            samples = config.workers * config.batch_size * length
            own = {
                "updates": arms[method]["updates"] * length // MINI_BATCHES,
                "optimizer.schedule": part("cosine", samples=samples),
                "optimizer.warmup_samples": samples // 20,
                "baseline": None,
            }
            yield f"{method}/batches={length}", arms[method] | own


# --- with nodes that are processes ---

REAL_MEAN = 0.1  # s of a mini-batch
REAL_DELAY = part("persistent", law=part("exponential", scale=REAL_MEAN), factors={0: 4.0})


def _on_a_mesh(algorithm: str) -> dict:
    every = {"wait": part("barrier"), "mini_batches": 1, "runtime": "mesh"}
    return {"algorithm": part(algorithm), **every}


FORMS = {
    "float32": {"algorithm": part("swarm")},
    "8 bits": {"algorithm": part("swarm", bits=8)},
    "blocking": {
        "algorithm": part("swarm", blocking=True),
        "wait": part("random_pairs", blocking=True, width=1),
    },
    # Its active and passive nodes need a bipartite graph.
    "ad_psgd": {
        "algorithm": part("ad_psgd"), "wait": part("bipartite_pairs", width=1),
        "graph": part("ring"), "mini_batches": 1,
    },
    "dpsgd": _on_a_mesh("dpsgd"),
    "all_reduce": _on_a_mesh("all_reduce"),
}  # fmt: skip
REAL_RATES = (0.05, 0.1, 0.2, 0.4, 0.8)  # learning rates, all of which are simulated
REAL_RATE = 0.2  # of every real run: the best of each form in the simulation, with 5 seeds


def _real(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: non-blocking Swarm, 8 bits. Arguments: nodes, graph, seconds (the budget)."""
    a = arguments.parse(arg, nodes=4, graph="complete", seconds=30.0)
    return base.arm(
        name="real/8 bits",
        task=part("digits", model="mlp"),
        runtime="actors",
        workers=a["nodes"],
        batch_size=8,
        mini_batches=2,  # local steps between two meetings that a node asks for
        **FORMS["8 bits"],
        graph=part(a["graph"]),
        optimizer=part("momentum", decay=0.9, learning_rate=REAL_RATE),
        wait=part("random_pairs", width=1),
        delay=REAL_DELAY,
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 30,
        target_loss=0.5,
        # restore: the model of a node that has died comes from a neighbour, or from its checkpoint.
        actors=base.actors(least_workers=2, restore="neighbour"),
    )


def _real_sweep() -> base.Arms:
    """Yield each form simulated at all rates, then at the best one, simulated and in real time."""
    for name, form in FORMS.items():
        yield from base.at_rates(f"tuning/{name}", form | {"runtime": "simulate"}, REAL_RATES)
    for name, form in FORMS.items():
        arm = form | {"optimizer.learning_rate": REAL_RATE}
        yield f"simulated/{name}", arm | {"runtime": "simulate"}
        yield f"real/{name}", {"runtime": "actors"} | arm


# --- from 8 to 256 nodes, simulated ---

SCALE_JITTER = part("jitter", mean=0.2, sigma=0.1)
SCALE_DELAYS = {
    "equal": SCALE_JITTER,
    "slow4": part("persistent", law=SCALE_JITTER, factors={0: 4.0}),
    "exponential": part("exponential", scale=0.2),
}


def _scale(arg: str | None = None) -> base.ConfigDict:
    """Return a config of ten methods. Arguments: delay, a key of SCALE_DELAYS; rounds of a node."""
    a = arguments.parse(arg, delay="equal", rounds=100)
    c = base.ConfigDict()
    c.name = "swarm_scale"
    c.seed = 0  # of the delays and partners
    c.workers = (8, 16, 32, 64, 128, 256)  # powers of two, for the hypercube
    c.rounds = a["rounds"]
    c.delay = arguments.chosen(a, "delay", SCALE_DELAYS)  # seconds of a mini-batch

    c.size = 11_689_512  # coordinates of ResNet-18
    c.alpha = 1e-4  # seconds to start a message
    c.beta = 8e-10  # seconds per byte: 10 Gbit/s

    # steps: mini-batches between two exchanges; bits: of a coordinate on the wire.
    others = ("ad_psgd", "sgp", "dpsgd/ring", "dpsgd/hypercube", "dpsgd/complete", "all_reduce")
    c.methods = (
        *((f"swarm/H={steps}", f"swarm(steps={steps})") for steps in (1, 2, 4)),
        ("swarm/H=2/8 bits", "swarm(steps=2, bits=8)"),
        *((name, f"{name.replace('/', '_')}(steps=1)") for name in others),
    )
    return c


VARIANTS = {
    "tuned": base.Variant(
        "SwarmSGD and its rivals, each at its best learning rate.\n\n"
        "Every method takes the rate of a grid that brings it to the target loss first. SwarmSGD "
        "in 8 bits may take its best number of local steps as well.",
        get_config,
        sweep=_tuned_sweep,
        claims=papers.Judged("swarm", "swarm_tuned"),
        numbers=papers.at_best("seconds_to_target"),
    ),
    "accuracy": base.Variant(
        "SwarmSGD: the accuracy of few bits, each method at its best learning rate.\n\n"
        "The Gaussians, with 10,000 test points, of which .1 points of accuracy are ten, and the "
        "best classifier known. 8 bits stand beside 16 and 32, and beside large batches.",
        _gaussians,
        sweep=_accuracy_sweep,
        claims=papers.Judged("swarm", "swarm_accuracy"),
        numbers=papers.at_best("test_accuracy", "seconds_to_target", "bytes_per_worker"),
    ),
    "epochs": base.Variant(
        "SwarmSGD: epochs matter, local steps matter little (arXiv 1910.12308, Section 5).\n\n"
        "The Gaussians, with 10,000 test points, for 75 to 1,200 mini-batches of a node, over "
        "which its learning rate falls. Large batches with all-reduce stand beside the middle "
        "length. Rates are untuned.",
        _gaussians,
        sweep=_epochs_sweep,
        claims=papers.Judged("swarm", "swarm_epochs"),
        numbers=numbers,
    ),
    "real": base.Variant(
        "SwarmSGD and AD-PSGD with nodes that are processes, beside simulations and methods that "
        "wait.\n\n"
        "Four nodes train an MLP on scikit-learn's digits and meet in pairs, without a server. "
        "They sleep for the delays of the simulated arms, one of them for four times as long; the "
        "difference is a real meeting's own time, and busy partners that are asked in vain. D-PSGD "
        "and all-reduce, which wait for the slow one, run on a mesh with the same delays. Each "
        "method has the learning rate of its shortest simulated time to the target.",
        _real,
        sweep=_real_sweep,
        claims=papers.Judged("swarm", "swarm_real"),
        numbers=papers.at_best("seconds_to_target", "updates"),
    ),
    "scale": base.Variant(
        "Communication time from 8 to 256 nodes whose link serves one transfer at a time.\n\n"
        "Nothing is trained. SwarmSGD (Nadiradze et al., arXiv 1910.12308) beside AD-PSGD, SGP, "
        "D-PSGD and ring all-reduce: mean and 99 % quantile, per node and update, of the time from "
        "the end of the local steps to the beginning of the next ones.",
        _scale,
        analyse=papers.analyse("swarm"),
    ),
}
