"""The published evidence: records of docs/results, and the tables and figures of the pages.

    python -m experiments.publish                     # tables and figures into the pages
    python -m experiments.publish take runs/swarm     # a finished sweep becomes a record first
    python -m experiments.publish evidence --list     # hours, tiers, commits and states of sweeps
    python -m experiments.publish evidence            # make evidence: run what headlines lack
    python -m experiments.publish evidence --tier=secondary --fresh   # all others, at this commit
    python -m experiments.publish evidence matcha     # make evidence ONLY=matcha

A page has a table between two comments, `<!-- table: nonblocking -->` and `<!-- end -->`, the first
of which names a paper of `experiments.papers`, or one of TABLES with its arguments, quoted as in a
shell. The record of a sweep holds the command that repeats it, versions, the settings of its
config, and a row per arm with means over seeds. The record of an analysis has its summary instead.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import math
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.stats import false_discovery_control

from experiments import config_files, figures, files, formats, provenance, records, registry, stats
from experiments.papers import PAPERS
from experiments.papers.base import HEADLINE, SECONDARY, Sweep
from experiments.stats import arms
from experiments.sweep import expand

ROOT = Path(__file__).resolve().parents[1]
FOLDER, FIGURES = ROOT / "docs" / "results", ROOT / "docs" / "figures"
WORKDIRS = ROOT / "runs" / "evidence"
ALL = "all"  # tiers
Judged = tuple[stats.Claim, stats.Answer, stats.Answer]  # see `answers`
FIELDS = (
    "name", "baseline", "clock", "target_loss", "seeds", "reached", "updates", "samples", "seconds",
    "seconds_to_target", "seconds_to_target_std", "updates_to_target", "samples_to_target",
    "communication_seconds_to_target", "train_loss", "train_loss_std", "test_accuracy",
    "test_accuracy_std", "test_samples", "final_train_loss", "idle_fraction", "bytes_per_worker",
    "workers", "staleness_mean", "fallback_share", "fallback_bytes", "fallback_seconds", "stopped",
    "kept_long", "kept_short", "kept_by_tenth", "train_loss_long", "train_loss_short",
    *(f"{field}_by_seed" for field in formats.BY_SEED),
)  # fmt: skip


def papers(names: Iterable[str] = PAPERS) -> list[ModuleType]:
    """Return the modules of papers."""
    return [importlib.import_module(f"experiments.papers.{name}") for name in names]


def record(name: str) -> dict[str, Any]:
    """Return the record of this name; a ValueError says that there is none, or what is wrong."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json")))
        raise ValueError(f"there is no record {name!r}; published are {known}")
    return formats.read(path, formats.PUBLISHED)


def ask(
    name: str, ours: str, theirs: str, quantity: str = stats.SECONDS, **how: Any
) -> stats.Answer:
    """Return the verdict of "ours is at most theirs" on a record; how: fields of `stats.Claim`.

    print(publish.ask("swarm_tuned", "swarm/H=2", "sgp", tuned=True, bound=0.9))
    """
    found = record(name)
    listed, claim = arms(found), stats.Claim("", "", name, ours, theirs, quantity, **how)
    if not listed or any("name" not in arm for arm in listed):
        raise ValueError(f"record {name!r} has no arms to compare; ask the record of a sweep")
    known = sorted({key for arm in listed for key, value in arm.items()
                    if value is None or registry.is_number(value)})  # fmt: skip
    for asked in (quantity, *filter(None, (claim.chosen_by, *claim.equal))):
        if asked not in known:
            raise ValueError(
                f"no arm of the record {name!r} has a number {asked!r}; "
                f"{registry.meant(asked, known)}known are {', '.join(known)}"
            )
    for field in ("bound", "margin"):
        value = getattr(claim, field)
        if not registry.is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{field} must be a number, 0 or more, got {value!r}; correct it")
    return stats.judge(claim, listed, found)


# --- records ---


