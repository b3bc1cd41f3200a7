"""What MATCHA claims against periodic and vanilla D-PSGD (Wang et al., arXiv 1905.09435)."""

from collections.abc import Iterator
from pathlib import Path

import networkx as nx

from comms import topology
from experiments import parts, premises, prepare
from experiments.numbers import Numbers
from experiments.studies import matcha_mixing

KEEPS = 1.1  # times vanilla's updates: its convergence is kept
AGAINST_VANILLA = (  # of what is compared, at most how many times vanilla's, what is claimed
    ("updates", KEEPS, f"budget .5 takes at most {KEEPS:g}x vanilla's updates (arXiv 1905.09435)"),
    ("communication_seconds", 0.6, "budget .5 communicates for at most 0.6x vanilla's time"),
    ("seconds", 1.0, "budget .5 takes less time than vanilla"),
)
BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # shares of vanilla's communication
PERIODIC = (0.1, 0.2, 0.5)  # of periodic D-PSGD, which is vanilla with all of it


def at_budget(method: str, budget: float) -> str:
    """The name of an arm, or of its grid of rates."""
    return f"{method}/budget={budget:g}"


VANILLA, HALF = "vanilla", at_budget("matcha", 0.5)


def claims(arms) -> Iterator[tuple[str, str]]:
    """What the paper says of its method, beside this sweep and the theory of its graph."""
    for what, factor, claim in AGAINST_VANILLA:
        yield claim, premises.text(beside, arms, HALF, VANILLA, f"{what}_to_target", factor)
    yield "up to 5x less time to the same loss, at any budget", premises.text(five_times, arms)
    for budget in PERIODIC:
        pair = at_budget("matcha", budget), at_budget("periodic", budget)
        yield (
            f"budget {budget:g}: less time to the same loss than periodic D-PSGD",
            premises.text(beside, arms, *pair, "seconds_to_target"),
        )
    yield (
        "budget .5 has a rho no larger than vanilla's (theory; smaller: faster consensus)",
        premises.text(mixes_as_well, arms),
    )


def beside(arms, ours: str, theirs: str, field: str, factor: float = 1.0) -> premises.Answer:
    """What both take to the target, each at a best rate that lies inside of its grid."""
    pair = [premises.tuned(arms, name, field) for name in (ours, theirs)]
    return premises.at_most(*pair, field, factor)


def five_times(arms) -> premises.Answer:
    """The quickest budget and rate, which lie inside of their grid, against vanilla.

    There is no budget above 1.
    """
    field = "seconds_to_target"
    ours = premises.tuned(arms, "matcha", field, bounds={"budget": 1.0})
    vanilla = premises.tuned(arms, VANILLA, field)
    premises.surrounded(vanilla, premises.group(arms, VANILLA), field)
    return premises.at_most(ours, vanilla, field, 1 / 5)


def mixes_as_well(arms) -> premises.Answer:
    """rho of this sweep's graph, and of a ring and a path of as many workers."""
    (some,) = premises.group(arms, VANILLA)[:1]
    named = _graphs(some["config"])
    rhos = {name: matcha_mixing.mixing_rates(graph, (0.5,)) for name, graph in named.items()}
    good = [name for name, rho in rhos.items() if rho.matcha[0] <= rho.vanilla + 1e-9]
    shown = "; ".join(
        f"{name} {r.matcha[0]:.4f} against {r.vanilla:.4f}" for name, r in rhos.items()
    )
    if not good:
        return premises.Answer(premises.FAILS, shown)
    verdict = premises.of_all(len(good), len(rhos))
    return premises.Answer(verdict, f"on {', '.join(good)}: {shown}")


def numbers(arms) -> Iterator[Numbers]:
    """rho by budget, for this sweep's graph, a ring and a path."""
    for name, graph in _graphs(arms[0]["config"]).items():
        rates = matcha_mixing.mixing_rates(graph, BUDGETS)
        yield Numbers(
            f"rho on {name}; vanilla {rates.vanilla:.4f}",
            ("budget", "matcha", "periodic", "matcha per communication"),
            [
                (f"{budget:g}", f"{ours:.4f}", f"{theirs:.4f}", f"{ours ** (1 / budget):.4f}")
                for budget, ours, theirs in zip(BUDGETS, rates.matcha, rates.periodic, strict=True)
            ],
        )


def figures(workdir) -> None:
    """Write rho.png: the theory on the six graphs, a ring and a path."""
    graphs = {
        f"graph {k}: {len(graph)} workers, {graph.size()} links": graph
        for k, graph in enumerate(map(topology.matcha_graph, range(6)))
    }
    others = {"ring of 16": topology.ring(16), "path of 16": _path(16)}
    matcha_mixing.draw_mixing_rates(graphs | others, Path(workdir) / "rho.png")


def _path(workers):
    return topology.edge_list(workers, [(i, i + 1) for i in range(workers - 1)])


def _graphs(config) -> dict[str, nx.Graph]:
    """The graph of an arm, and two of as many workers on which less is to be won."""
    return {
        parts.text(config.graph): prepare.GRAPH.build(config.graph, n=config.workers),
        "a ring": topology.ring(config.workers),
        "a path": _path(config.workers),
    }
