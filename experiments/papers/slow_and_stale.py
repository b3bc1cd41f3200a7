"""Slow and stale gradients (Dutta et al., arXiv 1803.01113): K-sync, K-async and their batch forms.

Beside its claims stands the runtime of an update, in theory and simulated; that trains nothing.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments import analysis, prepare, registry, stats, tables
from experiments.papers.base import Lines, Panel, Records, Sweep, draw
from experiments.papers.nonblocking import follows_theory
from experiments.stats import END, Arm, Claim
from stragglers import theory
from stragglers.delays import Law
from stragglers.rule import Setting
from stragglers.rules import RULES

TITLE = "Slow and stale gradients"
PAPER = "arXiv 1803.01113"
SWEEPS = (
    Sweep("slow_and_stale", "--config=configs/slow_and_stale.py --sweep --seeds=5 --together", 0.3),
    Sweep("runtime_analysis", "--config=configs/runtime_analysis.py", 0.02),
    Sweep("slow_and_stale_real", "--config=configs/slow_and_stale.py:real --sweep --seeds=3", 0.7),
)
PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
FIXED = "k_async/K=1"


CLAIMS = (
    Claim("at one rate for all, the first at the target, k_async/K=1, does not end lowest",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=4/rate=0.16",
          f"{FIXED}/rate=0.16", END),
    Claim("at its best rate, the first at the target, k_async/K=2, does not end lowest",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=2", "k_async/K=2", END,
          tuned=True, equal=("seconds",)),
    Claim("the lowest end without waiting is below the lowest with waiting", "", "slow_and_stale",
          ("k_async/K=1", "k_async/K=2", "k_async/K=4", "k_batch_async/K=2", "k_batch_async/K=4",
           "k_batch_async/K=8"),
          ("k_sync/K=1", "k_sync/K=2", "k_sync/K=4", "k_sync/K=8", "k_batch_sync/K=2",
           "k_batch_sync/K=4", "k_batch_sync/K=8"), END, tuned=True, equal=("seconds",)),
    Claim("a staleness-compensating rate ends 1 % lower than the tuned fixed rate",
          f"{PAPER}, Sec. 4", "slow_and_stale", "compensated", FIXED, END, 0.99, tuned=True),
    Claim("expected seconds of an update are within 5 % of simulated ones", f"{PAPER}, Sec. 3",
          "runtime_analysis", judge=follows_theory("points", 0.05)),
    Claim("the staleness of processes under K-async is at most 1.1x that of simulated ones",
          f"{PAPER}, Sec. 3", "slow_and_stale_real", f"real/exponential/{FIXED}",
          f"simulated/exponential/{FIXED}", "staleness_mean", 1.1),
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw the seconds to a loose loss, and how low training ends, each at its best rate."""
    groups = {f"{protocol}/K={k}": f"{protocol}, K = {k}" for protocol in PROTOCOLS
              for k in (1, 2, 4, 8)} | {f"compensated/threshold={c}": f"compensated, C = {c:g}"
                                        for c in (0.01, 0.1, 1.0)}  # fmt: skip
    known = stats.groups(stats.arms(records("slow_and_stale")))
    groups = {name: label for name, label in groups.items() if name in known}
    panels = [
        Panel("first at training loss 1", "slow_and_stale", groups),
        Panel("after the same time", "slow_and_stale", groups, END, "training loss at the end"),
    ]
    return draw(panels, records)


# --- the runtime of an update: nothing is trained ---

ENTRIES = (
    ("a share above 0 and up to 1", lambda v: registry.is_number(v) and 0 < v <= 1, ("share",)),
    ("a positive whole number", registry.is_count, ("pushes",)),
    registry.SEED,
    ("delays by name", lambda v: hasattr(v, "items") and len(v), ("delays",)),
)