def take(root: str | Path, folder: Path = FOLDER) -> Path:
    """Write what pages need of a finished sweep or analysis as a record; return its path."""
    root = Path(root)
    for name in (records.SUMMARY, provenance.NOTE):
        if not (root / name).exists():
            raise ValueError(
                f"publish: {root} holds no {name}; give the --workdir of a finished sweep or "
                "analysis"
            )
    summary, note = records.read_summary(root), provenance.read(root)
    noted = {key: note[key] for key in ("command", "versions", "date", "claims", "numbers")
             if key in note}  # fmt: skip
    if "arms" in summary or "clock" in summary:  # a sweep, or a single run with its clock
        whole = formats.WHOLE_SWEEP if "arms" in summary else formats.WHOLE_SUMMARY
        formats.checked(summary, root / records.SUMMARY, whole)
        found = summary.get("arms", [summary])
        columns = [field for field in FIELDS if any(field in arm for arm in found)]
        rows = [[_rounded(arm.get(field)) for field in columns] for arm in found]
        noted |= {
            "settings": settings({arm["name"]: _config(root, arm["name"]) for arm in found}),
            "count": len(found),
            "seeds": max(len(arm.get("seeds", [0])) for arm in found),
            "arms": {"columns": columns, "rows": rows},
        }
    else:
        noted["summary"] = _rounded({k: v for k, v in summary.items() if k != "claims"})
    files.make(folder)
    path = folder / f"{root.resolve().name}.json"
    files.write(path, f"{_dumps(noted)}\n")
    return path


def _config(root: Path, arm: str) -> ConfigDict:
    """Return the config of an arm, or of the first of its seeds."""
    places = [place for top in (root / arm, root) for place in (*sorted(top.glob("seed_*")), top)]
    found = next((place for place in places if (place / records.CONFIG).exists()), None)
    if found is None:
        raise ValueError(f"{root} has no {records.CONFIG} of the arm {arm!r}; run the sweep again")
    return records.read_config(found / records.CONFIG)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(child) for key, child in value.items()}
    return [_rounded(child) for child in value] if isinstance(value, list | tuple) else value


def _dumps(value: Any, depth: int = 0) -> str:
    """Return JSON in which a row of a table, and a point of a summary, is a line."""
    is_list, margin = isinstance(value, list), " " * depth
    if not isinstance(value, dict | list) or not value or depth > 2:
        return json.dumps(value)
    if depth == 2 and not (is_list and any(isinstance(child, dict | list) for child in value)):
        return json.dumps(value)
    keys = [""] * len(value) if is_list else [f"{json.dumps(key)}: " for key in value]
    children = value if is_list else value.values()
    lines = ",\n".join(f"{margin} {key}{_dumps(child, depth + 1)}"
                       for key, child in zip(keys, children, strict=True))  # fmt: skip
    start, end = "[]" if is_list else "{}"
    return f"{start}\n{lines}\n{margin}{end}"


def settings(configs: Mapping[str, ConfigDict]) -> dict[str, str]:
    """Return each entry's text if all arms agree, or a digest of all arms' texts if they differ."""
    found = {}
    written = {name: {entry: _text(config[entry]) for entry in config
                      if entry not in ("name", "baseline", "seed")}
               for name, config in sorted(configs.items())}  # fmt: skip
    for entry in dict.fromkeys(entry for config in written.values() for entry in config):
        values = {name: config.get(entry) for name, config in written.items()}
        digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:12]
        first, *others = set(values.values())
        found[entry] = f"differs by arm: {digest}" if others else first
    return found


def _text(value: Any) -> str:
    """Return a value as one would write it, whether it was just made or read from JSON."""

    def plain(value: Any) -> Any:
        if hasattr(value, "items"):
            return ConfigDict({key: plain(inner) for key, inner in sorted(value.items())})
        return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

    return registry.text(plain(value))


# --- evidence ---


def state(sweep: Sweep, folder: Path = FOLDER) -> str:
    """Return "published", "missing", "damaged", or "drifted: " and what differs from the record."""
    path = folder / f"{sweep.name}.json"
    if not path.exists():
        return "missing"
    try:
        found = formats.read(path, formats.PUBLISHED)
    except formats.Damaged:
        return "damaged"
    words = shlex.split(found["command"])[2:]
    given = [word for word in words if not word.startswith(("--workdir=", "--jobs="))]
    if given != shlex.split(sweep.arguments):
        return "drifted: the command"
    if "arms" not in found:
        return "published"
    words, flags = config_files.overrides(shlex.split(sweep.arguments))
    file = config_files.read(str(ROOT / words[0].removeprefix("--config=")), flags)
    today = {arm.path: arm.config
             for arm in expand(file.config, file.module, file.values, seeds=1)}  # fmt: skip
    if {arm["name"] for arm in arms(found)} != set(today):
        return "drifted: the arms"
    now = settings(today)  # an entry that configs have gained since is no change
    changed = [key for key, value in found["settings"].items() if now.get(key, value) != value]
    return f"drifted: {', '.join(changed)}" if changed else "published"


