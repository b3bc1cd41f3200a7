"""Rows about workers that do not wait for each other, or for the fastest alone."""

from collections.abc import Sequence
from functools import partial

from experiments.publishing.questions import (
    END,
    SECONDS,
    as_claimed,
    as_printed,
    compensated,
    in_theory,
    keeps_more,
    of_methods,
    tuned_after,
    tuned_among,
)
from experiments.publishing.verdict_rows.row import AGAIN, UNCLAIMED, Row
from experiments.studies import adasync, async_baselines, real_protocols, slow_and_stale


def _named(loss: float | None) -> str:
    return "the lowest train loss of any arm" if loss is None else f"train loss {loss:g}"


def _claim(claims: Sequence[str], way: str, loss: float | None) -> str:
    """About a way of AdaSync; the lowest loss, None, is one that is known only after the sweep."""
    if loss is not None:
        return adasync.of_target(way, loss)
    asked = {adasync.of_target(way, target) for target in adasync.TARGETS}
    others = [claim for claim in claims if claim.startswith(f"{way}:") and claim not in asked]
    return others[0] if others else f"{way} below train loss {min(adasync.TARGETS):g}"


ROWS = (
    *(
        Row(
            paper,
            f"who is first does not end lowest, {words}",
            "slow_and_stale",
            partial(as_claimed, judge=judge),
        )
        for paper, words, judge in (
            (
                "Slow and stale gradients, 1803.01113",
                "one rate for all",
                slow_and_stale.at_a_common_rate,
            ),
            (AGAIN, "each at its best rates", slow_and_stale.at_tuned_rates),
        )
    ),
    Row(
        UNCLAIMED,
        "each at its best rate: the lowest end without waiting is below the lowest with waiting",
        "slow_and_stale",
        partial(
            tuned_among,
            ours=("k_async", "k_batch_async"),
            rivals=("k_sync", "k_batch_sync"),
            field=END,
        ),
    ),
    *(
        Row(
            "Slow and stale gradients, 1803.01113",
            f"a staleness-compensating rate {words} the tuned fixed rate",
            "slow_and_stale",
            partial(compensated, field=field),
        )
        for field, words in ((END, "ends below"), (SECONDS, "is sooner at the target than"))
    ),
    Row(
        AGAIN,
        "expected seconds of an update are within 5 % of simulated ones",
        "runtime_analysis",
        partial(in_theory, table="points", most=0.05),
    ),
    *(
        Row(
            AGAIN,
            f"with processes, {words}",
            "slow_and_stale_real",
            partial(as_claimed, judge=judge, names=True),
        )
        for words, judge in (
            (
                "an update takes at most 1.05x the seconds of the same delays simulated",
                real_protocols.follows_the_simulation,
            ),
            (
                "staleness is P / K - 1 (K-async) and (P - 1) / K (K-batch-async) within 10 %",
                real_protocols.is_as_stale,
            ),
        )
    ),
    Row(
        UNCLAIMED,
        "with processes, the loss at the end is within 5 % of the same delays simulated",
        "slow_and_stale_real",
        partial(as_claimed, judge=real_protocols.ends_as_low, names=True),
    ),
    *(
        Row(
            paper if loss == adasync.TARGETS[0] else AGAIN,
            f"at most 1.1x the time of the best fixed K to {_named(loss)}{words}",
            "adasync",
            partial(as_printed, claim=partial(_claim, way=adasync.WAYS[ours], loss=loss)),
        )
        for paper, ours, words in (
            ("AdaSync, 2003.10579", "adasync", ""),
            (AGAIN, "adasync_sqrt", ", with a rate that follows the root of K"),
            (AGAIN, "adasync_linear", ", with a rate that follows K"),
        )
        for loss in (*adasync.TARGETS, None)
    ),
    *(
        Row(
            UNCLAIMED,
            f"AdaSync{words} ends at most as high as the best fixed K",
            "adasync",
            partial(tuned_among, ours=(ours,), rivals=("fixed",), field=END),
        )
        for ours, words in (
            ("adasync", ""),
            ("adasync_sqrt", ", with a rate that follows the root of K,"),
            ("adasync_linear", ", with a rate that follows K,"),
        )
    ),
    Row(
        "Ringmaster, 2501.16168; Rennala, 2305.12387",
        "less time than Async-SGD, as old gradients are left out",
        "async_baselines",
        partial(as_claimed, judge=async_baselines.better_left_out, names=True),
    ),
    Row(
        "m-Synchronous SGD, 2602.03802",
        "at most 1.1x the time of the first of all other methods",
        "async_baselines",
        partial(as_claimed, judge=async_baselines.nearly_optimal, names=True),
    ),
    *(
        Row(
            paper,
            f"one worker 4x slower: {ours} ends below {theirs}{words}",
            "frontier_async",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("seconds",)),
        )
        for paper, ours, theirs, words in (
            ("Asynchronous DiLoCo, 2401.09135", "async_diloco", "async_nesterov", ""),
            (AGAIN, "async_diloco", "async_nesterov_small", ""),
            (AGAIN, "async_diloco", "async_average", ""),
            (AGAIN, "async_diloco", "diloco", ", which makes 7 outer steps and not 213"),
            (AGAIN, "async_diloco_by_speed", "async_diloco", ""),
            ("Ringleader ASGD, 2509.22860", "ringleader", "ringmaster", ""),
            (AGAIN, "ringleader", "rennala", ""),
            (AGAIN, "ringleader", "k_async", ""),
        )
    ),
    Row(
        "Decoupled DiLoCo, 2604.21428",
        "88 % of the learners' time counts where elastic all-reduce has 58 %; one simulation",
        "goodput",
        keeps_more,
    ),
    Row(
        AGAIN,
        "while processes are killed it keeps more than DiLoCo",
        "goodput_real",
        partial(of_methods, ours="DiLoCo", theirs="Decoupled DiLoCo", field="share"),
    ),
)
