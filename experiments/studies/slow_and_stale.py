"""What becomes slow and what stale in four protocols (Dutta et al., arXiv 1803.01113)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import premises, records, tasks
from experiments.numbers import Numbers
from experiments.parts import part
from experiments.studies import error_against_time, noise_floor

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
FIXED, COMPENSATED = "k_async/K=1", "compensated"
SECONDS, LOSS = "seconds_to_target", "final_train_loss"
COMMONLY, FIRST, LOWEST = f"common rate {COMMON}", "rate first at target", "rate ending lowest"


def claims(arms) -> Iterator[tuple[str, str]]:
    """The trade-off with a common rate and with tuned ones, and what compensation gains."""
    for words, judge in (
        (f"all at rate {COMMON:g}", at_a_common_rate),
        ("each at the rate that suits it", at_tuned_rates),
    ):
        yield (
            f"who is first at a loose loss does not end lowest (arXiv 1803.01113); {words}",
            premises.text(judge, arms),
        )
    yield (
        "min(C / distance^2, eta) trains at an eta at which the fixed rate diverges",
        premises.text(trains_where_fixed_diverges, arms),
    )
    for field, words in ((LOSS, "ends below"), (SECONDS, "is sooner at the target than")):
        yield (
            f"min(C / distance^2, eta), tuned in C and eta, {words} the tuned fixed rate",
            premises.text(premises.beside_its_limit, arms, COMPENSATED, FIXED, field, "threshold"),
        )


def at_a_common_rate(arms: Sequence[dict]) -> premises.Answer:
    """One rate for all, of which the sweep needs the arms of that rate only."""
    chosen = {}
    for group in GROUPS:
        (chosen[group],) = premises.named(arms, f"{group}/rate={COMMON}")
    return _trade_off(chosen, chosen)


def at_tuned_rates(arms: Sequence[dict]) -> premises.Answer:
    """Of every protocol and K the rate that is first at the target, and the one that ends lowest.

    A K that never arrives, or always diverges, is neither first nor lowest.
    """
    members = _members(arms)
    first, lowest = {}, {}
    for found, field in ((first, SECONDS), (lowest, LOSS)):
        for group, several in members.items():
            try:
                found[group] = premises.best(several, field)
            except premises.CannotTell:
                continue
    answer = _trade_off(first, lowest)
    for found, field in ((first, SECONDS), (lowest, LOSS)):
        group = min(found, key=lambda name: found[name][field])
        premises.inside(found[group], members[group])
    return answer


def _trade_off(first: Mapping[str, dict], lowest: Mapping[str, dict]) -> premises.Answer:
    """Whether the first at the target ends above the lowest, which is later there.

    first, lowest: protocol and K -> the arm by which it is judged.
    """
    arrived = [arm for arm in first.values() if arm[SECONDS] is not None]
    ended = [arm for arm in lowest.values() if arm[LOSS] is not None]
    early, low = premises.best(arrived, SECONDS), premises.best(ended, LOSS)
    premises.repeated(early, low)
    of_early, of_low = (_group_of(arm) for arm in (early, low))
    if of_early == of_low:
        return premises.Answer(premises.FAILS, f"{of_early} is first and ends lowest")
    if of_early not in lowest or of_low not in first:
        raise premises.CannotTell(f"{of_early} or {of_low} has no arm to compare")
    return premises.both(
        premises.at_most(early, first[of_low], SECONDS),
        premises.at_most(low, lowest[of_early], LOSS),
    )


def trains_where_fixed_diverges(arms: Sequence[dict]) -> premises.Answer:
    """At the highest rate of the compensated arms: below guessing, which the fixed rate is not."""
    guessing = math.log(10)
    compensated = premises.group(arms, COMPENSATED)
    highest = max(_rate(arm) for arm in compensated)
    (fixed,) = premises.named(arms, f"{FIXED}/rate={highest}")
    if fixed[LOSS] is not None and fixed[LOSS] < guessing:
        raise premises.CannotTell(f"{fixed['name']} does not diverge, it ends at {fixed[LOSS]:.3g}")
    ours = premises.best([arm for arm in compensated if _rate(arm) == highest], LOSS)
    premises.repeated(ours)
    verdict = premises.HOLDS if ours[LOSS] < guessing else premises.FAILS
    return premises.Answer(
        verdict,
        f"{ours['name']} ends at {ours[LOSS]:.4g}, {fixed['name']} at {_shown(fixed)}; guessing "
        f"has {guessing:.4g}",
        len(ours["seeds"]),
    )


def numbers(arms) -> Iterator[Numbers]:
    """Every protocol and K at the rate that is first at the target, and that ends lowest."""
    choices = _choices(arms)
    rows = []
    for group, several in _members(arms).items():
        first, lowest = choices[FIRST][group], choices[LOWEST][group]
        there = "never" if math.isinf(_seconds(first)) else f"{_seconds(first):.1f}"
        ends = ["rate" in premises.ends(arm, several) for arm in (first, lowest)]
        rows.append((group, _marked(first, ends[0]), there, _marked(lowest, ends[1]),
                     _shown(lowest)))  # fmt: skip
    yield Numbers(
        "at tuned rates; * at the end of its grid",
        ("protocol/K", FIRST, "seconds", LOWEST, "loss"),
        rows,
    )


def figures(workdir) -> None:
    """Write error_against_time.png, protocols by how the rate is chosen, and compensated.png.

    The first has a row for each way to choose the rate and a panel per protocol, the second the
    final loss of the compensated rate over (eta, C) beside the fixed one's.
    """
    workdir = Path(workdir)
    arms = [
        arm | {"config": records.read_config(next((workdir / arm["name"]).rglob(records.CONFIG)))}
        for arm in records.read_json(workdir / records.SUMMARY)["arms"]
    ]
    config = arms[0]["config"]
    convex = config.task.to_dict() == CONVEX.to_dict()
    minimum = noise_floor.at_minimum(tasks.build(config.task)) if convex else None
    lowest = 0.0 if minimum is None else minimum.loss
    levels = None
    if minimum is not None:
        levels = _panels(
            arms, lambda arm, k: noise_floor.level(minimum, _rate(arm), k, config.batch_size)
        )
    error_against_time.draw_error_against_time(
        _panels(arms, lambda arm, _: _runs(workdir, arm)),
        config.target_loss,
        lowest,
        workdir / "error_against_time.png",
        levels,
    )
    lines = {"fixed": {_rate(arm): _loss(arm) for arm in arms if _group_of(arm) == FIXED}}
    for arm in arms:
        if arm["name"].startswith(f"{COMPENSATED}/"):
            threshold = premises.settings(arm["name"])["threshold"]
            lines.setdefault(f"C = {threshold:g}", {})[_rate(arm)] = _loss(arm)
    error_against_time.draw_final_losses(lines, lowest, workdir / "compensated.png")


def _panels(arms, made: Callable[[dict, int], Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """How the rate is chosen -> protocol -> K -> what `made` makes of the arm and of K."""
    return {
        words: {
            protocol: {f"K={k}": made(chosen[_twin(f"{protocol}/K={k}")], k) for k in K}
            for protocol in PROTOCOLS
        }
        for words, chosen in _choices(arms).items()
    }


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


def _marked(arm, end: bool) -> str:
    return f"{_rate(arm):g}{'*' if end else ''}"


def _group_of(arm: dict) -> str:
    return arm["name"].rpartition("/rate=")[0]


def _runs(workdir: Path, arm) -> list[list[dict]]:
    """The metrics of all seeds."""
    return [
        records.read_metrics(path.parent)
        for path in sorted((workdir / arm["name"]).rglob(records.METRICS))
    ]