def commit_of(name: str) -> str:
    """Return the commit in a record, "" where it has none."""
    with contextlib.suppress(formats.Damaged, OSError):
        found = formats.read(FOLDER / f"{name}.json", formats.PUBLISHED)
        return found.get("versions", {}).get("gossax", "")
    return ""


def launched(sweep: Sweep, workdir: Path) -> int:
    """Run the launcher in a process of its own, which prints progress; return its exit code.

    Arms that another commit has trained are removed first: a record names one commit.
    """
    before, today = provenance.known(workdir).get("versions", {}).get("gossax"), provenance.commit()
    if before not in (None, today):
        print(f"evidence: {workdir} is of commit {before}, this is {today}: it begins anew")
        files.remove_tree(workdir)
    place = workdir.relative_to(ROOT)  # the command is published
    words = [sys.executable, "launch.py", *shlex.split(sweep.arguments), f"--workdir={place}"]
    return subprocess.run(words, cwd=ROOT, check=False).returncode


def evidence(
    names: Sequence[str] = (), only_list: bool = False, tier: str = HEADLINE, fresh: bool = False
) -> list[str]:
    """Run the named sweeps, or what is due of a tier; return what went wrong, in lines.

    A sweep is due if it is not published, or, with `fresh`, if another commit than today's made it.
    A sweep that was cut off goes on where it was. Each is published before the next begins.
    """
    by_name = {sweep.name: sweep for paper in papers() for sweep in paper.SWEEPS}
    for name in names:
        if name not in by_name:
            raise ValueError(f"evidence: unknown sweep {name!r}; choose of {', '.join(by_name)}")
    today = provenance.commit()
    if fresh and not only_list and (today is None or today.endswith("-dirty")):
        raise ValueError(
            f"evidence: the commit of this code is {today}, and a record with --fresh names one "
            "that others can check out; commit your changes, or leave --fresh out"
        )
    commits = {name: commit_of(name) for name in by_name}
    usual, _ = Counter(filter(None, commits.values())).most_common(1)[0]
    left = []
    in_order = sorted(by_name.values(), key=lambda sweep: sweep.tier)
    for sweep in [by_name[name] for name in names] or in_order:
        now, commit = state(sweep), commits[sweep.name]
        if fresh and now == "published" and commit != today:
            now = f"of another commit than {today}"
        if names or (now != "published" and tier in (sweep.tier, ALL)):
            left.append(sweep)
        mark = " " if commit in ("", usual) else "*"
        print(f"{sweep.hours:6.2f} h  {sweep.tier:9}  {commit:12}{mark}  {sweep.name}: {now}")
    print(f"* of another commit than most records, {usual}")
    if only_list:
        others = sorted({path.stem for path in FOLDER.glob("*.json")} - by_name.keys())
        print(f"made by no sweep: {', '.join(others)}")
    print(f"{sum(sweep.hours for sweep in left):6.2f} h  to run", flush=True)
    wrong = []
    for sweep in () if only_list else left:
        if fresh and provenance.commit() != today:
            return [*wrong, f"{sweep.name} and all after it: the code has left {today}; go back"]
        print(f"evidence: {sweep.name}, {sweep.hours:g} h expected", flush=True)
        code = launched(sweep, WORKDIRS / sweep.name)
        if code:
            wrong.append(f"{sweep.name}: launch.py ended with exit code {code}")
            continue
        try:
            print(take(WORKDIRS / sweep.name))
            write_pages()
        except (ValueError, OSError) as error:
            wrong.append(f"{sweep.name}: {registry.sentence(error)}")
    return wrong


# --- tables ---


