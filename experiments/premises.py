"""What a claim presupposes, and the four verdicts that one can have.

A claim is judged by a function that first names what it needs, each need a function of this module
which raises `CannotTell` where it is not met, and then compares:

    def judge(arms):
        ours, theirs = premises.named(arms, "swarm/H=2", "dpsgd/ring")
        premises.equal("samples", ours, theirs)
        return premises.at_most(ours, theirs, "seconds_to_target", factor=0.6)

    yield "half the time", premises.text(judge, arms)

Arms are summaries over seeds as `aggregates.aggregate` makes them, or rows of a published record.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import differences, quantities

HOLDS, WHERE, FAILS, UNKNOWN = "holds", "holds where", "does not hold", "cannot be told"
VERDICTS = (HOLDS, WHERE, FAILS, UNKNOWN)
NOISE = "in the noise: "  # before what was measured, where a difference is none
SAME = 0.02  # relative difference of samples that counts as none: schedules end a little apart
ROUNDING = 1e-6  # relative, of a number that two compiled programs compute
LOSS_SHARE = 1e-3  # of a loss, that counts as none
Arm = Mapping[str, Any]


class CannotTell(ValueError):
    """A premise of a claim is not met; the text says which one, and by what."""


class Answer(NamedTuple):
    """What was found of a claim."""

    verdict: str  # of VERDICTS
    measured: str
    seeds: int | None = None  # None: nothing was drawn at random
    deviation: str = ""  # of the difference over seeds, with its test
    brief: str = ""  # what was measured, without the names of the arms

    def __str__(self) -> str:
        return f"{self.verdict}: {'; '.join(filter(None, (self.measured, self.deviation)))}"


def answer(judge: Callable[..., Answer], *arguments, **named) -> Answer:
    """What `judge` answers, or which of its premises is not met."""
    try:
        return judge(*arguments, **named)
    except CannotTell as reason:
        return Answer(UNKNOWN, str(reason))


def text(judge: Callable[..., Answer], *arguments, **named) -> str:
    """`answer` in words."""
    return str(answer(judge, *arguments, **named))


def named(arms: Iterable[Arm], *names: str) -> list[Arm]:
    """The arms of these names."""
    by_name = {arm["name"]: arm for arm in arms}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise CannotTell(f"there is no arm {missing[0]}")
    return [by_name[name] for name in names]


def finite(field: str, *arms: Arm) -> None:
    """No seed of an arm has lost its `field`, as a loss that is not finite."""
    for arm in arms:
        values = [arm.get(field), *(arm.get(f"{field}_by_seed") or ())]
        if any(value is None or not math.isfinite(value) for value in values):
            raise CannotTell(f"{_words(field)} of {arm['name']} is not finite in every seed")


def reached(*arms: Arm) -> None:
    """Every seed of the arms has come to the target."""
    for arm in arms:
        share = str(arm.get("reached", "1/1")).split("/")
        if arm.get("seconds_to_target") is None or share[0] != share[-1]:
            raise CannotTell(
                f"the target was not reached by every seed of {arm['name']} "
                f"({arm.get('reached', '0/1')})"
            )


def repeated(*arms: Arm, least: int = 2) -> None:
    """The arms have at least `least` seeds, without which there is no deviation."""
    for arm in arms:
        seeds = len(arm.get("seeds", ())) or 1
        if seeds < least:
            raise CannotTell(
                f"{arm['name']} has {seeds} seed{'s' * (seeds > 1)}, a deviation needs {least}"
            )


def equal(field: str, *arms: Arm, within: float = SAME) -> None:
    """The arms have the same `field`, as the samples that they have seen."""
    finite(field, *arms)
    values = {arm["name"]: arm[field] for arm in arms}
    if min(values.values()) < (1 - within) * max(values.values()):
        numbers = ", ".join(f"{name} {value:,.0f}" for name, value in values.items())
        raise CannotTell(f"{_words(field)} of the arms differ: {numbers}")


def settings(name: str) -> dict[str, float]:
    """The numbers in an arm's name, as {"K": 2, "rate": 0.5} of fixed/K=2/rate=0.5."""
    found = {}
    for piece in name.split("/"):
        key, given, value = piece.partition("=")
        if given:
            try:
                found[key] = float(value)
            except ValueError:
                continue
    return found


