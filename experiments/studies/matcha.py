"""What MATCHA claims against periodic and vanilla D-PSGD (Wang et al., arXiv 1905.09435)."""

from collections.abc import Iterator
from pathlib import Path

from comms import topology
from experiments import parts, prepare
from experiments.studies import matcha_mixing

BUDGETS = (0.1, 0.2, 0.5, 1.0)  # shares of vanilla's communication


def claims(arms) -> Iterator[tuple[str, str]]:
    """What the paper says of its method, beside this sweep and the theory of its graph."""
    by_name = {arm["name"]: arm for arm in arms}
    vanilla, half = by_name["vanilla"], by_name["matcha/0.5"]
    yield (
        "budget .5 keeps or improves vanilla's convergence per iteration (arXiv 1905.09435)",
        f"{_against(half, vanilla, 'updates')} iterations",
    )
    fastest = min(
        (arm for arm in arms if arm["name"].startswith("matcha")),
        key=lambda arm: arm["seconds_to_target"] or float("inf"),
    )
    yield (
        "up to 5x less time to the same loss",
        f"budget .5: {_against(half, vanilla, 'communication_seconds')} communication time, "
        f"{_against(half, vanilla, 'seconds')} time\n"
        f"fastest, {fastest['name']}: {_against(fastest, vanilla, 'seconds')} time",
    )
    config = vanilla["config"]
    graph = prepare.GRAPH.build(config.graph, n=config.workers)
    yield (
        "budget .5 has a rho no larger than vanilla's (theory; smaller: faster consensus)",
        f"{parts.text(config.graph)}\n{_rates(graph)}",
    )
    for name, make in (("ring", topology.ring), ("path", _path)):
        yield f"(not claimed) the same on a {name}", _rates(make(config.workers))


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


def _against(arm, vanilla, what):
    """`what` it took to reach the target, over the same of vanilla."""
    ours, theirs = arm[f"{what}_to_target"], vanilla[f"{what}_to_target"]
    if not ours or not theirs:
        return "target not reached, no ratio of"
    return f"{ours:,.4g} against {theirs:,.4g}, {ours / theirs:.2f}x vanilla's"


def _rates(graph):
    """rho by budget, and whether MATCHA beats vanilla in any, per iteration or per communication.

    rho^(1 / budget) is the contraction in the time that vanilla's round communicates.
    """
    rates = matcha_mixing.mixing_rates(graph, BUDGETS)
    lines = [
        f"{budget:g}: matcha {ours:.4f}, periodic {theirs:.4f}"
        for budget, ours, theirs in zip(BUDGETS, rates.matcha, rates.periodic, strict=True)
    ]
    less = [i for i, budget in enumerate(BUDGETS) if budget < 1]
    verdicts = [
        f"{'better' if best < rates.vanilla - 1e-9 else 'not better'} than vanilla {unit}"
        for unit, best in (
            ("per iteration", min(rates.matcha[i] for i in less)),
            ("per communication", min(rates.matcha[i] ** (1 / BUDGETS[i]) for i in less)),
        )
    ]
    return "\n".join([*lines, f"vanilla {rates.vanilla:.4f}", *verdicts])
