"""The table of verdicts at the head of docs/results.md: what records say of every paper's claim.

A row is asked of the record as it is, with the premises of `experiments.premises`, so that a record
of one seed, or of one setting where settings had to be searched, answers "cannot be told".
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments import formats, premises
from experiments.premises import FAILS, HOLDS, Answer, CannotTell
from experiments.reports import quoted

SECONDS, LOSS, ACCURACY = "seconds_to_target", "train_loss", "test_accuracy"
END = "final_train_loss"  # a mean over the last tenth of the evaluations
Record = Mapping[str, Any]


class Row(NamedTuple):
    """A claim and how it is asked."""

    paper: str
    claim: str
    record: str  # name of a file in docs/results, without its ending
    ask: Callable[[Record], Answer]


def _arms(record: Record) -> list[dict[str, Any]]:
    return list(quoted.arms(record).values())


def at_most(
    record: Record,
    ours: str,
    theirs: str,
    field: str = SECONDS,
    factor: float = 1.0,
    margin: float = 0.0,
    where: str = "",
) -> Answer:
    """Two arms by name, after the same samples where their ends are compared."""
    pair = premises.named(_arms(record), ours, theirs)
    if "_to_target" not in field:
        premises.equal("samples", *pair)
    return premises.at_most(*pair, field, factor, margin, where)


def of_methods(record: Record, ours: str, theirs: str, field: str) -> Answer:
    """Two methods of an analysis by name: `field` of ours is at most that of theirs."""
    pair = premises.named(record["summary"]["methods"], ours, theirs)
    return premises.at_most(*pair, field)


def accuracy(record: Record, ours: str, theirs: str, points: float) -> Answer:
    """Whether ours is at most some points (a share of 1) less accurate."""
    pair = premises.named(_arms(record), ours, theirs)
    premises.finite(ACCURACY, *pair)
    premises.resolved(points, *pair)
    found = at_most(record, theirs, ours, ACCURACY, margin=points)
    return found._replace(brief="")  # with the names, as theirs stands before ours


def tuned(
    record: Record, ours: str, theirs: str, field: str = SECONDS, factor: float = 1.0
) -> Answer:
    """Two groups, each at a best setting that lies inside of its grid."""
    pair = [premises.tuned(_arms(record), name, field) for name in (ours, theirs)]
    return premises.at_most(*pair, field, factor)


def tuned_among(record: Record, ours: str, rivals: str, factor: float = 1.0) -> Answer:
    """A tuned group against the best of all groups that begin with `rivals`."""
    arms = _arms(record)
    first = premises.tuned(arms, ours, SECONDS)
    groups = dict.fromkeys(
        arm["name"].rpartition("/rate=")[0] or arm["name"]
        for arm in arms
        if arm["name"].startswith(rivals) and arm[SECONDS] is not None
    )
    found = [premises.tuned(arms, group, SECONDS) for group in groups]
    if not found:
        raise CannotTell(f"no arm of {rivals} came to the target")
    return premises.at_most(first, min(found, key=lambda arm: arm[SECONDS]), SECONDS, factor)


def tuned_after(
    record: Record,
    ours: str,
    theirs: str,
    equal: Sequence[str],
    within: float = premises.SAME,
    field: str = LOSS,
) -> Answer:
    """Losses of two tuned groups after about the same bytes, seconds or samples: see `equal`."""
    arms = _arms(record)
    pair = [premises.tuned(arms, name, field) for name in (ours, theirs)]
    for spent in equal:
        premises.equal(spent, *pair, within=within)
    return premises.at_most(*pair, field)


def half_the_bytes(record: Record, ours: str, theirs: str) -> Answer:
    """Bytes after equal samples, and an accuracy that is at most a point lower."""
    pair = premises.named(_arms(record), ours, theirs)
    premises.equal("samples", *pair)
    fewer = premises.counted(*pair, "bytes_per_worker", factor=0.5)
    return premises.both(fewer, accuracy(record, ours, theirs, 0.01))


def first_is_not_lowest(record: Record) -> Answer:
    """Of tuned protocols: the first at the target ends above the lowest, which is later there."""
    arms = [arm for arm in _arms(record) if "/K=" in arm["name"]]
    groups = dict.fromkeys(arm["name"].rpartition("/rate=")[0] for arm in arms)
    chosen: dict[str, dict[str, Mapping]] = {SECONDS: {}, LOSS: {}}
    for field, found in chosen.items():
        for group in groups:
            try:
                found[group] = premises.best(premises.group(arms, group), field)
            except CannotTell:
                continue
        if not found:
            raise CannotTell("no protocol came to the target in every seed")
    early, low = (min(found, key=lambda g: found[g][field]) for field, found in chosen.items())
    for field, group in ((SECONDS, early), (LOSS, low)):
        premises.inside(chosen[field][group], premises.group(arms, group))
    premises.repeated(chosen[SECONDS][early], chosen[LOSS][low])
    if early == low:
        return Answer(FAILS, f"{early} is first and ends lowest")
    return premises.both(
        premises.at_most(chosen[SECONDS][early], chosen[SECONDS][low], SECONDS),
        premises.at_most(chosen[LOSS][low], chosen[LOSS][early], LOSS),
    )


def fewer_bytes_at_the_same_loss(record: Record, ours: str, theirs: str, saved: float) -> Answer:
    """Bytes after equal samples, and a loss that is above by no more than the noise level."""
    first, dense = premises.named(_arms(record), ours, theirs)
    premises.equal("samples", first, dense)
    premises.repeated(first, dense, least=3)
    (again,) = premises.named(_arms(record), f"{theirs}/reordered")
    level = max(
        abs(one - other)
        for one, other in zip(again[f"{LOSS}_by_seed"], dense[f"{LOSS}_by_seed"], strict=True)
    )
    return premises.both(
        premises.counted(first, dense, "bytes_per_worker", factor=1 - saved),
        premises.at_most(first, dense, LOSS, margin=level),
    )


def sends_less(record: Record, ours: str, rivals: Sequence[str]) -> Answer:
    """Bytes against every rival; what is counted needs no seeds."""
    first, *others = premises.named(_arms(record), ours, *rivals)
    premises.equal("samples", first, *others)
    beaten = [rival["name"] for rival in others
              if first["bytes_per_worker"] <= rival["bytes_per_worker"]]  # fmt: skip
    ratios = [first["bytes_per_worker"] / rival["bytes_per_worker"] for rival in others]
    shown = ", ".join(f"{ratio:.2f}x {name}" for ratio, name in zip(ratios, rivals, strict=True))
    return Answer(
        premises.of_all(len(beaten), len(others)),
        f"against {', '.join(beaten)}: {shown}" if beaten else shown,
    )


def skilled(record: Record, baseline: str) -> Answer:
    """A simulation has skill where its error is below a constant's and it correlates."""
    (error,) = (one for one in record["summary"]["errors"] if one["baseline"] == baseline)
    if "correlation" not in error:
        raise CannotTell("the record has no correlation of the simulated and the published ratios")
    shown = (
        f"{error['runs']} runs: median error {error['median']:.0%}, a constant's "
        f"{error['constant_median']:.0%}, correlation {error['correlation']:.2f}"
    )
    good = error["median"] < error["constant_median"] and error["correlation"] >= 0.5
    return Answer(HOLDS if good else FAILS, shown)


