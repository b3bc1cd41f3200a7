"""All waiting rules over durations that were measured, and which of them is advised."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments import parts
from experiments.advice import grids, noise, play, ranking, sources, verdict
from experiments.advice.trained import Trained
from experiments.config_files import override

MOST_TRAINED = 8  # contenders


class Advice(NamedTuple):
    """All that an advice is made of."""

    source: sources.Source
    ratio: float
    found: list[ranking.Contender]  # every rule at every value of its parameter
    order: list[ranking.Contender]  # every rule at its best, as predicted; the first are resampled
    reference: ranking.Contender  # the config's own rule
    refused: list[play.Refused]
    results: Mapping[str, Trained]  # of those that were trained, by name
    verdict: verdict.Verdict
    changes: list[tuple[str, str]]
    seconds: Mapping[str, float]  # that playing and training took on the wall


def weigh(source: sources.Source, named: Sequence[parts.Part] = ()) -> tuple[Advice, ConfigDict]:
    """The advice without training, and the config that contenders are trained with."""
    began = time.monotonic()
    config = sources.as_simulated(source.config)
    if config.target_loss is None:
        raise ValueError(
            "the advice is about seconds to a target, and config.target_loss is None; set "
            "--config.target_loss=..."
        )
    config = override(config, {"seconds": sources.budget(source)})
    scale = grids.scale_of(source.measured, config.workers, config.mini_batches)
    own = parts.spec(config.wait)
    arms, refused = play.rules(config, [own, *named], scale)
    found, ruled_out = ranking.contenders(arms, source.measured)
    refused += ruled_out
    reference = next((one for one in found if parts.spec(one.arm.wait) == own), None)
    if reference is None:
        why = next((one.reason for one in refused if one.wait == parts.text(own)), "it was cut off")
        raise ValueError(f"config.wait={parts.text(own)} cannot be played ({why}); set another")
    ratio = noise.ratio(config, reference.prepared)
    order = ranking.best_of_each(found, ratio, reference)
    most = verdict.MOST_RESAMPLED
    order = [ranking.resampled(one, source.measured) for one in order[:most]] + order[most:]
    reference = ranking.resampled(reference, source.measured)
    if reference.name not in [one.name for one in order]:
        order = ranking.ranked([*order, reference], ratio, reference)
    decided = verdict.predicted(order, ratio, reference)
    changes = verdict.changes(order, source.measured, ratio, reference)
    seconds = {"played": time.monotonic() - began}
    advice = Advice(source, ratio, found, order, reference, refused, {}, decided, changes, seconds)
    return advice, config


def to_train(advice: Advice) -> list[ranking.Contender]:
    """The rules at their best that no other one beats in both costs, and the config's own."""
    best = ranking.undominated(advice.order)
    named = {one.name: one for one in [*best[: MOST_TRAINED - 1], advice.reference]}
    return list(named.values())
