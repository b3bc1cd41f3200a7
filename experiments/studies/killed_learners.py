"""What is left of a run's samples per second while its learners, real processes, are killed.

Every method trains with workers as processes, first undisturbed and then with a process killed
every few seconds, drawn from those that are there. Goodput is samples per second in the model with
kills over samples per second without them, in the same run. A sample counts when the contribution
that has it is in an update, so that what a killed process had not delivered counts for nothing.

The question is Decoupled DiLoCo's, arXiv 2604.21428. `experiments.studies.goodput` asks it of
schedules, for more learners than there are processes.
"""

import contextlib
import math
import os
import random
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from experiments import entries, parts, premises
from experiments.prepare import Prepared, prepare
from experiments.studies.study import Study
from runtimes.actors import Actors
from stragglers.schedule import Event

OURS, BARRIER, THERE = "Decoupled DiLoCo", "DiLoCo", "the learners that are there"
KEPT = 0.95  # of the share of learners that are there, which counts as no loss beside
WARM = 1.0  # s at the begin of a run that are left out


def _is_positive(value) -> bool:
    return entries.is_number(value) and 0 < value < math.inf


ENTRIES = (
    ("positive seconds", _is_positive, ("undisturbed", "every")),
    ("a positive whole number", entries.is_count, ("kills", "seeds")),
    (
        "methods, each a name, an algorithm and a waiting rule",
        lambda v: len(v) and all(len(method) == 3 for method in v),
        ("methods",),
    ),
)


class Run(NamedTuple):
    """A run of one method, first undisturbed, then with kills."""

    name: str
    seed: int
    kills: int
    undisturbed: float  # samples/s
    disturbed: float  # samples/s while processes are killed
    share: float  # the second over the first
    there: float  # share of the learners' time in which they had a process, while some are killed
    away: float  # s for which a killed one was away, on average, until the end of the run at most
    meanwhile: int  # updates that were made while a killed one was away
    train_loss: float  # at the end


def analyse(config: ConfigDict) -> Study:
    """Train and kill, for every method and seed; ValueError, at once, for what makes no sense."""
    entries.check(config, ENTRIES)
    arms = [(name, seed, prepare(arm(config, algorithm, wait, seed)))
            for seed in range(config.seed, config.seed + config.seeds)
            for name, algorithm, wait in config.methods]  # fmt: skip
    if not all(isinstance(prepared.runtime, Actors) for _, _, prepared in arms):
        raise ValueError(
            "killed_learners: it kills workers that are processes under a server; set "
            "config.runtime='actors' and methods with a server"
        )
    runs = [disturbed(name, seed, prepared, config) for name, seed, prepared in arms]
    methods = [of_seeds([run for run in runs if run.name == name]) for name, *_ in config.methods]
    summary = {"methods": methods, "runs": [run._asdict() for run in runs]}
    return Study(summary, [table(methods), conditions(config)], claims=list(claims(methods)))


def arm(config: ConfigDict, algorithm: str, wait: str, seed: int) -> ConfigDict:
    """The arm of a method and a seed."""
    own = ConfigDict(config.to_dict())
    for _, _, names in ENTRIES:
        for name in names:
            del own[name]
    own.algorithm, own.wait, own.seed = parts.as_part(algorithm), parts.as_part(wait), seed
    return own


def disturbed(name: str, seed: int, prepared: Prepared, config: ConfigDict) -> Run:
    """Train undisturbed, then kill `config.kills` processes, one every `config.every` seconds."""
    task, runtime, draw = prepared.task, prepared.runtime, random.Random(seed)
    with contextlib.closing(runtime):
        first = runtime.start(task.init(jax.random.key(seed)))
        begin, _ = runtime.advance(first, WARM)
        middle, _ = runtime.advance(begin, begin.seconds + config.undisturbed)
        rows, end = [], middle
        for number in range(1, config.kills + 1):
            kill_one(runtime.pids(), draw)
            end, schedule = runtime.advance(end, middle.seconds + number * config.every)
            rows.append(schedule)
        _, schedule = runtime.advance(end, np.inf, 1)  # losses are known with the next update
        rows = [schedule for schedule in (*rows, schedule) if schedule is not None]
        model = jax.tree.map(lambda leaf: leaf[0], runtime.models(end))
        loss = float(jnp.mean(task.losses(model, jax.tree.map(jnp.asarray, task.train))))
    alone, among_kills = rate(begin, middle), rate(middle, end)
    absent = absences([event for schedule in rows for event in schedule.events], end.seconds)
    seconds = [until - since for since, until in absent]
    updates = np.concatenate([schedule.time for schedule in rows])
    return Run(
        name,
        seed,
        kills=end.deaths - middle.deaths,
        undisturbed=alone,
        disturbed=among_kills,
        share=among_kills / alone,
        there=1 - sum(seconds) / (config.workers * (end.seconds - middle.seconds)),
        away=float(np.mean(seconds)) if absent else 0.0,
        meanwhile=sum(any(since < time < until for since, until in absent) for time in updates),
        train_loss=loss,
    )