def ends(arm: Arm, members: Sequence[Arm], bounds: Mapping[str, float] | None = None) -> list[str]:
    """The entries of an arm that are the first or the last value in the grid of its members.

    bounds: of an entry, the value beyond which there is none, as rounds of one sample: no search
    can go on from there, so that it is no end.
    """
    grid: dict[str, set[float]] = {}
    for member in members:
        for key, value in settings(member["name"]).items():
            grid.setdefault(key, set()).add(value)
    own, bounds = settings(arm["name"]), bounds or {}
    return [
        key
        for key, values in grid.items()
        if len(values) > 1
        and own.get(key) in (min(values), max(values))
        and own.get(key) != bounds.get(key)
    ]


def inside(arm: Arm, members: Sequence[Arm], bounds: Mapping[str, float] | None = None) -> None:
    """The best of the members lies inside of their grid, of which every entry has been searched.

    bounds: see `ends`.
    """
    if len(members) < 2:
        raise CannotTell(f"{arm['name']} was run at one setting, nothing was searched")
    common = settings(_common(members))
    for key in settings(arm["name"]).keys() - common.keys():
        values = {settings(member["name"]).get(key) for member in members}
        if len(values) < 2:
            raise CannotTell(f"{key} of {arm['name']} has one value, it was not searched")
    found = ends(arm, members, bounds)
    if found:
        raise CannotTell(f"{found[0]} of {arm['name']}, the best, is at the end of its grid")


def surrounded(arm: Arm, members: Sequence[Arm], field: str) -> None:
    """At the next lower or the next higher rate every seed came to the target, too.

    Where neither did, the grid is too coarse for a close bound: a value between may be much better.
    """
    grid = sorted(
        (settings(member["name"])["rate"], member["name"], _complete(member, field))
        for member in members
    )
    place = [name for _, name, _ in grid].index(arm["name"])
    beside = grid[max(0, place - 1) : place] + grid[place + 1 : place + 2]
    if not any(complete for *_, complete in beside):
        raise CannotTell(
            f"not every seed of the rates beside {arm['name']} came to the target; its grid is "
            "too coarse"
        )


def group(arms: Iterable[Arm], name: str) -> list[Arm]:
    """The arm of this name, or the arms of a grid: the name with settings after it."""
    found = [
        arm
        for arm in arms
        if arm["name"] == name
        or (
            arm["name"].startswith(f"{name}/")
            and all("=" in piece for piece in arm["name"].removeprefix(f"{name}/").split("/"))
        )
    ]
    if not found:
        raise CannotTell(f"there is no arm {name}")
    return found


def best(members: Sequence[Arm], field: str) -> Arm:
    """The member whose `field` is least among the members that have it in every seed."""
    if not members:
        raise CannotTell("there is no arm to choose from")
    complete = [arm for arm in members if _complete(arm, field)]
    if not complete:
        what = "came to the target" if "_to_target" in field else f"has a finite {_words(field)}"
        raise CannotTell(f"no arm of {_common(members)} {what} in every seed")
    found = min(complete, key=lambda arm: arm[field])
    return _of_other_seeds(found, complete, field) if _BY_OTHER_SEEDS.get() else found


_BY_OTHER_SEEDS = contextvars.ContextVar("_BY_OTHER_SEEDS", default=False)


@contextlib.contextmanager
def chosen_by_other_seeds() -> Iterator[None]:
    """Within it `best` gives, for every seed, what the setting has that the other seeds choose.

    So no seed is judged at a setting that it has helped to choose. The name, and the end of a grid,
    are of the setting that all seeds choose.
    """
    token = _BY_OTHER_SEEDS.set(True)
    try:
        yield
    finally:
        _BY_OTHER_SEEDS.reset(token)


