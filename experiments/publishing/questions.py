"""What a record can be asked, with the premises of `experiments.premises`.

A record of one seed, or of one setting where settings had to be searched, answers "cannot be told":
a question raises CannotTell then, with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import premises
from experiments.premises import FAILS, HOLDS, Answer, CannotTell
from experiments.publishing import quoted
from experiments.studies import goodput, published_speedups, s2_reducer

SECONDS, LOSS, ACCURACY = "seconds_to_target", "train_loss", "test_accuracy"
END = "final_train_loss"  # a mean over the last tenth of the evaluations, less noisy than LOSS
Record = Mapping[str, Any]


def _arms(record: Record) -> list[dict[str, Any]]:
    return list(quoted.arms(record).values())


def as_claimed(
    record: Record, judge: Callable[..., Answer], names: bool = False, **asked: Any
) -> Answer:
    """What `judge`, by which a study judges a claim of its sweep, answers of the record's arms.

    names: the answer is shown with the names of its arms.
    """
    found = judge(_arms(record), **asked)
    return found._replace(brief="") if names else found


def as_printed(record: Record, claim: Callable[[Sequence[str]], str]) -> Answer:
    """What the sweep itself answered of a claim, which takes more than a record has of its arms.

    claim: from the words of all claims, in their order, to the words of the one that is asked.
    """
    printed = dict(record["claims"])
    asked = claim(list(printed))
    if asked not in printed:
        raise CannotTell(f"the sweep has not judged: {asked}")
    # The longest one, as a verdict may begin with another one.
    verdict = max(filter(printed[asked].startswith, premises.VERDICTS), key=len)
    rest = printed[asked].removeprefix(f"{verdict}: ")
    measured, drawn, deviation = rest.partition("; difference")
    return Answer(
        verdict,
        measured,
        record["seeds"] if drawn else None,
        f"difference{deviation}" if drawn else "",
        measured.partition("; ")[0],
    )


def at_most(
    record: Record,
    ours: str,
    theirs: str,
    field: str = SECONDS,
    factor: float = 1.0,
    margin: float = 0.0,
    where: str = "",
) -> Answer:
    """Two arms by name, after the same samples where their ends are compared."""
    pair = premises.named(_arms(record), ours, theirs)
    if "_to_target" not in field:
        premises.equal("samples", *pair)
    return premises.at_most(*pair, field, factor, margin, where)


def of_points(
    record: Record, ours: str, theirs: str, field: str, factor: float, **key: Any
) -> Answer:
    """Two forms of a benchmark, by means and deviations over its runs; key: of their points."""
    points = [p for p in record["summary"]["points"] if {k: p.get(k) for k in key} == key]
    for point in points:
        if point[field] is None:
            raise CannotTell(f"not every run with {point['form']} came to its loss")
    arms = [
        {"name": point["form"], field: point[field], f"{field}_std": point[f"{field}_deviation"],
         "seeds": list(range(point["runs"]))}
        for point in points
    ]  # fmt: skip
    return premises.at_most(*premises.named(arms, ours, theirs), field, factor)


def of_methods(record: Record, ours: str, theirs: str, field: str) -> Answer:
    """Two methods of an analysis by name: `field` of ours is at most that of theirs."""
    pair = premises.named(record["summary"]["methods"], ours, theirs)
    return premises.at_most(*pair, field)


def accuracy(record: Record, ours: str, theirs: str, points: float) -> Answer:
    """Whether ours is at most some points (a share of 1) less accurate."""
    pair = premises.named(_arms(record), ours, theirs)
    premises.finite(ACCURACY, *pair)
    premises.resolved(points, *pair)
    found = at_most(record, theirs, ours, ACCURACY, margin=points)
    # With the names, as theirs stands before ours, and without the ratio of the two.
    return found._replace(brief=found.measured.rpartition(", ")[0])


def tuned(
    record: Record,
    ours: str,
    theirs: str,
    field: str = SECONDS,
    factor: float = 1.0,
    bounds: Mapping[str, float] | None = None,
) -> Answer:
    """Two groups, each at a best setting that lies inside of its grid; bounds: `premises.ends`."""
    pair = [premises.tuned(_arms(record), name, field, bounds) for name in (ours, theirs)]
    return premises.at_most(*pair, field, factor)


def tuned_among(
    record: Record,
    ours: Sequence[str],
    rivals: Sequence[str],
    field: str = SECONDS,
    factor: float = 1.0,
) -> Answer:
    """The best group of our methods against the best of the rivals', after the same seconds."""
    arms = _arms(record)
    pair = [_best_of(arms, methods, field) for methods in (ours, rivals)]
    if "_to_target" not in field:
        premises.equal("seconds", *pair)
    return premises.at_most(*pair, field, factor)


