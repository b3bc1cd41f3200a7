"""The advice on a waiting rule as a page, as a printed table, and as a command to run."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import config_files, files, prepare, provenance, records, registry, report
from experiments.advice import durations, play
from experiments.advice.observatory import LOSS
from experiments.advice.play import Advice
from experiments.stats import Numbers
from experiments.tables import NONE, as_table
from stragglers.rule import most_mini_batches

ADVICE, PAGE = "advice.json", "advice.html"
COLUMNS = {  # the ranking's columns: heading -> format of a row of `rows`
    "rule": "{rule}",
    "predicted\nyours = 1": "{predicted:.2f}",
    "range": "{predicted_range[0]:.2f}–{predicted_range[1]:.2f}",
    "trained\n[s] to target": "{trained}",
    "rate": "{rate}",
    "batch": "{batch:.3g}",
    "updates\nper s": "{updates_per_second:.3g}",
    "samples\nper s": "{samples_per_second:.4g}",
    "staleness\n[updates]": "{staleness:.2f}",
    "tree\ndistance": "{tree_distance}",
    "idle": "{idle:.0%}",
    "waits most\nfor": "{waits_for}",
}


def launch(
    text: str,
    config: str | None,
    entries: Mapping[str, str | bool],
    workdir: str | None,
    trust: Sequence[str] = (),
    *,
    named: Sequence[registry.Part] = (),
    training: bool = True,
    overwrite: bool = False,
    command: str = "",
) -> None:
    """Weigh all rules on a source of durations, train the best rules, write and print the advice.

    The arguments come from the command line. text: a source, see `durations.read`. trust: modules
    that a run's record may name. named: rules to weigh beside the registry's. Raises ValueError,
    with nothing written, for unsuitable durations or an unsuitable config.
    """
    if entries and not config:
        raise ValueError("--config.ENTRY changes a config, and --config is missing; give it, too")
    given, start = None, shlex.split(command)[:2] or ["python", "launch.py"]
    if trust and (not config or config.endswith(".json")):  # the command names a record
        start.append(f"--trust={','.join(trust)}")
    # The name of a folder may not be the user's, and does not make a module trusted.
    law = [] if durations.is_there(text) else [text]
    trusted = {*trust, *registry.named_modules([*named, *law])}
    if config:
        given = config_files.read(config, entries, trust).config
        kept = [name for name in entries if name.partition(".")[0] != "wait"]
        start += [f"--config={config}", *(f"--config.{name}={entries[name]}" for name in kept)]
        trusted |= registry.named_modules(given)
    root = Path(workdir or f"{text.rstrip('/')}-advice")
    records.check_path(f"{root}", "workdir")
    source = durations.read(text, given, start, trusted)
    known = (root / ADVICE).is_file()
    if not known and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(
            f"workdir {root} holds something else than an advice; choose another --workdir"
        )
    digest = source.measured.digest
    if known and not overwrite and records.read_json(root / ADVICE).get("digest") != digest:
        raise ValueError(
            f"workdir {root} holds an advice on other durations; choose another --workdir, or "
            "--overwrite it"
        )
    if training:
        play.rate_of(source.config)
    advice = play.weigh(source, named)
    files.make(root)
    with files.held(root / files.LAUNCH_LOCK):
        if overwrite:  # remove trained arms and their durations
            for name in play.DURATIONS:
                files.remove(root / name)
            files.remove_tree(root / play.ARMS)
        records.write_json(root / ADVICE, as_json(advice))
        provenance.begin(root, command)
        if not (root / play.DURATIONS[0]).exists():
            durations.write(source.measured, root / play.DURATIONS[0])
        if training:
            advice = play.train(advice, root)
            records.write_json(root / ADVICE, as_json(advice))
        _show(advice, root, command)


def as_json(advice: Advice) -> dict[str, Any]:
    """Return all numbers of an advice, for advice.json."""
    measured = advice.source.measured
    return {
        "source": measured.source, "digest": measured.digest,
        "durations": sum(map(len, measured.seconds)),
        "straggler": play.straggler(measured, advice.config.mini_batches),
        "exchange_seconds": _exchange(advice), "ratio": advice.ratio,
        "ratio_at": f"{advice.source.parameters or ''}", "smaller": play.of_smaller(advice),
        "sure": advice.verdict.sure, "verdict": advice.verdict.reason,
        "reference": advice.reference.name, "rules": rows(advice),
        "refused": advice.refused,
    }  # fmt: skip


def rows(advice: Advice) -> list[dict[str, Any]]:
    """Return the numbers of each shown rule, with texts for numbers that need a remark.

    The predicted range spans a rule's cases, each divided by the same case of the reference.
    """
    found, own = [], advice.reference
    for one in filter(None, (*advice.verdict.order, advice.smaller)):
        result, mine = advice.results.get(one.name), one.cases(advice.ratio)
        relative = mine / own.cases(advice.ratio)[: mine.size]
        slowest = int(one.found.limits.argmax())
        share, name = one.found.limits[slowest], advice.source.measured.name(slowest)
        found.append({
            "rule": one.name, "wait": registry.text(one.arm.wait),
            "mini_batches": one.arm.mini_batches,
            "predicted": one.predicted(advice.ratio) / own.predicted(advice.ratio),
            "predicted_range": [float(relative.min()), float(relative.max())],
            "trained_seconds": result and list(result.seconds),
            "learning_rate": result and result.rate, "rate_at_edge": result and result.edge,
            "trained": f"{result}" if result else NONE,
            "rate": f"{result.rate:g}{'*' * result.edge}" if result else NONE,
            "batch": one.batch, "updates_per_second": one.updates,
            "samples_per_second": one.samples,
            "idle": one.schedule.idle_share(one.prepared.rule.turnout.wastes),
            "waits_for": f"{name} ({share:.0%})" if share else NONE, **one.found._asdict(),
        })  # fmt: skip
    return found


def command(advice: Advice, root: Path) -> list[str]:
    """Return the command that runs the advised rule, at its best rate if the rule was trained.

    The command's delay replays the weighed durations, unless real workers run without a delay. The
    command names the simulator if the config's runtime does not know the rule. root: the advice's
    folder.
    """
    source, first = advice.source, advice.verdict.close[0]
    config, changes = source.config, {"wait": registry.text(first.arm.wait)}
    if first.arm.mini_batches != config.mini_batches:
        changes["mini_batches"] = first.arm.mini_batches
    rule = prepare.rule(first.arm, first.prepared)
    knows = {"mesh": rule.trigger is not None, "actors": rule.arrivals is not None}
    if not knows.get(config.runtime, True):
        changes |= {"runtime": "simulate", "devices": 1}
    free = config.delay.name == prepare.NO_DELAY
    if (free and "runtime" in changes) or (not free and source.delay != ""):
        trace = durations.part_of(root / play.DURATIONS[0])
        changes["delay"] = source.delay or registry.text(trace)
        for name in ("seconds", "evaluate_every"):
            changes[name] = f"{config[name] * advice.config.seconds / config.seconds:.4g}"
    simulated = changes.get("runtime", config.runtime) == advice.config.runtime
    if simulated and config.communication != advice.config.communication:
        changes["communication"] = advice.config.communication
    if config.draw != first.arm.draw:
        changes["draw"] = first.arm.draw
    if first.name in advice.results:
        changes["optimizer.learning_rate"] = f"{advice.results[first.name].rate:g}"
    place = f"{root}-{first.arm.wait.name.rpartition(':')[2]}"
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    replaced = tuple(f"--config.{name}{end}" for name in changes for end in "=.")
    kept = [word for word in source.command if not word.startswith(replaced)]
    return [*kept, *flags, f"--workdir={place}"]


def _columns(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """Return the ranking's headings and rows, in the verdict's order, without empty columns."""
    table = [[text.format(**row) for text in COLUMNS.values()] for row in rows(advice)]
    kept = [any(cell != NONE for cell in cells) for cells in zip(*table, strict=True)]
    return [*compress(COLUMNS, kept)], [[*compress(row, kept)] for row in table]


def _exchange(advice: Advice) -> float:
    """Return the median seconds of an exchange under the config's own rule."""
    return float(np.median(advice.reference.schedule.communication.max(axis=1)))


