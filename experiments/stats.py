"""Claims about arms, the conditions that they presuppose, and the tests by which they are judged.

An arm is a summary over seeds, as `records.aggregate` makes it, or a row of a published record.
A claim compares two arms in one quantity:

    Claim("8 bits take half the time", "arXiv 1910.12308", "swarm_tuned",
          "swarm/H=2/8 bits", "dpsgd/ring", bound=0.5, tuned=True)

The points of a benchmark or an analysis are arms, too, each named by some of its fields:

    Claim("8 bits are sooner over a slow link", "", "benchmarks/swarm_hosts",
          {"form": "8 bits", "rate": "100mbit"}, {"form": "float32", "rate": "100mbit"}, "meeting")

A claim holds or fails if a two-sided test at 5 % finds a difference from the bound. The test is
Student's paired test if both arms have the same seeds, as seeds share delays, samples and initial
parameters, else Welch's (Biometrika 34, 1947). Other claims are inconclusive, as are claims with
an unmet condition: every seed at the target, equal samples, an optimum inside of its grid.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

HOLDS, WHERE, FAILS, INCONCLUSIVE = "holds", "holds where", "does not hold", "inconclusive"
VERDICTS = (HOLDS, WHERE, FAILS, INCONCLUSIVE)
LEVEL = 0.05  # significance of a test, and the rate of false discoveries among all tests
NOISE = "in the noise"
ROUNDING = 1e-12  # relative rounding error of a sum of a few numbers
SAME = 0.02  # relative difference that does not count: schedules do not end at the same moment
FEW, STEP = 5, 1.5  # for a headline: the fewest seeds, and the largest factor between two rates
RATES = ("rate", "outer")  # settings that are learning rates
SECONDS, END, ACCURACY = "seconds_to_target", "final_train_loss", "test_accuracy"
BYTES, BYTES_THERE = "bytes_per_worker", "bytes_to_target"
# Quantities of analyses: useful share of time, s of an exchange, mini-batches over a barrier's.
GOODPUT, SPENT, GAIN = "goodput", "mean", "gain"
COUNTED = (BYTES, GOODPUT, SPENT)  # without noise: from shapes, or from one long simulation
HIGHER = (ACCURACY, GOODPUT, GAIN)  # quantities of which more is better
# The factor and the unit with which a quantity is shown.
UNITS = {
    "ms": (1.0, " ms"), "meeting": (1.0, " s"), "seconds": (1.0, " s"), SECONDS: (1.0, " s"),
    "updates_to_target": (1.0, " updates"), ACCURACY: (100.0, " %"),
    BYTES: (1e-6, " MB"), BYTES_THERE: (1e-6, " MB"), "share": (100.0, " %"),
    "there": (100.0, " %"), GOODPUT: (100.0, " %"),
    SPENT: (1.0, " s"), "turns": (1.0, " s"), GAIN: (1.0, "x"),
}  # fmt: skip
Arm = Mapping[str, Any]
Names = str | Sequence[str] | Mapping[str, Any]  # the name of an arm, names, or fields of a point


class Inconclusive(ValueError):
    """An error about a condition of a claim that is not met; its message gives the values."""


class Answer(NamedTuple):
    """The verdict of a claim and the numbers behind it."""

    verdict: str  # one of VERDICTS
    measured: str
    reason: str = ""  # for the verdicts "holds where" and "inconclusive"
    p: float | None = None  # p-value of the difference from the bound; None: no test was made

    def __str__(self) -> str:
        test = "" if self.p is None else f"p = {self.p:.2g}"
        found = "; ".join(filter(None, (self.reason, self.measured, test)))
        return f"{self.verdict}: {found}" if found else self.verdict


Judge = Callable[[Sequence[Arm], Mapping[str, Any]], Answer]  # arms, record -> its verdict


class Claim(NamedTuple):
    """A claim: its words, its source, and the comparison that decides it."""

    claim: str
    source: str  # paper and place; "" for a control, or for a claim that is in no paper
    record: str  # a file of docs/results without its ending
    ours: Names = ""  # the best of several arms, or of the settings of a grid, is compared
    theirs: Names = ""
    quantity: str = SECONDS
    bound: float = 1.0  # ours is at most `bound` times theirs (at least for HIGHER quantities),
    margin: float = 0.0  # up to this difference, in the unit of the records
    equal: Sequence[str] = ()  # quantities in which the arms have to agree
    within: float = SAME  # the largest relative difference in these quantities
    tuned: bool = False  # each side has the best settings of its grid, which lie inside the grid
    chosen_by: str = ""  # the quantity that chooses settings; "": the compared quantity
    edges: Mapping[str, float] = {}  # limits of possible values by setting, see `tuned`
    condition: str = ""  # the condition under which the claim holds
    judge: Judge | None = None  # a comparison in place of the usual one
    headline: bool = False  # readers may quote the claim, so that `lacking` should find nothing


def judge(
    claim: Claim, arms: Iterable[Arm], record: Mapping[str, Any] | None = None, apart: bool = False
) -> Answer:
    """Return the verdict of a claim on these arms; record: the published record of the arms.

    apart: judge every seed at the settings that the other seeds choose, see `best`.
    """
    try:
        arms = list(arms)
        if claim.judge is not None:
            return claim.judge(arms, record or {})
        pair = [side(claim, arms, names, apart) for names in (claim.ours, claim.theirs)]
        for quantity in claim.equal:
            equal(quantity, *pair, within=claim.within)
        found = compare(*pair, claim.quantity, claim.bound, claim.margin)
    except Inconclusive as reason:
        return Answer(INCONCLUSIVE, "", str(reason))
    if claim.condition and found.verdict == HOLDS:
        return found._replace(verdict=WHERE, reason=claim.condition)
    return found


def side(claim: Claim, arms: Sequence[Arm], names: Names, apart: bool = False) -> Arm:
    """Return the arm of one side of a claim, the best one if the side has several arms."""
    if isinstance(names, Mapping):
        return point(arms, names, claim.quantity)
    several = [names] if isinstance(names, str) else names
    quantity = claim.chosen_by or claim.quantity
    found = named(arms, *several) if not claim.tuned else [
        tuned(arms, name, quantity, claim.edges, apart) for name in several
        if len(several) == 1 or any(_complete(arm, quantity) for arm in group(arms, name, 0))
    ]  # fmt: skip
    return best(found, quantity, apart) if len(found) != 1 else found[0]


def lacking(claim: Claim, record: Mapping[str, Any], answer: Answer) -> list[str]:
    """Return the weaknesses of a claim's evidence that a headline must not have, in a few words.

    A headline has five seeds, and learning rates that are tuned on a grid with factors of at most
    1.5, unless rates do not matter. answer: the verdict of the claim.
    """
    found, words, counted = arms(record), [], claim.quantity in COUNTED
    if claim.judge is not None:
        seeds = FEW if answer.p is None else record.get("seeds", FEW)
    else:
        try:
            pair = [side(claim, found, names) for names in (claim.ours, claim.theirs)]
        except Inconclusive:
            return []  # the verdict is then inconclusive
        seeds = FEW if counted else min(len(arm.get("seeds", ())) for arm in pair)
        if "arms" in record and not (counted or claim.tuned or claim.condition):
            words.append("one rate")
        factor = max(_spacing(arm, found) for arm in pair) if claim.tuned else 1.0
        if factor > STEP:
            words.append(f"rates {factor:.3g}x apart")
    return [f"{seeds} seeds", *words] if seeds < FEW else words


def _spacing(arm: Arm, members: Iterable[Arm]) -> float:
    """Return the largest factor between a learning rate of an arm and its neighbours in a grid."""
    own, name, factors = settings(arm["name"]), groups([arm]), [1.0]
    grid = [settings(one["name"]) for one in members if groups([one]) == name]
    for key in own.keys() & set(RATES):
        rest = own.items() - {(key, own[key])}
        tried = sorted({one[key] for one in grid if key in one and rest <= one.items()})
        place = tried.index(own[key])
        near = tried[max(0, place - 1) : place + 2]
        factors += [high / low for low, high in itertools.pairwise(near)]
    return max(factors)


def printed(
    claims: Sequence[Claim], name: str, record: Mapping[str, Any] | None = None
) -> Callable[..., Iterator[tuple[str, str]]]:
    """Return the function `claims(arms)` of a config, which judges the claims on record `name`."""

    def judged(arms: Sequence[Arm]) -> Iterator[tuple[str, str]]:
        arms = [*map(_with_bytes, arms)]
        for claim in claims:
            if claim.record == name:
                source = f" ({claim.source})" if claim.source else ""
                yield f"{claim.claim}{source}", str(judge(claim, arms, record))

    return judged


def arms(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of a record as summaries over their seeds, or an analysis's points."""
    if "arms" not in record:
        summary = record.get("summary", {})
        lists = (points for points in summary.values() if isinstance(points, list))
        return summary.get("methods") or [*itertools.chain(*lists)]
    columns, rows = record["arms"]["columns"], record["arms"]["rows"]
    return [_with_bytes(dict(zip(columns, row, strict=True))) for row in rows]