def _of_other_seeds(found: Arm, members: Sequence[Arm], field: str) -> Arm:
    count = len(found.get(f"{field}_by_seed") or ())
    if count < 2 or any(len(arm[f"{field}_by_seed"]) != count for arm in members):
        return found

    def chosen(seed: int) -> Arm:
        return min(members, key=lambda arm: arm[field] * count - arm[f"{field}_by_seed"][seed])

    arms = [chosen(seed) for seed in range(count)]
    result = dict(found)
    for key in (key for key in found if key.endswith("_by_seed")):
        values = [arm[key][seed] if arm.get(key) else None for seed, arm in enumerate(arms)]
        reached = result["reached"]
        result |= per_seed(result, key.removesuffix("_by_seed"), values) | {"reached": reached}
    return result


def tuned(
    arms: Iterable[Arm], name: str, field: str, bounds: Mapping[str, float] | None = None
) -> Arm:
    """The best arm of a group, which lies inside of the group's grid; bounds: see `ends`."""
    members = group(arms, name)
    found = best(members, field)
    inside(found, members, bounds)
    return found


def loss_margin(again: Arm, dense: Arm, field: str) -> tuple[float, float]:
    """The noise level of a loss, and how far above `dense` a loss still counts as the same.

    The level is the distance between the arm and one that sums the same in another order, as the
    root of its mean square over the seeds, which does not grow with their number. It can be as
    small as rounding; a share of LOSS_SHARE counts as none then.
    """
    pairs = zip(again[f"{field}_by_seed"], dense[f"{field}_by_seed"], strict=True)
    squares = [(one - other) ** 2 for one, other in pairs]
    level = math.sqrt(sum(squares) / len(squares))
    return level, max(level, LOSS_SHARE * abs(dense[field]))


def at_most(
    ours: Arm,
    theirs: Arm,
    field: str,
    factor: float = 1.0,
    margin: float = 0.0,
    where: str = "",
) -> Answer:
    """Whether `field` of ours is at most `factor` times that of theirs, plus `margin`.

    It holds, or does not, where the interval of the difference lies on one side of the margin;
    else the difference is within its noise. That of an accuracy reaches half a test sample to
    either side at least, as seeds may all agree by rounding. where: a condition that a holding
    claim is under.
    """
    if "_to_target" in field:
        reached(ours, theirs)
    finite(field, ours, theirs)
    measured = quantities.against(ours, theirs, field)
    brief = quantities.in_brief(ours, theirs, field)
    repeated(ours, theirs)
    try:
        found = differences.between(ours, theirs, field, factor)
    except ValueError as error:
        raise CannotTell(f"{error}: {measured}") from error
    deviation = quantities.noise(ours, theirs, field)
    least = 0.0
    if field in quantities.OF_TEST_SAMPLES and ours.get("test_samples"):
        least = 0.5 / ours["test_samples"]
    verdict, before = UNKNOWN, NOISE
    if max(found.high, found.mean + least) <= margin:
        verdict, before = (WHERE, f"{where}: ") if where else (HOLDS, "")
    elif min(found.low, found.mean - least) > margin:
        verdict, before = FAILS, ""
    return Answer(verdict, before + measured, found.seeds, deviation, before + brief)


def beside_its_limit(arms: Iterable[Arm], ours: str, limit: str, field: str, key: str) -> Answer:
    """A group beside the one that it becomes where its setting `key` acts no more.

    Both are at their best, and have their rates in common. A setting at which the two are the same
    is no end of its grid, as what lies beyond does the same. Where it is the best, nothing is
    gained.
    """
    arms = list(arms)
    best_of_ours = best(group(arms, ours), field)
    chosen = settings(best_of_ours["name"])
    (alike,) = named(arms, f"{limit}/rate={chosen['rate']}")
    unchanged = same(*named(arms, best_of_ours["name"]), alike, field)
    inside(best_of_ours, group(arms, ours), {key: chosen[key]} if unchanged else None)
    theirs = tuned(arms, limit, field)
    found = at_most(best_of_ours, theirs, field)
    if not (unchanged and theirs["name"] == alike["name"]):
        return found
    value = quantities.shown(best_of_ours, field)
    text = f"the best {key} does not act, {limit} is the same: {value}"
    return found._replace(verdict=FAILS, measured=text, deviation="", brief=text)