def does_not_grow(record: Record, prefix: str, most: float) -> Answer:
    """Mean time of an exchange with the most nodes over that with the fewest."""
    rows: dict[str, list[Mapping]] = {}
    for point in record["summary"]["points"]:
        if point["method"].startswith(prefix):
            rows.setdefault(point["method"], []).append(point)
    if not rows or any(len(row) < 2 for row in rows.values()):
        raise CannotTell("fewer than two numbers of nodes were simulated")
    grown = {method: row[-1]["mean"] / row[0]["mean"] for method, row in rows.items()}
    good = [method for method, growth in grown.items() if growth < most]
    shown = "; ".join(f"{method} {growth:.2f}x" for method, growth in grown.items())
    return Answer(premises.of_all(len(good), len(grown)), shown)


def in_theory(record: Record, table: str, most: float) -> Answer:
    """How many points of an analysis a simulation meets within a relative error."""
    errors = [abs(point["error"]) for point in record["summary"][table]]
    if not errors:
        raise CannotTell("no point was simulated")
    good = sum(error <= most for error in errors)
    return Answer(
        premises.of_all(good, len(errors)),
        f"{good} of {len(errors)} points within {most:.0%}, worst {max(errors):.1%}",
    )


_SWARM, _EIGHT = "SwarmSGD, 1910.12308", "swarm/H=2/8 bits"
_SMALL = "blocking rounds of one mini-batch"
_SPARSE = (("s2_hashed_logistic", "hashed features"), ("s2_ncf", "NCF"))
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
        Row(paper, f"{ours} ends below {theirs} at equal bytes", "heterogeneous",
            partial(tuned_after, ours=ours, theirs=theirs, equal=("bytes_per_worker",),
                    within=0.1))
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
    Row("the same", "a staleness-compensating rate ends below the tuned fixed rate",
        "slow_and_stale",
        partial(tuned, ours="compensated", theirs="k_async/K=1", field=LOSS)),
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
            partial(sends_less, ours="s2/sketch",
                    rivals=("sparse_all_gather", "sparcml", "omnireduce", "parallax")))
        for record, words in _SPARSE
    ),
    *(
        Row("Local SGD and DiLoCo", f"{name}: loss at most .1 above all-reduce's", "language_model",
            partial(at_most, ours=name, theirs="all_reduce", field=LOSS, margin=0.1))
        for name in ("local_sgd/H=10", "diloco/H=10")
    ),
)  # fmt: skip


def answers(folder: Path) -> Iterator[tuple[Row, Answer]]:
    """Every row with what its record says; a claim without a record cannot be judged."""
    for row in ROWS:
        path = folder / f"{row.record}.json"
        if not path.exists():
            yield row, Answer(premises.UNKNOWN, "nothing has been published")
            continue
        record = formats.read(path, formats.PUBLISHED)
        yield row, premises.answer(row.ask, record)


SAMPLING_ERROR = re.compile(r" \(test samples: ± [^)]*\)")  # as `premises.shown` writes it


def cells(folder: Path) -> list[list[str]]:
    """The rows of the table as texts: paper, claim, measured, seeds, deviation, verdict, record.

    Without the standard errors of test accuracies, which stand below every sweep's own table.
    """
    return [
        [
            row.paper,
            row.claim,
            SAMPLING_ERROR.sub("", answer.brief or answer.measured),
            "–" if answer.seeds is None else str(answer.seeds),
            answer.deviation or "–",
            f"**{answer.verdict}**",
            _link(row.record, folder),
        ]
        for row, answer in answers(folder)
    ]


def _link(record: str, folder: Path) -> str:
    """The record's section, where it has one."""
    if not (folder / f"{record}.json").exists():
        return record
    return f"[{record}](#{record.replace('_', '-')})"


HEADINGS = ("paper", "claim", "measured", "seeds", "deviation", "verdict", "record")
