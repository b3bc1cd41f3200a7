"""Error against time of the four protocols (Dutta et al., arXiv 1803.01113): slow or stale.

Eight workers train logistic regression, or a CNN, on scikit-learn's digits, with mini-batches so
small that the noise of the gradients sets the final loss. A server that waits for few mini-batches
updates often, with noisy and, if workers are not restarted, with stale gradients. All arms see the
same delays, the same initial parameters and the same order of samples.

    --config=configs/slow_and_stale.py:law=pareto,model=cnn --sweep

The sweep goes over learning rates. Claims and figures look at one rate that is common to all K, at
the rate of each protocol and K that is first at the target, and at the one that ends lowest.
"""

import json
import math
from pathlib import Path

from ml_collections import ConfigDict

from configs import arguments
from experiments import records, tasks
from experiments.studies import error_against_time

# Time of a mini-batch, with a mean of 1 s, but for the slow worker's.
LAWS = {
    "exponential": "exponential(scale=1.0)",
    "shifted_exponential": "shifted_exponential(shift=0.5, scale=0.5)",
    "pareto": "pareto(minimum=0.6666667, shape=3)",
    "slow4": "persistent(law=jitter(mean=1.0, sigma=0.1), factors={0: 4.0})",
    "slow10": "persistent(law=jitter(mean=1.0, sigma=0.1), factors={0: 10.0})",
}
MODELS = {
    "logistic": "digits(model=logistic, l2=0.01)",  # its lowest loss is 0.733
    "cnn": "digits(model=cnn(channels=[16, 32]))",
}
WORKERS = 8
PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
K = (1, 2, 4, 8)
_GRID = (0.01, 0.025, 0.063, 0.16, 0.4, 1.0, 2.5, 6.3)
RATES = {1: _GRID[:-2], 2: _GRID[1:-1], 4: _GRID[2:], 8: _GRID[2:]}  # less noise, larger rates
COMMON = 0.16  # the one rate for all K
TWINS = {  # the same events by another name
    "k_batch_sync/K=1": "k_sync/K=1",
    "k_batch_async/K=1": "k_async/K=1",
    "k_async/K=8": "k_sync/K=8",
}
GROUPS = [f"{p}/K={k}" for p in PROTOCOLS for k in K if f"{p}/K={k}" not in TWINS]
ETA_MAX = 1.0  # of the staleness-compensating rate, and a rate with which Async-SGD diverges
THRESHOLDS = (0.01, 0.1, 1.0)  # squared distances up to which ETA_MAX applies


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: Async-SGD. Arguments: law, a key of LAWS; model, logistic or cnn; batch, the samples
    of a mini-batch; seconds, the budget."""
    a = arguments.parse(arg, law="shifted_exponential", model="logistic", batch=4, seconds=600.0)
    for name, known in (("law", LAWS), ("model", MODELS)):
        if a[name] not in known:
            raise ValueError(f"unknown {name} {a[name]!r}; known are {', '.join(known)}")

    c = ConfigDict()
    c.name = f"k_async/K=1/rate={COMMON}"  # protocol/K/rate
    c.baseline = None  # each arm is compared with all others
    c.seed = 0  # initial parameters, samples and delays

    c.task = MODELS[a["model"]]
    c.split = "iid"

    c.runtime = "simulate"  # the asynchronous protocols know no other
    c.devices = 1
    c.rounds_per_dispatch = 1  # of a mesh
    c.workers = WORKERS
    c.batch_size = a["batch"]  # samples in a mini-batch
    c.mini_batches = 1  # a contribution is one mini-batch

    c.algorithm = "all_reduce"  # | compensated_rate(threshold=...)
    c.graph = "complete"  # unused, the workers talk to a server
    c.optimizer = ConfigDict({"name": "sgd", "learning_rate": COMMON})  # as in the paper's analysis

    c.wait = "k_async(k=1)"
    c.delay = LAWS[a["law"]]
    c.draw = "mini_batch"  # every mini-batch has a duration of its own
    c.communication = 0.0  # seconds

    c.seconds = a["seconds"]  # budget on the run's clock
    c.updates = 1_000_000  # budget in updates, whichever comes first
    c.evaluate_every = a["seconds"] / 200  # seconds on the run's clock
    c.target_loss = 1.0  # loose: guessing has 2.3
    c.stop_at_target = False  # the final loss matters too
    return c


def sweep():
    """Protocols, K and rates; then Async-SGD with the staleness-compensating rate."""
    for group in GROUPS:
        protocol, k = _split(group)
        for rate in RATES[k]:
            yield (
                f"{group}/rate={rate}",
                {"wait": f"{protocol}(k={k})", "optimizer.learning_rate": rate},
            )
    for threshold in THRESHOLDS:
        yield (
            f"compensated/threshold={threshold}/rate={ETA_MAX}",
            {
                "algorithm": f"compensated_rate(threshold={threshold})",
                "optimizer.learning_rate": ETA_MAX,
            },
        )


def claims(arms):
    """The trade-off with a common rate and with tuned ones, and what compensation allows."""
    target = arms[0]["target_loss"]
    choices = _choices(arms)
    for words, of_first, of_lowest in (
        (COMMONLY, COMMONLY, COMMONLY),
        (FIRST, FIRST, FIRST),
        ("each at the rate that suits it", FIRST, LOWEST),
    ):
        first = min(GROUPS, key=lambda group: _seconds(choices[of_first][group]))
        lowest = min(GROUPS, key=lambda group: _loss(choices[of_lowest][group]))
        yield (
            f"who is first at a loose loss does not end lowest (arXiv 1803.01113); {words}",
            f"first at {target:g}: {_described(first, choices[of_first][first])}\n"
            f"lowest: {_described(lowest, choices[of_lowest][lowest])}\n"
            f"{'they differ' if first != lowest else 'they are the same'}",
        )
    rates = (
        f"{group}: {_grid_place(choices[FIRST][group])}; {_grid_place(choices[LOWEST][group])}"
        for group in GROUPS
    )
    yield "(not claimed) the rates first at the target; ending lowest", "\n".join(rates)
    fixed = next(arm for arm in arms if arm["name"] == f"k_async/K=1/rate={ETA_MAX}")
    ours = [arm for arm in arms if arm["name"].startswith("compensated/")]
    yield (
        f"min(C / distance^2, eta_max) trains at an eta_max = {ETA_MAX:g} at which the fixed rate "
        "diverges",
        "\n".join(f"{arm['name']}: ends at {_shown(arm)}" for arm in [fixed, *ours])
        + f"\nguessing has {math.log(10):.4g}",
    )


def figures(workdir):
    """Write error_against_time.png: a row for each way to choose the rate, a panel per protocol."""
    workdir = Path(workdir)
    arms = json.loads((workdir / records.SUMMARY).read_text())["arms"]
    config = json.loads(next(workdir.rglob(records.CONFIG)).read_text())
    convex = config["task"] == MODELS["logistic"]
    lowest = error_against_time.lowest_loss(tasks.build(config["task"])) if convex else 0.0
    rows = {
        words: {
            protocol: {f"K={k}": _runs(workdir, chosen[_twin(f"{protocol}/K={k}")]) for k in K}
            for protocol in PROTOCOLS
        }
        for words, chosen in _choices(arms).items()
    }
    error_against_time.draw_error_against_time(
        rows, config["target_loss"], lowest, workdir / "error_against_time.png"
    )


COMMONLY, FIRST, LOWEST = f"common rate {COMMON}", "rate first at target", "rate ending lowest"


def _split(group: str) -> tuple[str, int]:
    protocol, _, k = group.partition("/K=")
    return protocol, int(k)


def _twin(group: str) -> str:
    return TWINS.get(group, group)


def _choices(arms) -> dict[str, dict[str, dict]]:
    """How the rate is chosen -> protocol/K -> arm."""
    rules = {
        COMMONLY: lambda arm: _rate(arm) != COMMON,
        FIRST: lambda arm: (_seconds(arm), _loss(arm)),
        LOWEST: _loss,
    }
    members = {
        group: [arm for arm in arms if arm["name"].startswith(f"{group}/")] for group in GROUPS
    }
    return {
        words: {group: min(several, key=key) for group, several in members.items()}
        for words, key in rules.items()
    }


def _rate(arm) -> float:
    return float(arm["name"].rpartition("=")[2])


def _seconds(arm) -> float:
    return math.inf if arm["seconds_to_target"] is None else arm["seconds_to_target"]


def _loss(arm) -> float:
    """At the end, a mean over the last tenth of the evaluations."""
    return math.inf if arm["final_train_loss"] is None else arm["final_train_loss"]


def _shown(arm) -> str:
    return "infinity" if math.isinf(_loss(arm)) else f"{_loss(arm):.4g}"


def _grid_place(arm) -> str:
    """The rate, with a warning where the best one may lie outside of the grid."""
    rates = RATES[_split(arm["name"].rpartition("/")[0])[1]]
    edge = " at the grid's end" if _rate(arm) in (rates[0], rates[-1]) else ""
    return f"rate {_rate(arm):g}{edge}"


def _described(group: str, arm) -> str:
    there = "never" if math.isinf(_seconds(arm)) else f"{_seconds(arm):.1f} s"
    return f"{group} ({there}, ends at {_shown(arm)}; {_grid_place(arm)})"


def _runs(workdir: Path, arm) -> list[list[dict]]:
    """The metrics of all seeds."""
    return [records.read_metrics(path.parent) for path in
            sorted((workdir / arm["name"]).rglob(records.METRICS))]  # fmt: skip
