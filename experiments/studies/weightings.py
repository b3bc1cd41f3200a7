"""What weights do to the end of non-blocking runs (He & Dube, arXiv 2211.00889) on uneven data."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from algorithms import ALGORITHMS, base, gossip
from experiments import premises, prepare, quantities, records, tasks
from experiments.numbers import Numbers
from stragglers import schedule

LOSS = "final_train_loss"  # over all data, a mean over the last tenth of the evaluations
BLOCKING = "blocking"
WEIGHTINGS: Mapping[str, Sequence[str]] = {  # of every mixer, its own default among them
    "all_reduce": tuple(base.WEIGHTINGS),
    "dpsgd": tuple(gossip.STEP_WEIGHTINGS),
    "matcha": tuple(gossip.STEP_WEIGHTINGS),
}


def default(mixer: str) -> str:
    """The weighting of a mixer whose config names none."""
    return inspect.signature(ALGORITHMS[mixer]).parameters["weighting"].default


def claims(arms) -> Iterator[tuple[str, str]]:
    """Every other weighting of a mixer beside its default, then both waiting rules."""
    for mixer, weightings in WEIGHTINGS.items():
        usual = default(mixer)
        for other in weightings:
            if other != usual:
                yield (
                    f"{mixer}: {other} weights end lower than {usual} ones, the default",
                    premises.text(
                        ends_below, arms, f"{mixer}/{other}", f"{mixer}/{usual}", same_rounds=True
                    ),
                )
        for weighting in weightings:
            yield (
                f"{mixer}: with {weighting} weights non-blocking rounds end lower than blocking "
                "ones after the same time",
                premises.text(ends_below, arms, f"{mixer}/{weighting}", f"{mixer}/{BLOCKING}"),
            )


def ends_below(arms, ours: str, theirs: str, same_rounds: bool = False) -> premises.Answer:
    """Final losses after equal seconds, each at a best rate that lies inside of its grid.

    same_rounds: the arms have the same rounds, of which a mini-batch more or less shows in their
    samples.
    """
    pair = [premises.tuned(arms, name, LOSS) for name in (ours, theirs)]
    for field in ("seconds", "samples") if same_rounds else ("seconds",):
        premises.equal(field, *pair)
    return premises.at_most(*pair, LOSS)


def numbers(arms) -> Iterator[Numbers]:
    """Every mixer and weighting at the rate that ends lowest, but for what always diverged."""
    rows = []
    for mixer, weightings in WEIGHTINGS.items():
        for variant in (*weightings, BLOCKING):
            with contextlib.suppress(premises.CannotTell):
                members = premises.group(arms, f"{mixer}/{variant}")
                rows.append(_row(f"{mixer}/{variant}", members))
    yield Numbers(
        f"after the same seconds, at the rate that ends lowest, * at the end of its grid; "
        f"{_held(arms[0])}",
        ("mixer/weighting", "rate", "updates", "loss", "test accuracy",
         "slow worker's mini-batches [%]"),
        rows,
    )  # fmt: skip


def _row(group: str, members: Sequence[Mapping]) -> tuple[str, ...]:
    arm = premises.best(members, LOSS)
    mark = "*" if premises.ends(arm, members) else ""
    return (
        group,
        f"{arm['config'].optimizer.learning_rate:g}{mark}",
        f"{arm['updates']:,.0f}",
        quantities.shown(arm, LOSS),
        quantities.shown(arm, "test_accuracy"),
        f"{100 * _finished_by_slow(arm):.1f}",
    )


def _slow_worker(arm: Mapping) -> int:
    factors = arm["config"].delay.factors
    return max(factors, key=factors.get)


def _finished_by_slow(arm: Mapping) -> float:
    """Share of all finished mini-batches, by the schedules of all seeds."""
    own = everybody = 0
    for place in arm["workdirs"]:
        done = schedule.load(Path(place) / records.SCHEDULE)
        own += done.batches[done.workers == _slow_worker(arm)].sum()
        everybody += done.batches.sum()
    return own / everybody


def _held(arm: Mapping) -> str:
    """How much of the data the slow worker holds; the split follows the seed."""
    config, slow = arm["config"], _slow_worker(arm)
    labels = tasks.build(config.task).labels
    shares = []
    for seed in arm["seeds"]:
        shards = prepare.SPLIT.build(config.split, labels=labels, workers=config.workers, seed=seed)
        shares.append(f"{100 * len(shards[slow]) / len(labels):.1f}")
    return f"worker {slow}, always slow, holds {', '.join(shares)} % of the samples, by seed"
