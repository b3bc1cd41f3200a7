"""How the baselines of Asynchronous SGD rank, each at its best rate and setting."""

from collections.abc import Iterator, Sequence

from experiments import premises
from experiments.numbers import Numbers

SECONDS = "seconds_to_target"
NEARLY = 1.1  # times the time of the best: nearly optimal
PLAIN, FASTEST = "async_sgd", "k_sync"  # without a limit to staleness; waiting for the fastest
FRESH = ("ringmaster", "rennala")  # what ignores, or interrupts, gradients that are too old


def claims(arms) -> Iterator[tuple[str, str]]:
    """What two papers say of the methods at their best settings."""
    yield (
        "gradients that are too old are better left out (arXiv 2305.12387, 2501.16168)",
        premises.text(better_left_out, arms),
    )
    yield (
        f"waiting for the fastest of all takes at most {NEARLY:g}x the time of the first "
        "(m-Synchronous SGD, arXiv 2602.03802)",
        premises.text(nearly_optimal, arms),
    )


def better_left_out(arms: Sequence[dict]) -> premises.Answer:
    """The quickest method that limits staleness against Async-SGD."""
    (plain,) = _tuned(arms, [PLAIN])
    limited = _tuned(arms, [name for name in _methods(arms) if name.startswith(FRESH)])
    return premises.at_most(_first(limited), plain, SECONDS)


def nearly_optimal(arms: Sequence[dict]) -> premises.Answer:
    """The quickest K of K-sync against whoever is quickest besides."""
    (ours,) = _tuned(arms, [FASTEST])
    rivals = _tuned(arms, sorted({*_methods(arms)} - {FASTEST}))
    return premises.at_most(ours, _first(rivals), SECONDS, factor=NEARLY)


def numbers(arms) -> Iterator[Numbers]:
    """The ranking at the best settings, of which some are Async-SGD or end a grid."""
    rows = []
    for method in _methods(arms):
        members = premises.group(arms, method)
        try:
            best = premises.best(members, SECONDS)
        except premises.CannotTell:
            rows.append((float("inf"), (method, "never", "", "")))
            continue
        chosen = ", ".join(f"{key}={v:g}" for key, v in premises.settings(best["name"]).items())
        ends = ", ".join(f"{key} at its grid's end" for key in premises.ends(best, members))
        remark = f"the same as {PLAIN}" if _unchanged(best, arms) else ends
        rows.append((best[SECONDS], (method, f"{best[SECONDS]:.1f} s", chosen, remark)))
    yield Numbers(
        f"first at a loss of {arms[0]['target_loss']:g}, each at its best",
        ("method", "seconds", "setting", "remark"),
        [row for _, row in sorted(rows)],
    )


def _methods(arms: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(arm["name"].partition("/")[0] for arm in arms))


def _tuned(arms: Sequence[dict], methods: Sequence[str]) -> list[dict]:
    """The best arms of the methods that come to the target, all inside of their grids.

    Settings at which a method is Async-SGD are in its grid, and are left to Async-SGD.
    """
    found = []
    for method in methods:
        members = premises.group(arms, method)
        try:
            best = premises.best([arm for arm in members if not _unchanged(arm, arms)], SECONDS)
        except premises.CannotTell:
            continue
        premises.inside(best, members)
        found.append(best)
    if not found:
        raise premises.CannotTell(f"no arm of {', '.join(methods)} came to the target")
    return found


def _unchanged(arm: dict, arms: Sequence[dict]) -> bool:
    """Whether an arm of another method is Async-SGD at the same rate, in every seed."""
    rate = premises.settings(arm["name"])["rate"]
    plain = [one for one in premises.group(arms, PLAIN) if one["name"].endswith(f"/rate={rate:g}")]
    return not arm["name"].startswith(f"{PLAIN}/") and any(
        premises.same(arm, one, SECONDS) for one in plain
    )


def _first(arms: Sequence[dict]) -> dict:
    return min(arms, key=lambda arm: arm[SECONDS])