def of_paper(paper: ModuleType) -> Iterator[str]:
    """Give the claims of a paper with their verdicts, as a table; then its other records, remarks.

    Neighbours that begin alike up to a colon, or end alike after it, share a row with these words.
    """
    limit, rows = threshold(), []
    for shared, run in _runs(answers(paper)):
        if shared:
            rows.append((shared,))
        for words, (claim, answer, apart) in run:
            alone = answer.p is not None and limit < answer.p < stats.LEVEL
            rows.append((
                _sourced(words, claim.source),
                f"[{answer.measured or 'record'}](results/{claim.record}.json)",
                "" if answer.p is None else f"{answer.p:.2g}" + "*" * alone,
                _verdict(claim, answer, apart, alone),
            ))  # fmt: skip
    yield from table(("claim", "measured", "p", "verdict"), rows)
    links, remarks, missing = [], {}, []
    cited = dict.fromkeys(claim.record for claim in paper.CLAIMS)
    for name in [*cited, *(sweep.name for sweep in paper.SWEEPS if sweep.name not in cited)]:
        if not is_published(name):
            missing.append(name)
            continue
        if remark := record(name).get("remark"):
            remarks.setdefault(remark, []).append(name)
        if name not in cited:
            links.append(f"[{name}](results/{name}.json)")
    path = f"experiments/papers/{paper.__name__.rpartition('.')[2]}.py"
    yield ""
    yield (
        f"[Claims](../{path})." + f" Other records: {', '.join(links)}." * bool(links)
        + f" Not run yet: {', '.join(missing)}." * bool(missing)
    )  # fmt: skip
    for remark, names in remarks.items():
        yield ""
        yield f"{', '.join(names)}: {remark}"


def _runs(rows: Sequence[Judged]) -> Iterator[tuple[str, list[tuple[str, Judged]]]]:
    """Give the words that neighbours share, or "", and each one's other words with its row.

    Of "a ring: it is sooner" and "a line: it is sooner" these are "…it is sooner" and "a ring…".
    """
    halves, place = [row[0].claim.partition(": ") for row in rows], 0
    while place < len(rows):
        choices = []
        for side in (0, 2):
            half, end = halves[place][side], place
            while end < len(rows) and halves[end][1] and halves[end][side] == half:
                end += 1
            choices.append(((end - place - 1) * len(half.split()), side, end))
        saved, side, end = max(choices)
        first, _, last = halves[place]
        if saved <= 2:  # a row of its own costs two bars
            end = place + 1
            yield "", [(rows[place][0].claim, rows[place])]
        elif side:
            yield f"…{last}", [(f"{halves[n][0]}…", rows[n]) for n in range(place, end)]
        else:
            yield f"{first}…", [(f"…{halves[n][2]}", rows[n]) for n in range(place, end)]
        place = end


def _sourced(words: str, source: str) -> str:
    """Return a claim's words with a link to its paper; the place, if it is not the abstract."""
    if (found := ARXIV.match(source)) is None:
        return words
    place = source[found.end() :].removeprefix(", ").removeprefix("abstract").strip(": ")
    return f"[{words}](https://arxiv.org/abs/{found[1]})" + f" ({place})" * bool(place)


def is_published(name: str) -> bool:
    """Return whether there is a record of this name."""
    return (FOLDER / f"{name}.json").exists()


def _verdict(claim: stats.Claim, answer: stats.Answer, apart: stats.Answer, alone: bool) -> str:
    """Return a verdict, in bold if it may be quoted; why, and what the evidence lacks for that.

    alone: the difference does not stand beside all other tests.
    """
    words = f"**{answer.verdict}**" if claim.headline and not alone else answer.verdict
    if answer.reason not in ("", stats.NOISE):
        words += f": {answer.reason}"
    words += f" ({apart.verdict})" * (apart.verdict != answer.verdict)
    lacks = stats.lacking(claim, record(claim.record), answer) if claim.headline else []
    return words + f"; lacks {', '.join(lacks)}" * bool(lacks)


@functools.cache
def answers(paper: ModuleType) -> list[Judged]:
    """Return the claims of a paper that have a record, each with two answers.

    For the second answer each seed is judged at settings that the other seeds choose.
    """
    found = [(claim, record(claim.record)) for claim in paper.CLAIMS if is_published(claim.record)]
    return [
        (claim, *(stats.judge(claim, arms(of), of, apart) for apart in (False, True)))
        for claim, of in found
    ]


def p_values() -> list[float]:
    """Return the p-values of all claims."""
    judged = itertools.chain(*map(answers, papers()))
    return [answer.p for _, answer, _ in judged if answer.p is not None]


