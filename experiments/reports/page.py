"""The page that says what was compared and what came out: report.html, from what runs leave.

It needs no network. The page of a launch carries scripts for live figures, see
`experiments.reports.live`, and says all without them, too. Beside it lies strip.png, and beside
every schedule a timeline.json, see `experiments.reports.timeline`.
"""

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments import files, provenance, records
from experiments.reports import (
    beginnings,
    live,
    markup,
    panels,
    settings,
    strip_chart,
    table,
    telling,
    timeline,
    workdirs,
)
from stragglers import schedule

REPORT, STRIP, FIGURE = "report.html", "strip.png", "figure.png"


def write(root: str | os.PathLike) -> Path:
    """Write report.html, strip.png and the timelines from the records below `root`; the page.

    Raises ValueError where there are none, or one cannot be read.
    """
    root = Path(root)
    arms, unfinished = workdirs.gather(root)
    note = provenance.known(root)
    looks = looks_of(arms)
    scripts = live.scripts() if note else ()
    sections = [
        *results(arms),
        *not_finished(unfinished),
        *_claims(note.get("claims")),
        *_numbers(note.get("numbers", ())),
        *_figures(arms, looks, bool(scripts)),
        *_beginnings(root, arms, looks, bool(scripts)),
        *schedules(looks),
        *_pictures(root),
        *settings.sections(arms),
    ]
    path = root / REPORT
    page = markup.page(
        root.resolve().name, subtitle(arms, unfinished, note), again(note), sections, scripts
    )
    files.write(path, page, durable=False)
    return path


def subtitle(arms: Sequence[workdirs.Arm], unfinished: Sequence, note: Mapping) -> str:
    """What a page is about, in a line."""
    return " · ".join(_facts(arms, unfinished, note))


def looks_of(arms: Sequence[workdirs.Arm]) -> dict[str, panels.Look]:
    """What schedules show, by arm; their timelines are written beside them."""
    return {arm.name: look for arm in arms if (look := _look(arm)) is not None}


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


def again(note: Mapping) -> str:
    """How to repeat it."""
    if not note:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in note["versions"].items())
    return (
        f'<pre>{markup.text(note["command"])}</pre>\n<p class="quiet">{markup.text(versions)}</p>'
    )


def results(arms: Sequence[workdirs.Arm]) -> Iterator[str]:
    """The table of `table.of_arms`, its sections as bodies, and why arms ended early."""
    if not arms:
        return
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
            there, all_nodes = summary.get("nodes"), summary.get("workers")
            if there is not None and there < all_nodes:
                who = markup.text(_named(arm, summary))
                yield (
                    f"<p><strong>{who}</strong> ended with {there:g} of {all_nodes} nodes, whose "
                    "models its last evaluation has averaged</p>"
                )


def not_finished(unfinished: Sequence[workdirs.Unfinished]) -> Iterator[str]:
    """The runs that have not come to their end."""
    if unfinished:
        yield "<h2>Not finished</h2>"
        yield markup.table("words", ("run", "state"), [unfinished])


def _claims(claims: Sequence[Sequence[str]] | None) -> Iterator[str]:
    if claims:
        yield "<h2>Claims and measurements</h2>"
        yield markup.table("words", ("claim", "measured"), [claims])


def _numbers(tables: Sequence[Mapping]) -> Iterator[str]:
    for one in tables:
        yield markup.table("words", one["columns"], [one["rows"]], one["title"])


def _figures(
    arms: Sequence[workdirs.Arm], looks: Mapping[str, panels.Look], is_live: bool
) -> Iterator[str]:
    if not arms:
        return
    curves = [(arm.name, arm.runs) for arm in arms]
    target, clock = arms[0].summary["target_loss"], arms[0].summary["clock"]
    chosen = telling.chosen(curves, target)
    yield "<h2>Figures</h2>"
    if is_live:
        lines = [live.Line(arm.name, arm.runs, True) for arm in arms]
        yield from live.of_curves(live.curves(lines, target, clock, [name for name, _ in chosen]))
    yield from markup.still(_panels(curves, chosen, looks, target, clock), is_live)


def _panels(curves, chosen, looks, target: float | None, clock: str) -> Iterator[str]:
    """Draw still figures: of all arms, or of those that tell most and then more by method."""
    names = [name for name, _ in chosen]
    looks = {name: look for name, look in looks.items() if name in names}
    if len(chosen) < len(curves):
        below, most = "All arms stand below, method by method.", telling.MOST_DRAWN
        if len(curves) > most:
            below = f"The first {most} stand below, method by method, and all arms in the table."
        yield (
            f"<p>Of {len(curves)} arms, {len(chosen)} are drawn first: of every method the arm "
            f"that is first at the target, then the next arms. {below}</p>"
        )
    if max(len(runs) for _, runs in curves) > 1:
        yield (
            "<p>Means over seeds, with a band of one standard deviation; staleness and idle time "
            "come from the first seed.</p>"
        )
    yield panels.legend(names, target)
    yield from _grid(panels.drawings(chosen, looks, target, clock), "panel")
    if len(chosen) < len(curves):
        yield from _grid(panels.by_group(curves, target, clock), "group")


def _grid(drawings: Sequence[panels.Drawing], prefix: str) -> Iterator[str]:
    yield '<div class="panels">'
    for number, one in enumerate(drawings):
        panel = panels.drawn(one.caption, one.draw, f"{prefix}{number}", one.margins)
        yield panels.figure_of(panel)
    yield "</div>"


def _beginnings(root: Path, arms: Sequence[workdirs.Arm], looks, is_live: bool) -> Iterator[str]:
    """What workers do at first, under the arms that tell most."""
    if not looks:
        return
    strips = beginnings.ranked(arms, looks)
    if not strips:
        yield "<p>No worker does anything for as long as a nanosecond: no strip is drawn.</p>"
        return
    shown = strips[: strip_chart.MOST_STRIPS]
    png = strip_chart.draw(shown)
    files.write(root / STRIP, png, durable=False)
    several = f" of {len(shown)} of the arms" if len(shown) < len(arms) else ""
    yield "<h2>The first rounds</h2>"
    if is_live:
        yield from live.of_strips(live.strips(strips))
    caption = "What every worker does at the beginning" + several + "."
    yield from markup.still([markup.image("strip", png, caption)], is_live)
    yield from beginnings.remarks(shown)


def schedules(looks: Mapping[str, panels.Look]) -> Iterator[str]:
    """How far off gradients land, and who does how much and is waited for how often."""
    if not looks:
        return
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