def facts(advice: Advice) -> dict[str, str]:
    """Return sentences on the straggler, the user's job and the noise, by their label."""
    source, count = advice.source, advice.config.mini_batches
    found, end = play.straggler(source.measured, count), source.parameters
    lost = sum(found[name] for name in LOSS)
    parts = ", ".join(f"{found[name] / lost:.0%} {name}" for name in LOSS if lost) or "none"
    recorded = source.config.communication != advice.config.communication
    by = "as it was recorded" if recorded else "by config.communication"
    where = (f"at the end of the run, in {end}" if end else
             "at the initial parameters, for lack of a finished run, and grows in training")
    return {
        "straggler": f"worker {found['worker']} takes {found['times_the_mean']:.2f} times the "
        f"mean, and is last in {found['share_of_rounds_last']:.0%} of the rounds; a barrier's "
        f"takes {1 + lost:.2f} times the mean worker's, a loss that is {parts}",
        "your job": f"rounds of {count} mini-batch{'es' * (most_mini_batches(count) > 1)} of "
        f"{advice.config.batch_size} samples, by config.mini_batches and config.batch_size; an "
        f"exchange takes {_exchange(advice):.3g} s, {by}",
        "noise": f"the variance of a mini-batch's gradient is {advice.ratio:.3g} times its squared "
        f"mean {where}",
    }