def _best_of(arms: Sequence[dict[str, Any]], methods: Sequence[str], field: str) -> dict[str, Any]:
    """The best of all groups of these methods that have the field, each at its best rate."""
    groups = dict.fromkeys(
        arm["name"].rpartition("/rate=")[0] or arm["name"] for arm in arms if arm[field] is not None
    )
    found = [
        premises.tuned(arms, group, field)
        for group in groups
        if any(f"{group}/".startswith(f"{method}/") for method in methods)
    ]
    if not found:
        raise CannotTell(f"no arm of {', '.join(methods)} has the {field.replace('_', ' ')}")
    return min(found, key=lambda arm: arm[field])


def tuned_after(
    record: Record,
    ours: str,
    theirs: str,
    equal: Sequence[str],
    within: float = premises.SAME,
    factor: float = 1.0,
) -> Answer:
    """Final losses of two tuned groups after as many bytes, seconds or samples: see `equal`."""
    arms = _arms(record)
    pair = [premises.tuned(arms, name, END) for name in (ours, theirs)]
    for spent in equal:
        premises.equal(spent, *pair, within=within)
    return premises.at_most(*pair, END, factor)


def tuned_bytes(record: Record, ours: str, theirs: str, factor: float) -> Answer:
    """Bytes after equal samples of two groups, each at the rate that ends lowest."""
    arms = _arms(record)
    pair = [premises.tuned(arms, name, END) for name in (ours, theirs)]
    premises.equal("samples", *pair)
    return premises.counted(*pair, "bytes_per_worker", factor)


def compensated(record: Record, field: str) -> Answer:
    """The staleness-compensating rate beside the fixed one, each at its best."""
    fixed = "k_async/K=1"
    return premises.beside_its_limit(_arms(record), "compensated", fixed, field, "threshold")


def half_the_bytes(record: Record, ours: str, theirs: str) -> Answer:
    """Bytes after equal samples, and an accuracy that is at most a point lower."""
    pair = premises.named(_arms(record), ours, theirs)
    premises.equal("samples", *pair)
    fewer = premises.counted(*pair, "bytes_per_worker", factor=0.5)
    return premises.both(fewer, accuracy(record, ours, theirs, 0.01))


def fewer_bytes_at_the_same_loss(record: Record, ours: str, theirs: str, saved: float) -> Answer:
    """Bytes for sparse gradients alone, and a loss above by at most `premises.loss_margin`."""
    first, dense, again = premises.named(_arms(record), ours, theirs, f"{theirs}/reordered")
    premises.equal("samples", first, dense)
    premises.repeated(first, dense, again, least=3)
    premises.finite(LOSS, first, dense, again)
    (fewer,) = _of_table(record, "bytes for the tables, and what was lost", "fewer bytes [%]", ours)
    of_all = 100 * (1 - first["bytes_per_worker"] / dense["bytes_per_worker"])
    words = f"{fewer:.1f} % fewer bytes, of all {of_all:.1f} %{_fell_back(first)}"
    level, margin = premises.loss_margin(again, dense, LOSS)
    lost = premises.at_most(first, dense, LOSS, margin=margin)
    lost = lost._replace(deviation=f"{lost.deviation}; noise level {level:.2g}")
    return premises.both(Answer(HOLDS if fewer >= 100 * saved else FAILS, words), lost)


