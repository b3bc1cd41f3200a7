"""The page of a workdir, report.html: the compared arms and their results, from records alone.

The page needs no network. A reader without scripts sees pictures of matplotlib; if scripts run,
figures of plotly replace the pictures. The file strip.png lies beside the page, and a timeline.json
lies beside every schedule. `experiments.live` serves the same page while records arrive.
"""

import base64
import datetime
import functools
import gzip
import hashlib
import html
import itertools
import json
import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from plotly.offline import get_plotlyjs

from experiments import figures, files, formats, provenance, records, registry, tables, timeline
from experiments.stats import NOISE, Claim, judge
from stragglers import slow_worker
from stragglers.slow_worker import SLOW

REPORT, STRIP, FIGURE = "report.html", "strip.png", "figure.png"
MOST_POINTS = 400  # points of a curve; fewer if there are more than figures.MOST_DRAWN arms
MOST_STRIPS = 24
MOST_SPANS = 1200  # bars of a strip; a browser needs seconds to draw more
HERE = Path(__file__).parent


class Arm(NamedTuple):
    """The records of an arm's finished seeds."""

    name: str
    places: list[Path]  # the directories of its seeds
    config: dict  # its entry `seed` is a text of all seeds
    summary: dict  # the summary over all seeds
    summaries: list[dict]  # the summary of each seed
    runs: list[list[dict]]  # the metrics of each seed


Run = tuple[Path, dict, dict]  # its directory, config and summary


class Unfinished(NamedTuple):
    """A run that has not ended."""

    place: str
    state: str