def _show(advice: Advice, root: Path, launched: str) -> None:
    """Print the facts, the table of rules and the advice; write the same as advice.html."""
    measured, own, said = advice.source.measured, advice.reference, facts(advice)
    headings, table = _columns(advice)
    smaller, run = play.of_smaller(advice), shlex.join(command(advice, root))
    if measured.read:
        print(f"durations: {measured.read}")
    for label, words in said.items():
        print(f"{label}: {words}")
    console = Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=10_000)  # so that no name is cut
    console.print(as_table(Numbers(f"yours: {own.name}", headings, table)), markup=False)
    print(f"advice: {advice.verdict.reason}\nsmaller batch: {smaller}\ncommand: {run}")

    def paragraph(words: str, kind: str = "") -> str:
        return f'<p class="{kind}">{report.text(words[0].upper() + words[1:])}</p>'

    close = ", ".join(one.name for one in advice.verdict.close)
    trained = (
        f"; trained: mean ± standard deviation over {len(play.DURATIONS) - 1} seeds, each with "
        "resampled durations; * the best rate is the first or the last that was tried"
    ) * bool(advice.results)
    sections = [
        paragraph(f"{advice.verdict.reason}.", "headline"),
        "" if advice.verdict.sure
        else paragraph(f"any of these may be first: {close}. To run the first of them:"),
        f"<pre>{report.text(run)}</pre>",
        paragraph(f"a smaller batch: {smaller}."),
        *(paragraph(f"{label}: {words}.") for label, words in said.items()),
        "<h2>Ranking</h2>",
        report.table("numbers long", headings, [table]),
        paragraph(
            "Every rule at the best parameters with which an update has as many mini-batches "
            f"(batch) as yours, {own.name}; the last row may have fewer; waits most for: the last "
            f"to be ready in most updates{trained}. Predicted without training, from each rule's "
            "schedule and the noise; the range is of resampled durations and "
            f"{play.RATIOS[0]:g} to {play.RATIOS[-1]:g} times this noise. Momentum, codecs and "
            "local steps are not in it.",
            "quiet",
        ),
    ]
    if advice.refused:
        sections += ["<h2>Not weighed</h2>",
                     report.table("words", ("rule", "why"), [advice.refused])]  # fmt: skip
    count = sum(map(len, measured.seconds))
    source = f"{count:,} durations of {measured.workers} workers from {measured.source}"
    title, again = root.resolve().name, f"<pre>{report.text(launched)}</pre>"
    text = report.page(f"{title}: which waiting rule", measured.read or source, again,
                       filter(None, sections))  # fmt: skip
    files.write(root / PAGE, text, durable=False)
    print(f"page: {root / PAGE}")
