"""A look at recorded durations: the slow workers, the loss at a barrier, and gains of other rules.

    python -m experiments.advice.observatory 'rank*.csv' --figure=look.png
    python -m experiments.advice.observatory alibaba_job_4 bytedance_se --mini_batches=8

A source is a run's workdir, a file of durations, a pattern of files, or a delay as in configs.
Nothing is trained: rules are compared by the mini-batches that they finish in a second, regardless
of the mini-batches of an update.
"""

import json
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from absl import app, flags
from matplotlib.figure import Figure
from rich.console import Console

from experiments import figures, files, registry, tables
from experiments.advice import durations
from experiments.advice.durations import Measured
from experiments.stats import Numbers
from stragglers.rule import Setting, Unfit, whole
from stragglers.rules import RULES
from stragglers.slow_worker import SLOW
from stragglers.traces import statistics

ROUNDS, REPEATS = 200, 5  # updates of a play, and plays, the first over measured durations
BARRIER = "barrier"  # the rule with which other rules are compared
SHARE = 0.9  # share of the workers for which a quorum or a server waits
DRIFT = 16  # rounds of a window, in whose mean random delays hardly show
WORTH = 1.1  # the least gain of a rule that is worth a change
SHOWN = 5  # slowest workers that are shown
LOSS = ("persistent", "drifting", "random")  # parts of the loss at a barrier, see `loss`


def rounds_of(measured: Measured, mini_batches: int) -> np.ndarray:
    """Return the seconds of rounds of `mini_batches` mini-batches each, [workers, rounds]."""
    count = min(map(len, measured.seconds)) // mini_batches
    whole_rounds = [values[: count * mini_batches] for values in measured.seconds]
    return np.array(whole_rounds).reshape(len(whole_rounds), count, mini_batches).sum(axis=2)


def loss(rounds: np.ndarray) -> dict[str, float]:
    """Return the loss at a barrier, its round over the mean worker's round minus 1, in three parts.

    persistent: from workers with a slow mean. drifting: from workers that are slow for a while, in
    means over DRIFT rounds. random: the rest. rounds: [workers, rounds] in seconds.
    """
    mean = rounds.mean()
    window = min(DRIFT, rounds.shape[1])
    smooth = np.lib.stride_tricks.sliding_window_view(rounds, window, axis=1).mean(axis=-1)
    slowest = [rounds.mean(axis=1).max(), smooth.max(axis=0).mean(), rounds.max(axis=0).mean()]
    # Window means weight the ends of a trace less, and may exceed the last mean, which caps them.
    parts = np.diff(np.maximum.accumulate(np.minimum([mean, *slowest], slowest[-1]))) / mean
    return dict(zip(LOSS, parts.tolist(), strict=True))


def spells(rounds: np.ndarray) -> dict[str, float]:
    """Return the share of slow rounds, the mean length of a spell, and the number of slow workers.

    A round is slow if it takes at least SLOW times the median worker's. Spells of successive slow
    rounds are weighted by their length; without any the mean is 0. rounds: [workers, rounds] in s.
    """
    slow = rounds >= SLOW * np.median(rounds, axis=0)
    edges = np.diff(np.pad(slow, ((0, 0), (1, 1))).astype(int), axis=1)
    lengths = np.argwhere(edges < 0)[:, 1] - np.argwhere(edges > 0)[:, 1]
    mean = float(np.average(lengths, weights=lengths)) if lengths.size else 0.0
    workers = int(slow.any(axis=1).sum())
    return {"share": float(slow.mean()), "rounds": mean, "workers": workers}


def calls(measured: Measured, mini_batches: int) -> list[str]:
    """Return the rules to compare, as they are written in a config."""
    k = max(1, round(SHARE * measured.workers))
    seconds = f"seconds={np.median(rounds_of(measured, mini_batches)):.3g}"
    return [
        BARRIER,
        "neighbour_barrier",
        "first_finisher",
        "first_finisher(in_flight=cut)",
        f"quorum(k={max(1, round(SHARE * measured.workers * mini_batches))})",  # mini-batches
        f"quorum_grace(k={k})",
        f"deadline({seconds})",
        "adaptive_deadline",
        f"anytime({seconds})",
        "drop_compute",
        f"k_sync(k={k})",
        f"k_batch_sync(k={k})",
        f"k_async(k={k})",
        f"k_batch_async(k={k})",
        f"rennala(k={measured.workers})",  # contributions, of `mini_batches` each
    ]


