"""Stragglers in the data: the samples that waiting rules keep when long ones take longer.

Sixteen workers of one speed fit the mean of points; long samples are points on one side of it. A
rule that drops late work drops long samples, and ends away from the optimum; others carry them
over, finish them, or balance them across workers.

    --config=configs/sample_costs.py:task=text
"""

from collections.abc import Iterator, Sequence

import numpy as np

from configs import arguments, base
from experiments import stats
from experiments.registry import part

# Task, learning rate, virtual seconds.
TASKS = {
    "points": (part("uneven_lengths"), 0.02, 4000.0),
    "text": (part("next_token", model="lstm", packing=False, length=128), 0.5, 400.0),
}
BARRIER, DROPPED = "barrier", "nonblocking/drop"


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: non-blocking rounds that carry unfinished work on.

    Arguments: task, points or text; workers; packing, packed or padded mini-batches.
    """
    a = arguments.parse(arg, task="points", workers=16, packing="packed")
    task, rate, seconds = arguments.chosen(a, "task", TASKS)
    return base.arm(
        name="nonblocking/carry",
        task=task,
        workers=a["workers"],
        batch_size=1,
        mini_batches=8,
        wait=part("first_finisher"),
        delay=part("deterministic", value=1.0),
        optimizer=part("sgd", learning_rate=rate),
        seconds=seconds,
        evaluate_every=seconds / 20,
        sample_cost=a["packing"],
        balance=False,
    )


def sweep() -> base.Arms:
    """Yield rules that wait, rules that drop work, and remedies."""

    def rounds(leftovers: str, in_flight: str) -> dict:
        return {"wait": part("first_finisher", leftovers=leftovers, in_flight=in_flight)}

    yield BARRIER, {"wait": part("barrier")}
    yield DROPPED, rounds("drop", "cut")
    yield "nonblocking/weighted", rounds("drop", "cut") | {"sample_weight": "kept"}
    yield "nonblocking/finish", rounds("drop", "finish")
    yield "nonblocking/carry", rounds("carry", "finish")
    yield "nonblocking/again", rounds("carry", "cut")
    yield "anytime/drop", {"wait": part("anytime", seconds=8.0)}
    yield "drop_compute/drop", {"wait": part("drop_compute")}
    yield "k_sync/drop", {"wait": part("k_sync", k=14)}
    yield "tokens", {"wait": part("equal_work", cost=8.0), "mini_batches": 16}
    yield "barrier/balanced", {"wait": part("barrier"), "balance": True}
    yield "nonblocking/balanced", rounds("carry", "cut") | {"balance": True}


def numbers(arms: Sequence[stats.Arm]) -> Iterator[stats.Numbers]:
    """Yield the arms' speeds, the shares of samples that they keep by cost, and losses by cost.

    Speed is samples per second over the barrier's. Long samples are the costliest tenth; short ones
    are the cheaper half in the shares kept, and the cheapest tenth in the losses.
    """
    by_name = {arm["name"]: arm for arm in arms}
    if BARRIER not in by_name:
        return
    speed = by_name[BARRIER]["samples"] / by_name[BARRIER]["seconds"]
    rows = [
        (
            name,
            f"{arm['samples'] / arm['seconds'] / speed:.2f}",
            f"{100 * arm['kept_short']:.0f}",
            f"{100 * arm['kept_long']:.0f}",
            f"{100 * np.ptp(arm['kept_by_tenth']):.0f}",
            _mean_and_spread(arm, "train_loss_long"),
            _mean_and_spread(arm, "train_loss_short"),
        )
        for name, arm in by_name.items()
        if arm.get("kept_long") is not None
    ]
    columns = (
        "arm", "speed", "kept short [%]", "kept long [%]", "tenths apart [points]", "loss, long",
        "loss, short",
    )  # fmt: skip
    yield stats.Numbers("What is kept, by the cost of samples", columns, rows)


def _mean_and_spread(arm: stats.Arm, field: str) -> str:
    each = arm.get(f"{field}_by_seed") or [arm[field]]
    spread = f" ± {np.std(each, ddof=1):.4f}" if len(each) > 1 else ""
    return f"{np.mean(each):.4f}{spread}"