def same(one: Arm, other: Arm, field: str) -> bool:
    """Whether every seed of two arms has the same `field`, but for rounding."""
    values = [arm.get(f"{field}_by_seed") or [None] for arm in (one, other)]
    return len(values[0]) == len(values[1]) and all(
        None not in pair and math.isclose(*pair, rel_tol=ROUNDING)
        for pair in zip(*values, strict=True)
    )


def counted(ours: Arm, theirs: Arm, field: str, factor: float = 1.0) -> Answer:
    """The same of a number without noise, as bytes that follow from shapes."""
    finite(field, ours, theirs)
    verdict = HOLDS if ours[field] <= factor * theirs[field] else FAILS
    seeds, brief = len(ours.get("seeds", ())) or 1, quantities.in_brief(ours, theirs, field)
    return Answer(verdict, quantities.against(ours, theirs, field), seeds, brief=brief)


def of_all(good: int, places: int) -> str:
    """The verdict of a claim about several places, in `good` of which it holds."""
    return HOLDS if good == places else WHERE if good else FAILS


def both(*answers: Answer) -> Answer:
    """A claim of several parts: it holds if all do, and does not if one does not."""
    verdicts = [one.verdict for one in answers]
    for verdict in (FAILS, UNKNOWN, WHERE):
        if verdict in verdicts:
            break
    else:
        verdict = HOLDS
    seeds = [one.seeds for one in answers if one.seeds is not None]
    briefs = [one.brief or one.measured for one in answers]
    noisy = NOISE if all(brief.startswith(NOISE) for brief in briefs) else ""
    return Answer(
        verdict,
        "; ".join(one.measured for one in answers),
        min(seeds, default=None),
        "; ".join(filter(None, (one.deviation for one in answers))),
        noisy + "; ".join(brief.removeprefix(noisy) for brief in briefs),
    )


def per_seed(arm: Arm, field: str, values: Sequence[float | None]) -> Arm:
    """The arm with another `field`: a number per seed, None for a seed that has not come there."""
    there = [value for value in values if value is not None]
    complete = bool(there) and len(there) == len(values)
    return {
        **arm,
        field: sum(there) / len(there) if complete else None,
        f"{field}_by_seed": list(values) if complete else None,
        f"{field}_std": None,
        "reached": f"{len(there)}/{len(values)}",
    }


def _complete(arm: Arm, field: str) -> bool:
    try:
        finite(field, arm)
        if "_to_target" in field:
            reached(arm)
    except CannotTell:
        return False
    return True


def resolved(points: float, *arms: Arm) -> None:
    """The test samples can show a difference of `points`, a share of 1, in accuracy.

    It has to be at least the standard error of each arm that has the number of its test samples.
    """
    for arm in arms:
        if arm.get("test_samples"):
            error = quantities.sampling_error(arm["test_accuracy"], arm["test_samples"])
            if error > points:
                raise CannotTell(
                    f"{arm['test_samples']:,} test samples leave the accuracy of {arm['name']} a "
                    f"standard error of {100 * error:.2g} points, and {100 * points:.2g} are asked"
                )


def _words(field: str) -> str:
    return "the " + field.replace("_", " ")


def _common(members: Sequence[Arm]) -> str:
    """What the names of all members begin with."""
    names = [member["name"].split("/") for member in members]
    common = []
    for pieces in zip(*names, strict=False):
        if len(set(pieces)) > 1:
            break
        common.append(pieces[0])
    return "/".join(common) or members[0]["name"]
