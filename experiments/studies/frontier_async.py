"""Asynchronous local steps: which outer momentum bears stale progress, and who should step less."""

import math
from collections.abc import Iterator

from experiments.parts import part
from experiments.studies import grids
from stragglers import local_updates

LOCAL_STEPS, WORKERS, FACTOR = 20, 8, 4
# The best of DiLoCo's outer rates and momenta (arXiv 2311.08105, Sec. 3.1).
OUTER = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7)
GENTLE = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7 / WORKERS)
AVERAGING = part("sgd", learning_rate=1 / WORKERS)
BY_SPEED = local_updates.dynamic([1 / FACTOR, *[1.0] * (WORKERS - 1)], LOCAL_STEPS)


def _pushed(**changes) -> dict:
    """The server updates at every push."""
    return {"wait": part("k_async", k=1)} | changes


GROUPS = {  # method -> what it changes
    "diloco": {},
    "async_nesterov": _pushed(algorithm=part("local_sgd", server=OUTER)),
    "async_nesterov_small": _pushed(algorithm=part("local_sgd", server=GENTLE)),
    "async_average": _pushed(algorithm=part("local_sgd", server=AVERAGING)),
    "async_diloco": _pushed(algorithm=part("async_diloco")),
    "async_diloco_by_speed": _pushed(algorithm=part("async_diloco"), mini_batches=list(BY_SPEED)),
}
RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
CLAIMS = (  # ours, theirs, what is said of them (arXiv 2401.09135)
    ("async_diloco", "async_nesterov", "momentum at every push suffers, delayed does not"),
    ("async_diloco", "async_nesterov_small", "nor is it the outer rate alone"),
    ("async_diloco", "async_average", "delayed momentum helps"),
    ("async_diloco_by_speed", "async_diloco", "local steps by speed help"),
    ("async_diloco", "diloco", "nobody waits for the slow worker"),
)


def arms() -> Iterator[tuple[str, dict]]:
    """(method/rate, entries of its config)."""
    for group, changes in GROUPS.items():
        for rate in RATES:
            yield f"{group}/rate={rate:g}", changes | {"optimizer.learning_rate": rate}


def claims(arms) -> Iterator[tuple[str, str]]:
    """What is claimed beside this sweep, at the rate of each method that ends lowest."""
    best = grids.best(arms, GROUPS)
    for ours, theirs, claim in CLAIMS:
        if ours in best and theirs in best:
            yield f"{claim}: {ours} against {theirs}", _beside(best[ours], best[theirs])
    yield (
        "(not claimed) rates that end lowest lie inside of their grids",
        grids.at_ends(arms, GROUPS),
    )


def _beside(ours: dict, theirs: dict) -> str:
    """Losses after the same seconds, where a difference counts that is above the deviations."""
    loss, other = (grids.final_loss(arm) for arm in (ours, theirs))
    noise = max(arm.get("train_loss_std") or 0.0 for arm in (ours, theirs))
    close = math.isfinite(other) and abs(other - loss) <= noise
    verdict = "within the deviation" if close else "yes" if loss < other else "no"
    return (
        f"{verdict}: loss {loss:.3g} against {other:.3g} at rates "
        f"{ours['config'].optimizer.learning_rate:g} and "
        f"{theirs['config'].optimizer.learning_rate:g}; to the target "
        f"{_seconds(ours)} against {_seconds(theirs)}"
    )


def _seconds(arm: dict) -> str:
    seconds = arm.get("seconds_to_target")
    return "never" if seconds is None else f"{seconds:.3g} s"