def _with_bytes(arm: Arm) -> Arm:
    """Return an arm with a worker's bytes to the target, from the mean bytes of its updates."""
    sent, updates, needed = arm.get(BYTES), arm.get("updates"), arm.get("updates_to_target")
    if not sent or not updates or needed is None:
        return arm
    each = sent / updates
    of_seeds = [None if n is None else each * n for n in arm.get("updates_to_target_by_seed") or ()]
    return {**arm, BYTES_THERE: each * needed, f"{BYTES_THERE}_by_seed": of_seeds}


# --- conditions ---


def named(arms: Iterable[Arm], *names: str) -> list[Arm]:
    """Return the arms of these names; Inconclusive if there is no arm of a name."""
    by_name = {arm["name"]: arm for arm in arms}
    for name in names:
        if name not in by_name:
            raise Inconclusive(f"there is no arm {name}")
    return [by_name[name] for name in names]


def point(points: Iterable[Arm], fields: Mapping[str, Any], quantity: str) -> Arm:
    """Return the first point with these fields as an arm; a list of values has one per seed."""
    name = ", ".join(map(str, fields.values()))
    found = (one for one in points if fields.items() <= one.items())
    if (one := next(found, None)) is None:
        raise Inconclusive(f"there is no point {name}")
    value, spread = one.get(quantity), one.get(f"{quantity}_deviation")
    if isinstance(value, list):
        several = {quantity: float(np.mean(value)), f"{quantity}_by_seed": value}
        return {**one, "name": name, "seeds": range(len(value)), **several}
    return {**one, "name": name, "seeds": range(one.get("runs", 1)), f"{quantity}_std": spread}


