"""Asynchronous SGD without and with local steps, its baselines, and uneven data."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments import stats
from experiments.papers.base import Panel, Records, Sweep, dots
from experiments.papers.slow_and_stale import same
from experiments.stats import END, SECONDS, Answer, Arm, Claim

TITLE = "Asynchronous methods"
SWEEPS = (
    Sweep("async_baselines", "--config=configs/async_baselines.py --sweep --seeds=5 --together",
          0.3),
    Sweep("frontier_async", "--config=configs/frontier_async.py --sweep --seeds=3 --together", 0.7),
)  # fmt: skip
PLAIN, FASTEST = "async_sgd", "k_sync"  # without a limit to staleness; waiting for the fastest


def _first(arms: Sequence[Arm], methods: Sequence[str]) -> Arm:
    """Return the first at the target of these methods, which lies inside of its grid.

    Settings at which a method is Async-SGD are in its grid, and are left to Async-SGD.
    """
    plain = {stats.settings(arm["name"])["rate"]: arm for arm in stats.group(arms, PLAIN)}
    found = []
    for method in methods:
        members = stats.group(arms, method)
        acting = [
            arm
            for arm in members
            if method == PLAIN or not same(arm, plain[stats.settings(arm["name"])["rate"]], SECONDS)
        ]
        if stats.has(acting, method, SECONDS):
            found.append(stats.best(acting, SECONDS))
            if at_end := stats.ends(found[-1], members):
                raise stats.Inconclusive(f"{at_end[0]} of {found[-1]['name']} ends its grid")
    return stats.best(found, SECONDS)


def better_left_out(arms: Sequence[Arm], _) -> Answer:
    """Judge the quickest method that limits staleness against Async-SGD."""
    limited = [name for name in _methods(arms) if name.startswith(("ringmaster", "rennala"))]
    return stats.compare(_first(arms, limited), _first(arms, [PLAIN]), SECONDS)


def nearly_optimal(arms: Sequence[Arm], _) -> Answer:
    """Judge the quickest K of K-sync against the quickest of all other methods."""
    rivals = [name for name in _methods(arms) if name != FASTEST]
    return stats.compare(_first(arms, [FASTEST]), _first(arms, rivals), SECONDS, 1.1)


def _methods(arms: Sequence[Arm]) -> list[str]:
    return list(dict.fromkeys(arm["name"].partition("/")[0] for arm in arms))


def _below(source: str, ours: str, theirs: str) -> Claim:
    """Return the claim that a method ends below another one after the same seconds."""
    return Claim(f"one worker 4x slower: {ours} ends below {theirs}", source, "frontier_async",
                 ours, theirs, END, tuned=True, equal=("seconds",))  # fmt: skip


CLAIMS = (
    Claim("less time than Async-SGD, as old gradients are left out",
          "arXiv 2501.16168 and 2305.12387", "async_baselines", judge=better_left_out),
    Claim("the fastest K workers take at most 1.1x the time of the first of all methods",
          "arXiv 2602.03802", "async_baselines", judge=nearly_optimal),
    _below("arXiv 2401.09135", "async_diloco", "async_nesterov"),
    _below("arXiv 2401.09135", "async_diloco", "async_average"),
    _below("arXiv 2401.09135", "async_diloco_by_speed", "async_diloco"),
    _below("", "async_diloco", "diloco"),
    _below("arXiv 2509.22860", "ringleader", "ringmaster"),
    _below("arXiv 2509.22860", "ringleader", "rennala"),
)  # fmt: skip
FRONTIER = {
    "diloco": "DiLoCo, all wait",
    "async_nesterov": "momentum at every push",
    "async_average": "averages, no momentum",
    "async_diloco": "asynchronous DiLoCo",
    "async_diloco_by_speed": "the same, steps by speed",
    "ringleader": "Ringleader, uneven data",
    "ringmaster": "Ringmaster, uneven data",
    "rennala": "Rennala, uneven data",
    "k_async": "K-async, uneven data",
}
BASELINES = {
    "async_sgd": "Async-SGD",
    "delay_adaptive": "delay-adaptive rate",
    "inverse_staleness": "inverse staleness",
    "hinge": "hinge of staleness",
    "fedbuff": "FedBuff",
    "dc_asgd": "DC-ASGD",
    "compensated": "compensated rate",
    "ringmaster_ignore": "Ringmaster, ignores",
    "ringmaster_interrupt": "Ringmaster, interrupts",
    "rennala_ignore": "Rennala, ignores",
    "rennala_interrupt": "Rennala, interrupts",
    "k_sync": "K-sync",
}


def figure(records: Records) -> Figure:
    """Draw losses after the same time on the left, seconds to a loss on the right."""
    panels = [
        Panel("one worker 4x slower", "frontier_async", FRONTIER, END, "training loss at the end",
              log=True),
        Panel("one worker 10x slower", "async_baselines", BASELINES),
    ]  # fmt: skip
    return dots(panels, records)