def places(root: Path) -> Iterator[Path]:
    """Yield the directories of all runs below a workdir, begun or not; links are not followed."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(set(below) - records.FOLDERS)
        is_analysis = records.SUMMARY in names and records.METRICS not in names
        if {records.METRICS, records.ERROR, records.CONFIG} & set(names) and not is_analysis:
            yield Path(folder)


def gather(root: Path) -> tuple[list[Arm], list[Unfinished]]:
    """Return the finished arms, in the order of the sweep's summary, and the unfinished runs.

    If runs of one name are not the seeds of one arm, as after several launches, arms are named
    after their folders. Raises ValueError if a record cannot be read, or if the runs of one folder
    are not the seeds of one arm.
    """
    members: dict[str, list[Run]] = {}
    unfinished, arms, mixed, by_folder = [], [], {}, {}
    for place in places(root):
        summary = records.read_summary(place, formats.WHOLE_SUMMARY)
        if summary is None:
            unfinished.append(Unfinished(str(place.relative_to(root)), _state(place)))
            continue
        config = records.read_config(place / records.CONFIG).to_dict()
        members.setdefault(summary["name"], []).append((place, config, summary))
    for name in [name for name, runs in members.items() if _fault(runs)]:
        for run in mixed.setdefault(name, members.pop(name)):
            folder = run[0].parent if run[0].name.startswith("seed_") else run[0]
            by_folder.setdefault(str(folder.relative_to(root)), []).append(run)
    for name, runs in (members | by_folder).items():
        if fault := _fault(runs):
            raise ValueError(f"report: {fault}; give the --workdir of a single sweep")
        lengths = [[config.get(key) or 0 for key in records.LENGTHS] for _, config, _ in runs]
        kept = [length == max(lengths) for length in lengths]  # others are not trained longer yet
        unfinished += [Unfinished(str(place.relative_to(root)), "as long as before")
                       for (place, *_), keep in zip(runs, kept, strict=True) if not keep]
        runs = sorted(itertools.compress(runs, kept), key=lambda run: run[2]["seed"])
        seeds, configs, summaries = map(list, zip(*runs, strict=True))
        old, baseline = (summaries[0][field] for field in ("name", "baseline"))
        if baseline in mixed and name.endswith(f"/{old}"):
            baseline = name.removesuffix(old) + baseline
        summaries = [summary | {"name": name, "baseline": baseline} for summary in summaries]
        config = configs[0] | {"seed": ", ".join(str(summary["seed"]) for summary in summaries)}
        metrics = [records.read_metrics(place, whole=True) for place in seeds]
        arms.append(Arm(name, seeds, config, records.aggregate(summaries), summaries, metrics))
    together = records.read_summary(root, formats.SWEEP) or {}
    listed = together.get("arms", ())
    order = {arm["name"]: place for place, arm in enumerate(listed)}
    compared = {arm["name"]: arm["baseline"] for arm in listed if "baseline" in arm}
    arms = [arm._replace(summary=arm.summary | {"baseline": compared[arm.name]})
            if arm.name in compared else arm for arm in arms]  # fmt: skip
    return sorted(arms, key=lambda arm: order.get(arm.name, len(order))), unfinished


def _fault(runs: Sequence[Run]) -> str:
    """Return a text on two runs that are not seeds of one arm and have no mean, or ""."""

    def settings(config: dict) -> dict:  # all but the seed and a length
        return {key: value for key, value in config.items() if key != "seed" and not
                (key in records.LENGTHS and (value is None or registry.is_number(value)))}

    runs = sorted(runs, key=lambda run: run[2]["seed"])
    for (one, its, summary), (other, theirs, _) in itertools.pairwise(runs):
        same = its.get("seed") == theirs.get("seed")
        if same or settings(its) != settings(theirs):
            how = "the same seed" if same else "other settings"
            return f"{one} and {other} are both runs of {summary['name']!r}, with {how}"
    return ""


def _state(place: Path) -> str:
    if (place / records.ERROR).exists():
        return f"failed: {records.read_error(place)}"
    if not (place / records.METRICS).exists():
        return "not begun"
    metrics = records.read_metrics(place)
    if not metrics or not {"update", "seconds"} <= metrics[-1].keys():
        return "not finished, nothing evaluated yet"
    last = metrics[-1]
    slow = slow_worker.described(last)
    state = f"not finished: {last['update']:,} updates until {last['seconds']:.4g} s"
    return f"{state}; {slow}" if slow else state


def write(root: str | os.PathLike, paper: bool = False) -> Path:
    """Write report.html, strip.png and timelines of the records below `root`; return the page.

    paper: whether to write every figure as PDF and SVG too, into the folder `figures`.
    Raises ValueError if there are no records, if a record cannot be read, or with `paper` if no
    arm has finished.
    """
    root = Path(root)
    arms, unfinished = gather(root)
    if not arms and not unfinished:
        raise ValueError(f"report: {root} holds no records of runs; give the --workdir of some")
    if paper and not arms:
        raise ValueError(f"report: no run below {root} has finished; leave out --paper")
    looks, lines = looks_of(arms), [(arm.name, arm.runs) for arm in arms]
    made = figures.every(lines, looks, *records.common([arm.summary for arm in arms]))
    strips = strips_of(arms, looks)
    if strips:
        made["strips"] = figures.draw_strips(strips[: figures.MOST_STRIPS])
        figures.save(made["strips"], root / STRIP)
    if paper:
        figures.write_paper(root, made)
    pictures = "".join(image("still", figures.png(one), one.get_label()) for one in made.values())
    files.write(root / REPORT, whole(root, arms, unfinished, looks, lines, pictures), durable=False)
    return root / REPORT


def whole(
    root: Path,
    arms: Sequence[Arm],
    unfinished: Sequence[Unfinished],
    looks: Mapping[str, figures.Look],
    lines: Sequence[tuple[str, figures.Runs]],
    pictures: str = "",
    **watched,
) -> str:
    """Return the page of a workdir as HTML.

    lines: names and runs of the arms, also of arms that have not finished. pictures: HTML for a
    reader without scripts. watched: `state` and `version` of a page served during the runs.
    """
    note = provenance.known(root)
    is_live = bool(watched or note)
    facts = [f"{len(arms)} {'arm' if len(arms) == 1 else 'arms'}"]
    seeds = sorted({len(arm.runs) for arm in arms})
    if seeds and seeds[-1] > 1:
        facts.append(f"{'' if len(seeds) == 1 else 'up to '}{seeds[-1]} seeds each")
    if unfinished:
        facts.append(f"{len(unfinished)} not finished")
    facts += [f"{clock} time" for clock in sorted({arm.summary["clock"] for arm in arms})]
    if note:
        facts.append(datetime.datetime.fromisoformat(note["date"]).strftime("%d %B %Y, %H:%M %Z"))
    own = [path for path in sorted(root.glob("*.png"))
           if path.name not in (STRIP, FIGURE) and path.is_file()]  # fmt: skip
    words = [
        ("Not finished", ("run", "state"), unfinished),
        ("Claims and measurements", ("claim", "measured"), note.get("claims")),
    ]
    sections = [
        f'<p class="headline">{text(headline(arms))}</p>' if arms else "",
        f"<p>{text(slow(arms, looks))}</p>" if looks else "",
        *_about(note),
        *(_results(arms) if arms else ()),
        *(f"<h2>{title}</h2>\n{table('words', names, [rows])}"
          for title, names, rows in words if rows),
        *(table("words", t["columns"], [t["rows"]], t["title"]) for t in note.get("numbers", ())),
        *(_figures(arms, lines, looks, pictures, is_live) if lines else ()),
        *(_schedules(looks) if looks else ()),
        "<h2>Figures of this experiment</h2>" if own else "",
        *(image("picture", files.read(at), at.stem.replace("_", " ")) for at in own),
        *(_settings(arms) if arms else ()),
    ]  # fmt: skip
    return page(root.resolve().name, " · ".join(facts), "", sections, is_live, **watched)


def _about(note: Mapping) -> Iterator[str]:
    """Yield the docstring of the config, the command that repeats the launch and the versions."""
    for paragraph in filter(str.strip, note.get("about", "").split("\n\n")):
        words = text(" ".join(paragraph.split()))
        words = re.sub("`([^`]+)`", r"<code>\1</code>", words)
        yield f"<p>{words}</p>"
    if note:
        versions = ", ".join(f"{name} {version}" for name, version in note["versions"].items())
        yield f'<pre>{text(note["command"])}</pre><p class="quiet">{text(versions)}</p>'


def headline(arms: Sequence[Arm]) -> str:
    """Return a sentence on the first arm at the target and its speed-up over the baseline."""
    target, _ = records.common([arm.summary for arm in arms])
    summaries = {arm.name: arm.summary for arm in arms}
    for field, words in (("target_loss", "targets"), ("clock", "clocks")):
        if len({summary[field] for summary in summaries.values()}) > 1:
            return f"The arms have different {words}, so that none is sooner than another."
    names = _ordered(arms)
    seconds = summaries[names[0]]["seconds_to_target"]
    if seconds is None:
        loss, name = min((np.inf if summary["train_loss"] is None else summary["train_loss"], name)
                         for name, summary in summaries.items())  # fmt: skip
        missed = "" if target is None else f"No arm reaches loss {target:.3g} with every seed. "
        lowest = ", the lowest" if len(arms) > 1 else ""
        end = f"with a training loss of {loss:.3g}{lowest}" if loss < np.inf else "without a loss"
        return f"{missed}{name} ends {end}."
    others = [name for name in names[1:] if summaries[name]["seconds_to_target"] is not None]
    reaches = f"{names[0]} reaches loss {target:.3g}"
    if not others or not seconds:
        only = ", and no other arm does with every seed" if len(arms) > 1 and not others else ""
        return f"{reaches} after {seconds:.3g} s{only}."
    baseline = summaries[names[0]]["baseline"]
    baseline = baseline if baseline in others else others[0]
    other = summaries[baseline]["seconds_to_target"]
    if seconds == other:
        return f"{reaches} as soon as {baseline}, after {seconds:.3g} s."
    found = judge(Claim("", "", "", names[0], baseline), summaries.values())
    doubt = "; the spread of the seeds leaves that inconclusive" if found.reason == NOISE else ""
    times = f"{other / seconds:.2g}" if other < 1.95 * seconds else f"{other / seconds:.1f}"
    return (
        f"{reaches} {times} times sooner than {baseline}, after {seconds:.3g} s instead of "
        f"{other:.3g} s{doubt}."
    )


def slow(arms: Sequence[Arm], looks: Mapping[str, figures.Look]) -> str:
    """Return a sentence about the slowest worker of the baseline, or else of the first arm."""
    baselines = [arm.summary["baseline"] for arm in arms if arm.summary["baseline"] in looks]
    name = (*baselines, *looks)[0]
    look = looks[name]
    if np.isnan(look.seconds).all():
        return f"No worker of {name} has finished a mini-batch."
    seconds = np.nan_to_num(look.seconds, nan=-1.0)
    median, worst = float(np.nanmedian(look.seconds)), int(seconds.argmax())
    if not median > 0 or seconds[worst] < SLOW * median:
        often = "All workers are about equally fast" if look.tail <= 1.5 else (
            f"No worker is always slow, but one mini-batch in a hundred takes {look.tail:.1f} "
            "times the median")  # fmt: skip
        return f"{often}: a mini-batch takes {median:.3g} s."
    more = int((seconds > SLOW * median).sum()) - 1
    also = f", and {more} more {'is' if more == 1 else 'are'} slow, too" if more else ""
    waits = look.found.limits[worst]
    waited = f" Under {name} others wait for it in {waits:.0%} of the updates." if waits else ""
    return (
        f"Worker {worst} is slow: a mini-batch takes it {seconds[worst]:.3g} s, "
        f"{seconds[worst] / median:.1f} times the median of {median:.3g} s{also}.{waited}"
    )


def _ordered(arms: Sequence[Arm]) -> list[str]:
    """Return the names of arms in the order in which they reach the target, the others last."""
    seconds = {arm.name: arm.summary["seconds_to_target"] for arm in arms}
    target, _ = records.common([arm.summary for arm in arms])
    names = figures.ranked([(arm.name, arm.runs) for arm in arms], target)
    return sorted(names, key=lambda name: np.inf if seconds[name] is None else seconds[name])


def looks_of(arms: Sequence[Arm], writes: bool = True) -> dict[str, figures.Look]:
    """Return, by arm, the `figures.Look` at the schedule of its first seed with a schedule.

    writes: whether to write a timeline beside the schedule of every seed, too.
    """
    looks = {}
    for arm in arms:
        for place, summary in zip(arm.places, arm.summaries, strict=True):
            path, workers = place / records.SCHEDULE, summary["workers"]
            if not path.exists() or (arm.name in looks and not writes):
                continue
            done = records.read_schedule(path)
            if done.all_workers > workers + 1:  # the number `workers` stands for nobody
                raise ValueError(
                    f"report: {path} has {done.all_workers} workers, its summary {workers}; remove "
                    "both, and the same command trains that run again"
                )
            if done.updates and arm.name not in looks:
                looks[arm.name] = figures.look(done, workers)
            if done.updates and writes:
                name = _named(arm, summary)
                timeline.write(done, place / timeline.TIMELINE, name, summary["clock"])
    return looks


def _named(arm: Arm, summary: Mapping) -> str:
    return f"{arm.name}, seed {summary['seed']}" if len(arm.runs) > 1 else arm.name


def strips_of(arms: Sequence[Arm], looks: Mapping[str, figures.Look]) -> list[figures.Strip]:
    """Return the strips of all arms that have a strip, the most important ones first.

    The order is the first arm at the target, the baselines, the first arm of each rule, the others.
    """
    known = [arm for arm in arms if arm.name in looks and looks[arm.name].first.worker.size]
    if not known:
        return []
    names, summaries = _ordered(known), {arm.name: arm.summary for arm in known}
    baselines = [summaries[names[0]]["baseline"], *(arm.summary["baseline"] for arm in arms)]
    rules = {summaries[name]["wait"]: name for name in reversed(names)}
    order = [names[0], *baselines, *sorted(rules.values(), key=names.index), *names]
    return [
        figures.Strip(name, looks[name].first, summaries[name]["workers"], looks[name].events)
        for name in dict.fromkeys(order)
        if name in summaries
    ]


def _results(arms: Sequence[Arm]) -> Iterator[str]:
    """Yield the table of `tables.of_arms`, and a sentence per seed that stopped or lost nodes."""
    shown = tables.of_arms([arm.summary for arm in arms])
    bodies: list[list] = [[]]
    for row, *values in zip(shown.rows, *(column.cells for column in shown.columns), strict=True):
        bodies[-1].append(values)
        bodies += [[]] if row.end_section else []
    yield "<h2>Results</h2>"
    yield table("numbers", [str(column.header) for column in shown.columns], bodies, shown.caption)
    for arm, summary in ((one, summary) for one in arms for summary in one.summaries):
        name = f"<strong>{text(_named(arm, summary))}</strong>"
        if summary.get("stopped"):
            yield f"<p>{name} stopped early: {text(summary['stopped'])}</p>"
        nodes, workers = summary.get("nodes"), summary["workers"]
        if nodes is not None and nodes < workers:
            yield (f"<p>{name} ended with {nodes:g} of {workers} nodes, whose models its last "
                   "evaluation has averaged</p>")  # fmt: skip


def _figures(
    arms: Sequence[Arm],
    lines: Sequence[tuple[str, figures.Runs]],
    looks: Mapping[str, figures.Look],
    pictures: str,
    is_live: bool,
) -> Iterator[str]:
    """Yield the pictures and, if live, the data and the elements in which report.js draws them."""
    yield "<h2>Figures</h2>"
    target, clock = records.common([arm.summary for arm in arms])
    names, strips = [name for name, _ in lines], strips_of(arms, looks)
    ranked, styles = figures.ranked(lines, target), figures.styles(names)
    traces, entries = [], []
    for place, name in enumerate(names if is_live else ()):
        colour, dash = styles[name]["color"], styles[name]["linestyle"]
        colour = "#808080" if colour == "#000000" else colour  # seen on light and dark pages
        dashes = [] if dash == "-" else [2 * length for length in dash[1]]
        line = {"color": colour, "dash": ",".join(f"{px:g}px" for px in dashes) or "solid"}
        traces.append({"type": "scatter", "name": html.escape(name, quote=False), "meta": name,
                       "line": line})  # fmt: skip
        entries.append(
            f'<li><label><input type="checkbox" data-arm="{place}"><svg width="36" height="8" '
            f'aria-hidden="true"><path d="M0 4H36" stroke="{colour}" stroke-width="2.4" '
            f'stroke-dasharray="{" ".join(map(str, dashes)) or "none"}"/></svg>{text(name)}'
            f"{'' if place < len(arms) else ' (under way)'}</label></li>"
        )
    if is_live:
        points = max(2, min(MOST_POINTS, MOST_POINTS * figures.MOST_DRAWN // len(lines)))
        axes: dict[str, dict] = {}
        for plot in figures.plots(lines, looks, target, clock):
            columns = [_columns(plot.curves.get(name), points) for name in names]
            axes.setdefault(plot.y, {})[plot.x] = {
                "columns": columns, "logarithmic": plot.logarithmic, "target": plot.target,
                "label": "" if plot.target is None else f"target loss {plot.target:.3g}",
                "top": plot.top,
            }  # fmt: skip
        few = len(names) <= figures.MOST_ARMS
        data = {
            "names": names,
            "shown": names if few else ranked[: figures.MOST_ARMS],
            "traces": traces,
            "axes": axes,
            "kinds": figures.KIND_COLOURS,
            "strips": [_strip(one) for one in strips[:MOST_STRIPS]],
        }
        yield packed("data", json.dumps(data, allow_nan=False, separators=(",", ":")))
        kinds = (
            f'<span class="kind" style="border-color: {colour}">{kind}</span>'
            for kind, colour in figures.KIND_COLOURS.items()
        )
        yield string.Template(files.read_text(HERE / "report.live.in")).substitute(
            arms="".join(entries), strips="" if strips else "hidden", kinds="".join(kinds)
        )
    yield f'<div class="stills" id="stills">{pictures}</div>'
    yield (
        '<p class="quiet">Of several seeds the mean, with a band of one standard deviation; '
        "staleness, idle time and strips are of the first seed. Where a strip has no bar, nothing "
        "of a worker's time counted: its mini-batches were cancelled, ignored or still under way "
        "at the end, or its next round was being prepared. Event by event: open a timeline.json, "
        "which lies beside each schedule.npz, in ui.perfetto.dev.</p>"
    )


def _columns(curve: figures.Curve | None, points: int) -> list[list[float | None]] | None:
    """Return columns of a curve, and of its band over seeds, at most `points` rows; None: empty."""
    if curve is None or not curve.x.size:
        return None
    keep = np.unique(np.linspace(0, curve.x.size - 1, points).round().astype(int))
    columns = curve if np.any(curve.low != curve.high) else curve[:2]
    return [_rounded(column[keep]) for column in columns]


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]


def _strip(strip: figures.Strip) -> dict[str, Any]:
    """Return a strip's bars and events, one per row, and the seconds up to which it is known."""
    lanes = figures.lanes_of(strip)
    inside, begin = np.flatnonzero(np.isin(strip.first.worker, lanes)), strip.first.begin
    drawn = timeline.Stretches(*(column[inside[:MOST_SPANS]] for column in strip.first))
    cut = begin.size == timeline.MOST_STRETCHES  # later stretches are left out
    missing = [*begin[inside[MOST_SPANS:]][:1], *begin[-1:][:cut]]
    bars = (
        _rounded(drawn.begin / timeline.NANOSECONDS),
        _rounded((drawn.end - drawn.begin) / timeline.NANOSECONDS),
        [timeline.KINDS[kind] for kind in drawn.kind],
        *(column.tolist() for column in (drawn.worker, drawn.update, drawn.mini_batches,
                                         drawn.staleness, drawn.partner)),
    )  # fmt: skip
    return {"name": strip.name, "title": html.escape(strip.name, quote=False),
            "bars": [*zip(*bars, strict=True)], "lanes": lanes.tolist(),
            "events": [(float(event.time), int(event.worker), event.kind)
                       for event in strip.events if event.worker in lanes],
            # The seconds that are shown at first, and the time from which on bars are missing.
            "until": figures.window([strip]),
            "known": float(min(missing) / timeline.NANOSECONDS) if missing else None}  # fmt: skip


