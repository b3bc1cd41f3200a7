"""SwarmSGD (Nadiradze et al., arXiv 1910.12308): asynchronous pairs, local steps, few bits.

The analysis tabulates the simulated seconds for which nodes communicate, without training.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from ml_collections import ConfigDict

from algorithms.gossip import graph_matchings
from comms import cost, lattice, topology
from experiments import analysis, prepare, registry, tables
from experiments.papers.base import HEADLINE, Panel, Sweep, drawn, swept
from experiments.stats import ACCURACY, BYTES, BYTES_THERE, END, SPENT, Claim
from stragglers import serial_links
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

TITLE = "SwarmSGD"
SWEEPS = (
    swept("swarm_epochs", "swarm.py:epochs", 0.15, seeds=10, tier=HEADLINE),
    swept("swarm_accuracy", "swarm.py:accuracy", 0.6, seeds=5, tier=HEADLINE),
    swept("swarm_tuned", "swarm.py:tuned", 1.1, seeds=10, tier=HEADLINE),
    swept("swarm_tuned_slow4", "swarm.py:tuned,delay=slow4", 0.35, seeds=5, tier=HEADLINE),
    swept("swarm_nodes_256", "swarm.py:nodes=256", 0.8),
    Sweep("swarm_scale", "--config=configs/swarm.py:scale", 0.02, HEADLINE),
    swept("swarm_real", "swarm.py:real", 0.45, seeds=5, last=""),
)  # fmt: skip
ABSTRACT = "arXiv 1910.12308, abstract"
EXACT, COARSE, LONG, LARGE = "swarm/H=2", "swarm/H=2/8 bits", "swarm/H=4", "all_reduce"
RIVALS = ("all_reduce", "dpsgd/ring", "sgp", "sgp/overlap", "ad_psgd")
SAMPLES = ("samples",)


ONE_RATE = "all have one learning rate"
CLAIMS = (
    Claim("one node 4x slower, tuned: Swarm takes at most 0.6x the time of D-PSGD",
          ABSTRACT, "swarm_tuned_slow4", EXACT, "dpsgd/ring", bound=0.6, tuned=True,
          headline=True),
    Claim("one node 4x slower, tuned: AD-PSGD takes at most 1.1x the time of Swarm",
          "", "swarm_tuned_slow4", "ad_psgd", EXACT, bound=1.1, tuned=True, headline=True),
    Claim("each at its best rate: 8 bits keep the accuracy to 0.3 points, 10,000 test samples",
          ABSTRACT, "swarm_accuracy", COARSE, EXACT, ACCURACY, margin=0.003, equal=SAMPLES,
          tuned=True, headline=True),
    Claim("each at its best rate: 8 bits keep the accuracy of 16 to 0.3 points", "",
          "swarm_accuracy", COARSE, "swarm/H=2/16 bits", ACCURACY, margin=0.003, equal=SAMPLES,
          tuned=True),
    Claim("each at its best rate: 8 bits are within 1 point of large batches",
          ABSTRACT, "swarm_accuracy", COARSE, LARGE, ACCURACY, margin=0.01, equal=SAMPLES,
          tuned=True, headline=True),
    *(
        Claim(f"each at its best rate, half the bytes to the same loss: {words} against {rival}",
              ABSTRACT, "swarm_tuned", ours, theirs, BYTES_THERE, 0.5, tuned=True,
              headline=True)
        for words, ours in (("8 bits, H = 2,", COARSE), ("32 bits, H = 2,", EXACT),
                            ("32 bits, H = 4,", LONG))
        for rival, theirs in (("D-PSGD", "dpsgd/ring"), ("SGP", "sgp"))
    ),
    Claim("8 bits send at most 0.6x the bytes of 16", "", "swarm_accuracy", COARSE,
          "swarm/H=2/16 bits", BYTES, 0.6, tuned=True, chosen_by=ACCURACY),
    Claim("a model takes a tenth of a mini-batch, each at its best rate: 8 bits take 10 % less "
          "time than 32", ABSTRACT, "swarm_tuned", COARSE, EXACT, bound=0.9, tuned=True,
          headline=True),
    Claim("each at its best rate: one local step takes less time than any rival", "", "swarm_tuned",
          "swarm/H=1", RIVALS, tuned=True),
    Claim("each at its best rate: AD-PSGD takes at most 1.1x the time of one local step", "",
          "swarm_tuned", "ad_psgd", "swarm/H=1", bound=1.1, tuned=True),
    Claim("local steps matter little: H = 4 takes at most 1.1x the time of H = 2 to a loss of .05",
          "arXiv 1910.12308, experiments", "swarm_tuned", LONG, EXACT, bound=1.1, tuned=True,
          headline=True),
    Claim("local steps matter little: after 600 mini-batches H = 4 is within 0.3 points of H = 1",
          "arXiv 1910.12308, experiments", "swarm_epochs", f"{LONG}/batches=600",
          "swarm/H=1/batches=600", ACCURACY, margin=0.003, equal=SAMPLES, condition=ONE_RATE),
    Claim("epochs matter: more accurate after 300 mini-batches of a node than after 75",
          "arXiv 1910.12308, experiments", "swarm_epochs", f"{EXACT}/batches=300",
          f"{EXACT}/batches=75", ACCURACY, condition=ONE_RATE),
    Claim("a control that has to fail: within 0.3 points of 600 mini-batches after 75", "",
          "swarm_epochs", f"{EXACT}/batches=75", f"{EXACT}/batches=600", ACCURACY, margin=0.003),
    Claim("an exchange among 256 nodes takes at most 1.1x that among 8", ABSTRACT, "swarm_scale",
          {"method": "swarm/H=1", "workers": 256}, {"method": "swarm/H=1", "workers": 8}, SPENT,
          1.1, headline=True),
    Claim("256 nodes: 8 bits end below D-PSGD in loss after the same samples", "",
          "swarm_nodes_256", COARSE, "dpsgd/ring", END, equal=SAMPLES, condition=ONE_RATE),
    Claim("256 nodes, one rate: H = 4 ends at most 1.1x as high in loss as H = 1", "",
          "swarm_nodes_256", LONG, "swarm/H=1", END, 1.1, equal=SAMPLES, condition=ONE_RATE),
    Claim("256 nodes, one rate: H = 1 ends below SGP in loss after the same samples", "",
          "swarm_nodes_256", "swarm/H=1", "sgp", END, equal=SAMPLES, condition=ONE_RATE),
    Claim("processes, one of them slow: sooner than D-PSGD", ABSTRACT, "swarm_real",
          "real/8 bits", "real/dpsgd"),
    *(
        Claim(f"links of {words}: a meeting in 8 bits takes 10 % less time than in 32", ABSTRACT,
              "benchmarks/swarm_hosts", {"form": "8 bits", "nodes": 4, "rate": rate},
              {"form": "float32", "nodes": 4, "rate": rate}, "meeting", 0.9)
        for words, rate in (("1 Gbit/s", "1gbit"), ("100 Mbit/s", "100mbit"))
    ),
)  # fmt: skip
GROUPS = {
    LARGE: "all-reduce", "dpsgd/ring": "D-PSGD", "sgp/overlap": "SGP, overlaps",
    "ad_psgd": "AD-PSGD", "swarm/H=1": "Swarm, H = 1", EXACT: "Swarm, H = 2",
    COARSE: "Swarm, H = 2, 8 bits", LONG: "Swarm, H = 4",
}  # fmt: skip
BITS = {key: label for key, label in GROUPS.items() if key in (LARGE, "dpsgd/ring", EXACT, COARSE)}
BITS["swarm/H=2/16 bits"] = "Swarm, H = 2, 16 bits"
figure = drawn(
    Panel("equal nodes", "swarm_tuned", GROUPS),
    Panel("one node 4x slower", "swarm_tuned_slow4", GROUPS),
    Panel("10,000 test samples", "swarm_accuracy", BITS, ACCURACY),
    Panel("10,000 test samples", "swarm_accuracy", BITS, BYTES, "sent by a node", by=ACCURACY),
)


# --- the time for which nodes communicate: nothing is trained ---


def _seconds(config: ConfigDict, bits: int, share: float = 1.0) -> float:
    """Return the seconds of a share of a model over one link, in float32 or in few bits."""
    payload = lattice.payload_bytes(config.size, bits) if bits != 32 else 4 * config.size
    return cost.AlphaBeta(config.alpha, config.beta).seconds(share * payload)


def _pairs(rule: str, graph_of, config, workers, steps: int = 1, bits: int = 32) -> np.ndarray:
    """Return each meeting's seconds under a rule of pairs; steps: mini-batches between meetings."""
    law, width = prepare.build_delay(config.delay), max(1, workers // 8)
    setting = Setting(law, workers, steps, config.seed, graph=graph_of(workers))
    schedule = whole(RULES[rule](setting, width=width), config.rounds * workers // width)
    return serial_links.pair_seconds(schedule, workers, _seconds(config, bits))


def _busy(config, workers, steps: int) -> np.ndarray:
    """Return the seconds of `steps` mini-batches in every round of a node, [rounds, nodes]."""
    setting = Setting(prepare.build_delay(config.delay), workers, steps, config.seed)
    return whole(RULES["barrier"](setting), config.rounds).busy


def _push(config, workers, steps: int = 1, bits: int = 32) -> np.ndarray:
    return serial_links.push_rounds(_busy(config, workers, steps), _seconds(config, bits))


def _all_reduce(config, workers, steps: int = 1, bits: int = 32) -> np.ndarray:
    part = _seconds(config, bits, 1 / workers)
    return serial_links.ring_rounds(_busy(config, workers, steps), part)


def _gossip(graph_of, config, workers, steps: int = 1, bits: int = 32) -> np.ndarray:
    matchings, seconds = graph_matchings(graph_of(workers))[1], _seconds(config, bits)
    return serial_links.matching_rounds(_busy(config, workers, steps), matchings, seconds)


METHODS: Mapping[str, Callable] = {
    "swarm": partial(_pairs, "random_pairs", topology.complete),
    "ad_psgd": partial(_pairs, "bipartite_pairs", topology.hypercube),
    "sgp": _push,
    "dpsgd_ring": partial(_gossip, topology.ring),
    "dpsgd_hypercube": partial(_gossip, topology.hypercube),
    "dpsgd_complete": partial(_gossip, topology.complete),
    "all_reduce": _all_reduce,
}
METHOD = registry.Kind("methods", METHODS, np.ndarray, ("config", "workers"))


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return the communication seconds of every method for every number of workers.

    config: `methods`, pairs (label, `method(steps=..., bits=...)`), where steps are mini-batches
    between two exchanges and bits are sent per coordinate; `size` of the model in coordinates;
    `alpha` (s) and `beta` (s per byte); `workers`, numbers of nodes; `delay` of a mini-batch;
    `rounds` of every node; `seed`. Raises ValueError for a config that cannot be simulated.
    """
    registry.check(config, [("a positive whole number", registry.is_count, ("rounds", "size"))])
    points = []
    for label, method in config.methods:
        for workers in config.workers:
            spent = METHOD.build(method, config=config, workers=workers)  # s of a node's update
            points.append({"method": label, "workers": int(workers), "mean": float(spent.mean()),
                           "quantile": float(np.quantile(spent, 0.99))})  # fmt: skip
    table = tables.pivot(
        "ms of communication per node and update by number of nodes, mean / 99 %",
        {(point["method"], f"{point['workers']}"):
         f"{1e3 * point['mean']:,.1f} / {1e3 * point['quantile']:,.1f}" for point in points},
    )  # fmt: skip
    return analysis.Analysis({"points": points}, [table], claims=CLAIMS)
