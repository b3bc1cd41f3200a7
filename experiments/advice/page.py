"""The page of an advice: advice.html, its pictures, and the numbers that are in advice.json."""

import itertools
import pprint
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files, parts, prepare, provenance, waiting
from experiments.advice import grids, pictures, ranking, sources, trained
from experiments.advice.ranking import Contender
from experiments.advice.weigh import Advice
from experiments.reports import markup, panels, table

PAGE, RANKED, STRIP = "advice.html", "ranked.png", "strip.png"
CONFIG = "config.py"  # of a run that was advised on
_CONFIG = '''"""The config of the run that the advice is about."""

from ml_collections import ConfigDict


def get_config():
    """Return it as it was recorded."""
    return ConfigDict(
        {}
    )
'''


def as_json(advice: Advice) -> dict[str, Any]:
    """All numbers of an advice, for advice.json."""
    unit = ranking.predicted(advice.reference, advice.ratio)
    return {
        "source": advice.source.measured.source,
        "digest": advice.source.measured.digest,
        "durations": sum(map(len, advice.source.measured.seconds)),
        "censored": advice.source.measured.censored,
        "ratio": advice.ratio,
        "sure": advice.verdict.sure,
        "verdict": advice.verdict.reason,
        "reference": advice.reference.name,
        "seconds": dict(advice.seconds),
        "rules": [_numbers(one, advice, unit) for one in advice.order],
        "curves": {
            rule: [[value, seconds / unit] for value, seconds in points]
            for rule, points in ranking.curves(advice.found, advice.ratio).items()
        },
        "changes": [list(change) for change in advice.changes],
        "refused": [list(one) for one in advice.refused],
    }


def _numbers(one: Contender, advice: Advice, unit: float) -> dict[str, Any]:
    done, found = one.played, one.played.diagnostics
    result = advice.results.get(one.name)
    low, high = _range(one, advice)
    return {
        "wait": one.name,
        "predicted": ranking.predicted(one, advice.ratio) / unit,
        "predicted_range": [low, high],
        "trained_seconds": None if result is None else list(result.seconds),
        "learning_rate": None if result is None else result.rate,
        "rate_at_edge": None if result is None else result.edge,
        "updates_per_second": done.updates,
        "samples_per_second": done.samples,
        "staleness": found.staleness,
        "tree_distance": found.tree_distance,
        "idle": done.idle,
        "limits": found.limits,
        "share": found.share,
    }


def _range(one: Contender, advice: Advice) -> tuple[float, float]:
    """The lowest and highest predicted time in all cases, over that of the reference in them."""
    mine = ranking.cases(one, advice.ratio)
    own = ranking.cases(advice.reference, advice.ratio)
    own = own if mine.size == own.size else own[: mine.size]
    return float((mine / own).min()), float((mine / own).max())


def write(advice: Advice, root: Path) -> Path:
    """Write advice.html, ranked.png and strip.png into `root`; the page."""
    if not any(one.startswith("--config=") for one in advice.source.command):
        text = _CONFIG.replace("{}", pprint.pformat(advice.source.config.to_dict()))
        files.write(root / CONFIG, text, durable=False)
    note = provenance.known(root)
    measured = advice.source.measured
    count = sum(map(len, measured.seconds))
    facts = f"{count:,} durations of {measured.workers} workers from {measured.source}"
    facts = measured.read or facts
    again = f"<pre>{markup.text(note['command'])}</pre>" if note else ""
    title = f"{root.resolve().name}: which waiting rule"
    path = root / PAGE
    files.write(path, markup.page(title, facts, again, _sections(advice, root)), durable=False)
    return path


def _sections(advice: Advice, root: Path) -> Iterator[str]:
    yield from _verdict(advice, root)
    yield from _ranking(advice, root)
    yield from _changes(advice)
    yield from _waiting(advice, root)
    yield from _curves(advice)
    yield from _durations(advice)
    yield from _refused(advice)