def _schedules(looks: Mapping[str, figures.Look]) -> Iterator[str]:
    """Yield the table of tree distances, staleness, shares of workers and waits for workers."""
    rows = []
    for name, look in looks.items():
        found = look.found
        shares = [f"{100 * s.min():.1f} to {100 * s.max():.1f}" for s in (found.share, found.sent)]
        limits, most = int(found.limits.argmax()), found.limits.max()
        rows.append((name, f"{found.tree_distance:,}", f"{found.mean_distance:,.1f}",
                     f"{found.staleness:.2f}", *shares,
                     f"{limits} ({most:.0%})" if most else tables.NONE))  # fmt: skip
    headings = (
        "arm", "largest tree\ndistance", "mean tree\ndistance", "effective\nstaleness",
        "workers' shares\nof mini-batches [%]", "workers' shares\nof bytes [%]",
        "waits most\nfor worker",
    )  # fmt: skip
    yield "<h2>Schedules</h2>"
    yield table("numbers", headings, [rows])
    yield (
        '<p class="quiet">Tree distance (Birch SGD, arXiv 2505.09218): mini-batches between where '
        "a gradient was taken and where it lands, which bounds the learning rate; staleness: "
        "updates between the two, averaged over mini-batches; shares: of the worker with the "
        "least and of the one with the most; waits most for: the worker that others were waiting "
        "for in the most updates. Of each arm's first seed.</p>"
    )


