"""What AdaSync claims against every fixed K (Dutta, Wang, Joshi, arXiv 2003.10579)."""

import math
from collections.abc import Iterator, Sequence

from experiments import aggregates, premises

TARGETS = (1.0, 0.5, 0.35, 0.3)  # training losses, and the lowest that any arm reaches
ABOUT = 1.1  # times the time of the best fixed K: as fast as it
SECONDS = "seconds_to_target"
WAYS = {
    "adasync": "AdaSync",
    "adasync_sqrt": "AdaSync with a rate that follows the square root of K",
    "adasync_linear": "AdaSync with a rate in proportion to K",
}


def claims(arms) -> Iterator[tuple[str, str]]:
    """At every target: AdaSync's time beside that of the best fixed K, each at its best rate."""
    lowest = _lowest(arms)
    for ours, way in WAYS.items():
        for target in (*TARGETS, *([lowest] if lowest < min(TARGETS) else ())):
            yield of_target(way, target), premises.text(about_as_fast, arms, target, ours)


def of_target(way: str, target: float) -> str:
    """The words of the claim about a training loss."""
    return (
        f"{way}: at most {ABOUT:g}x the time of the best fixed K to train loss {target:g}, each at "
        "its best rate (arXiv 2003.10579)"
    )


def about_as_fast(arms: Sequence[dict], target: float, ours: str) -> premises.Answer:
    """A way of AdaSync against the K that is first, both tuned; a K that never arrives is out."""
    timed = [
        premises.per_seed(
            arm, SECONDS, [aggregates.at_target(run, target) for run in arm["metrics"]]
        )
        for arm in arms
    ]
    adaptive = premises.tuned(timed, ours, SECONDS)
    rivals, never = [], []
    for group in dict.fromkeys(arm["name"].rpartition("/rate=")[0] for arm in timed):
        if not group.startswith("fixed/"):
            continue
        try:
            premises.best(premises.group(timed, group), SECONDS)
        except premises.CannotTell:
            never.append(group)
            continue
        rivals.append(premises.tuned(timed, group, SECONDS))
    if not rivals:
        raise premises.CannotTell("no fixed K came to the target in every seed")
    first = min(rivals, key=lambda arm: arm[SECONDS])
    found = premises.at_most(adaptive, first, SECONDS, factor=ABOUT)
    others = [f"{arm['name']} {arm[SECONDS]:.1f} s" for arm in rivals if arm is not first]
    others += [f"{group} never" for group in never]
    return found._replace(measured="; ".join([found.measured, *others]))


def _lowest(arms: Sequence[dict]) -> float:
    """The least loss that some arm reaches in every seed, with three digits, rounded up."""
    reached = [
        max(
            min((r["train_loss"] for r in run if r["train_loss"] is not None), default=math.inf)
            for run in arm["metrics"]
        )
        for arm in arms
    ]
    least = min(reached, default=math.inf)
    if not math.isfinite(least) or least <= 0:
        return math.inf
    unit = 10.0 ** (math.floor(math.log10(least)) - 2)
    return math.ceil(least / unit) * unit
