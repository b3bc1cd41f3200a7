"""Slow and stale gradients (Dutta et al., arXiv 1803.01113): K-sync, K-async and their batch forms.

Beside its claims stands the runtime of an update, in theory and simulated; that trains nothing.
"""

import math
from typing import Any

from ml_collections import ConfigDict

from experiments import analysis, prepare, registry, tables
from experiments.papers.base import Lines, Panel, Sweep, draw, drawn, is_positive, swept
from experiments.papers.nonblocking import follows_theory
from experiments.stats import END, Claim
from stragglers import theory
from stragglers.delays import Law
from stragglers.rule import Setting
from stragglers.rules import RULES

TITLE = "Slow and stale gradients"
PAPER = "arXiv 1803.01113"
SWEEPS = (
    swept("slow_and_stale", "slow_and_stale.py", 0.3, seeds=5),
    Sweep("runtime_analysis", "--config=configs/runtime_analysis.py", 0.02),
    swept("slow_and_stale_real", "slow_and_stale.py:real", 0.7, last=""),
)
# The numbers of mini-batches that the swept protocols wait for.
PROTOCOLS = {"k_sync": (1, 2, 4, 8), "k_batch_sync": (2, 4, 8),
             "k_async": (1, 2, 4), "k_batch_async": (2, 4, 8)}  # fmt: skip
FIXED = "k_async/K=1"
WITH, WITHOUT = (
    tuple(f"{name}/K={k}" for name, ks in PROTOCOLS.items() if name.endswith(kind) for k in ks)
    for kind in ("_sync", "_async")
)
CLAIMS = (
    Claim("K-async with K = 1 is first at the target and does not end lowest, at one rate",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=4/rate=0.16",
          f"{FIXED}/rate=0.16", END),
    Claim("at its best rate, the first at the target, k_async/K=2, does not end lowest",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=2", "k_async/K=2", END,
          tuned=True, equal=("seconds",)),
    Claim("the lowest end without waiting is below the lowest with waiting", "", "slow_and_stale",
          WITHOUT, WITH, END, tuned=True, equal=("seconds",)),
    Claim("a staleness-compensating rate ends 1 % lower than the tuned fixed rate",
          f"{PAPER}, Sec. 4", "slow_and_stale", "compensated", FIXED, END, 0.99, tuned=True),
    Claim("expected seconds of an update are within 5 % of simulated ones", f"{PAPER}, Sec. 3",
          "runtime_analysis", judge=follows_theory("points", 0.05)),
    Claim("the staleness of processes under K-async is at most 1.1x that of simulated ones",
          f"{PAPER}, Sec. 3", "slow_and_stale_real", f"real/exponential/{FIXED}",
          f"simulated/exponential/{FIXED}", "staleness_mean", 1.1),
)  # fmt: skip
GROUPS = {name: name.replace("/K=", ", K = ") for name in WITH + WITHOUT} | {
    f"compensated/threshold={c}": f"compensated, C = {c:g}" for c in (0.01, 0.1, 1.0)
}
figure = drawn(
    Panel("first at training loss 1", "slow_and_stale", GROUPS),
    Panel("after the same time", "slow_and_stale", GROUPS, END),
)


# --- the runtime of an update: nothing is trained ---

def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return seconds per update (1803.01113, Section 3), in theory and simulated.

    config: `delays` {name: part}, iid distributions; `workers`, a sequence; `share` of them and
    number `k` that the server waits for; `pushes` to simulate for every point; `seed`. Raise
    ValueError, before any simulation, for a config that makes no sense.
    """
    several = registry.several(registry.is_count)
    registry.check(config, [("positive whole numbers", several, ("workers",))])
    few, most = min(config.workers), max(config.workers)
    registry.check(config, [
        (f"a whole number from 1 to {few}, the fewest workers",
         lambda v: registry.is_count(v) and v <= few, ("k",)),
        ("a share above 0 and up to 1", lambda v: is_positive(v) and v <= 1, ("share",)),
        ("a positive whole number", registry.is_count, ("pushes",)),
        registry.SEED,
        ("delays by name", lambda v: hasattr(v, "items") and len(v), ("delays",)),
    ])  # fmt: skip
    laws = {name: prepare.build_delay(part) for name, part in config.delays.items()}
    for name, law in laws.items():
        if not isinstance(law, Law) or math.isinf(law.mean()):
            raise ValueError(
                f"config.delays.{name} must be an iid law with a mean, got {config.delays[name]!r};"
                " theory knows no others"
            )
    cases = {f"K = {config.share:g} P": lambda workers: max(1, round(config.share * workers)),
             f"K = {config.k}": lambda workers: config.k}  # fmt: skip
    found = [
        _runtime(config, name, law, rule, case, workers, k_of(workers))
        for case, k_of in cases.items() for name, law in laws.items()
        for rule in PROTOCOLS for workers in config.workers
    ]  # fmt: skip

    def cell(point) -> str:
        bounds = dict.fromkeys(f"{point[bound]:.4g}" for bound in ("low", "high"))
        return f"{point['simulated']:.4g} ({' to '.join(bounds)})"

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


def _runtime(
    config, name: str, law: Law, rule: str, case: str, workers: int, k: int
) -> dict[str, Any]:
    """Return the seconds between two updates, expected and simulated."""
    low, high = theory.runtime_bounds(rule, law, k, workers)
    simulated = RULES[rule](Setting(law, workers, 1, config.seed), k=k)
    state, begin = simulated.init(), 0.0
    if simulated.asynchronous:  # all workers begin together, which takes a while to forget
        state, schedule = simulated.extend(state, math.ceil(10 * workers / k))
        begin = schedule.time[-1]
    updates = max(500, config.pushes // k)
    _, schedule = simulated.extend(state, updates)
    seconds = float(schedule.time[-1] - begin) / updates
    return {
        "delay": name, "rule": rule, "case": case,  # how K depends on the workers
        "workers": workers, "k": k,
        "low": low, "high": high,  # what theory allows; equal where it is known
        "simulated": seconds,
        "error": max(seconds / high - 1, 1 - seconds / low, 0.0),  # relative, from what it allows
    }  # fmt: skip