def gains(measured: Measured, mini_batches: int) -> dict[str, dict[str, float]]:
    """Return {call of a rule in a config: its gain}, without rules that refuse these durations.

    A gain has the `mean` and the `spread`, a standard deviation, of the mini-batches that the rule
    finishes in a second divided by the barrier's; and the mean `staleness` in updates. The first
    repeat plays the measured durations, the other repeats play resampled blocks.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    graph = nx.cycle_graph(measured.workers) if measured.workers > 2 else nx.path_graph(2)
    for repeat in range(REPEATS):
        setting = Setting(measured.process(repeat), measured.workers, mini_batches, seed=0)
        for call in calls(measured, mini_batches):
            own = registry.spec(call)
            factory = RULES[own.pop("name")]
            try:
                try:
                    rule = factory(setting, **own)
                except Unfit:  # the rule needs a graph
                    rule = factory(setting._replace(graph=graph), **own)
                schedule = whole(rule, ROUNDS)
            except ValueError:
                continue
            rate = schedule.batches.sum() / schedule.finish.max()
            age = np.average(schedule.staleness, weights=schedule.batches)
            found.setdefault(call, []).append((float(rate), float(age)))
    kept = {call: np.array(rows).T for call, rows in found.items() if len(rows) == REPEATS}
    over = {call: (rates / kept[BARRIER][0], ages) for call, (rates, ages) in kept.items()}
    return {call: {"mean": float(gain.mean()), "spread": float(gain.std(ddof=1)),
                   "staleness": float(ages.mean())}
            for call, (gain, ages) in over.items()}  # fmt: skip


def read(text: str, mini_batches: int, workers: int | None = None) -> Measured:
    """Return the durations of a source; ValueError for a source that cannot be used.

    workers: the number for a delay without records; by default a public trace's number, or 8.
    """
    if durations.is_there(text) and durations.holds_run(Path(text)):
        measured = durations.read(text, None, []).measured
    else:
        part = durations.as_part(text)
        delay, spec = durations.delay_of(text), registry.spec(part)
        workers = len(getattr(delay, "names", ())) or workers or statistics.workers(spec["name"])
        workers, source = workers or 8, Path(spec["path"]).name if "path" in spec else text
        measured = durations.of_delay(delay, workers, 0, source)
    if rounds_of(measured, mini_batches).shape[1] < 2:
        raise ValueError(
            f"{text}: a worker has too few durations for two rounds of {mini_batches} mini-batches;"
            " set a smaller --mini_batches"
        )
    return measured


def slowest(measured: Measured, rounds: np.ndarray) -> list[dict[str, Any]]:
    """Return the SHOWN slowest workers, slowest first; rounds [workers, rounds] in seconds."""
    latest = rounds == rounds.max(axis=0)
    last = (latest / latest.sum(axis=0)).mean(axis=1)  # workers that end together share a round
    order = np.argsort(-rounds.mean(axis=1), kind="stable")[:SHOWN]
    return [
        {
            "worker": measured.name(i),
            "times_the_mean": float(rounds[i].mean() / rounds.mean()),
            "share_of_rounds_last": float(last[i]),
        }
        for i in order
    ]


def observed(measured: Measured, mini_batches: int) -> dict[str, Any]:
    """Return the record of a look: loss, spells, slowest workers, and gains with their spread."""
    rounds = rounds_of(measured, mini_batches)
    return {
        "source": measured.source,
        "workers": measured.workers,
        "loss": loss(rounds),
        "spells": spells(rounds),
        "slowest": slowest(measured, rounds),
        "gains": gains(measured, mini_batches),
    }


def advice(record: dict) -> str:
    """Return a sentence on the barrier's loss and on the rules with the largest gains."""
    said = f"A barrier's round takes {1 + sum(record['loss'].values()):.2f} times the mean worker's"
    others = [(round(gain["mean"], 2), gain["staleness"], call)
              for call, gain in [*record["gains"].items()][1:]]  # without the barrier
    most, age, call = max(others, key=lambda one: one[0])  # the first of equal ones
    best, _, rule = max((one for one in others if not one[1]), key=lambda one: one[0])
    if most < WORTH:
        return f"{said}; no rule gains {WORTH - 1:.0%}, so keep the barrier."
    if best < WORTH:
        said += f"; no rule with fresh gradients gains {WORTH - 1:.0%}"
    else:
        said += f"; {rule} finishes {best:.2f} times as many mini-batches in the same time"
    if most > best:
        said += f"; {call} finishes {most:.2f} times as many, with gradients {age:.2g} updates old"
    return f"{said}."


