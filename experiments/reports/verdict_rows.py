"""The rows of the table of verdicts: a claim of a paper, and what is asked of which record."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from experiments.premises import Answer
from experiments.reports.questions import (
    END,
    SECONDS,
    accuracy,
    at_most,
    compensated,
    does_not_grow,
    fewer_bytes_at_the_same_loss,
    first_is_not_lowest,
    half_the_bytes,
    in_theory,
    of_methods,
    sends_less,
    skilled,
    sooner_steps,
    tuned,
    tuned_after,
    tuned_among,
)


class Row(NamedTuple):
    """A claim and how it is asked."""

    paper: str
    claim: str
    record: str  # name of a file in docs/results, without its ending
    ask: Callable[[Mapping[str, Any]], Answer]


_SWARM, _EIGHT = "SwarmSGD, 1910.12308", "swarm/H=2/8 bits"
_SMALL = "blocking rounds of one mini-batch"
_SPARSE = (("s2_hashed_logistic", "hashed features"), ("s2_ncf", "NCF"), ("s2_lstm", "LSTM"),
           ("s2_transformer", "transformer"), ("s2_skip_gram", "skip-gram"),
           ("s2_ncf_ratio_5", "NCF, a sketch of 5 %"), ("s2_ncf_workers_16", "NCF, 16 workers"),
           ("s2_ncf_workers_64", "NCF, 64 workers"))  # fmt: skip
_EXACT = ("sparse_all_gather", "sparcml", "omnireduce", "parallax")
ROWS = (
    *(
        Row(
            "Non-blocking SGD, 2211.00889",
            f"{mixer}, {words}: less time to the same loss than {rival}",
            f"nonblocking_{delay}",
            partial(at_most, ours=f"{mixer}/nonblocking", theirs=f"{mixer}/{arm}", where=where),
        )
        for delay, words in (
            ("slow4", "one worker 4x slower"), ("pause", "random pauses"),
            ("dirichlet", "one 4x slower, uneven data"),
        )
        for mixer in ("all_reduce", "dpsgd", "matcha")
        for rival, arm, where in (
            ("blocking rounds", "blocking", "at equal samples per round"),
            (_SMALL, "small_batch", ""),
        )
    ),
    Row("the same", "its run-time model is within 5 % of the gain in simulated rounds",
        "nonblocking_analysis", partial(in_theory, table="by_workers", most=0.05)),
    *(
        Row("the same", f"{mixer}: less time, each side at its best", "nonblocking_tuned",
            partial(tuned, ours=f"{mixer}/nonblocking", theirs=f"{mixer}/blocking"))
        for mixer in ("all_reduce", "dpsgd", "matcha")
    ),
    *(
        Row("the same", f"{words}, {mixer}: less time, each side at its best",
            f"nonblocking_tuned_{task}",
            partial(tuned, ours=f"{mixer}/nonblocking", theirs=f"{mixer}/blocking",
                    bounds={"M": 1.0}))
        for task, words in (("images", "ResNet-18"), ("text", "a small GPT"))
        for mixer in ("all_reduce", "dpsgd")
    ),
    *(
        Row("the same", f"uneven data, {mixer}: {ours} weights end below {theirs} ones",
            "nonblocking_weightings",
            partial(tuned_after, ours=f"{mixer}/{ours}", theirs=f"{mixer}/{theirs}",
                    equal=("seconds", "samples"), field=END))
        for mixer, ours, theirs in (
            ("all_reduce", "equal", "proportional"),
            *((mixer, ours, "equal") for mixer in ("dpsgd", "matcha")
              for ours in ("confidence", "local_sum")),
        )
    ),
    *(
        Row("the same", f"uneven data, {mixer}: ends below blocking rounds after the same time",
            "nonblocking_weightings",
            partial(tuned_after, ours=f"{mixer}/{weighting}", theirs=f"{mixer}/blocking",
                    equal=("seconds",), field=END))
        for mixer, weighting in (
            ("all_reduce", "proportional"), ("dpsgd", "equal"), ("matcha", "equal")
        )
    ),
    Row("MATCHA, 1905.09435", "half the communication takes at most 1.1x the updates", "matcha",
        partial(tuned, ours="matcha/0.5", theirs="vanilla", field="updates_to_target", factor=1.1)),
    Row("the same", "half the communication takes less time than D-PSGD", "matcha",
        partial(tuned, ours="matcha/0.5", theirs="vanilla")),
    Row("the same", "less time than periodic D-PSGD with half the communication", "matcha",
        partial(tuned, ours="matcha/0.5", theirs="periodic/0.5")),
    *(
        Row("the same", f"base graph {graph}: half the communication takes {claim}",
            f"matcha_graph_{graph}",
            partial(tuned, ours="matcha/0.5", theirs="vanilla", field=field, factor=factor))
        for graph in range(1, 6)
        for claim, field, factor in (
            ("at most 1.1x the updates", "updates_to_target", 1.1),
            ("less time than D-PSGD", SECONDS, 1.0),
        )
    ),
    *(
        Row(paper, f"{words}{ours} ends below {theirs} at equal bytes", f"heterogeneous{suffix}",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("bytes_per_worker",),
                    within=0.1))
        for words, suffix in (
            ("", ""), ("64 workers: ", "_workers_64"), ("256 workers: ", "_workers_256")
        )
        for paper, ours, theirs in (
            ("Gradient tracking, 1805.09708", "gradient_tracking/ring", "dpsgd/ring"),
            ("Exact diffusion, 1803.07068", "exact_diffusion/ring", "dpsgd/ring"),
            ("QG-DSGDm, 2102.04761", "qg_dsgdm/ring", "dpsgd_momentum/ring"),
            ("DecentLaM, 2104.11981", "decentlam/ring", "dpsgd_momentum/ring"),
            ("One-peer exponential graph, 2110.13363", "dpsgd/one_peer", "dpsgd/ring"),
            ("Base-(k+1) graph, 2305.11420", "dpsgd/base_2", "dpsgd/one_peer"),
        )
    ),
    Row("Slow and stale gradients, 1803.01113", "who is first does not end lowest",
        "slow_and_stale", first_is_not_lowest),
    *(
        Row("the same", f"a staleness-compensating rate {words} the tuned fixed rate",
            "slow_and_stale", partial(compensated, field=field))
        for field, words in ((END, "ends below"), (SECONDS, "is sooner at the target than"))
    ),
    Row("the same", "expected seconds of an update are within 5 % of simulated ones",
        "runtime_analysis", partial(in_theory, table="points", most=0.05)),
    Row("AdaSync, 2003.10579", "at most 1.1x the time of the best fixed K", "adasync",
        partial(tuned_among, ours="adasync", rivals="fixed", factor=1.1)),
    *(
        Row("the same", f"the same with a rate that follows {law}", "adasync",
            partial(tuned_among, ours=ours, rivals="fixed", factor=1.1))
        for ours, law in (("adasync_sqrt", "the root of K"), ("adasync_linear", "K"))
    ),
    Row("Ringmaster, 2501.16168", "less time than Async-SGD, as old gradients are left out",
        "async_baselines", partial(tuned, ours="ringmaster_ignore", theirs="async_sgd")),
    Row("m-Synchronous SGD, 2602.03802", "at most 1.1x the time of Async-SGD",
        "async_baselines", partial(tuned, ours="k_sync", theirs="async_sgd", factor=1.1)),
    *(
        Row(paper, f"one worker 4x slower: {ours} ends below {theirs}", "frontier_async",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("seconds",), field=END))
        for paper, ours, theirs in (
            ("Asynchronous DiLoCo, 2401.09135", "async_diloco", "async_nesterov"),
            ("the same", "async_diloco", "async_average"),
            ("the same", "async_diloco", "diloco"),
            ("the same", "async_diloco_by_speed", "async_diloco"),
            ("Ringleader ASGD, 2509.22860", "ringleader", "ringmaster"),
            ("the same", "ringleader", "rennala"),
            ("the same", "ringleader", "k_async"),
        )
    ),
    Row("Decoupled DiLoCo, 2604.21428", "while processes are killed it keeps more than DiLoCo",
        "goodput_real",
        partial(of_methods, ours="DiLoCo", theirs="Decoupled DiLoCo", field="share")),
    Row(_SWARM, "8 bits cost at most .3 points of accuracy", "swarm",
        partial(accuracy, ours=_EIGHT, theirs="swarm/H=2", points=0.003)),
    Row("the same", "within 1 point of large batches", "swarm",
        partial(accuracy, ours=_EIGHT, theirs="all_reduce", points=0.01)),
    *(
        Row("the same", f"10,000 test samples: {claim}", "swarm_gaussians",
            partial(accuracy, ours=_EIGHT, theirs=theirs, points=points))
        for claim, theirs, points in (
            ("8 bits cost at most .3 points of accuracy", "swarm/H=2", 0.003),
            ("within 1 point of large batches", "all_reduce", 0.01),
        )
    ),
    *(
        Row("the same", f"{ours}: half the bytes of {rival}, as accurate to 1 point", "swarm",
            partial(half_the_bytes, ours=ours, theirs=rival))
        for ours in ("swarm/H=2", _EIGHT)
        for rival in ("dpsgd/ring", "sgp")
    ),
    Row("the same", "10 % less time than D-PSGD, which overlaps", "swarm",
        partial(at_most, ours=_EIGHT, theirs="dpsgd/ring", factor=0.9)),
    Row("the same", "local steps matter little: H = 4 at most 1.1x the time of H = 2", "swarm",
        partial(at_most, ours="swarm/H=4", theirs="swarm/H=2", factor=1.1)),
    *(
        Row("the same", f"each at its best rate: 10 % less time than {words}", "swarm_tuned",
            partial(tuned, ours=_EIGHT, theirs=rival, factor=0.9))
        for rival, words in (("dpsgd/ring", "D-PSGD, which overlaps"), ("sgp", "SGP"),
                             ("sgp/overlap", "SGP, which overlaps"))
    ),
    Row("the same", "each at its best rate: H = 4 at most 1.1x the time of H = 2", "swarm_tuned",
        partial(tuned, ours="swarm/H=4", theirs="swarm/H=2", factor=1.1)),
    Row("the same", "one node 4x slower: at most .6x the time of D-PSGD", "swarm_slow4",
        partial(at_most, ours=_EIGHT, theirs="dpsgd/ring", factor=0.6)),
    Row("the same", "an exchange among 256 nodes takes at most 1.1x that of 8", "swarm_scale",
        partial(does_not_grow, prefix="swarm", most=1.1)),
    Row("the same", "processes: sooner than D-PSGD with one slow node", "swarm_real",
        partial(at_most, ours="real/8 bits", theirs="real/dpsgd")),
    *(
        Row("MG-WFBP, 1811.11141",
            f"its model foresees speed-ups over {words} better than a constant",
            "mg_wfbp_paper", partial(skilled, baseline=baseline))
        for baseline, words in (
            ("single", "a single all-reduce"), ("wfbp", "WFBP"), ("byte_scheduler", "ByteScheduler")
        )
    ),
    *(
        Row("S2 Reducer, 2110.02140", f"{words}: 81 % fewer bytes at the same loss", record,
            partial(fewer_bytes_at_the_same_loss, ours="s2/sketch", theirs="dense", saved=0.81))
        for record, words in _SPARSE
    ),
    *(
        Row("the same", f"{words}: a sketch sends less than exact sparse methods", record,
            partial(sends_less, ours="s2/sketch", rivals=_EXACT))
        for record, words in _SPARSE
    ),
    *(
        Row("the same",
            f"{words}: a step 1.8x faster than exact sparse methods', {gigabits} Gbit/s", record,
            partial(sooner_steps, ours=("s2/sketch", "s2/median", "s2/exact"), rivals=_EXACT,
                    gigabits=gigabits, factor=1.8))
        for record, words in _SPARSE for gigabits in (1, 10)
    ),
    *(
        Row(paper, f"{ours} ends {f'within {share:.0%} of' if share else 'below'} {theirs}",
            "local_training",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("samples",), field=END,
                    factor=1 + share))
        for paper, ours, theirs, share in (
            ("DiLoCo, 2311.08105", "diloco/H=30", "all_reduce", 0.01),
            ("the same", "diloco/H=100", "all_reduce", 0.01),
            ("the same", "diloco/H=30", "local_sgd/H=30", 0.0),
            ("MuLoCo, 2505.23725", "muloco/H=30", "diloco/H=30", 0.0),
            ("Streaming DiLoCo, 2501.18512", "streaming/H=30", "diloco/H=30", 0.01),
            ("the same", "streaming_4_bits/H=30", "streaming/H=30", 0.01),
            ("SparseLoCo, 2508.15706", "sparse_loco/H=30", "diloco/H=30", 0.01),
            ("NoLoCo, 2506.10911", "noloco/H=30", "diloco/H=30", 0.01),
        )
    ),
)  # fmt: skip
