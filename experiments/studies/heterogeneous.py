"""Gossip on uneven data: what its methods and graphs make of the same bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from ml_collections import ConfigDict

from comms.rounds import Round
from experiments import parts, premises, prepare, quantities, records
from experiments.numbers import Numbers
from experiments.parts import part
from experiments.reports import figure
from experiments.studies import graph_consensus

BUDGET = 0.5  # of MATCHA
_SECOND_ORDER = part("dpsgd", order="adapt_then_combine")  # that of all its rivals
METHODS = {
    "dpsgd": {"algorithm": _SECOND_ORDER},
    "dpsgd_momentum": {
        "algorithm": _SECOND_ORDER,
        "optimizer": part("momentum", decay=0.9, learning_rate=0.1),
    },
    "gradient_tracking": {"algorithm": part("gradient_tracking")},
    "exact_diffusion": {"algorithm": part("exact_diffusion")},
    "qg_dsgdm": {"algorithm": part("qg_dsgdm", momentum=0.9)},
    "decentlam": {"algorithm": part("decentlam", momentum=0.9)},
    "matcha": {"algorithm": part("matcha", budget=BUDGET)},
}
GRAPHS = {
    "ring": part("ring"),
    "torus": part("torus"),
    "one_peer": part("one_peer_exponential"),
    "base_2": part("base_k", k=1),
    "groups": part("hierarchical", group=4),
    "equi": part("equi_dyn", directed=True),
}

_LOW, _MIDDLE = (0.1, 0.2, 0.4, 0.8), (0.2, 0.4, 0.8, 1.6)
_HIGH, _HIGHER = (0.2, 0.4, 0.8, 1.6, 3.2), (0.4, 0.8, 1.6, 3.2, 6.4)
_WITH_MOMENTUM = (0.08, 0.16, 0.32, 0.64, 1.28)
RATES = {
    "dpsgd/ring": _HIGH,
    "dpsgd/torus": _HIGHER,
    "dpsgd/one_peer": _HIGH,
    "dpsgd/base_2": _HIGHER,
    "dpsgd/groups": _HIGHER,
    "dpsgd/equi": _HIGH,
    "gradient_tracking/ring": _HIGH,
    "gradient_tracking/torus": _MIDDLE,
    "gradient_tracking/one_peer": _LOW,
    "gradient_tracking/base_2": (0.05, *_LOW),
    "gradient_tracking/groups": _LOW,
    "gradient_tracking/equi": _LOW,
    "exact_diffusion/ring": (0.05, 0.1, *_MIDDLE),
    "exact_diffusion/base_2": _MIDDLE,
    "dpsgd_momentum/ring": _WITH_MOMENTUM,
    "dpsgd_momentum/base_2": _WITH_MOMENTUM,
    "qg_dsgdm/ring": (0.02, 0.04, *_WITH_MOMENTUM, 2.56),
    "qg_dsgdm/base_2": _WITH_MOMENTUM,
    "decentlam/ring": _WITH_MOMENTUM,
    "matcha/ring": _MIDDLE,
}
# Exact diffusion on the Base-2 graph is refused with more workers, as their models go apart.
FEW_WORKERS, UP_TO_FEW = 16, ("exact_diffusion/base_2",)
TEXT_RATES = {
    "dpsgd/ring": _LOW,
    "dpsgd/base_2": _LOW,
    "gradient_tracking/ring": _LOW,
    "gradient_tracking/base_2": (0.025, 0.05, 0.1, 0.2),
    "exact_diffusion/ring": _LOW,
    "dpsgd_momentum/ring": (0.04, 0.08, 0.16, 0.32),
    "qg_dsgdm/ring": (0.08, 0.16, 0.32, 0.64, 1.28),
    "decentlam/ring": (0.04, 0.08, 0.16, 0.32, 0.64),
}


LOSS = "final_train_loss"  # a mean over the last tenth of the evaluations
BYTES = 0.1  # relative difference that counts as none: an update more or less, with many links
SIZES, MODELS, NEAR = (16, 64, 256), 60.0, 1e-3  # of gossip without training
CLAIMS = (  # ours, theirs, what is said of them
    ("gradient_tracking/ring", "dpsgd/ring", "uneven data leave no bias (arXiv 1805.09708)"),
    ("exact_diffusion/ring", "dpsgd/ring", "uneven data leave no bias (arXiv 1803.07068)"),
    ("exact_diffusion/ring", "gradient_tracking/ring", "one message is enough"),
    ("qg_dsgdm/ring", "dpsgd_momentum/ring", "momentum of what models did (arXiv 2102.04761)"),
    ("qg_dsgdm/base_2", "dpsgd_momentum/base_2", "the same on the best graph"),
    ("decentlam/ring", "dpsgd_momentum/ring", "momentum without its bias (arXiv 2104.11981)"),
    ("dpsgd/one_peer", "dpsgd/ring", "one peer is as good as many (arXiv 2110.13363)"),
    ("dpsgd/base_2", "dpsgd/ring", "finite-time consensus (arXiv 2305.11420)"),
    ("dpsgd/base_2", "dpsgd/one_peer", "finite-time consensus (arXiv 2305.11420)"),
    ("dpsgd/equi", "dpsgd/ring", "a rate that does not depend on n (arXiv 2210.07881)"),
    ("dpsgd/equi", "dpsgd/one_peer", "(not claimed) random hops, not powers of two"),
    ("dpsgd/base_2", "matcha/ring", "finite-time consensus (arXiv 2305.11420)"),
    ("dpsgd/torus", "dpsgd/ring", "(not claimed) more links"),
    ("dpsgd/groups", "dpsgd/ring", "(not claimed) the mean within groups"),
    ("gradient_tracking/base_2", "gradient_tracking/ring", "the same graph, gradient tracking"),
    ("gradient_tracking/equi", "gradient_tracking/ring", "the same graph, gradient tracking"),
    ("dpsgd/base_2", "gradient_tracking/base_2", "(not claimed) half the bytes count for more"),
    ("dpsgd/base_2", "exact_diffusion/ring", "(not claimed) a better graph, not a better method"),
)


def rates_of(config: ConfigDict) -> Mapping[str, Sequence[float]]:
    """The grid of every method and graph that is asked about on the config's task."""
    if "vocabulary" in parts.as_part(config.task):
        return TEXT_RATES
    few = config.workers <= FEW_WORKERS
    return {group: grid for group, grid in RATES.items() if few or group not in UP_TO_FEW}