def _verdict(advice: Advice, root: Path) -> Iterator[str]:
    decided = advice.verdict
    yield "<h2>Advice</h2>"
    yield f"<p><strong>{markup.text(decided.reason[0].upper() + decided.reason[1:])}.</strong></p>"
    if not decided.sure:
        names = ", ".join(one.name for one in decided.close)
        yield f"<p>Any of these may be first: {markup.text(names)}. To run the first of them:</p>"
    yield f"<pre>{markup.text(shlex.join(command(advice, root)))}</pre>"


def command(advice: Advice, root: Path) -> list[str]:
    """The arguments that run the advised rule, at the best rate if it was trained.

    On the durations that it was weighed on, but for workers that take as long as they take; in the
    simulator where the config's runtime does not know the rule. root: of the advice.
    """
    source, first = advice.source, advice.verdict.close[0]
    config = source.config
    changes = {"wait": first.name}
    rule = prepare.rule(first.arm, first.prepared)
    knows = {"mesh": rule.trigger is not None, "actors": rule.arrivals is not None}
    if not knows.get(config.runtime, True):
        changes |= {"runtime": "simulate", "devices": 1}
    free = config.delay.name == waiting.NO_DELAY
    if (free and "runtime" in changes) or (not free and source.delay != ""):
        delay = source.delay or parts.text(parts.part("trace", path=str(root / trained.DURATIONS)))
        times = sources.budget(source) / config.seconds
        changes["delay"] = delay
        for name in ("seconds", "evaluate_every"):
            changes[name] = f"{config[name] * times:.4g}"
    if config.draw != first.arm.draw:
        changes["draw"] = first.arm.draw
    if first.name in advice.results:
        changes["optimizer.learning_rate"] = f"{advice.results[first.name].rate:g}"
    given = any(one.startswith("--config=") for one in source.command)
    own = [] if given else [f"--config={root / CONFIG}"]
    place = Path(f"{root}-{first.rule.rpartition(':')[2]}")
    free_places = (place.with_name(f"{place.name}-{count}") for count in itertools.count(2))
    while place.exists():
        place = next(free_places)
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    return [*source.command, *own, *flags, f"--workdir={place}"]


NOTHING = table.NONE
HEADINGS = (
    "rule", "predicted\nyours = 1", "range", "trained\n[s] to target", "rate", "updates\nper s",
    "samples\nper s", "staleness\n[updates]", "tree\ndistance", "idle\n[%]", "waits most\nfor",
)  # fmt: skip


def rows(advice: Advice) -> Iterator[tuple[str, ...]]:
    """The rules in the order of the verdict, a cell for each of HEADINGS."""
    unit = ranking.predicted(advice.reference, advice.ratio)
    name = advice.source.measured.name
    for one in advice.verdict.order:
        result = advice.results.get(one.name)
        low, high = _range(one, advice)
        found = one.played.diagnostics
        limits = int(found.limits.argmax())
        yield (
            one.name,
            f"{ranking.predicted(one, advice.ratio) / unit:.2f}",
            f"{low:.2f}–{high:.2f}",
            _seconds(result),
            NOTHING if result is None else f"{result.rate:g}{'*' * result.edge}",
            f"{one.played.updates:.3g}",
            f"{one.played.samples:.4g}",
            f"{found.staleness:.2f}",
            f"{found.tree_distance}",
            f"{100 * one.played.idle:.0f}",
            f"{name(limits)} ({found.limits[limits]:.0%})" if found.limits[limits] else NOTHING,
        )