def _of_table(record: Record, title: str, heading: str, *names: str) -> list[float]:
    """The numbers of these arms in a column of one of the record's tables."""
    if title not in (table["title"] for table in record.get("numbers", ())):
        raise CannotTell(f"the record has no table of {title}")
    try:
        column = quoted.column(record, title, heading)
    except ValueError as error:
        raise CannotTell(f"the record's table of {title} has no column of {heading}") from error
    missing = [name for name in names if name not in column]
    if missing:
        raise CannotTell(f"there is no arm {missing[0]} in the table of {title}")
    return [column[name] for name in names]


def sends_less(record: Record, ours: str, rivals: Sequence[str]) -> Answer:
    """Bytes against every rival, of a sketch that is sent; what is counted needs no seeds."""
    first, *others = premises.named(_arms(record), ours, *rivals)
    premises.equal("samples", first, *others)
    s2_reducer.as_planned([first], [ours])
    beaten = [rival["name"] for rival in others
              if first["bytes_per_worker"] <= rival["bytes_per_worker"]]  # fmt: skip
    ratios = [first["bytes_per_worker"] / rival["bytes_per_worker"] for rival in others]
    shown = ", ".join(f"{ratio:.2f}x {name}" for ratio, name in zip(ratios, rivals, strict=True))
    where = f"against {len(beaten)} of {len(others)}: " if beaten else ""
    return Answer(premises.of_all(len(beaten), len(others)), f"{where}{shown}{_fell_back(first)}")


def _fell_back(arm: Mapping[str, Any]) -> str:
    """What a verdict says of a sketch that was not sent."""
    share = arm["fallback_share"]
    return f"; fell back in {100 * share:.0f} %" if share else ""


def sooner_steps(
    record: Record, ours: Sequence[str], rivals: Sequence[str], gigabits: int
) -> Answer:
    """The fastest of ours against every rival: a step with a modelled link, see `s2_reducer`."""
    title, names = f"a step at {gigabits} Gbit/s", (*ours, *rivals)
    means = _of_table(record, title, "ms", *names)
    deviations = _of_table(record, title, "deviation [ms]", *names)
    steps = [
        {"name": name, "ms": mean, "ms_std": deviation, "seeds": range(s2_reducer.ROUNDS)}
        for name, mean, deviation in zip(names, means, deviations, strict=True)
    ]
    return s2_reducer.faster(steps, s2_reducer.as_planned(_arms(record), ours), rivals)


def skilled(record: Record, baseline: str) -> Answer:
    """A simulation has skill where it is nearer than a constant and correlates."""
    errors = {one["baseline"]: one for one in record["summary"]["errors"]}
    known = errors.get(baseline, {})
    if missing := set(published_speedups.Error._fields) - set(known):
        raise CannotTell(f"the record has no {', '.join(sorted(missing))} over {baseline}")
    return published_speedups.has_skill(published_speedups.Error(**known))


def does_not_grow(record: Record, prefix: str, most: float) -> Answer:
    """Mean time of an exchange with the most nodes over that with the fewest."""
    rows: dict[str, list[Mapping]] = {}
    for point in record["summary"]["points"]:
        if point["method"].startswith(prefix):
            rows.setdefault(point["method"], []).append(point)
    if not rows or any(len(row) < 2 for row in rows.values()):
        raise CannotTell("fewer than two numbers of nodes were simulated")
    grown = {method: row[-1]["mean"] / row[0]["mean"] for method, row in rows.items()}
    good = [method for method, growth in grown.items() if growth < most]
    shown = "; ".join(f"{method} {growth:.2f}x" for method, growth in grown.items())
    return Answer(premises.of_all(len(good), len(grown)), shown)


def keeps_more(record: Record) -> Answer:
    """Goodput of Decoupled DiLoCo where elastic all-reduce has the paper's share."""
    return goodput.keeps_more([goodput.Point(**each) for each in record["summary"]["by_workers"]])


def in_theory(record: Record, table: str, most: float) -> Answer:
    """How many points of an analysis a simulation meets within a relative error."""
    errors = [abs(point["error"]) for point in record["summary"][table]]
    if not errors:
        raise CannotTell("no point was simulated")
    good = sum(error <= most for error in errors)
    return Answer(
        premises.of_all(good, len(errors)),
        f"{good} of {len(errors)} points within {most:.0%}, worst {max(errors):.1%}",
    )