def arms(config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """(method/graph/rate, entries of its config)."""
    for group, grid in rates_of(config).items():
        method, graph = group.split("/")
        changes = METHODS[method] | {"graph": GRAPHS[graph]}
        for rate in grid:
            yield f"{group}/rate={rate}", changes | {"optimizer.learning_rate": rate}


def claims(arms) -> Iterator[tuple[str, str]]:
    """What is claimed of every method and graph, beside this sweep at the best rate of each."""
    asked = rates_of(arms[0]["config"])
    for ours, theirs, claim in CLAIMS:
        if ours in asked and theirs in asked:
            yield (
                f"{claim}: {ours} ends below {theirs}",
                premises.text(ends_below, arms, ours, theirs),
            )


def ends_below(arms, ours: str, theirs: str) -> premises.Answer:
    """Final losses at equal bytes, each at a best rate that lies inside of its grid."""
    pair = [premises.tuned(arms, name, LOSS) for name in (ours, theirs)]
    premises.equal("bytes_per_worker", *pair, within=BYTES)
    return premises.at_most(*pair, LOSS)


def numbers(arms) -> Iterator[Numbers]:
    """Every method and graph at its best rate, but for what diverged at all of them.

    Then what graphs alone do, without training.
    """
    columns = ("method/graph", "rate", "updates", "loss", "accuracy of the mean model [%]",
               "of the worst worker [%]", "consensus distance", "MB per worker")  # fmt: skip
    best = _best(arms).items()
    rows = [_row(group, arm) for group, arm in best if math.isfinite(_loss(arm))]
    yield Numbers("at the rate that ends lowest", columns, rows)
    yield Numbers(
        f"models sent until the distance to the mean is {NEAR:g} of what it was, no training",
        ("workers", *_turns(SIZES[0])),
        [(f"{workers}", *map(_sent, _turns(workers).values())) for workers in SIZES],
    )


def figures(workdir) -> None:
    """Write heterogeneous.png, what the best rates make of bytes, and consensus.png."""
    workdir = Path(workdir)
    members = [
        arm | {"config": records.read_config(next((workdir / arm["name"]).rglob(records.CONFIG)))}
        for arm in records.read_json(workdir / records.SUMMARY)["arms"]
    ]
    best = _best(members)
    columns = {
        "methods on the ring": [group for group in best if group.endswith("/ring")],
        "D-PSGD and MATCHA on graphs": _of(best, "dpsgd/", "matcha/"),
        "gradient tracking on graphs": _of(best, "gradient_tracking/"),
    }
    canvas = Figure(figsize=(12, 7), dpi=150, layout="constrained")
    grid = canvas.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    for (title, groups), panels in zip(columns.items(), grid.T, strict=True):
        runs = {group: _runs(workdir / best[group]["name"]) for group in groups}
        _draw(panels, runs)
        panels[0].set_title(title, fontsize=9)
        panels[0].legend(fontsize=7, frameon=False, handlelength=3)
    grid[0, 0].set_ylabel("training loss of the mean model", fontsize=9)
    grid[1, 0].set_ylabel("consensus distance", fontsize=9)
    canvas.supxlabel("MB that a worker has sent", fontsize=9)
    figure.save(canvas, workdir / "heterogeneous.png")
    sizes = {f"{workers} workers": _turns(workers) for workers in SIZES}
    graph_consensus.draw_consensus(sizes, MODELS, workdir / "consensus.png")


def _of(best, *methods: str) -> list[str]:
    return [group for group in best if group.startswith(methods)]


def _runs(place: Path) -> list[list[dict]]:
    """The records of all seeds of an arm."""
    paths = sorted(place.rglob(records.METRICS))
    return [_in_megabytes(records.read_metrics(path.parent)) for path in paths]


def _draw(panels, runs: dict[str, list[list[dict]]]) -> None:
    """Loss, and below it how far models are apart, which are equal as a run begins."""
    # Lines of one method differ in their graph.
    swapped = ["/".join(reversed(group.split("/"))) for group in runs]
    alike = len({group.partition("/")[2] for group in runs}) == 1
    lines = figure.styles(list(runs) if alike else swapped).values()
    for (group, records_of), line in zip(runs.items(), lines, strict=True):
        apart = [[row for row in run if row["consensus_distance"]] for run in records_of]
        figure.plot(panels[0], records_of, line, "megabytes", label=group)
        if all(apart):
            figure.plot(panels[1], apart, line, "megabytes", "consensus_distance")
    for panel in panels:
        figure.logarithmic(panel)


def _members(arms) -> dict[str, list[dict]]:
    return {group: [a for a in arms if a["name"].startswith(f"{group}/rate=")] for group in RATES}


def _best(arms) -> dict[str, dict]:
    """Of every method and graph that was run the arm that ends lowest."""
    return {group: min(members, key=_loss) for group, members in _members(arms).items() if members}


def _loss(arm) -> float:
    """At the end, a mean over the last tenth of the evaluations; infinite if it diverged."""
    loss = arm["final_train_loss"]
    return math.inf if loss is None or not math.isfinite(loss) else loss


def _row(group: str, arm: dict) -> tuple[str, ...]:
    return (
        group,
        f"{arm['config'].optimizer.learning_rate:g}",
        f"{arm['updates']:,.0f}",
        quantities.shown(arm, LOSS) if math.isfinite(_loss(arm)) else "diverged",
        _percent(arm.get("test_accuracy")),
        _percent(arm.get("test_accuracy_worst_worker")),
        f"{arm['consensus_distance']:.2g}",
        f"{arm['bytes_per_worker'] / 1e6:.2f}",
    )


def _percent(share: float | None) -> str:
    """An accuracy, which text does not have."""
    return "" if share is None else f"{100 * share:.1f}"


def _in_megabytes(run: list[dict]) -> list[dict]:
    return [record | {"megabytes": record["bytes_per_worker"] / 1e6} for record in run]


def _turns(workers: int) -> dict[str, list[Round]]:
    """What the graphs do in turn, and what MATCHA does on the ring."""
    graphs = {name: prepare.GRAPH.build(graph, n=workers) for name, graph in GRAPHS.items()}
    turns = {name: graph_consensus.of_graph(graph) for name, graph in graphs.items()}
    enough = int(2 * MODELS)  # of rounds in which about one model is sent
    return turns | {"matcha": graph_consensus.of_matcha(graphs["ring"], BUDGET, enough)}


def _sent(turn: list[Round]) -> str:
    models = graph_consensus.sent_until(graph_consensus.consensus(turn, MODELS), NEAR)
    return f"more than {MODELS:g}" if models is None else f"{models:.3g}"