def finite(quantity: str, *arms: Arm) -> None:
    """Raise Inconclusive unless every seed has a finite quantity; a diverged loss is not finite.

    For a quantity until the target every seed must have reached the target, too.
    """
    for arm in arms if "_to_target" in quantity else ():
        count, _, seeds = str(arm.get("reached", "1/1")).partition("/")
        if arm.get(SECONDS) is None or count != seeds:
            raise Inconclusive(f"{arm.get('reached', '0/1')} seeds of {arm['name']} came there")
    for arm in arms:
        values = [arm.get(quantity), *(arm.get(f"{quantity}_by_seed") or ())]
        if any(value is None or not math.isfinite(value) for value in values):
            raise Inconclusive(f"not every seed of {arm['name']} has a finite {_words(quantity)}")


def equal(quantity: str, *arms: Arm, within: float = SAME) -> None:
    """Raise Inconclusive unless the arms agree in a quantity, such as the samples."""
    finite(quantity, *arms)
    values = [arm[quantity] for arm in arms]
    if min(values) < (1 - within) * max(values):
        numbers = " and ".join(f"{value:,.0f}" for value in values)
        raise Inconclusive(f"the {_words(quantity)} of the arms differ: {numbers}")


def _words(quantity: str) -> str:
    return quantity.replace("_", " ")


