"""What Non-blocking SGD claims over three mixers (He & Dube, arXiv 2211.00889)."""

import functools
from collections.abc import Iterator, Mapping

from experiments import premises
from experiments.numbers import Numbers

SECONDS = "seconds_to_target"
ONE_SAMPLE = {"M": 1.0}  # bounds of rounds, where a mini-batch has one sample
EQUAL_ROUNDS = "at equal samples per round"


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's claim at equal rounds, then against blocking rounds of one mini-batch."""
    for mixer in _mixers(arms):
        ours = f"{mixer}/nonblocking"
        yield (
            f"{mixer}: less time to the same training loss, at equal samples per round "
            "(arXiv 2211.00889)",
            premises.text(at_equal_rounds, arms, ours, f"{mixer}/blocking"),
        )
        yield (
            f"{mixer}: less time than blocking rounds of one mini-batch",
            premises.text(sooner, arms, ours, f"{mixer}/small_batch"),
        )


def at_equal_rounds(arms, ours: str, theirs: str) -> premises.Answer:
    """Seconds to the target of two waiting rules whose rounds are as long."""
    pair = premises.named(arms, ours, theirs)
    sizes = [arm["config"].mini_batches * arm["config"].batch_size for arm in pair]
    if len(set(sizes)) > 1:
        raise premises.CannotTell(f"rounds have {sizes[0]} and {sizes[1]} samples per worker")
    return premises.at_most(*pair, SECONDS, where=EQUAL_ROUNDS)


def sooner(arms, ours: str, theirs: str) -> premises.Answer:
    """Seconds to the target of two arms."""
    return premises.at_most(*premises.named(arms, ours, theirs), SECONDS)


def numbers(arms) -> Iterator[Numbers]:
    """Gains beside what the run-time model expects.

    If the number of updates limits training the gain is that of rounds per second; if gradient
    noise does, it is that of samples per second.
    """
    by_name = {arm["name"]: arm for arm in arms}
    rows = []
    for mixer in _mixers(arms):
        pair = [by_name.get(f"{mixer}/{variant}") for variant in ("nonblocking", "blocking")]
        if None in pair or not all(arm["updates"] and arm["seconds"] for arm in pair):
            continue  # nothing to compare
        ours, theirs = pair
        gain = "never"
        if ours[SECONDS] and theirs[SECONDS]:
            gain = f"{theirs[SECONDS] / ours[SECONDS]:.2f}x"
        expected = [
            f"{(ours[unit] / ours['seconds']) / (theirs[unit] / theirs['seconds']):.2f}x"
            for unit in ("updates", "samples")
        ]
        points = [arm["test_accuracy"] for arm in pair]
        accuracy = "" if None in points else f"{100 * (points[0] - points[1]):+.2f}"
        rows.append((mixer, gain, *expected, accuracy))
    yield Numbers(
        "non-blocking over blocking, at equal samples per round",
        ("mixer", "time to the target", "expected if updates limit", "if noise does",
         "accuracy at the end [points]"),
        rows,
    )  # fmt: skip


def tuned_claims(arms, bounds: Mapping[str, float] | None = None) -> Iterator[tuple[str, str]]:
    """Best against best, where both optima lie inside of the grid; bounds: of `premises.ends`."""
    for mixer in _mixers(arms):
        yield (
            f"{mixer}: the best non-blocking takes less time than the best blocking",
            premises.text(best_against_best, arms, mixer, bounds),
        )


tuned_claims_of_single_samples = functools.partial(tuned_claims, bounds=ONE_SAMPLE)


def best_against_best(
    arms, mixer: str, bounds: Mapping[str, float] | None = None
) -> premises.Answer:
    """Each at its own rate and length of a round."""
    pair = [
        premises.tuned(arms, f"{mixer}/{variant}", SECONDS, bounds)
        for variant in ("nonblocking", "blocking")
    ]
    return premises.at_most(*pair, SECONDS)


def _mixers(arms) -> list[str]:
    return list(dict.fromkeys(arm["name"].partition("/")[0] for arm in arms))
