"""What a record can be asked, with the premises of `experiments.premises`.

A record of one seed, or of one setting where settings had to be searched, answers "cannot be told":
a question raises CannotTell then, with the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments import premises
from experiments.premises import FAILS, HOLDS, Answer, CannotTell
from experiments.reports import quoted

SECONDS, LOSS, ACCURACY = "seconds_to_target", "train_loss", "test_accuracy"
END = "final_train_loss"  # a mean over the last tenth of the evaluations
Record = Mapping[str, Any]


def _arms(record: Record) -> list[dict[str, Any]]:
    return list(quoted.arms(record).values())


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
    return found._replace(brief="")  # with the names, as theirs stands before ours


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


def tuned_among(record: Record, ours: str, rivals: str, factor: float = 1.0) -> Answer:
    """A tuned group against the best of all groups that begin with `rivals`."""
    arms = _arms(record)
    first = premises.tuned(arms, ours, SECONDS)
    groups = dict.fromkeys(
        arm["name"].rpartition("/rate=")[0] or arm["name"]
        for arm in arms
        if arm["name"].startswith(rivals) and arm[SECONDS] is not None
    )
    found = [premises.tuned(arms, group, SECONDS) for group in groups]
    if not found:
        raise CannotTell(f"no arm of {rivals} came to the target")
    return premises.at_most(first, min(found, key=lambda arm: arm[SECONDS]), SECONDS, factor)


def tuned_after(
    record: Record,
    ours: str,
    theirs: str,
    equal: Sequence[str],
    within: float = premises.SAME,
    field: str = LOSS,
    factor: float = 1.0,
) -> Answer:
    """Losses of two tuned groups after about the same bytes, seconds or samples: see `equal`."""
    arms = _arms(record)
    pair = [premises.tuned(arms, name, field) for name in (ours, theirs)]
    for spent in equal:
        premises.equal(spent, *pair, within=within)
    return premises.at_most(*pair, field, factor)


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


def first_is_not_lowest(record: Record) -> Answer:
    """Of tuned protocols: the first at the target ends above the lowest, which is later there."""
    arms = [arm for arm in _arms(record) if "/K=" in arm["name"]]
    groups = dict.fromkeys(arm["name"].rpartition("/rate=")[0] for arm in arms)
    chosen: dict[str, dict[str, Mapping]] = {SECONDS: {}, LOSS: {}}
    for field, found in chosen.items():
        for group in groups:
            try:
                found[group] = premises.best(premises.group(arms, group), field)
            except CannotTell:
                continue
        if not found:
            raise CannotTell("no protocol came to the target in every seed")
    early, low = (min(found, key=lambda g: found[g][field]) for field, found in chosen.items())
    for field, group in ((SECONDS, early), (LOSS, low)):
        premises.inside(chosen[field][group], premises.group(arms, group))
    premises.repeated(chosen[SECONDS][early], chosen[LOSS][low])
    if early == low:
        return Answer(FAILS, f"{early} is first and ends lowest")
    return premises.both(
        premises.at_most(chosen[SECONDS][early], chosen[SECONDS][low], SECONDS),
        premises.at_most(chosen[LOSS][low], chosen[LOSS][early], LOSS),
    )


def fewer_bytes_at_the_same_loss(record: Record, ours: str, theirs: str, saved: float) -> Answer:
    """Bytes after equal samples, and a loss above by no more than `premises.loss_margin`."""
    first, dense = premises.named(_arms(record), ours, theirs)
    premises.equal("samples", first, dense)
    premises.repeated(first, dense, least=3)
    (again,) = premises.named(_arms(record), f"{theirs}/reordered")
    _, margin = premises.loss_margin(again, dense, LOSS)
    found = premises.both(
        premises.counted(first, dense, "bytes_per_worker", factor=1 - saved),
        premises.at_most(first, dense, LOSS, margin=margin),
    )
    words = _fell_back(first)
    return found._replace(measured=f"{found.measured}{words}", brief=f"{found.brief}{words}")


def sends_less(record: Record, ours: str, rivals: Sequence[str]) -> Answer:
    """Bytes against every rival; what is counted needs no seeds."""
    first, *others = premises.named(_arms(record), ours, *rivals)
    premises.equal("samples", first, *others)
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
    record: Record, ours: Sequence[str], rivals: Sequence[str], gigabits: int, factor: float
) -> Answer:
    """The fastest of ours against every rival: a step with a modelled link, see `quoted.column`."""
    steps = quoted.column(record, f"a step at {gigabits} Gbit/s", "ms")
    fastest = min(ours, key=steps.__getitem__)
    gains = {rival: steps[rival] / steps[fastest] for rival in rivals}
    beaten = [rival for rival, gain in gains.items() if gain >= factor]
    shown = ", ".join(f"{gain:.2f}x {rival}" for rival, gain in gains.items())
    return Answer(premises.of_all(len(beaten), len(gains)), f"{fastest}: {shown}")


def skilled(record: Record, baseline: str) -> Answer:
    """A simulation has skill where its error is below a constant's and it correlates."""
    (error,) = (one for one in record["summary"]["errors"] if one["baseline"] == baseline)
    if "correlation" not in error:
        raise CannotTell("the record has no correlation of the simulated and the published ratios")
    shown = (
        f"{error['runs']} runs: median error {error['median']:.0%}, a constant's "
        f"{error['constant_median']:.0%}, correlation {error['correlation']:.2f}"
    )
    good = error["median"] < error["constant_median"] and error["correlation"] >= 0.5
    return Answer(HOLDS if good else FAILS, shown)


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