def _settings(arms: Sequence[Arm]) -> Iterator[str]:
    """Yield a table of the entries in which configs differ, and one of their common entries."""
    configs = [arm.config for arm in arms]
    written = {key: [registry.text(config[key]) if config.get(key) is not None else tables.NONE
                     for config in configs]
               for key in dict.fromkeys(itertools.chain(*configs)) if key != "name"}  # fmt: skip
    differing = [key for key, cells in written.items() if len(set(cells)) > 1]
    yield "<h2>Settings</h2>"
    if differing:
        rows = zip((arm.name for arm in arms), *(written[key] for key in differing), strict=True)
        caption = "the entries of the configs in which arms differ"
        yield table("settings", ("arm", *differing), [list(rows)], caption)
    common = [(key, cells[0]) for key, cells in written.items() if key not in differing]
    rows = table("words", ("entry", "value"), [common])
    yield f"<details><summary>{len(common)} common settings</summary>{rows}</details>"


def page(
    title: str,
    subtitle: str,
    again: str,
    sections: Iterable[str],
    is_live: bool = False,
    state: str = "",
    version: int = 0,
) -> str:
    """Return a whole page; a live page runs report.js and plotly.js, any other page no script.

    again: HTML on how to repeat the page. state, version: the progress of the runs and the number
    of the page, if the page is served during the runs.
    """
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data: blob:"]
    scripts = ""
    if is_live:
        own, (library, digest) = files.read_text(HERE / "report.js"), _library()
        scripts = f"{library}\n<script>{own}</script>"
        policy.append(f"script-src 'sha256-{_digest(own)}' 'sha256-{digest}'")
    if state:
        policy.append("connect-src 'self'")
        again += f'<p id="watched" data-version="{version}">{text(state)}</p>'
    return string.Template(files.read_text(HERE / "report.html.in")).substitute(
        title=text(title), subtitle=text(subtitle), again=again, scripts=scripts,
        sections="\n".join(sections), policy="; ".join(policy),
    )  # fmt: skip


