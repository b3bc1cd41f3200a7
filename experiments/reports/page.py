"""The page that says what was compared and what came out: report.html, from what runs leave.

It needs neither a network nor JavaScript. Beside it lies strip.png, and beside every schedule a
timeline.json, see `experiments.reports.timeline`.
"""

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files, parts, provenance, records
from experiments.reports import figure, markup, panels, strip_chart, table, timeline, workdirs
from stragglers import schedule

REPORT, STRIP, FIGURE = "report.html", "strip.png", "figure.png"


def write(root: str | os.PathLike) -> Path:
    """Write report.html, strip.png and the timelines from the records below `root`; the page.

    Raises ValueError where there are none, or one cannot be read.
    """
    root = Path(root)
    arms, unfinished = workdirs.gather(root)
    note = provenance.known(root)
    looks = {arm.name: look for arm in arms if (look := _look(arm)) is not None}
    sections = [
        *(_results(arms) if arms else ()),
        *(_unfinished(unfinished) if unfinished else ()),
        *(_claims(note["claims"]) if note.get("claims") else ()),
        *_numbers(note.get("numbers", ())),
        *(_curves(arms, looks) if arms else ()),
        *(_strip(root, arms, looks) if looks else ()),
        *(_schedules(looks) if looks else ()),
        *_pictures(root),
        *(_compared(arms) if arms else ()),
    ]
    title = root.resolve().name
    page = markup.page(title, " · ".join(_facts(arms, unfinished, note)), _again(note), sections)
    path = root / REPORT
    files.write(path, page, durable=False)
    return path


def _look(arm: workdirs.Arm) -> panels.Look | None:
    """Write the timelines of all seeds; what the schedule of the first one shows, if any."""
    looks = []
    for place, summary, metrics in zip(arm.places, arm.summaries, arm.runs, strict=True):
        if not (place / records.SCHEDULE).exists():
            continue
        done = schedule.load(place / records.SCHEDULE)
        if done.all_workers > summary["workers"] + 1:  # one more stands for nobody
            raise ValueError(
                f"report: {place / records.SCHEDULE} has {done.all_workers} workers, its summary "
                f"{summary['workers']}; remove both, and the same command trains that run again"
            )
        if not done.updates:
            continue
        path = place / timeline.TIMELINE
        timeline.write(done, path, _named(arm, summary), summary["clock"], metrics)
        if not looks:
            looks.append(panels.look(done, summary["workers"], timeline.MOST_STRETCHES))
    return looks[0] if looks else None


def _named(arm: workdirs.Arm, summary: Mapping) -> str:
    """An arm's run by its name, and its seed if there are several."""
    return f"{arm.name}, seed {summary['seed']}" if len(arm.runs) > 1 else arm.name


def _facts(arms: Sequence[workdirs.Arm], unfinished: Sequence, note: Mapping) -> Iterator[str]:
    yield f"{len(arms)} {'arm' if len(arms) == 1 else 'arms'}"
    seeds = sorted({len(arm.runs) for arm in arms})
    if seeds and seeds[-1] > 1:
        yield f"{'' if len(seeds) == 1 else 'up to '}{seeds[-1]} seeds each"
    if unfinished:
        yield f"{len(unfinished)} not finished"
    for clock in sorted({arm.summary["clock"] for arm in arms}):
        yield f"{clock} time"
    if note:
        yield datetime.datetime.fromisoformat(note["date"]).strftime("%d %B %Y, %H:%M %Z")


def _again(note: Mapping) -> str:
    """How to repeat it."""
    if not note:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in note["versions"].items())
    return (
        f'<pre>{markup.text(note["command"])}</pre>\n<p class="quiet">{markup.text(versions)}</p>'
    )


def _results(arms: Sequence[workdirs.Arm]) -> Iterator[str]:
    """The table of `table.of_arms`, its sections as bodies, and why arms ended early."""
    shown = table.of_arms([arm.summary for arm in arms])
    headings = [str(column.header) for column in shown.columns]
    bodies: list[list] = [[]]
    for row, cells in zip(
        shown.rows, zip(*(column.cells for column in shown.columns), strict=True), strict=True
    ):
        bodies[-1].append(cells)
        if row.end_section:
            bodies.append([])
    yield "<h2>Results</h2>"
    yield markup.table("numbers", headings, bodies, shown.caption)
    for arm in arms:
        for summary in arm.summaries:
            if summary.get("stopped"):
                who = markup.text(_named(arm, summary))
                why = markup.text(summary["stopped"])
                yield f"<p><strong>{who}</strong> stopped early: {why}</p>"


def _unfinished(unfinished: Sequence[workdirs.Unfinished]) -> Iterator[str]:
    yield "<h2>Not finished</h2>"
    yield markup.table("words", ("run", "state"), [unfinished])


