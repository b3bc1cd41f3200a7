"""Rows about what is sent in an all-reduce: MG-WFBP's buckets and S2 Reducer's sketches."""

from functools import partial

from experiments.publishing.questions import (
    fewer_bytes_at_the_same_loss,
    sends_less,
    skilled,
    sooner_steps,
)
from experiments.publishing.verdict_rows.row import AGAIN, UNCLAIMED, Row
from experiments.studies.s2_reducer import AS_PUBLISHED, DENSE, LINKS, OURS, RIVALS, SAVED

SKETCH = "s2/sketch"
SPARSE = (
    ("s2_hashed_logistic", "hashed features"),
    ("s2_ncf", "NCF"),
    ("s2_lstm", "LSTM"),
    ("s2_transformer", "transformer"),
    ("s2_skip_gram", "skip-gram"),
    ("s2_ncf_ratio_5", "NCF, a sketch of 5 %"),
    ("s2_ncf_workers_16", "NCF, 16 workers"),
    ("s2_ncf_workers_64", "NCF, 64 workers"),
)
ROWS = (
    *(
        Row(
            "MG-WFBP, 1811.11141",
            f"its model foresees speed-ups over {words} better than a constant",
            "mg_wfbp_paper",
            partial(skilled, baseline=baseline),
        )
        for baseline, words in (
            ("single", "a single all-reduce"),
            ("wfbp", "WFBP"),
            ("byte_scheduler", "ByteScheduler"),
        )
    ),
    *(
        Row(
            paper,
            f"{words}: 81 % fewer bytes for sparse gradients at the same loss{how}",
            record,
            partial(fewer_bytes_at_the_same_loss, ours=ours, theirs=DENSE, saved=SAVED),
        )
        for paper, ours, how in (
            ("S2 Reducer, 2110.02140", AS_PUBLISHED, ""),
            (UNCLAIMED, SKETCH, ", where sketches are read without loss"),
        )
        for record, words in SPARSE
    ),
    *(
        Row(
            "S2 Reducer, 2110.02140",
            f"{words}: a sketch sends less than exact sparse methods",
            record,
            partial(sends_less, ours=AS_PUBLISHED, rivals=RIVALS),
        )
        for record, words in SPARSE
    ),
    *(
        Row(
            paper,
            f"{words}: a step 1.8x faster than exact sparse methods', {gigabits} Gbit/s{how}",
            record,
            partial(sooner_steps, ours=ours, rivals=RIVALS, gigabits=gigabits),
        )
        for paper, ours, how in (
            (AGAIN, (AS_PUBLISHED,), ""),
            (UNCLAIMED, OURS, "; our own variants"),
        )
        for record, words in SPARSE
        for gigabits in LINKS
    ),
)
