"""What becomes slow and what stale in four protocols (Dutta et al., arXiv 1803.01113)."""

import math
from collections.abc import Iterator
from pathlib import Path

from experiments import records, tasks
from experiments.parts import part
from experiments.studies import error_against_time

PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
K = (1, 2, 4, 8)
TWINS = {  # the same events by another name
    "k_batch_sync/K=1": "k_sync/K=1",
    "k_batch_async/K=1": "k_async/K=1",
    "k_async/K=8": "k_sync/K=8",
}
GROUPS = {  # what arms are called before their rate: protocol and K
    f"{protocol}/K={k}": (protocol, k)
    for protocol in PROTOCOLS
    for k in K
    if f"{protocol}/K={k}" not in TWINS
}
COMMON = 0.16  # the one rate for all K
CONVEX = part("digits", model="logistic", l2=0.01)  # the task; its lowest loss is 0.733
COMMONLY, FIRST, LOWEST = f"common rate {COMMON}", "rate first at target", "rate ending lowest"


def claims(arms) -> Iterator[tuple[str, str]]:
    """The trade-off with a common rate and with tuned ones, and what compensation allows."""
    target = arms[0]["target_loss"]
    choices = _choices(arms)
    grids = {group: [_rate(arm) for arm in members] for group, members in _members(arms).items()}
    for words, of_first, of_lowest in (
        (COMMONLY, COMMONLY, COMMONLY),
        (FIRST, FIRST, FIRST),
        ("each at the rate that suits it", FIRST, LOWEST),
    ):
        first = min(GROUPS, key=lambda group: _seconds(choices[of_first][group]))
        lowest = min(GROUPS, key=lambda group: _loss(choices[of_lowest][group]))
        yield (
            f"who is first at a loose loss does not end lowest (arXiv 1803.01113); {words}",
            f"first at {target:g}: {_described(first, choices[of_first][first], grids[first])}\n"
            f"lowest: {_described(lowest, choices[of_lowest][lowest], grids[lowest])}\n"
            f"{'they differ' if first != lowest else 'they are the same'}",
        )
    places = (
        f"{group}: {_grid_place(choices[FIRST][group], rates)}; "
        f"{_grid_place(choices[LOWEST][group], rates)}"
        for group, rates in grids.items()
    )
    yield "(not claimed) the rates first at the target; ending lowest", "\n".join(places)
    ours = [arm for arm in arms if arm["name"].startswith("compensated/")]
    highest = _rate(ours[0])
    fixed = next(arm for arm in arms if arm["name"] == f"k_async/K=1/rate={highest}")
    yield (
        f"min(C / distance^2, eta_max) trains at an eta_max = {highest:g} at which the fixed rate "
        "diverges",
        "\n".join(f"{arm['name']}: ends at {_shown(arm)}" for arm in [fixed, *ours])
        + f"\nguessing has {math.log(10):.4g}",
    )


def figures(workdir) -> None:
    """Write error_against_time.png: a row for each way to choose the rate, a panel per protocol."""
    workdir = Path(workdir)
    arms = [
        arm | {"config": records.read_config(next((workdir / arm["name"]).rglob(records.CONFIG)))}
        for arm in records.read_json(workdir / records.SUMMARY)["arms"]
    ]
    config = arms[0]["config"]
    convex = config.task.to_dict() == CONVEX.to_dict()
    lowest = error_against_time.lowest_loss(tasks.build(config.task)) if convex else 0.0
    rows = {
        words: {
            protocol: {f"K={k}": _runs(workdir, chosen[_twin(f"{protocol}/K={k}")]) for k in K}
            for protocol in PROTOCOLS
        }
        for words, chosen in _choices(arms).items()
    }
    error_against_time.draw_error_against_time(
        rows, config.target_loss, lowest, workdir / "error_against_time.png"
    )


def _twin(group: str) -> str:
    return TWINS.get(group, group)


def _choices(arms) -> dict[str, dict[str, dict]]:
    """How the rate is chosen -> protocol/K -> arm."""
    rules = {
        COMMONLY: lambda arm: _rate(arm) != COMMON,
        FIRST: lambda arm: (_seconds(arm), _loss(arm)),
        LOWEST: _loss,
    }
    return {
        words: {group: min(several, key=key) for group, several in _members(arms).items()}
        for words, key in rules.items()
    }


def _members(arms) -> dict[str, list[dict]]:
    return {group: [arm for arm in arms if arm["name"].startswith(f"{group}/")] for group in GROUPS}


def _rate(arm) -> float:
    return arm["config"].optimizer.learning_rate


def _seconds(arm) -> float:
    return math.inf if arm["seconds_to_target"] is None else arm["seconds_to_target"]


def _loss(arm) -> float:
    """At the end, a mean over the last tenth of the evaluations."""
    return math.inf if arm["final_train_loss"] is None else arm["final_train_loss"]


def _shown(arm) -> str:
    return "infinity" if math.isinf(_loss(arm)) else f"{_loss(arm):.4g}"


def _grid_place(arm, rates) -> str:
    """The rate, with a warning where the best one may lie outside of the grid."""
    edge = " at the grid's end" if _rate(arm) in (min(rates), max(rates)) else ""
    return f"rate {_rate(arm):g}{edge}"


def _described(group: str, arm, rates) -> str:
    there = "never" if math.isinf(_seconds(arm)) else f"{_seconds(arm):.1f} s"
    return f"{group} ({there}, ends at {_shown(arm)}; {_grid_place(arm, rates)})"


def _runs(workdir: Path, arm) -> list[list[dict]]:
    """The metrics of all seeds."""
    return [
        records.read_metrics(path.parent)
        for path in sorted((workdir / arm["name"]).rglob(records.METRICS))
    ]
