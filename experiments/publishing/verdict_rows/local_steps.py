"""Rows about local steps on a small GPT."""

from functools import partial

from experiments.publishing.questions import tuned_after, tuned_bytes
from experiments.publishing.verdict_rows.row import AGAIN, Row
from experiments.studies import small_messages

DEMO = [method for method in small_messages.METHODS if method.startswith("demo")]
# Of these the rate of the local optimizer alone was searched.
AS_PUBLISHED = dict.fromkeys(
    ("noloco/H=30", "sparse_loco/H=30"), ", its outer numbers as in its paper,"
)
ROWS = (
    *(
        Row(
            paper,
            f"{ours}{AS_PUBLISHED.get(ours, '')} ends "
            f"{f'within {share:.0%} of' if share else 'below'} {theirs}",
            "local_training",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("samples",), factor=1 + share),
        )
        for paper, ours, theirs, share in (
            ("DiLoCo, 2311.08105", "diloco/H=30", "all_reduce", 0.01),
            (AGAIN, "diloco/H=100", "all_reduce", 0.01),
            (AGAIN, "diloco/H=30", "local_sgd/H=30", 0.0),
            (AGAIN, "diloco/H=30", "fedadam/H=30", 0.0),
            ("MuLoCo, 2505.23725", "muloco/H=30", "diloco/H=30", 0.0),
            (AGAIN, "muloco/H=30", "all_reduce_muon", 0.01),
            ("Streaming DiLoCo, 2501.18512", "streaming/H=30", "diloco/H=30", 0.01),
            (AGAIN, "streaming_4_bits/H=30", "streaming/H=30", 0.01),
            ("NoLoCo, 2506.10911", "noloco/H=30", "diloco/H=30", 0.01),
            ("SparseLoCo, 2508.15706", "sparse_loco/H=30", "diloco/H=30", 0.01),
        )
    ),
    *(
        Row(
            AGAIN,
            f"sparse_loco/H=30 sends a hundredth of the bytes of {theirs}",
            "local_training",
            partial(tuned_bytes, ours="sparse_loco/H=30", theirs=theirs, factor=0.01),
        )
        for theirs in ("all_reduce", "diloco/H=30")
    ),
    *(
        Row(
            paper,
            f"{ours} ends {f'within {share:.0%} of' if share else 'below'} {theirs}",
            "small_messages",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("samples",), factor=1 + share),
        )
        for paper, ours, theirs, share in (
            *(("DeMo, 2411.19870", method, small_messages.DENSE, 0.01) for method in DEMO),
            ("NoLoCo, 2506.10911", small_messages.NOLOCO, small_messages.SWARM, 0.0),
        )
    ),
    *(
        Row(
            "DeMo, 2411.19870",
            f"{method} sends a hundredth of the bytes of all-reduce",
            "small_messages",
            partial(tuned_bytes, ours=method, theirs=small_messages.DENSE,
                    factor=1 / small_messages.FEWER),
        )
        for method in DEMO
    ),
)  # fmt: skip
