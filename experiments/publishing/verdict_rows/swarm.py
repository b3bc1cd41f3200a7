"""Rows about SwarmSGD."""

from functools import partial

from experiments.publishing.questions import (
    accuracy,
    as_claimed,
    at_most,
    does_not_grow,
    half_the_bytes,
    of_points,
    tuned,
)
from experiments.publishing.verdict_rows.row import AGAIN, UNCLAIMED, Row
from experiments.studies import swarm as study
from experiments.studies import swarm_epochs
from experiments.studies.swarm import COARSE, EXACT, LARGE

PAPER = "SwarmSGD, 1910.12308"
ACCURATE = (
    ("8 bits cost at most .3 points of accuracy", EXACT, 0.003),
    ("within 1 point of large batches", LARGE, 0.01),
)
OTHERS = (  # records of other graphs and data
    ("swarm_ring", "meetings on a ring"),
    ("swarm_hypercube", "meetings on a hypercube"),
    ("swarm_dirichlet", "uneven data"),
)
SOONER = (  # the paper compares 8 bits with 32
    (PAPER, EXACT, "32"),
    (UNCLAIMED, "dpsgd/ring", "D-PSGD, which overlaps"),
    (UNCLAIMED, "sgp", "SGP"),
    (UNCLAIMED, "sgp/overlap", "SGP, which overlaps"),
)
TUNED = "each at its best rate: "
ROWS = (
    *(
        Row(
            paper,
            claim,
            "swarm",
            partial(accuracy, ours=COARSE, theirs=theirs, points=points),
        )
        for paper, (claim, theirs, points) in zip(
            (PAPER, AGAIN), ACCURATE, strict=True
        )
    ),
    *(
        Row(
            AGAIN,
            f"10,000 test samples: {claim}",
            "swarm_gaussians",
            partial(accuracy, ours=COARSE, theirs=theirs, points=points),
        )
        for claim, theirs, points in ACCURATE
    ),
    *(
        Row(
            paper,
            f"{nodes} nodes, as many samples each, at rates tuned with 16: 8 bits within {words}",
            f"swarm_nodes_{nodes}",
            partial(accuracy, ours=COARSE, theirs=theirs, points=points),
        )
        for nodes in (8, 64, 256)
        for paper, words, theirs, points in (
            (PAPER, "1 point of large batches", LARGE, 0.01),
            (UNCLAIMED, "2 points of large batches", LARGE, 0.02),
            (UNCLAIMED, "2 points of 32 bits", EXACT, 0.02),
        )
    ),
    *(
        Row(
            PAPER,
            f"{ours}: half the bytes of {rival}, as accurate to 1 point",
            "swarm",
            partial(half_the_bytes, ours=ours, theirs=rival),
        )
        for ours in (EXACT, COARSE)
        for rival in study.RIVALS
    ),
    *(
        Row(
            paper,
            f"{before}8 bits take 10 % less time than {words}",
            record,
            partial(ask, ours=COARSE, theirs=rival, factor=0.9),
        )
        for before, record, ask in (("", "swarm", at_most), (TUNED, "swarm_tuned", tuned))
        for paper, rival, words in SOONER
    ),
    *(
        Row(
            UNCLAIMED,
            f"each at its best rate, 8 bits at their best H: 10 % less time than {words}",
            "swarm_tuned",
            partial(as_claimed, judge=study.sooner_at_best_steps, names=True, theirs=rival,
                    factor=0.9),
        )
        for _, rival, words in SOONER[1:]
    ),
    *(
        Row(
            PAPER,
            f"measured, links of {link}: 8 bits take 10 % less time than 32 {words}",
            "benchmarks/swarm_hosts",
            partial(of_points, ours="8 bits", theirs="float32", field=field, factor=0.9,
                    nodes=4, rate=rate),
        )
        for link, rate, field, words in (
            ("1 Gbit/s", "1gbit", "meeting", "for a meeting"),
            ("100 Mbit/s", "100mbit", "meeting", "for a meeting"),
            ("100 Mbit/s", "100mbit", "seconds", "to train loss 1.5"),
        )
    ),
    *(
        Row(
            PAPER,
            f"{before}local steps matter little: H = {steps} within 10 % of the time of H = 2",
            record,
            partial(as_claimed, judge=study.within, ours=f"swarm/H={steps}", theirs=EXACT,
                    share=0.1, **pick),
        )
        for before, record, pick in (
            ("", "swarm", {}), (TUNED, "swarm_tuned", {"pick": study.at_best})
        )
        for steps in (1, 4)
    ),
    *(
        Row(
            PAPER,
            f"epochs matter: more accurate after {more} mini-batches of a node than after {fewer}",
            "swarm_epochs",
            partial(as_claimed, judge=swarm_epochs.more_accurate,
                    ours=f"{EXACT}/batches={more}", theirs=f"{EXACT}/batches={fewer}"),
        )
        for fewer, more in swarm_epochs.SPANS
    ),
    *(
        Row(
            AGAIN,
            f"local steps matter little: H = 4 within .3 points of H = 1, {length} mini-batches",
            "swarm_epochs",
            partial(accuracy, ours=f"swarm/H=4/batches={length}",
                    theirs=f"swarm/H=1/batches={length}", points=swarm_epochs.LITTLE),
        )
        for length in swarm_epochs.LENGTHS
    ),
    Row(
        UNCLAIMED,
        "a control that has to fail: within .3 points of 600 mini-batches after 75",
        "swarm_epochs",
        partial(as_claimed, judge=swarm_epochs.within,
                ours=f"{EXACT}/batches=75", theirs=f"{EXACT}/batches=600"),
    ),
    *(
        row
        for record, words in OTHERS
        for row in (
            Row(AGAIN, f"{words}: 8 bits within 1 point of large batches", record,
                partial(accuracy, ours=COARSE, theirs=LARGE, points=0.01)),
            Row(AGAIN, f"{words}: 8 bits: half the bytes of dpsgd/ring, as accurate to 1 point",
                record, partial(half_the_bytes, ours=COARSE, theirs="dpsgd/ring")),
            Row(AGAIN, f"{words}: 8 bits take 10 % less time than 32", record,
                partial(at_most, ours=COARSE, theirs=EXACT, factor=0.9)),
        )
    ),
    Row(
        AGAIN,
        "one node 4x slower: at most .6x the time of D-PSGD",
        "swarm_slow4",
        partial(at_most, ours=COARSE, theirs="dpsgd/ring", factor=0.6),
    ),
    Row(
        AGAIN,
        "an exchange among 256 nodes takes at most 1.1x that of 8",
        "swarm_scale",
        partial(does_not_grow, prefix="swarm", most=1.1),
    ),
    *(
        Row(
            AGAIN,
            f"processes: sooner than {words} with one slow node",
            "swarm_real",
            partial(at_most, ours="real/8 bits", theirs=f"real/{theirs}"),
        )
        for words, theirs in (("D-PSGD", "dpsgd"), ("all-reduce", "all_reduce"))
    ),
)  # fmt: skip
