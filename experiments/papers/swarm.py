"""SwarmSGD (Nadiradze et al., arXiv 1910.12308): asynchronous pairs, local steps, few bits.

Beside its claims stands the time that nodes communicate for, simulated; that trains nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from algorithms.gossip import graph_matchings
from comms import cost, lattice, topology
from experiments import analysis, prepare, registry, stats, tables
from experiments.papers.base import Lines, Panel, Records, Sweep, draw
from experiments.stats import ACCURACY, Answer, Arm, Claim
from stragglers import serial_links, wavefront
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

TITLE = "SwarmSGD"
TOGETHER = "--sweep --seeds=3 --together"
SWEEPS = (
    Sweep("swarm", f"--config=configs/swarm.py:delay=equal {TOGETHER}", 0.3),
    Sweep("swarm_slow4", f"--config=configs/swarm.py:delay=slow4 {TOGETHER}", 0.3),
    Sweep("swarm_dirichlet", f"--config=configs/swarm.py:split=dirichlet {TOGETHER}", 0.3),
    Sweep("swarm_gaussians", f"--config=configs/swarm.py:task=gaussians {TOGETHER}", 0.15),
    Sweep("swarm_epochs", "--config=configs/swarm.py:epochs --sweep --seeds=5 --together", 0.2),
    Sweep("swarm_tuned", "--config=configs/swarm.py:tuned --sweep --seeds=10 --together", 0.4),
    Sweep("swarm_ring", f"--config=configs/swarm.py:graph=ring {TOGETHER}", 0.3),
    Sweep("swarm_hypercube", f"--config=configs/swarm.py:graph=hypercube {TOGETHER}", 0.3),
    Sweep("swarm_nodes_8", f"--config=configs/swarm.py:nodes=8 {TOGETHER}", 0.2),
    Sweep("swarm_nodes_64", f"--config=configs/swarm.py:nodes=64 {TOGETHER}", 0.2),
    Sweep("swarm_nodes_256", f"--config=configs/swarm.py:nodes=256 {TOGETHER}", 0.8),
    Sweep("swarm_scale", "--config=configs/swarm.py:scale", 0.05),
    Sweep("swarm_real", "--config=configs/swarm.py:real --sweep --seeds=5", 0.4),
)
ABSTRACT = "arXiv 1910.12308, abstract"
EXACT, COARSE, LARGE = "swarm/H=2", "swarm/H=2/8 bits", "all_reduce"
SAMPLES = ("samples",)


def does_not_grow(_, record: Mapping[str, Any]) -> Answer:
    """Judge the mean time of Swarm's exchange with the most nodes over that with the fewest."""
    means: dict[str, list[float]] = {}
    for point in record["summary"]["points"]:
        if point["method"].startswith("swarm"):
            means.setdefault(point["method"], []).append(point["mean"])
    grown = {method: row[-1] / row[0] for method, row in means.items()}
    good = [method for method, growth in grown.items() if growth < 1.1]
    measured = "; ".join(f"{method} {growth:.2f}x" for method, growth in grown.items())
    reason = f"for {', '.join(good)}" if 0 < len(good) < len(grown) else ""
    return Answer(stats.of_all(len(good), len(grown)), measured, reason)


def hosts(ours: str, theirs: str, quantity: str, bound: float, **point: Any) -> stats.Judge:
    """Return the judge of two forms of a benchmark on hosts; point: the fields of its points."""

    def judged(_, record: Mapping[str, Any]) -> Answer:
        forms = [
            {"name": p["form"], quantity: p[quantity], "seeds": list(range(p["runs"])),
             f"{quantity}_std": p[f"{quantity}_deviation"]}
            for p in record["summary"]["points"]
            if {key: p.get(key) for key in point} == point
        ]  # fmt: skip
        return stats.compare(*stats.named(forms, ours, theirs), quantity, bound)

    return judged


