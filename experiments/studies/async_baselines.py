"""How the baselines of Asynchronous SGD rank, each at its best rate and setting."""

import math
from collections.abc import Iterator

from experiments.studies import grids


def claims(arms) -> Iterator[tuple[str, str]]:
    """The ranking at the best settings, and what two papers say of it."""
    methods = dict.fromkeys(arm["name"].partition("/")[0] for arm in arms)
    found = {method: best(arms, method) for method in methods}
    ranking = sorted(found, key=lambda m: (_seconds(found[m]), _loss(found[m])))
    yield (
        f"first at a loss of {arms[0]['target_loss']:g}, each at its best",
        "\n".join(f"{_there(found[m])}  {_described(found[m], arms)}" for m in ranking),
    )
    plain = found["async_sgd"]
    for words, methods in (
        (
            "gradients that are too old are better left out (arXiv 2305.12387, 2501.16168)",
            [m for m in found if m.startswith(("ringmaster", "rennala"))],
        ),
        (
            "waiting for the fastest of all is nearly optimal "
            "(m-Synchronous SGD, arXiv 2602.03802)",
            ["k_sync"],
        ),
    ):
        first = min(methods, key=lambda method: _seconds(found[method]))
        ratio = _seconds(found[first]) / _seconds(plain)
        measured = f"{first} takes {ratio:.2f}x the time of Async-SGD"
        yield words, measured if math.isfinite(ratio) else "a target was not reached"


def best(arms, method: str) -> dict:
    """The arm of a method that is at the target first, or the one that comes closest to it."""
    own = [arm for arm in arms if arm["name"].startswith(f"{method}/")]
    return min(own, key=lambda arm: (_seconds(arm), _loss(arm)))


def _seconds(arm) -> float:
    return math.inf if arm["seconds_to_target"] is None else arm["seconds_to_target"]


def _loss(arm) -> float:
    return math.inf if arm["final_train_loss"] is None else arm["final_train_loss"]


def _there(arm) -> str:
    return f"{_seconds(arm):6.1f} s" if math.isfinite(_seconds(arm)) else "   never"


def _described(arm, arms) -> str:
    """The place in the grid, and a warning where the optimum may lie outside of it."""
    method = arm["name"].partition("/")[0]
    own = [other for other in arms if other["name"].startswith(f"{method}/")]
    return f"{method} ({', '.join(grids.place(arm, grids.axes(own)))})"