def threshold() -> float:
    """Return the largest p-value of all claims that stands by the false discovery control."""
    tests = np.sort(p_values())
    return float(tests[false_discovery_control(tests) <= stats.LEVEL].max(initial=0.0))


def of_headlines(*names: str) -> Iterator[str]:
    """Give the first claim of these papers, by default of all, with its verdict.

    Headlines come first. A claim counts only if its verdict stays when other seeds choose settings.
    """
    rows = []
    for paper in papers(names or PAPERS):
        judged = sorted(answers(paper), key=lambda row: not row[0].headline)
        claim, answer = next(
            (claim, answer) for claim, answer, apart in judged if answer.verdict == apart.verdict
        )
        anchor = re.sub(r"[^\w -]", "", paper.TITLE.lower()).replace(" ", "-")
        title = f"[{paper.TITLE}](docs/findings.md#{anchor})"
        verdict = ": ".join(filter(None, (answer.verdict, answer.reason)))
        rows.append((title, claim.claim, answer.measured, verdict))
    yield from table(("paper", "claim", "measured", "verdict"), rows)
    yield ""
    yield "Records and commands: [results](docs/results.md)."


def of_verdicts() -> Iterator[str]:
    """Give the number of verdicts of each kind, and how many tests stand after correction."""
    found, tests = [*itertools.chain(*map(answers, papers()))], p_values()
    counts, limit = Counter(answer.verdict for _, answer, _ in found), threshold()
    stand, few = (sum(p <= limit for p in tests), sum(p < stats.LEVEL for p in tests))
    changed = sum(answer.verdict != apart.verdict for _, answer, apart in found)
    verdicts = ", ".join(f'"{verdict}" {counts[verdict]}' for verdict in stats.VERDICTS)
    yield (
        f"Of {len(found)} claims the verdicts are {verdicts}. Of {len(tests)} p-values {few} are "
        f"below {stats.LEVEL:g}, and {stand} stand by the procedure of Benjamini and Hochberg. "
        f"Where each seed is judged at the settings that the other seeds choose, {changed} "
        f"verdicts change."
    )


def of_points(name: str, *words: str) -> Iterator[str]:
    """Give numbers of a benchmark's points by one of their fields, or by two.

    words: rows=FIELD, columns=FIELD if wanted, value=FIELD,... for numbers. A value can end
    in a factor and a heading, FIELD*1000:ms, or in % for a signed percentage. digits=NUMBER:
    decimals of numbers that are not whole. over=ROW: the number of this row divided by each number.
    All other words, such as hosts=2, choose points.
    """
    asked = dict(word.split("=", 1) for word in words)
    values, digits = asked.pop("value").split(","), asked.pop("digits", "2")
    down, across, over = (asked.pop(k, None) for k in ("rows", "columns", "over"))
    found = record(name)
    points = {(str(p.get(across, "")), str(p[down])): p for p in found["summary"]["points"]
              if all(str(p.get(key)) == text for key, text in asked.items())}  # fmt: skip

    def cell(column: str, row: str, value: str) -> str:
        field, _, factor = value.partition(":")[0].rstrip("%").partition("*")
        own, there = (points.get((column, at), {}).get(field) for at in (row, over))
        if own is None or (there is None and over is not None):
            return ""
        scaled = own * float(factor or 1)
        if value.endswith("%"):
            return f"{round(100 * scaled):+d}%"
        whole = isinstance(own, int) and not factor
        text = f"{own:,}" if whole else f"{scaled:,.{digits}f}"
        return f"{there / own:.2f}x" if over not in (None, row) else text

    columns, rows = (list(dict.fromkeys(key[place] for key in points)) for place in (0, 1))
    with contextlib.suppress(ValueError):
        columns.sort(key=float)
    headings = {}
    for column, value in itertools.product(columns, values):
        field = (value.partition(":")[2] or re.split(r"[*%]", value)[0]).replace("_", " ")
        headings[f"{column} {field if values[1:] or not column else ''}".strip()] = column, value
    cells = {row: [cell(column, row, value) for column, value in headings.values()] for row in rows}
    kept = [any(of_heading) for of_heading in zip(*cells.values(), strict=True)]
    shown = [(row, *(text or "–" for text in itertools.compress(texts, kept)))
             for row, texts in cells.items() if any(texts)]  # fmt: skip
    yield from table((down, *itertools.compress(headings, kept)), shown)
    yield from made_by(name, found)