CLAIMS = (
    Claim("SwarmSGD, one node 4x slower: at most 0.6x the time of D-PSGD", ABSTRACT,
          "swarm_slow4", COARSE, "dpsgd/ring", bound=0.6),
    Claim("SwarmSGD, 8 bits keep the accuracy to 0.3 points, 10,000 test samples", ABSTRACT,
          "swarm_gaussians", COARSE, EXACT, ACCURACY, margin=0.003, equal=SAMPLES),
    Claim("SwarmSGD, 8 bits are within 1 point of large batches, 10,000 test samples",
          ABSTRACT, "swarm_gaussians", COARSE, LARGE, ACCURACY, margin=0.01, equal=SAMPLES),
    Claim("SwarmSGD, 8 bits send half the bytes of D-PSGD", ABSTRACT, "swarm", COARSE, "dpsgd/ring",
          "bytes_per_worker", 0.5, equal=SAMPLES),
    Claim("each at its best rate: 8 bits take 10 % less time than 32", ABSTRACT, "swarm_tuned",
          COARSE, EXACT, bound=0.9, tuned=True),
    Claim("local steps matter little: H = 4 takes at most 1.1x the time of H = 2",
          "arXiv 1910.12308, experiments", "swarm_tuned", "swarm/H=4", EXACT, bound=1.1,
          tuned=True),
    Claim("epochs matter: more accurate after 300 mini-batches of a node than after 75",
          "arXiv 1910.12308, experiments", "swarm_epochs", f"{EXACT}/batches=300",
          f"{EXACT}/batches=75", ACCURACY),
    Claim("a control that has to fail: within 0.3 points of 600 mini-batches after 75", "",
          "swarm_epochs", f"{EXACT}/batches=75", f"{EXACT}/batches=600", ACCURACY, margin=0.003),
    Claim("an exchange among 256 nodes takes at most 1.1x that among 8", ABSTRACT, "swarm_scale",
          judge=does_not_grow),
    Claim("processes, one of them slow: sooner than D-PSGD", ABSTRACT, "swarm_real",
          "real/8 bits", "real/dpsgd"),
    Claim("links of 1 Gbit/s: a meeting in 8 bits takes 10 % less time than in 32", ABSTRACT,
          "benchmarks/swarm_hosts",
          judge=hosts("8 bits", "float32", "meeting", 0.9, nodes=4, rate="1gbit")),
    Claim("links of 100 Mbit/s: a meeting in 8 bits takes 10 % less time than in 32", ABSTRACT,
          "benchmarks/swarm_hosts",
          judge=hosts("8 bits", "float32", "meeting", 0.9, nodes=4, rate="100mbit")),
)  # fmt: skip
GROUPS = {
    LARGE: "all-reduce", "dpsgd/ring": "D-PSGD, overlaps",
    "dpsgd/ring/serial": "D-PSGD, exchange after gradient", "sgp/overlap": "SGP, overlaps",
    "ad_psgd": "AD-PSGD", EXACT: "Swarm, H = 2", COARSE: "Swarm, H = 2, 8 bits",
    "swarm/H=4/8 bits": "Swarm, H = 4, 8 bits",
}  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw the seconds to the target without and with a slow node, accuracies and bytes."""
    panels = [
        Panel("equal nodes", "swarm", GROUPS),
        Panel("one node 4x slower", "swarm_slow4", GROUPS),
        Panel("10,000 test samples", "swarm_gaussians", GROUPS, ACCURACY, "test accuracy"),
        Panel("10,000 test samples", "swarm_gaussians", GROUPS, "bytes_per_worker",
              "sent by a node"),
    ]  # fmt: skip
    return draw(panels, records)


def numbers(arms: Sequence[Arm]) -> Iterator[stats.Numbers]:
    """Give accuracies of the mean model and of nodes, their distance, and what was sent again."""

    def last(arm: Arm, name: str) -> float:
        return float(np.mean([repeat[-1].get(name) or 0.0 for repeat in arm["metrics"]]))

    yield stats.Numbers(
        "at the end",
        ("arm", "accuracy of the mean model", "of the worst node [%]", "Gamma / n", "MB per node",
         "failed buckets", "kB sent again"),
        [
            (
                arm["name"],
                stats.shown(arm, ACCURACY),
                f"{100 * arm['test_accuracy_worst_worker']:.2f}",
                f"{last(arm, 'consensus_distance'):.2g}",
                f"{last(arm, 'bytes_per_worker') / 1e6:.2f}",
                f"{last(arm, 'decode_failures'):.1f}",
                f"{last(arm, 'extra_bytes_per_worker') / 1e3:.1f}",
            )
            for arm in arms
        ],
    )  # fmt: skip


# --- the time that nodes communicate for: nothing is trained ---


Spent = tuple[np.ndarray, float, float]  # s of communication, s of computing, bytes
Method = Callable[[ConfigDict, int, int, float], Spent]  # config, workers, local steps, bytes


def _pairs(rule: str, graph_of) -> Method:
    """Return the simulation of a rule of pairs."""

    def simulated(config, workers, steps, payload) -> Spent:
        law, width = prepare.build_delay(config.delay), max(1, workers // 8)
        setting = Setting(law, workers, steps, config.seed, graph=graph_of(workers))
        schedule = whole(RULES[rule](setting, width=width), config.rounds * workers // width)
        transfer = cost.AlphaBeta(config.alpha, config.beta).seconds(payload)
        spent = serial_links.pair_seconds(schedule, workers, transfer)
        # Nodes that only answer deliver without a meeting.
        share = len(spent) / len(wavefront.interactions(schedule).time)
        return spent, schedule.busy.sum(), 2 * payload * share

    return simulated


def _rounds(seconds_of, sent) -> Method:
    """Return the simulation of rounds, of which `seconds_of` gives the communication."""

    def simulated(config, workers, steps, payload) -> Spent:
        law = prepare.build_delay(config.delay)
        waits = RULES["barrier"](Setting(law, workers, steps, config.seed))
        busy = whole(waits, config.rounds).busy
        spent = seconds_of(busy, payload, cost.AlphaBeta(config.alpha, config.beta))
        return spent.ravel(), busy.sum(), sent(workers, payload)

    return simulated


def _gossip(make) -> Method:
    return _rounds(
        lambda busy, payload, link: serial_links.matching_rounds(
            busy, graph_matchings(make(busy.shape[1]))[1], link.seconds(payload)
        ),
        lambda workers, payload: payload * 2 * make(workers).size() / workers,
    )


METHODS: Mapping[str, Method] = {
    "swarm": _pairs("random_pairs", topology.complete),
    "ad_psgd": _pairs("bipartite_pairs", topology.hypercube),
    "sgp": _rounds(
        lambda busy, payload, link: serial_links.push_rounds(busy, link.seconds(payload)),
        lambda workers, payload: payload,
    ),
    "dpsgd_ring": _gossip(topology.ring),
    "dpsgd_hypercube": _gossip(topology.hypercube),
    "dpsgd_complete": _gossip(topology.complete),
    "all_reduce": _rounds(
        lambda busy, payload, link: serial_links.ring_rounds(
            busy, link.seconds(payload / busy.shape[1])
        ),
        lambda workers, payload: cost.ring_all_reduce_bytes(payload, workers),
    ),
}


def _checked(spec: dict, size: int) -> tuple[Method, int, float]:
    """Return the method, its local steps, and the bytes of a model in float32 or in few bits."""
    if spec["name"] not in METHODS:
        raise ValueError(
            f"methods: unknown name {spec['name']!r}; known names: {', '.join(METHODS)}"
        )
    given = {"steps": 1, "bits": 32} | spec
    steps, bits = given["steps"], given["bits"]
    if len(given) > 3 or not (registry.is_number(steps, int) and steps > 0):
        raise ValueError(
            f"methods: {spec['name']!r} takes steps, a positive whole number, and bits, got "
            f"{spec}; correct it"
        )
    payload = lattice.payload_bytes(size, bits) if bits != 32 else 4 * size
    return METHODS[spec["name"]], steps, payload


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return the communication of every method on every number of workers.

    config: `methods`, pairs (label, `method(steps=..., bits=...)`), where steps are mini-batches
    between two exchanges and bits are sent per coordinate; `size` of the model in coordinates;
    `alpha` (s) and `beta` (s per byte); `delay` of a mini-batch; `rounds` of every node; `seed`.
    Raise ValueError for a config that cannot be simulated.
    """
    registry.check(config, [("a positive whole number", registry.is_count, ("rounds", "size"))])
    methods = {label: _checked(registry.spec(text), config.size) for label, text in config.methods}
    points = []
    for label, (method, steps, payload) in methods.items():
        for workers in config.workers:
            spent, computing, sent = method(config, workers, steps, payload)
            points.append({
                "method": label, "workers": int(workers),
                "mean": float(spent.mean()),  # s of a node's update
                "quantile": float(np.quantile(spent, 0.99)),
                "of_compute": float(spent.sum() / computing),  # s communicating per s computing
                "bytes": float(sent),  # that a node sends for an update of its own
            })  # fmt: skip
    table = tables.pivot(
        "ms of communication per node and update by number of nodes, mean / 99 %",
        points,
        lambda point: point["method"],
        lambda point: f"{point['workers']}",
        lambda point: f"{1e3 * point['mean']:,.1f} / {1e3 * point['quantile']:,.1f}",
    )
    labels = "nodes", "communication per update [s]"
    panels = [Lines(title, points, "workers", field, "method", labels, log=True)
              for title, field in (("mean", "mean"), ("99 % quantile", "quantile"))]  # fmt: skip
    return analysis.Analysis({"points": points}, [table], draw(panels), CLAIMS)
