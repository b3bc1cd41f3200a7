"""The tables of a terminal and of a page: results of arms, claims and other numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments import stats
from experiments.stats import Numbers

NONE = "–"


def of_arms(arms: Sequence[Mapping]) -> Table:
    """Return a table, 120 characters wide, from summaries of arms over one seed or several.

    Speed-up: the baseline's seconds to the target over this arm's seconds. Fell back: the share of
    updates in which a method sent other messages than planned, whose bytes count; the column is
    there if a method can do so. Kept long: the kept share of the gradients of the most expensive
    tenth of the samples, if samples have costs.
    """
    by_name = {arm["name"]: arm for arm in arms}
    named = {arm["baseline"] for arm in arms}
    targets = sorted({arm["target_loss"] for arm in arms if arm["target_loss"] is not None})
    clocks = sorted({arm["clock"] for arm in arms})
    caption = [f"seconds of the {' or '.join(clocks)} clock"]
    if targets:
        caption.append(f"target: training loss {', '.join(f'{t:.4g}' for t in targets)}")
    if named & set(by_name):
        caption.append("* baseline of the speed-up")
    if any(len(arm.get("seeds", ())) > 1 for arm in arms):
        caption.append("mean ± standard deviation over seeds")
    tested = [arm for arm in arms if arm.get("test_samples") and arm["test_accuracy"] is not None]
    if tested:
        counts = " or ".join(f"{count:,}" for count in sorted({a["test_samples"] for a in tested}))
        most = max(stats.sampling_error(a["test_accuracy"], a["test_samples"]) for a in tested)
        if most > 0:  # it is 0 if no sample was wrong, which proves little for few samples
            caption.append(f"with {counts} test samples an accuracy has a standard error of up to "
                           f"{100 * most:.1f} points")  # fmt: skip
    columns = {
        "updates": lambda arm: _number(arm["updates"], ",.0f"),
        "samples": lambda arm: _number(arm["samples"], ",.0f"),
        "clock\n[s]": lambda arm: _number(arm["seconds"], _digits(arm["seconds"])),
        "to target\n[s]": _to_target,
        "speed-up": lambda arm: _speed_up(arm, by_name, named),
        "train loss": lambda arm: _spread(arm, "train_loss", _digits(arm["train_loss"])),
        "test acc.\n[%]": lambda arm: _spread(arm, "test_accuracy", ".1f", scale=100),
        "idle\n[%]": lambda arm: _number(arm["idle_fraction"], ".1f", scale=100),
        "MB per\nworker": _megabytes,
    }
    if any(arm.get("kept_long") is not None for arm in arms):
        columns["kept long\n[%]"] = lambda arm: _number(arm.get("kept_long"), ".0f", 100)
    if any(arm.get("fallback_share") is not None for arm in arms):
        columns["fell back\n[%]"] = lambda arm: _number(arm.get("fallback_share"), ".1f", 100)
    result = Table(
        box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, caption="; ".join(caption)
    )
    result.add_column("arm", overflow="fold")
    for heading in columns:
        result.add_column(heading, justify="right")
    for _, of_method in groupby(arms, lambda arm: arm["name"].partition("/")[0]):
        for arm in of_method:
            result.add_row(arm["name"], *(shown(arm) for shown in columns.values()))
        result.add_section()
    return result


def print_table(console: Console, *shown: Table | Numbers | str) -> None:
    """Print tables and lines in the width of the terminal, or 120 characters wide without one."""
    if not console.is_terminal:
        console = Console(file=console.file, width=120)
    for one in shown:
        one = as_table(one) if isinstance(one, Numbers) else one
        console.print(one, highlight=False, markup=False)  # [s] is a unit here, no style


def as_table(numbers: Numbers) -> Table:
    """Return numbers as a table of rich."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=escape(numbers.title) or None)
    for place, column in enumerate(numbers.columns):
        table.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in numbers.rows:
        table.add_row(*row)
    return table


def print_claims(console: Console, claims: Iterable[tuple[str, str]]) -> None:
    """Print the claims of papers beside the measurements."""
    table = as_table(Numbers("", ("claim", "measured"), list(claims)))
    table.show_lines, table.columns[1].justify = True, "left"
    print_table(console, table)


def pivot(title: str, cells: Mapping[tuple[str, str], str]) -> Numbers:
    """Return a table of cells by their row and column, both in the order of the cells."""
    rows, columns = (dict.fromkeys(key[place] for key in cells) for place in (0, 1))
    shown = [(row, *(cells.get((row, column), NONE) for column in columns)) for row in rows]
    return Numbers(title, ("", *columns), shown)


def _number(value, spec: str, scale: float = 1.0) -> str:
    return NONE if value is None else format(value * scale, spec)


def _spread(arm: Mapping, field: str, spec: str, scale: float = 1.0) -> str:
    mean, std = _number(arm[field], spec, scale), arm.get(f"{field}_std")
    return mean if std is None else f"{mean} ± {_number(std, spec, scale)}"


def _digits(value: float | None) -> str:
    """Return a format with three significant digits of a value, also used for its deviation."""
    if not value:
        return ".0f"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude < 7:
        return ".2e"
    return f",.{max(0, 2 - magnitude)}f"


def _megabytes(arm: Mapping) -> str:
    sent = arm["bytes_per_worker"]
    return _number(sent, _digits(1e-6 * (sent or 0)), 1e-6)


def _to_target(arm: Mapping) -> str:
    if arm["target_loss"] is None:
        return NONE
    if arm["seconds_to_target"] is None:
        reached = arm.get("reached", "0/1")
        return "never" if reached.startswith("0/") else f"{reached} seeds"
    return _spread(arm, "seconds_to_target", _digits(arm["seconds_to_target"]))


def _speed_up(arm: Mapping, by_name: Mapping[str, Mapping], named: set[str]) -> str:
    baseline = arm["baseline"] or (arm["name"] if arm["name"] in named else None)
    own = arm["seconds_to_target"]
    reference = by_name[baseline]["seconds_to_target"] if baseline in by_name else None
    mark = "*" if baseline == arm["name"] else ""
    if own is None or reference is None or own == 0:
        return NONE + mark
    return f"{reference / own:.2f}x{mark}"