def of_arms(name: str, quantities: str, *groups: str) -> Iterator[str]:
    """Give quantities (with commas between) of groups of a sweep's arms at their best settings."""
    found = record(name)
    (numbers,) = stats.at_best(*quantities.split(","))(arms(found))
    rows = [row for row in numbers.rows if not groups or row[0] in groups]
    kept = [n for n in range(len(numbers.columns)) if any(row[n] for row in rows)]
    yield from table([numbers.columns[n] for n in kept], [[row[n] for n in kept] for row in rows])
    yield from made_by(name, found)


def of_ratios(quantity: str, names: str, *pairs: str) -> Iterator[str]:
    """Give one arm's quantity divided by another's, "A : B", by record; each arm at its best."""
    rows = []
    for name in names.split(","):
        found, cells = arms(record(name)), [name]
        for pair in pairs:
            try:
                ours, theirs = (stats.best(stats.group(found, side), quantity)[quantity]
                                for side in pair.split(" : "))  # fmt: skip
                cells.append(f"{ours / theirs:.2f}x")
            except stats.Inconclusive:
                cells.append("–")
        rows.append(cells)
    yield from table(("record", *pairs), rows)


def made_by(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Give a record's path and command, on two lines if one is too long, and its remark."""
    parts = f"`docs/results/{name}.json`, by", f"`{found['command']}`"
    whole = " ".join(parts)
    yield ""
    yield from (whole,) if len(whole) <= 120 else parts
    if remark := found.get("remark"):
        yield ""
        yield from textwrap.wrap(remark, 120, break_long_words=False, break_on_hyphens=False)


TABLES: Mapping[str, Callable[..., Iterator[str]]] = {
    "headlines": of_headlines, "verdicts": of_verdicts, "points": of_points, "best": of_arms,
    "ratios": of_ratios,
}  # fmt: skip


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Give the lines of a table in Markdown."""

    def line(row: Sequence[str]) -> str:
        cells = (" ".join(cell.replace("|", "\\|").split()) for cell in row)
        return f"| {' | '.join(cells)} |"

    yield line(headings)
    yield "|" + "---|" * len(headings)
    yield from map(line, rows)


ARXIV = re.compile(r"arXiv (\d{4}\.\d{5})")
MARKED = re.compile(r"(<!-- table: ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return a page with its tables as the records have them; ValueError for an unknown one."""

    def written(match: re.Match) -> str:
        name, *words = shlex.split(match[2])
        if name not in (*PAPERS, *TABLES):
            known = ", ".join((*PAPERS, *TABLES))
            raise ValueError(f"publish: unknown table {name!r}; known tables: {known}")
        lines = of_paper(*papers([name])) if name in PAPERS else TABLES[name](*words)
        return f"{match[1]}{chr(10).join(lines)}\n{match[3]}"

    return MARKED.sub(written, page)


def pages() -> list[Path]:
    """Return the pages that can have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def write_pages() -> None:
    """Write the tables of all pages, then the figure of every paper."""
    answers.cache_clear()  # records may have come
    for path in pages():
        files.write(path, filled(files.read_text(path)))
    files.make(FIGURES)
    for paper in papers():
        name = paper.__name__.rpartition(".")[2]
        figures.save(paper.figure(record), FIGURES / f"{name}.png")


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line asks for; an error ends it with a sentence."""
    parser = argparse.ArgumentParser(prog="python -m experiments.publish", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(dest="do")
    commands.add_parser("take").add_argument("workdirs", nargs="+")
    running = commands.add_parser("evidence")
    running.add_argument("--list", action="store_true")
    running.add_argument("--tier", choices=(HEADLINE, SECONDARY, ALL), default=HEADLINE)
    running.add_argument("--fresh", action="store_true")
    running.add_argument("names", nargs="*")
    given = parser.parse_args(words)
    try:
        if given.do == "evidence":
            wrong = evidence(given.names, given.list, given.tier, given.fresh)
            sys.exit("\n".join(f"error: {line}" for line in wrong) or None)
        for workdir in getattr(given, "workdirs", ()):
            print(take(workdir))
        write_pages()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {registry.sentence(error)}")


if __name__ == "__main__":
    main()