@functools.cache
def _library() -> tuple[str, str]:
    """Return plotly.js, packed to two fifths of its size, and its SHA-256 for the page's policy."""
    library = get_plotlyjs()
    return packed("plotly", library), _digest(library)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def packed(name: str, content: str) -> str:
    """Return a text, gzipped and in base 64, as a script element that browsers do not run."""
    data = base64.b64encode(gzip.compress(content.encode(), 6, mtime=0)).decode()
    return f'<script type="application/gzip" id="{name}">{data}</script>'


def table(
    kind: str, headings: Sequence[str], bodies: Sequence[Sequence], caption: str | None = None
) -> str:
    """Return an HTML table in a box that scrolls; the first cell of each row is its heading."""

    def row(first: Any, *rest: Any) -> str:
        cells = "".join(f"<td>{text(cell)}</td>" for cell in rest)
        return f'<tr><th scope="row">{text(first)}</th>{cells}</tr>\n'

    below = f'<p class="quiet">{text(caption)}</p>' if caption else ""
    head = "".join(f'<th scope="col">{text(heading)}</th>' for heading in headings)
    groups = ["".join(row(*cells) for cells in body) for body in bodies if body]
    rows = "".join(f"<tbody>{group}</tbody>" for group in groups)
    return (f'<div class="scroll" tabindex="0"><table class="{kind}"><thead><tr>{head}</tr>'
            f"</thead>\n{rows}</table></div>{below}")  # fmt: skip


def image(kind: str, png: bytes, caption: str) -> str:
    """Return an HTML figure with a PNG picture; kind: the figure's class in the style sheet."""
    data, words = base64.b64encode(png).decode(), text(caption)
    return (f'<figure class="{kind}"><img src="data:image/png;base64,{data}" alt="{words}">'
            f"<figcaption>{words}</figcaption></figure>")  # fmt: skip


def text(raw: str) -> str:
    """Return a text as HTML, with escapes in place of markup and control characters."""
    return html.escape("\n".join(registry.visible(line) for line in str(raw).split("\n")))