class Runtime(NamedTuple):
    """Seconds between two updates, expected and simulated."""

    delay: str
    rule: str
    case: str  # how K depends on the workers
    workers: int
    k: int
    low: float  # s, the least that theory allows; equal to `high` where it is known
    high: float  # s, infinite where there is no bound
    simulated: float  # s
    error: float  # relative distance of the simulation from what theory allows


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return seconds per update (1803.01113, Section 3), in theory and simulated.

    config: `delays` {name: part}, iid distributions; `workers`, a sequence; `share` of them and
    number `k` that the server waits for; `pushes` to simulate for every point; `seed`. Raise
    ValueError, before any simulation, for a config that makes no sense.
    """
    several = registry.several(registry.is_count)
    registry.check(config, [("positive whole numbers", several, ("workers",))])
    fewest = min(config.workers)
    words = f"a whole number from 1 to {fewest}, the fewest workers"
    few = words, lambda v: registry.is_count(v) and v <= fewest, ("k",)
    registry.check(config, [few, *ENTRIES])
    laws = {name: prepare.build_delay(part) for name, part in config.delays.items()}
    for name, law in laws.items():
        if not isinstance(law, Law) or math.isinf(law.mean()):
            raise ValueError(
                f"config.delays.{name} must be an iid law with a mean, got {config.delays[name]!r};"
                " theory knows no others"
            )
    cases = {f"K = {config.share:g} P": lambda workers: max(1, round(config.share * workers))}
    cases |= {f"K = {config.k}": lambda workers: config.k}
    points = [
        _runtime(config, name, law, rule, case, workers, k_of(workers))
        for case, k_of in cases.items()
        for name, law in laws.items()
        for rule in PROTOCOLS
        for workers in config.workers
    ]
    found = [point._asdict() for point in points]
    few, most = min(config.workers), max(config.workers)

    def cell(point) -> str:
        bounds = point["low"], point["high"]
        known = f"{bounds[0]:.4g}" if bounds[0] == bounds[1] else "{:.4g} to {:.4g}".format(*bounds)
        return f"{point['simulated']:.4g} ({known})"

    table = tables.pivot(
        "seconds per update by workers, simulated (expected)",
        [point for point in found if point["workers"] in (few, most)],
        lambda point: "{case}, {delay}, {rule}".format(**point).replace("_", " "),
        lambda point: f"{point['workers']}", cell,
    )  # fmt: skip
    panels = [
        Lines(f"{name.replace('_', ' ')}, {case}",
              [p for p in found if (p["case"], p["delay"]) == (case, name)], "workers", "simulated",
              "rule", ("workers", "seconds per update"), ("low", "high"), log=True)
        for case in cases for name in laws
    ]  # fmt: skip
    return analysis.Analysis({"points": found}, [table], draw(panels, columns=len(laws)), CLAIMS)


def _runtime(config, name: str, law: Law, rule: str, case: str, workers: int, k: int) -> Runtime:
    low, high = theory.runtime_bounds(rule, law, k, workers)
    simulated = RULES[rule](Setting(law, workers, 1, config.seed), k=k)
    state, begin = simulated.init(), 0.0
    if simulated.asynchronous:  # all workers begin together, which takes a while to forget
        state, schedule = simulated.extend(state, math.ceil(10 * workers / k))
        begin = schedule.time[-1]
    updates = max(500, config.pushes // k)
    _, schedule = simulated.extend(state, updates)
    seconds = float(schedule.time[-1] - begin) / updates
    error = max(seconds / high - 1, 1 - seconds / low, 0.0)
    return Runtime(name, rule, case, workers, k, low, high, seconds, error)


def numbers(arms: Sequence[Arm]) -> Iterator[stats.Numbers]:
    """Give seconds per update and staleness of every real arm beside its simulation."""
    rows = []
    for place in (arm["name"].removeprefix("real/") for arm in arms if "real/" in arm["name"]):
        pair = stats.named(arms, f"real/{place}", f"simulated/{place}")
        rows.append((place, *(f"{arm['seconds'] / arm['updates']:.4g}" for arm in pair),
                     *(f"{arm['staleness_mean']:.3g}" for arm in pair)))  # fmt: skip
    yield stats.Numbers(
        "seconds per update, then staleness",
        ("law/protocol/K", "real [s]", "simulated [s]", "staleness, real", "simulated"),
        rows,
    )
