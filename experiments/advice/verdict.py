"""What an advice says: the best rule or that it is not sure, and what would change that."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments import prepare
from experiments.advice import ranking
from experiments.advice.durations import Measured
from experiments.advice.ranking import Contender
from experiments.advice.trained import Trained
from experiments.config_files import override

MOST_RESAMPLED = 10  # contenders whose spread is looked at


class Verdict(NamedTuple):
    """The order of the rules, each at its best parameter, and what to think of it."""

    order: list[Contender]  # the best one first
    sure: bool
    reason: str  # a sentence
    close: list[Contender]  # the ones that may as well be first, the first among them


def predicted(order: Sequence[Contender], ratio: float, reference: Contender) -> Verdict:
    """The verdict without training; the contenders were resampled."""
    first = order[0]
    mine = ranking.cases(first, ratio)
    resampled = [one for one in order[1:] if len(one.costs) > 1]
    resampled = [one for one in resampled if not ranking.gives_less(one, reference)]
    close = [one for one in resampled if not ranking.is_sure(mine, ranking.cases(one, ratio))]
    gain = ranking.predicted(reference, ratio) / ranking.predicted(first, ratio)
    if close:
        reason = (
            f"not sure: {first.name} and {close[0].name} are within their spread, over resampled "
            "durations and over how noisy a gradient may be"
        )
    elif first.name == reference.name:
        reason = f"{first.name}, which is yours, is predicted to be first"
    else:
        samples = first.played.samples / reference.played.samples
        updates = first.played.updates / reference.played.updates
        reason = (
            f"{first.name} makes use of {samples:.2f} times as many samples per second as "
            f"{reference.name}, in {updates:.2f} times as many updates, and is predicted to be at "
            f"the target {gain:.2f} times as fast"
        )
    return Verdict(list(order), not close, reason, [first, *close])


def trained(
    order: Sequence[Contender], results: Mapping[str, Trained], reference: Contender
) -> Verdict:
    """The verdict of those that were trained, in the order of their seconds, then the others."""
    done = sorted(
        (one for one in order if one.name in results), key=lambda one: results[one.name].mean
    )
    rest = [one for one in order if one.name not in results]
    arrived = [one for one in done if np.isfinite(results[one.name].mean)]
    if not arrived:
        reason = "not sure: nothing that was trained has come to the target within the budget"
        return Verdict([*order], False, reason, [*order])
    first, best = arrived[0], results[arrived[0].name]
    close = [one for one in arrived[1:] if not _apart(best, results[one.name])]
    others = f" against {results[reference.name].mean:.4g} s with {reference.name}"
    known = reference.name in results and reference.name != first.name
    if close:
        reason = (
            f"not sure: {first.name} ({best.mean:.4g} s) and {close[0].name} "
            f"({results[close[0].name].mean:.4g} s) are within their spread over seeds"
        )
    else:
        reason = f"{first.name} is at the target after {best.mean:.4g} s{others if known else ''}"
    return Verdict([*done, *rest], not close, reason, [first, *close])


def _apart(first: Trained, second: Trained) -> bool:
    """Whether two times differ by more than their spreads and a margin."""
    spread = np.hypot(first.spread, second.spread)
    return second.mean - first.mean > max(spread, ranking.MARGIN * first.mean)


def changes(
    order: Sequence[Contender], measured: Measured, ratio: float, own: Contender
) -> list[tuple[str, str]]:
    """(what if, which rule then) for other clusters, links and tasks."""
    medians = np.array([np.median(values) for values in measured.seconds])
    even = measured._replace(
        seconds=tuple(
            values * np.median(medians) / median
            for values, median in zip(measured.seconds, medians, strict=True)
        )
    )
    worlds = [("all workers were as fast as the middle one", _first(order, even, ratio, own))]
    config = order[0].arm
    if config.communication != 0:
        worlds.append(("an exchange took no time", _first(order, measured, ratio, own, 0.0)))
    for words, times in (("a tenth as", 0.1), ("ten times as", 10.0)):
        again = ranking.ranked(order, ratio * times, own)[0]
        worlds.append((f"a gradient was {words} noisy", again.name))
    return worlds


def _first(
    order: Sequence[Contender],
    measured: Measured,
    ratio: float,
    own: Contender,
    communication: float | None = None,
) -> str:
    """The best of the contenders under other durations or another cost of the exchange."""
    arms = [(one.arm, one.prepared) for one in order]
    if communication is not None:
        changed = [override(arm, {"communication": communication}) for arm, _ in arms]
        arms = [(arm, prepare.prepare(arm)) for arm in changed]
    again, _ = ranking.contenders(arms, measured)
    own = next((one for one in again if one.name == own.name), None)
    if own is None:
        return "yours could not be played"
    return ranking.ranked(again, ratio, own)[0].name
