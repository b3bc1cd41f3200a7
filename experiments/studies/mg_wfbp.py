"""What buckets of MG-WFBP change on a mesh, and what they do not (arXiv 1811.11141)."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from algorithms.mg_wfbp import plan_with
from experiments import premises, profiling, records, tasks
from experiments.numbers import Numbers
from stragglers import reading

PLAIN = "pmean"  # the arm without buckets


def claims(arms) -> Iterator[tuple[str, str]]:
    """Whether every arm has trained what plain all-reduce has."""
    yield "buckets change no result, bit for bit", premises.text(change_nothing, arms)


def change_nothing(arms) -> premises.Answer:
    """Parameters after the same updates, which have to be finite."""
    (plain,) = premises.named(arms, PLAIN)
    bucketed = [arm for arm in arms if arm is not plain]
    if not bucketed:
        raise premises.CannotTell("there is no arm with buckets")
    premises.equal("updates", *arms, within=0.0)
    premises.finite("train_loss", *arms)
    differ = [
        arm["name"]
        for arm in bucketed
        if not all(
            _same_parameters(*pair) for pair in zip(arm["workdirs"], plain["workdirs"], strict=True)
        )
    ]
    names = ", ".join(differ or [arm["name"] for arm in bucketed])
    words = "another result than" if differ else "the result of"
    return premises.Answer(
        premises.FAILS if differ else premises.HOLDS,
        f"{words} {PLAIN} after {plain['updates']:,.0f} updates: {names}",
        len(plain["workdirs"]),
    )


def _same_parameters(one: Path, other: Path) -> bool:
    ours, theirs = (reading.arrays(run / records.PARAMETERS) for run in (one, other))
    return set(ours) == set(theirs) and all(np.array_equal(ours[k], theirs[k]) for k in ours)


def numbers(arms) -> Iterator[Numbers]:
    """The end of communication after the backward pass, for every plan, by the measured profile."""
    rows, measured = [], {}
    for arm in arms:
        config = arm["config"]
        if "buckets" not in config or config.algorithm == arms[0]["config"].algorithm:
            continue
        task = tasks.build(config.task)
        profile = profiling.for_config(config, task)
        if profile.ready is None:
            continue
        params = jax.eval_shape(task.init, jax.random.key(config.seed))
        plan, _ = plan_with(config.buckets, profile)(params)
        measured[profiling.describe(profile)] = None  # once, if it is the same for all
        rows.append((arm["name"], f"{len(plan.buckets)}", f"{1e3 * plan.exposed:.3f} ms"))
    title = "predicted from the profile: " + ("; ".join(measured) or "there is none")
    yield Numbers(title, ("arm", "buckets", "exposed communication"), rows)