def columns(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of what is known of any rule."""
    shown = list(rows(advice))
    kept = [place for place in range(len(HEADINGS)) if any(row[place] != NOTHING for row in shown)]
    return [HEADINGS[place] for place in kept], [[row[place] for place in kept] for row in shown]


def _ranking(advice: Advice, root: Path) -> Iterator[str]:
    yield "<h2>Ranking</h2>"
    mark = "; * the best rate is the first or the last that was tried" if advice.results else ""
    caption = (
        f"every rule at its best parameter; yours: {advice.reference.name}; rules that make use of "
        "fewer samples per second than yours come last, until they are trained; trained: mean ± "
        f"standard deviation over {trained.SEEDS} seeds, each with resampled durations{mark}; "
        "waits most for: the worker that is the last to be ready in the most updates"
    )
    headings, body = columns(advice)
    yield markup.table("numbers long", headings, [body])
    yield f'<p class="quiet">{markup.text(caption)}.</p>'
    own = advice.results.get(advice.reference.name)
    bars = []
    for one in advice.verdict.order:
        result = advice.results.get(one.name)
        known = result is not None and own is not None
        relative = result.mean / own.mean if known else None
        bars.append((one.name, *_range(one, advice), relative))
    png = pictures.ranked(bars)
    files.write(root / RANKED, png, durable=False)
    yield markup.image("picture", png, "Time to the target, relative to yours.")
    yield (
        '<p class="quiet">The prediction uses the schedule that a rule makes of the durations and '
        "the noise of a gradient at the initial parameters, a variance of "
        f"{advice.ratio:.3g} squared mean gradients per mini-batch, and no training: time ~ (how "
        "many times smaller the largest stable rate is for stale gradients + noise x mean of 1 / "
        "mini-batches of an update) / updates per second. Its range is over resampled durations "
        f"and over noise of {ranking.RATIOS[0]:g} to {ranking.RATIOS[-1]:g} times as much. "
        "Momentum, codecs and local steps are not in it.</p>"
    )


def _seconds(result: trained.Trained | None) -> str:
    if result is None:
        return NOTHING
    if not np.isfinite(result.mean):
        return "never"
    return f"{result.mean:.4g} ± {result.spread:.2g}"


def _changes(advice: Advice) -> Iterator[str]:
    yield "<h2>What would change the verdict</h2>"
    yield markup.table("words", ("if", "predicted to be first"), [advice.changes])


def _waiting(advice: Advice, root: Path) -> Iterator[str]:
    first = advice.verdict.close[0]
    shown = {f"{first.name} (advised)": first, f"{advice.reference.name} (yours)": advice.reference}
    if first.name == advice.reference.name:
        shown = {f"{first.name} (advised, and yours)": first}
    yield "<h2>Who waits for whom</h2>"
    png = pictures.strips(shown)
    files.write(root / STRIP, png, durable=False)
    yield markup.image("strip", png, "What every worker does at the beginning.")
    yield '<div class="panels">'
    for number, (heading, one) in enumerate(shown.items()):
        lasted = float(one.played.schedule.time[-1])
        waits = one.played.diagnostics.waits
        if not one.played.diagnostics.limits.any():
            continue
        panel = pictures.waiting(heading, waits, lasted, f"waits{number}")
        yield panels.figure_of(panel)
    yield "</div>"


def _curves(advice: Advice) -> Iterator[str]:
    unit = ranking.predicted(advice.reference, advice.ratio)
    yield "<h2>Around every rule's best parameter</h2>"
    yield '<div class="panels">'
    for rule, points in ranking.curves(advice.found, advice.ratio).items():
        name = grids.parameter(waiting.RULE, rule)
        panel = pictures.curve(rule, name, points, unit)
        yield panels.figure_of(panel)
    yield "</div>"


def _durations(advice: Advice) -> Iterator[str]:
    rows = []
    for i, values in enumerate(advice.source.measured.seconds):
        quantiles = np.quantile(values, [0.1, 0.5, 0.9, 1.0])
        name = advice.source.measured.name(i)
        rows.append((name, f"{values.size:,}", *(f"{seconds:.4g}" for seconds in quantiles)))
    share = advice.source.measured.censored
    cut = (
        f"; {share:.1%} were cut by the rule of the run, and are completed from the longer ones of "
        "their worker (Kaplan-Meier)"
        if share
        else ""
    )
    yield "<h2>Durations</h2><details><summary>seconds of a mini-batch, by worker</summary>"
    headings = ("worker", "number", "10 %", "median", "90 %", "longest")
    yield markup.table("numbers", headings, [rows], f"seconds of a mini-batch{cut}")
    yield "</details>"


def _refused(advice: Advice) -> Iterator[str]:
    if advice.refused:
        yield "<h2>Not weighed</h2>"
        yield markup.table("words", ("rule", "why"), [advice.refused])
