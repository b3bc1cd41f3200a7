"""Rows about gossip in rounds: MATCHA, and methods and graphs for uneven data."""

from functools import partial

from experiments.publishing.questions import SECONDS, as_claimed, tuned, tuned_after
from experiments.publishing.verdict_rows.row import AGAIN, UNCLAIMED, Row
from experiments.studies import heterogeneous, matcha

PERIODIC = matcha.at_budget("periodic", 0.5)
GRAPHS = (
    ("matcha", ""),
    *((f"matcha_graph_{graph}", f"base graph {graph}: ") for graph in range(1, 6)),
)
SIZES = (
    ("heterogeneous", ""),
    ("heterogeneous_workers_64", "64 workers: "),
    ("heterogeneous_workers_256", "256 workers: "),
)
PAIRS = (  # paper, ours, theirs
    ("Gradient tracking, 1805.09708", "gradient_tracking/ring", "dpsgd/ring"),
    ("Exact diffusion, 1803.07068", "exact_diffusion/ring", "dpsgd/ring"),
    ("QG-DSGDm, 2102.04761", "qg_dsgdm/ring", "dpsgd_momentum/ring"),
    (AGAIN, "qg_dsgdm/base_2", "dpsgd_momentum/base_2"),
    ("DecentLaM, 2104.11981", "decentlam/ring", "dpsgd_momentum/ring"),
    ("One-peer exponential graph, 2110.13363", "dpsgd/one_peer", "dpsgd/ring"),
    ("Base-(k+1) graph, 2305.11420", "dpsgd/base_2", "dpsgd/one_peer"),
    (AGAIN, "dpsgd/base_2", "matcha/ring"),
    ("EquiTopo, 2210.07881", "dpsgd/equi", "dpsgd/ring"),
    ("MATCHA, 1905.09435", "matcha/ring", "dpsgd/ring"),
    (UNCLAIMED, "dpsgd/torus", "dpsgd/ring"),
    (UNCLAIMED, "dpsgd/groups", "dpsgd/ring"),
)
ON_TEXT = (
    ("Gradient tracking, 1805.09708", "gradient_tracking/ring", "dpsgd/ring"),
    ("Exact diffusion, 1803.07068", "exact_diffusion/ring", "dpsgd/ring"),
    ("QG-DSGDm, 2102.04761", "qg_dsgdm/ring", "dpsgd_momentum/ring"),
    ("DecentLaM, 2104.11981", "decentlam/ring", "dpsgd_momentum/ring"),
    ("Base-(k+1) graph, 2305.11420", "dpsgd/base_2", "dpsgd/ring"),
)
ROWS = (
    *(
        Row(
            "MATCHA, 1905.09435",
            f"{words}half the communication takes {claim}",
            record,
            partial(tuned, ours=matcha.HALF, theirs=theirs, field=field, factor=factor),
        )
        for record, words in GRAPHS
        for claim, theirs, field, factor in (
            ("at most 1.1x the updates", matcha.VANILLA, "updates_to_target", 1.1),
            ("less time than D-PSGD", matcha.VANILLA, SECONDS, 1.0),
            ("less time than with periodic D-PSGD", PERIODIC, SECONDS, 1.0),
        )
    ),
    *(
        Row(
            AGAIN,
            f"{words}a fifth of D-PSGD's time with the best of 2 to 100 % of the communication",
            record,
            partial(as_claimed, judge=matcha.five_times, names=True),
        )
        for record, words in GRAPHS
    ),
    *(
        Row(
            paper,
            f"{words}{ours} ends below {theirs} at equal bytes",
            record,
            partial(
                tuned_after,
                ours=ours,
                theirs=theirs,
                equal=("bytes_per_worker",),
                within=heterogeneous.BYTES,
            ),
        )
        for record, words, pairs in (
            *((record, words, PAIRS) for record, words in SIZES),
            ("heterogeneous_text", "text: ", ON_TEXT),
        )
        for paper, ours, theirs in pairs
    ),
)