# --- settings that were searched ---


def settings(name: str) -> dict[str, float]:
    """Return the numbers in an arm's name, as {"K": 2, "rate": 0.5} of fixed/K=2/rate=0.5."""
    found = {}
    for piece in name.split("/"):
        key, _, value = piece.partition("=")
        with contextlib.suppress(ValueError):
            found[key] = float(value)
    return found


def group(arms: Iterable[Arm], name: str, least: int = 1) -> list[Arm]:
    """Return the arm of this name and the arms of its grid, such as name/K=2/rate=0.5.

    Raises Inconclusive if there are fewer than `least` arms.
    """
    found = [arm for arm in arms if arm["name"] == name or (
        arm["name"].startswith(f"{name}/")
        and all("=" in piece for piece in arm["name"][len(name) + 1 :].split("/")))]  # fmt: skip
    if len(found) < least:
        raise Inconclusive(f"there is no arm {name}")
    return found


def groups(arms: Iterable[Arm]) -> list[str]:
    """Return the names of the arms without their rates, in their order, each once."""
    names = ([piece for piece in arm["name"].split("/") if piece.partition("=")[0] not in RATES]
             for arm in arms)  # fmt: skip
    return list(dict.fromkeys("/".join(pieces) for pieces in names))


def best(members: Sequence[Arm], quantity: str, apart: bool = False) -> Arm:
    """Return the best member with the quantity in every seed; Inconclusive if there is none.

    apart: give each seed the numbers of the setting that the other seeds choose, so that no seed is
    judged at a setting which it has helped to choose; Inconclusive if a seed has no number there.
    The result has the name of the setting that all seeds choose together.
    """
    complete, sign = [arm for arm in members if _complete(arm, quantity)], _sign(quantity)
    name = groups(members)[0] if members else "the grid"
    if not complete:
        what = "came to the target" if "_to_target" in quantity else f"has a {_words(quantity)}"
        raise Inconclusive(f"no arm of {name} {what} in every seed")
    found = min(complete, key=lambda arm: sign * arm[quantity])
    members = [arm for arm in members if arm.get(f"{quantity}_by_seed")]
    values = [arm[f"{quantity}_by_seed"] for arm in members]
    if not apart or len(set(map(len, values))) != 1 or len(values[0]) < 2:
        return found
    table = sign * np.array(values, float)  # [members, seeds]; nan: no number
    table = np.where(np.isfinite(table), table, np.inf)
    chosen = [int(np.delete(table, seed, 1).sum(1).argmin()) for seed in range(table.shape[1])]
    if np.isinf([table[choice, seed] for seed, choice in enumerate(chosen)]).any():
        raise Inconclusive(f"a setting of {name} that other seeds choose fails for one")
    result = dict(found)
    for key in [key for key in found if key.endswith("_by_seed")]:
        lists = [members[choice].get(key) for choice in chosen]
        of_seeds = [of[seed] for seed, of in enumerate(lists) if of]
        if len(of_seeds) == len(chosen) and None not in of_seeds:
            result |= {key: of_seeds, key.removesuffix("_by_seed"): float(np.mean(of_seeds))}
    return result


def _sign(quantity: str) -> int:
    return -1 if quantity in HIGHER else 1


def _complete(arm: Arm, quantity: str) -> bool:
    with contextlib.suppress(Inconclusive):
        finite(quantity, arm)
        return True
    return False


