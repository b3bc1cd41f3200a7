"""What buckets of MG-WFBP change on a mesh, and what they do not (arXiv 1811.11141)."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from algorithms.mg_wfbp import plan_with
from experiments import profiling, records, tasks


def claims(arms) -> Iterator[tuple[str, str]]:
    """Whether every arm has trained what plain all-reduce has, and what a plan expects to gain."""
    plain, *bucketed = arms
    equal, differ = [], []
    for arm in bucketed:
        pairs = zip(arm["workdirs"], plain["workdirs"], strict=True)
        same = all(_same_parameters(*pair) for pair in pairs)
        (equal if same else differ).append(arm)
    names = ", ".join(arm["name"] for arm in equal) or "none"
    sentences = [f"parameters equal to plain pmean, bit for bit: {names}"]
    if differ:
        names = ", ".join(f"{arm['name']} after {arm['updates']} updates" for arm in differ)
        sentences.append(f"not equal: {names}")
    yield f"buckets change no result (after {plain['updates']} updates)", "\n".join(sentences)
    yield "merging hides communication (predicted from the profile)", _plans(bucketed)


def _same_parameters(one: Path, other: Path) -> bool:
    ours, theirs = (dict(np.load(run / records.PARAMETERS)) for run in (one, other))
    return set(ours) == set(theirs) and all(np.array_equal(ours[k], theirs[k]) for k in ours)


def _plans(arms) -> str:
    """The end of communication after the backward pass, for every plan, and the profiles."""
    lines, measured = [], {}
    for arm in arms:
        config = arm["config"]
        task = tasks.build(config.task)
        profile = profiling.for_config(config, task)
        if profile.ready is None:
            continue
        params = jax.eval_shape(task.init, jax.random.key(config.seed))
        plan, _ = plan_with(config.buckets, profile)(params)
        measured[profiling.describe(profile)] = None  # once, if it is the same for all
        lines.append(
            f"{arm['name']}: {len(plan.buckets)} buckets, {1e3 * plan.exposed:.3f} ms exposed"
        )
    return "\n".join([*lines, *measured]) or "no profile"