def as_numbers(records: Sequence[dict]) -> Numbers:
    """Return the table of gains: a row per rule, a column per source."""
    names = [record["source"] for record in records]
    # A rule's parameters depend on the durations, so that one row shows the rule for all sources.
    rows: dict[str, list[str]] = {}
    for place, record in enumerate(records):
        for call, gain in record["gains"].items():
            name, _, own = call.partition("(")
            label = f"{name}, cut" if "cut" in own else name
            row = rows.setdefault(label, ["–"] * len(names))
            spread = f" ± {gain['spread']:.2f}" if gain["spread"] >= 0.05 else ""
            row[place] = f"{gain['mean']:.2f}{spread}"
    return Numbers("", ["rule", *names], [[label, *row] for label, row in rows.items()])


def of_workers(records: Sequence[dict]) -> Numbers:
    """Return the table of slow workers: a row per source."""
    columns = ["source", "slowest", "time / mean", "rounds in which it is last", "ever slow",
               "share of rounds that are slow", "rounds of a spell", *LOSS]  # fmt: skip
    rows = []
    for record in records:
        first, slow = record["slowest"][0], record["spells"]
        rows.append([
            record["source"], first["worker"], f"{first['times_the_mean']:.2f}",
            f"{first['share_of_rounds_last']:.0%}", f"{slow['workers']} of {record['workers']}",
            f"{slow['share']:.1%}", f"{slow['rounds']:.3g}",
            *(f"{share:.1%}" for share in record["loss"].values()),
        ])  # fmt: skip
    return Numbers("", columns, rows)


def figure(path: str, measured: Sequence[Measured], mini_batches: int) -> None:
    """Draw the seconds of all workers' rounds, divided by the median round of the same source."""
    drawn = Figure(figsize=(9, 0.6 + 1.5 * len(measured)), layout="constrained")
    axes = drawn.subplots(len(measured), squeeze=False)[:, 0]
    for axis, one in zip(axes, measured, strict=True):
        rounds = rounds_of(one, mini_batches)
        look = {"aspect": "auto", "interpolation": "nearest", "cmap": "magma"}
        shown = axis.imshow(rounds / np.median(rounds), vmin=0.5, vmax=2.0, **look)
        axis.set(ylabel="worker", yticks=[0, len(rounds) - 1])
        axis.set_title(figures.literal(one.source), fontsize=9)
    axes[-1].set_xlabel(f"round of {mini_batches} mini-batches")
    drawn.colorbar(shown, ax=axes, label="seconds of a round,\nover the median", extend="both")
    figures.save(drawn, path)


def main(arguments: Sequence[str]) -> None:
    """Print a look at each source of the command line; write the record and the figure."""
    # JAX reports every accelerator that it did not find.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    given, console = flags.FLAGS, Console(width=120)
    if not arguments[1:]:
        raise SystemExit("error: name a file of durations: experiments.advice.observatory log.csv")
    seen, records = [], []
    try:
        for path in filter(None, (given.record, given.figure)):
            if not Path(path).absolute().parent.is_dir():
                raise ValueError(f"{path} is in no folder; make {Path(path).parent} first")
        for text in arguments[1:]:
            seen.append(read(text, given.mini_batches, given.workers))
            records.append(observed(seen[-1], given.mini_batches))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    for measured, record in zip(seen, records, strict=True):
        console.print(measured.read or measured.source, markup=False, highlight=False)
        rows = [
            [row["worker"], f"{row['times_the_mean']:.2f}", f"{row['share_of_rounds_last']:.0%}"]
            for row in record["slowest"]
        ]
        columns = ["slowest workers", "times the mean", "rounds in which it is last"]
        tables.print_table(console, Numbers("", columns, rows))
        console.print(f"{advice(record)}\n", markup=False, highlight=False)
    for numbers, title in (
        (of_workers(records), f"slow: {SLOW:g} times the median worker; loss at a barrier"),
        (as_numbers(records), "mini-batches per second, over a barrier's"),
    ):
        tables.print_table(console, numbers._replace(title=title))
    if given.record:
        own = {"mini_batches": given.mini_batches, "workers": given.workers}
        more = [f"--{name}={value}" for name, value in own.items() if value is not None]
        words = shlex.join([*arguments[1:], *more])
        head = {"command": f"python -m experiments.advice.observatory {words}"}
        files.write(given.record, json.dumps({**head, "sources": records}, indent=1) + "\n")
    if given.figure:
        figure(given.figure, seen, given.mini_batches)


if __name__ == "__main__":
    flags.DEFINE_integer("mini_batches", 8, "Mini-batches of a worker in a barrier's round.")
    flags.DEFINE_integer("workers", None, "Workers of a delay that has no records.")
    flags.DEFINE_string("figure", None, "Where a PNG of all rounds goes.")
    flags.DEFINE_string("record", None, "Where the numbers go, as JSON.")
    app.run(main)