def ends(arm: Arm, members: Sequence[Arm], edges: Mapping[str, float] | None = None) -> list[str]:
    """Return the settings of an arm at an end of their grid; `edges` do not count as ends."""
    own, edges = settings(arm["name"]), edges or {}
    values = {key: {settings(member["name"]).get(key) for member in members} - {None}
              for key in own}  # fmt: skip
    return [key for key, tried in values.items() if len(tried) > 1
            and own[key] in {min(tried), max(tried)} - {edges.get(key)}]  # fmt: skip


def tuned(
    arms: Iterable[Arm],
    name: str,
    quantity: str,
    edges: Mapping[str, float] | None = None,
    apart: bool = False,
) -> Arm:
    """Return the best arm of a group; raise Inconclusive unless it lies inside of its grid.

    edges: setting -> limit of its possible values, such as rounds of one sample. Such a limit does
    not count as an end of the grid, as no search can go beyond it.
    """
    members = group(arms, name)
    found = best(members, quantity, apart)
    if len(members) < 2:
        raise Inconclusive(f"{name} was run at one setting")
    for key in settings(found["name"]).keys() - settings(name).keys():
        if len({settings(member["name"]).get(key) for member in members}) < 2:
            raise Inconclusive(f"{key} of {name} was not searched")
    if at_end := ends(found, members, edges):
        raise Inconclusive(f"{at_end[0]} of {found['name']}, the best, is at its grid's end")
    return found


# --- comparisons ---


def compare(
    ours: Arm, theirs: Arm, quantity: str, bound: float = 1.0, margin: float = 0.0
) -> Answer:
    """Return the verdict on "ours is at most `bound` times theirs, plus `margin`".

    For a HIGHER quantity, ours has to be at least `bound` times theirs, minus `margin`. Differences
    in accuracy count from half a test sample on, as seeds may agree by rounding. COUNTED quantities
    need no test. A claim on any other quantity holds untested if each seed is at the bound.
    """
    finite(quantity, ours, theirs)
    unit = UNITS.get(quantity, (1.0, ""))[1]
    measured = f"{shown(ours, quantity).removesuffix(unit)} against {shown(theirs, quantity)}"
    if quantity not in HIGHER and theirs[quantity]:
        ratio = ours[quantity] / theirs[quantity]
        measured += f", {ratio:.2f}x" if ratio >= 0.01 else f", {ratio:.2g}x"
    if quantity in COUNTED:
        beyond = _sign(quantity) * (ours[quantity] - bound * theirs[quantity])
        return Answer(HOLDS if beyond <= margin else FAILS, measured)
    if min(len(arm.get("seeds", ())) for arm in (ours, theirs)) < 2:
        raise Inconclusive(f"one seed leaves no deviation: {measured}")
    least, tested = 0.0, [arm for arm in (ours, theirs) if arm.get("test_samples")]
    for arm in tested if quantity in HIGHER else ():
        least, error = 0.5 / arm["test_samples"], sampling_error(arm[quantity], arm["test_samples"])
        if 0 < margin < error:
            raise Inconclusive(
                f"{arm['test_samples']:,} test samples leave a standard error of "
                f"{100 * error:.2g} points, and {100 * margin:.2g} are asked"
            )
    beyond, p = difference(ours, theirs, quantity, bound, margin)
    beyond *= _sign(quantity)
    if p == 1 and not beyond and not least:
        return Answer(HOLDS, measured)
    if p < LEVEL and abs(beyond) >= least:
        return Answer(HOLDS if beyond <= 0 else FAILS, measured, "", p)
    return Answer(INCONCLUSIVE, measured, NOISE, p)


