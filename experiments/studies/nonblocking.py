"""What Non-blocking SGD claims over three mixers (He & Dube, arXiv 2211.00889)."""

from collections.abc import Iterator

from experiments.studies import grids


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's claim beside the gains of this sweep, and what its run-time model expects.

    If the number of updates limits training the gain is that of rounds per second; if gradient
    noise does, it is that of samples per second.
    """
    by_name = {arm["name"]: arm for arm in arms}
    for mixer in _mixers(arms):
        ours, theirs = by_name[f"{mixer}/nonblocking"], by_name[f"{mixer}/blocking"]
        gain = "target not reached"
        if ours["seconds_to_target"] and theirs["seconds_to_target"]:
            gain = f"{theirs['seconds_to_target'] / ours['seconds_to_target']:.2f}x"
        if not theirs["updates"] or None in (ours["test_accuracy"], theirs["test_accuracy"]):
            continue  # nothing to compare
        rounds, samples = (
            (ours[unit] / ours["seconds"]) / (theirs[unit] / theirs["seconds"])
            for unit in ("updates", "samples")
        )
        points = 100 * (ours["test_accuracy"] - theirs["test_accuracy"])
        yield (
            f"{mixer}: up to 2x less time to the same training loss (arXiv 2211.00889)",
            f"{gain} at equal samples per round; expected {rounds:.2f}x if updates limit, "
            f"{samples:.2f}x if noise does; final accuracy {points:+.2f} points",
        )


def tuned_claims(arms) -> Iterator[tuple[str, str]]:
    """Best against best, and whether the optimum lies inside the grid."""
    for mixer in _mixers(arms):
        found = {v: best(arms, f"{mixer}/{v}") for v in ("blocking", "nonblocking")}
        if None in found.values():
            yield f"{mixer}: best non-blocking against best blocking", "a target was not reached"
            continue
        described = ", ".join(f"{v} {_described(arm, arms)}" for v, arm in found.items())
        gain = found["blocking"]["seconds_to_target"] / found["nonblocking"]["seconds_to_target"]
        yield f"{mixer}: best non-blocking against best blocking", f"{gain:.2f}x: {described}"


def best(arms, group: str) -> dict | None:
    """The arm of `method/variant` that is at the target first; None: none gets there."""
    reached = [
        arm
        for arm in arms
        if arm["name"].startswith(group + "/") and arm["seconds_to_target"] is not None
    ]
    return min(reached, key=lambda arm: arm["seconds_to_target"], default=None)


def _described(arm, arms) -> str:
    """Time, place in the grid, and a warning where the optimum may lie outside of it."""
    return f"{arm['seconds_to_target']:.2f} s ({', '.join(grids.place(arm, grids.axes(arms)))})"


def _mixers(arms) -> list[str]:
    return list(dict.fromkeys(arm["name"].partition("/")[0] for arm in arms))
