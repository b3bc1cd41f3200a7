"""Rows about Non-blocking SGD."""

from functools import partial

from experiments.publishing.questions import at_most, in_theory, tuned, tuned_after
from experiments.publishing.verdict_rows.row import AGAIN, Row

ROWS = (
    *(
        Row(
            "Non-blocking SGD, 2211.00889",
            f"{mixer}, {words}, untuned: less time to the same loss than {rival}",
            f"nonblocking_{delay}",
            partial(at_most, ours=f"{mixer}/nonblocking", theirs=f"{mixer}/{arm}", where=where),
        )
        for delay, words in (
            ("slow4", "one worker 4x slower"),
            ("pause", "random pauses"),
            ("dirichlet", "one 4x slower, uneven data"),
        )
        for mixer in ("all_reduce", "dpsgd", "matcha")
        for rival, arm, where in (
            ("blocking rounds", "blocking", "at equal samples per round"),
            ("blocking rounds of one mini-batch", "small_batch", ""),
        )
    ),
    Row(
        AGAIN,
        "its run-time model is within 5 % of the gain in simulated rounds",
        "nonblocking_analysis",
        partial(in_theory, table="by_workers", most=0.05),
    ),
    *(
        Row(
            AGAIN,
            f"{mixer}, one worker 4x slower, shorter exchanges: less time, each side at its best",
            "nonblocking_tuned",
            partial(tuned, ours=f"{mixer}/nonblocking", theirs=f"{mixer}/blocking"),
        )
        for mixer in ("all_reduce", "dpsgd", "matcha")
    ),
    *(
        Row(
            AGAIN,
            f"{words}, {mixer}: less time, each side at its best",
            f"nonblocking_tuned_{task}",
            partial(
                tuned,
                ours=f"{mixer}/nonblocking",
                theirs=f"{mixer}/blocking",
                bounds={"M": 1.0},
            ),
        )
        for task, words in (("images", "ResNet-18"), ("text", "a small GPT"))
        for mixer in ("all_reduce", "dpsgd")
    ),
    *(
        Row(
            AGAIN,
            f"uneven data, {mixer}: {ours} weights end below {theirs} ones",
            "nonblocking_weightings",
            partial(
                tuned_after,
                ours=f"{mixer}/{ours}",
                theirs=f"{mixer}/{theirs}",
                equal=("seconds", "samples"),
            ),
        )
        for mixer, ours, theirs in (
            ("all_reduce", "equal", "proportional"),
            ("dpsgd", "confidence", "equal"),
            ("dpsgd", "local_sum", "equal"),
            ("matcha", "confidence", "equal"),
            ("matcha", "local_sum", "equal"),
        )
    ),
    *(
        Row(
            AGAIN,
            f"uneven data, {mixer}: ends below blocking rounds after the same time",
            "nonblocking_weightings",
            partial(
                tuned_after,
                ours=f"{mixer}/{weighting}",
                theirs=f"{mixer}/blocking",
                equal=("seconds",),
            ),
        )
        for mixer, weighting in (
            ("all_reduce", "proportional"),
            ("dpsgd", "equal"),
            ("matcha", "equal"),
        )
    ),
)