def kill_one(pids: Mapping[int, int], draw: random.Random) -> None:
    """Kill the process of one of the workers that are ready, if there is any."""
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[draw.choice(sorted(pids))], signal.SIGKILL)


def rate(before, after) -> float:
    """Samples per second between two snapshots of a run."""
    return (after.samples - before.samples) / (after.seconds - before.seconds)


def absences(events: Iterable[Event], end: float) -> list[tuple[float, float]]:
    """From when a worker was lost until when it was back, in seconds, or until `end`."""
    lost, absent = {}, []
    for event in events:
        if event.kind == "lost":
            lost.setdefault(event.worker, event.time)
        elif event.worker in lost:
            absent.append((lost.pop(event.worker), min(event.time, end)))
    return absent + [(time, end) for time in lost.values() if time < end]


def of_seeds(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over the runs of a method; of its share every seed's, too."""
    shares, there = [run.share for run in runs], [run.there for run in runs]
    return {
        "name": runs[0].name,
        "seeds": [run.seed for run in runs],
        "kills": sum(run.kills for run in runs),
        "meanwhile": sum(run.meanwhile for run in runs),
        **{field: float(np.mean([getattr(run, field) for run in runs]))
           for field in ("undisturbed", "disturbed", "share", "there", "away", "train_loss")},
        "share_std": float(np.std(shares, ddof=1)) if len(runs) > 1 else None,
        "share_by_seed": shares,
        "there_by_seed": there,
    }  # fmt: skip


def claims(methods: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What the paper says of goodput, beside what was measured."""
    yield (
        f"while learners are killed, {OURS} keeps a larger share of its samples per second than "
        f"{BARRIER}, in which all wait for the one that is lost (arXiv 2604.21428)",
        premises.text(keeps_more, methods),
    )
    yield (
        f"{OURS} loses the time of the killed learners alone: its share is at least {KEPT:.0%} of "
        "that of the learners that are there",
        premises.text(loses_no_more, methods),
    )


def keeps_more(methods: Sequence[Mapping[str, Any]]) -> premises.Answer:
    """The share of the method that waits for everybody against that of the one that does not."""
    barrier, ours = premises.named(methods, BARRIER, OURS)
    return premises.at_most(barrier, ours, "share")


def loses_no_more(methods: Sequence[Mapping[str, Any]]) -> premises.Answer:
    """The share of learners that are there against the share of samples that is left."""
    (ours,) = premises.named(methods, OURS)
    there = premises.per_seed(ours, "share", ours["there_by_seed"]) | {"name": THERE}
    return premises.at_most(there, ours, "share", factor=1 / KEPT)


def conditions(config: ConfigDict) -> str:
    """How it was measured, in words."""
    rules = ", ".join(f"{name} under {parts.text(wait)}" for name, _, wait in config.methods)
    return (
        f"{config.workers} processes of one machine, {config.undisturbed:g} s undisturbed, then a "
        f"kill every {config.every:g} s, {config.kills} in a run; a mini-batch sleeps for "
        f"{parts.text(config.delay)} s; {rules}"
    )


def table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """A row per method, means over seeds."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="goodput while learners are killed")
    shown.add_column("method", no_wrap=True)
    columns = ("samples/s", "with kills", "goodput", "learners there", "away", "updates meanwhile",
               "kills", "loss")  # fmt: skip
    for column in columns:
        shown.add_column(column, justify="right")
    for row in methods:
        spread = "" if row["share_std"] is None else f" ± {row['share_std']:.1%}"
        shown.add_row(
            row["name"],
            f"{row['undisturbed']:,.0f}",
            f"{row['disturbed']:,.0f}",
            f"{row['share']:.1%}{spread}",
            f"{row['there']:.1%}",
            f"{row['away']:.1f} s",
            str(row["meanwhile"]),
            str(row["kills"]),
            f"{row['train_loss']:.3f}",
        )
    return shown
