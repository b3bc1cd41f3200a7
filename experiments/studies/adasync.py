"""What AdaSync claims against every fixed K (Dutta, Wang, Joshi, arXiv 2003.10579)."""

from collections.abc import Iterator

from experiments import aggregates

TARGETS = (1.0, 0.5, 0.35, 0.3)  # training losses: the last two are below the floor of K = 1


def claims(arms) -> Iterator[tuple[str, str]]:
    """At every target: AdaSync's time over that of the best fixed K (means over the seeds)."""
    for target in TARGETS:
        seconds = {arm["name"]: _mean_seconds(arm["metrics"], target) for arm in arms}
        ours = seconds.pop("adasync")
        reached = {name: value for name, value in seconds.items() if value is not None}
        claim = f"AdaSync: about as fast as the best fixed K to train loss {target} (2003.10579)"
        if ours is None or not reached:
            yield claim, "a target was not reached by every seed"
            continue
        best = min(reached, key=reached.get)
        others = ", ".join(
            f"{name.removeprefix('fixed/')} " + ("never" if value is None else f"{value:.1f} s")
            for name, value in seconds.items()
        )
        yield claim, f"{ours / reached[best]:.2f}x: {ours:.1f} s against {others}"


def _mean_seconds(repeats, target: float) -> float | None:
    values = [aggregates.at_target(metrics, target) for metrics in repeats]
    return None if None in values else sum(values) / len(values)