def _claims(claims: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "<h2>Claims and measurements</h2>"
    yield markup.table("words", ("claim", "measured"), [claims])


def _numbers(tables: Sequence[Mapping]) -> Iterator[str]:
    for one in tables:
        yield markup.table("words", one["columns"], [one["rows"]], one["title"])


def _curves(arms: Sequence[workdirs.Arm], looks: Mapping[str, panels.Look]) -> Iterator[str]:
    target = arms[0].summary["target_loss"]
    curves = figure.drawn([(arm.name, arm.runs) for arm in arms], target)
    names = [name for name, _ in curves]
    clock = arms[0].summary["clock"]
    looks = {name: look for name, look in looks.items() if name in names}
    yield "<h2>Figures</h2>"
    if len(names) < len(arms):
        yield f"<p>Of {len(arms)} arms, those that are first at the target are drawn.</p>"
    if max(len(runs) for _, runs in curves) > 1:
        yield (
            "<p>Means over seeds, with a band of one standard deviation; staleness and idle time "
            "come from the first seed.</p>"
        )
    yield panels.legend(names, target)
    yield '<div class="panels">'
    for panel in panels.panels(curves, looks, target, clock):
        yield panels.figure_of(panel)
    yield "</div>"


def _strip(root: Path, arms: Sequence[workdirs.Arm], looks: Mapping) -> Iterator[str]:
    """The beginning of some arms, the first of every waiting rule before others."""
    candidates = [arm for arm in arms if arm.name in looks and looks[arm.name].first.worker.size]
    if not candidates:
        yield "<p>No worker does anything for as long as a nanosecond: no strip is drawn.</p>"
        return
    first = {arm.summary["wait"]: arm.name for arm in reversed(candidates)}
    others = {
        tuple(str(arm.config.get(key)) for key in ("wait", "delay", "mini_batches", "graph")): arm
        for arm in reversed(candidates)
    }
    ranked = [*first.values(), *(arm.name for arm in reversed(others.values()))]
    chosen = list(dict.fromkeys(ranked))[: strip_chart.MOST_STRIPS]
    strips = [
        strip_chart.Strip(
            arm.name, looks[arm.name].first, arm.summary["workers"], looks[arm.name].events
        )
        for arm in arms
        if arm.name in chosen
    ]
    png = strip_chart.draw(strips)
    files.write(root / STRIP, png, durable=False)
    several = f" of {len(strips)} of the arms" if len(strips) < len(arms) else ""
    yield "<h2>The first rounds</h2>"
    yield markup.image("strip", png, "What every worker does at the beginning" + several + ".")
    if any(strip_chart.has_gaps(strip.first) for strip in strips):
        yield (
            '<p class="quiet">Where there is no bar, nothing of a worker\'s time counted: its '
            "mini-batches were cancelled, ignored or still under way at the end, or its next "
            "round was being prepared.</p>"
        )
    yield (
        '<p class="quiet">Event by event: open a timeline.json, which lies beside each '
        "schedule.npz, in ui.perfetto.dev.</p>"
    )


def _schedules(looks: Mapping[str, panels.Look]) -> Iterator[str]:
    """How far off gradients land, and who does how much and is waited for how often."""
    rows = []
    for name, look in looks.items():
        found = look.found
        limits = int(found.limits.argmax())
        rows.append(
            (
                name,
                f"{found.tree_distance:,}",
                f"{found.mean_distance:,.1f}",
                f"{found.staleness:.2f}",
                _shares(found.share),
                _shares(found.sent),
                f"{limits} ({found.limits[limits]:.0%})" if found.limits[limits] else table.NONE,
            )
        )
    headings = (
        "arm", "largest tree\ndistance", "mean tree\ndistance", "effective\nstaleness",
        "workers' shares\nof mini-batches [%]", "workers' shares\nof bytes [%]",
        "waits most\nfor worker",
    )  # fmt: skip
    yield "<h2>Schedules</h2>"
    yield markup.table("numbers", headings, [rows])
    yield (
        '<p class="quiet">Tree distance (Birch SGD, arXiv 2505.09218): mini-batches between where '
        "a gradient was taken and where it lands, which bounds the learning rate; staleness: "
        "updates between the two, averaged over mini-batches; shares: of the worker with the "
        "least and of the one with the most; waits most for: the worker that others were waiting "
        "for in the most updates. Of each arm's first seed.</p>"
    )


def _shares(shares: np.ndarray) -> str:
    return f"{100 * shares.min():.1f} to {100 * shares.max():.1f}"


def _pictures(root: Path) -> Iterator[str]:
    """Figures that the config has drawn by itself."""
    paths = [
        path
        for path in sorted(root.glob("*.png"))
        if path.name not in (STRIP, FIGURE) and path.is_file()
    ]
    if paths:
        yield "<h2>Figures of this experiment</h2>"
    for path in paths:
        yield markup.image("picture", files.read(path), path.stem.replace("_", " "))


def _compared(arms: Sequence[workdirs.Arm]) -> Iterator[str]:
    """The entries in which configs differ, and those that they share."""
    columns = _columns([arm.config for arm in arms])
    differing = [key for key in columns if len(set(columns[key])) > 1]
    yield "<h2>Settings</h2>"
    if differing:
        rows = zip((arm.name for arm in arms), *(columns[key] for key in differing), strict=True)
        caption = "the entries of the configs in which arms differ"
        yield markup.table("settings", ("arm", *differing), [list(rows)], caption)
    common = [(key, cells[0]) for key, cells in columns.items() if key not in differing]
    yield f"<details><summary>{len(common)} common settings</summary>"
    yield markup.table("words", ("entry", "value"), [common])
    yield "</details>"


def _columns(configs: Sequence[Mapping]) -> dict[str, list[str]]:
    """Entry -> what it is in every config; of a part that all arms share, its parameters."""
    columns = {}
    for key in dict.fromkeys(key for config in configs for key in config if key != "name"):
        values = [config.get(key) for config in configs]
        names = {value.get("name") if isinstance(value, Mapping) else ... for value in values}
        if len(names) == 1 and ... not in names:
            for own in dict.fromkeys(own for value in values for own in value):
                label = key if own == "name" else f"{key}.{own}"
                columns[label] = [_value(value.get(own)) for value in values]
        else:
            columns[key] = [_value(value) for value in values]
    return columns


def _value(value: Any) -> str:
    """An entry of a config, as one would write it on the command line."""
    return table.NONE if value is None else parts.text(value)