def difference(
    ours: Arm, theirs: Arm, quantity: str, bound: float = 1.0, margin: float = 0.0
) -> tuple[float, float]:
    """Return the mean of ours - (bound x theirs + margin), and the p-value of a mean of 0.

    For a HIGHER quantity `margin` is subtracted. Differences within rounding are 0; p is 1 if all
    differences are 0. Raises Inconclusive if an arm has no deviation over seeds.
    """
    from scipy import stats  # late: it takes a moment to load

    margin *= _sign(quantity)
    a, b = (arm.get(f"{quantity}_by_seed") for arm in (ours, theirs))
    if a and b and list(ours["seeds"]) == list(theirs["seeds"]) and len(a) > 1:
        beyond = _beyond(np.asarray(a), bound * np.asarray(b) + margin)
        differ = np.ptp(beyond) > ROUNDING * np.abs(beyond).max()
        p = stats.ttest_1samp(beyond, 0.0).pvalue if differ else float(not beyond.any())
        return float(beyond.mean()), float(p)
    (mean, spread, n), (other, noise, m) = (_moments(arm, quantity) for arm in (ours, theirs))
    beyond = float(_beyond(mean, bound * other + margin))
    if not spread and not noise:
        return beyond, float(not beyond)
    test = stats.ttest_ind_from_stats(beyond, spread, n, 0.0, bound * noise, m, equal_var=False)
    return beyond, float(test.pvalue)


def _beyond(values, limits) -> np.ndarray:
    """Return values - limits, with 0 for differences within rounding."""
    beyond = np.asarray(values - limits)
    return np.where(np.abs(beyond) <= ROUNDING * np.abs(limits), 0.0, beyond)


def sampling_error(accuracy: float, samples: float) -> float:
    """Return sqrt(a (1 - a) / n), the standard error of an accuracy a from n test samples.

    A deviation over seeds does not contain this error, as all seeds have the same test samples.
    """
    return math.sqrt(max(0.0, accuracy * (1 - accuracy)) / samples)  # older records may exceed 1


# --- numbers as texts ---


def shown(arm: Arm, quantity: str) -> str:
    """Return an arm's quantity with its deviation over seeds and its unit, as "9.9 ± 0.3 s"."""
    scale, unit = UNITS.get(quantity, (1.0, ""))
    value = arm[quantity]
    try:
        spread = _moments(arm, quantity)[1]
    except Inconclusive:
        return f"{_figures(scale * value, 4)}{unit}"
    return f"{_figures(scale * value, 4)} ± {_figures(scale * spread, 2)}{unit}"


def _figures(value: float, digits: int) -> str:
    """Return a number with `digits` significant digits; large numbers have no exponent."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def _moments(arm: Arm, quantity: str) -> tuple[float, float, int]:
    """Return the mean, the sample deviation and the number of seeds, at least two."""
    seeds, spread = len(arm.get("seeds", ())), arm.get(f"{quantity}_std")
    values = arm.get(f"{quantity}_by_seed")
    if values is not None and len(values) > 1:
        spread = float(np.std(values, ddof=1))
    if seeds < 2 or spread is None:
        raise Inconclusive(f"{arm['name']} has no deviation of its {_words(quantity)}")
    return float(arm[quantity]), float(spread), seeds


class Numbers(NamedTuple):
    """A table of texts that a sweep prints beside its claims; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def at_best(*quantities: str) -> Callable[[Sequence[Arm]], Iterator[Numbers]]:
    """Return the function `numbers(arms)` of a config whose arms are grids of settings.

    The table shows each group at the settings that are best in the first quantity. A setting at an
    end of its grid is marked with *.
    """

    def numbers(arms: Sequence[Arm]) -> Iterator[Numbers]:
        rows = []
        for name in groups(arms):
            members = [arm for arm in arms if groups([arm]) == [name]]
            try:
                found = best(members, quantities[0])
            except Inconclusive:
                rows.append((name, "never", *[""] * len(quantities)))
                continue
            marks = ends(found, members)
            setting = ", ".join(f"{key}={value:g}{'*' * (key in marks)}"
                                for key, value in settings(found["name"]).items())  # fmt: skip
            values = [shown(found, q) if _complete(found, q) else "–" for q in quantities]
            rows.append((name, setting, *values))
        title = f"best {_words(quantities[0])} of every grid, * at its end"
        yield Numbers(title, ("arms", "settings", *map(_words, quantities)), rows)

    return numbers
