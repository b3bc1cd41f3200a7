"""Gossip on uneven data: methods and graphs at equal bytes.

Workers on a graph train an MLP on scikit-learn's digits, where each holds few classes, or a small
GPT on the text of Python's own library, where each holds few packages: a Dirichlet split with alpha
.1. Sending one model over one link takes a second and the gradient hardly any time, so that a
method that sends two models, or a graph with many links, makes fewer updates.

    --config=configs/heterogeneous.py:workers=64 --sweep
    --config=configs/heterogeneous.py:task=text --sweep

The sweep goes over learning rates; the claims take each method and graph at its rate with the
lowest final loss.
"""

from collections.abc import Mapping, Sequence

from configs import arguments, base
from experiments import papers, stats
from experiments.registry import as_part, part

GPT = part(
    "next_token",
    model=part("gpt", layers=2, width=32, heads=2),
    vocabulary=256,
    length=32,
    evaluated=256,
)
TASKS = {"digits": (part("digits", model="mlp"), 16), "text": (GPT, 4)}  # samples of a mini-batch


_SECOND_ORDER = part("dpsgd", order="adapt_then_combine")  # the order of all its rivals
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
    "matcha": {"algorithm": part("matcha", budget=0.5)},
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
    "dpsgd_momentum/ring": (0.04, 0.08, 0.16, 0.32, 0.64),
    "qg_dsgdm/ring": (0.08, 0.16, 0.32, 0.64, 1.28),
    "decentlam/ring": (0.04, 0.08, 0.16, 0.32, 0.64),
}


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: gradient tracking on a ring.

    Arguments: task, a key of TASKS; workers, a multiple of 4; alpha of the Dirichlet split; models,
    the number that a worker sends.
    """
    a = arguments.parse(arg, task="digits", workers=16, alpha=0.1, models=400)
    task, batch_size = arguments.chosen(a, "task", TASKS)
    return base.arm(
        name="gradient_tracking/ring",  # method/graph/rate
        task=task,
        split=part("dirichlet", alpha=a["alpha"]),
        workers=a["workers"],
        batch_size=batch_size,
        algorithm=part("gradient_tracking"),
        graph=part("ring"),
        optimizer=part("sgd", learning_rate=0.2),
        wait=part("neighbour_barrier"),
        delay=part("deterministic", value=0.01),
        communication=part("link", seconds=1.0),
        seconds=float(a["models"]),
        evaluate_every=a["models"] / 40,
    )


def rates_of(config: base.ConfigDict) -> Mapping[str, Sequence[float]]:
    """Return the grid of every method and graph that the config's task compares."""
    if "vocabulary" in as_part(config.task):
        return TEXT_RATES
    few = config.workers <= FEW_WORKERS
    return {group: grid for group, grid in RATES.items() if few or group not in UP_TO_FEW}


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield every method on every graph of its grid, at every rate."""
    for group, grid in rates_of(config).items():
        method, graph = group.split("/")
        yield from base.at_rates(group, METHODS[method] | {"graph": GRAPHS[graph]}, grid)


claims = papers.Judged("uneven_data", "heterogeneous")
numbers = stats.at_best(stats.END, stats.ACCURACY, "updates", "bytes_per_worker")
