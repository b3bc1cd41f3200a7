"""What SwarmSGD claims against its rivals (Nadiradze et al., arXiv 1910.12308)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import aggregates, premises, quantities, records, tasks
from experiments.numbers import Numbers
from experiments.reports.figure import COLOURS, DASHES, save
from stragglers import schedule, wavefront

EXACT, COARSE, LARGE = "swarm/H=2", "swarm/H=2/8 bits", "all_reduce"
RIVALS, SERIAL = ("dpsgd/ring", "sgp"), "dpsgd/ring/serial"
COARSE_BY_STEPS = tuple(f"swarm/H={steps}/8 bits" for steps in (1, 2, 4))
OVERLAPPED = ("sgp/overlap",)  # D-PSGD overlaps in its own arm
POINT = 0.01  # of accuracy that counts as none beside the error of the test samples


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's bounds beside this sweep."""
    yield (
        "quantised, non-blocking: within 1 point of large-batch accuracy (arXiv 1910.12308)",
        premises.text(as_accurate, arms, COARSE, LARGE, 0.01),
    )
    yield (
        "8 bits cost at most .3 points of accuracy",
        premises.text(as_accurate, arms, COARSE, EXACT, 0.003),
    )
    for rival in RIVALS:
        for ours in (EXACT, "swarm/H=4", "swarm/H=2/blocking", COARSE):
            for judge, when in ((half_the_bytes, "samples"), (half_to_target, "loss")):
                yield (
                    f"{ours}: half the bytes of {rival} at equal {when}",
                    premises.text(judge, arms, ours, rival),
                )
    for rival in (*RIVALS, *OVERLAPPED):
        yield (
            f"{COARSE}: 10 % less time than {rival} to the same loss, links modelled",
            premises.text(sooner, arms, COARSE, rival, 0.9),
        )
    for steps in (1, 4):
        yield (
            f"local steps matter little: H = {steps} within 10 % of the time of H = 2",
            premises.text(within, arms, f"swarm/H={steps}", EXACT, 0.1),
        )
    for rival, when in ((RIVALS[0], "beside"), (SERIAL, "after")):
        for ours in (COARSE, EXACT):
            yield (
                f"{ours}, one node 4x slower: at most 0.6x the time of blocking D-PSGD, its "
                f"exchange {when} the gradient, to the same loss",
                premises.text(not_held_up, arms, ours, rival),
            )


def tuned_claims(arms) -> Iterator[tuple[str, str]]:
    """What the paper says about time and bytes, every method at its best learning rate."""
    for rival in (*RIVALS, *OVERLAPPED):
        yield (
            f"{COARSE}: 10 % less time than {rival} to the same loss, links modelled",
            premises.text(sooner, arms, COARSE, rival, 0.9, at_best),
        )
        yield (
            f"8 bits, H at its best: 10 % less time than {rival} to the same loss, links modelled",
            premises.text(sooner_at_best_steps, arms, rival, 0.9),
        )
    for steps in (1, 4):
        yield (
            f"local steps matter little: H = {steps} within 10 % of the time of H = 2",
            premises.text(within, arms, f"swarm/H={steps}", EXACT, 0.1, at_best),
        )
    for rival in RIVALS:
        for ours in (EXACT, COARSE):
            yield (
                f"{ours}: half the bytes of {rival} at equal loss",
                premises.text(half_to_target, arms, ours, rival, at_best),
            )


def at_best(arms, *names: str) -> list[dict]:
    """The arms of these names at the rate of each that comes to the target first."""
    return [premises.tuned(arms, name, "seconds_to_target") for name in names]


def as_accurate(arms, ours: str, theirs: str, points: float) -> premises.Answer:
    """Test accuracy after equal samples; points: as a share of 1, that ours may lose."""
    pair = premises.named(arms, theirs, ours)
    premises.equal("samples", *pair)
    premises.finite("test_accuracy", *pair)
    premises.resolved(points, *pair)
    return premises.at_most(*pair, "test_accuracy", margin=points)


def half_the_bytes(arms, ours: str, theirs: str) -> premises.Answer:
    """Bytes per worker after equal samples, at an accuracy that is at most a point lower."""
    pair = premises.named(arms, ours, theirs)
    premises.equal("samples", *pair)
    fewer = premises.counted(*pair, "bytes_per_worker", factor=0.5)
    return premises.both(fewer, as_accurate(arms, ours, theirs, POINT))


def half_to_target(
    arms, ours: str, theirs: str, pick: Callable = premises.named
) -> premises.Answer:
    """Bytes per worker when the target loss is reached; pick: the arms of these names."""
    pair = [
        premises.per_seed(arm, "bytes_to_target", _sent_to_target(arm))
        for arm in pick(arms, ours, theirs)
    ]
    return premises.at_most(*pair, "bytes_to_target", factor=0.5)


def sooner(
    arms, ours: str, theirs: str, factor: float, pick: Callable = premises.named
) -> premises.Answer:
    """Seconds to the target loss; pick: the arms of these names."""
    return premises.at_most(*pick(arms, ours, theirs), "seconds_to_target", factor)


def sooner_at_best_steps(arms, theirs: str, factor: float) -> premises.Answer:
    """`sooner` at the best rates, with 8 bits and the number of local steps that is first."""
    *ours, rival = at_best(arms, *COARSE_BY_STEPS, theirs)
    first = min(ours, key=lambda arm: arm["seconds_to_target"])
    return premises.at_most(first, rival, "seconds_to_target", factor)


def within(
    arms, ours: str, theirs: str, share: float, pick: Callable = premises.named
) -> premises.Answer:
    """Seconds to the target loss that differ by at most a share, either way."""
    pair = pick(arms, ours, theirs)
    ways = [
        premises.at_most(one, other, "seconds_to_target", 1 + share)
        for one, other in (pair, pair[::-1])
    ]
    verdict = premises.both(*ways).verdict
    return ways[0]._replace(verdict=verdict)


def not_held_up(arms, ours: str, theirs: str) -> premises.Answer:
    """Seconds to the target loss where a node is slow."""
    pair = premises.named(arms, ours, theirs)
    if not all("factors" in arm["config"].delay for arm in pair):
        raise premises.CannotTell("here nobody is slow")
    return premises.at_most(*pair, "seconds_to_target", 0.6)


def _sent_to_target(arm) -> list[float | None]:
    """Bytes per worker of every seed."""
    target = arm["config"].target_loss
    return [
        aggregates.at_target([r | {"sent": r["bytes_per_worker"]} for r in repeat], target, "sent")
        for repeat in arm["metrics"]
    ]


def numbers(arms) -> Iterator[Numbers]:
    """Single models, the distance between them, what was sent again."""
    tested = tasks.tested(tasks.build(arms[0]["config"].task))
    yield Numbers(
        _of_test(arms[0], tested),
        ("arm", "samples per node", "accuracy of the mean model [%]", "of the nodes' [%]",
         "Gamma / n", "MB per node"),
        [_row(arm, tested) for arm in arms],
    )  # fmt: skip
    coded = [arm for arm in arms if "decode_failures" in arm["metrics"][0][-1]]
    if coded:
        yield Numbers(
            "what could not be decoded, per seed",
            ("arm", "failed buckets", "in full precision", "skipped", "kB sent again per node",
             "in seconds", "of all bytes [%]"),
            [_decoded(arm) for arm in coded],
        )  # fmt: skip


def _of_test(arm, tested: int) -> str:
    """What an accuracy is of, and how high it could be where that is known."""
    title = (
        f"at the end; ± is the standard error sqrt(a (1 - a) / n) of an accuracy a of n = "
        f"{tested:,} test samples, beside its deviation over seeds"
    )
    known = arm.get("bayes_accuracy")
    return title if known is None else f"{title}; the Bayes classifier has {100 * known:.2f} %"


def _row(arm, tested: int) -> tuple[str, ...]:
    error = quantities.sampling_error(arm["test_accuracy"], tested)
    worst, best = (arm[f"test_accuracy_{end}_worker"] for end in ("worst", "best"))
    return (
        arm["name"],
        f"{arm['samples'] / arm['config'].workers:,.0f}",
        f"{100 * arm['test_accuracy']:.2f} ± {100 * error:.2f}",
        f"{100 * worst:.2f} to {100 * best:.2f}",
        f"{_mean_of_last(arm, 'consensus_distance'):.2g}",
        f"{_mean_of_last(arm, 'bytes_per_worker') / 1e6:.2f}",
    )


def _decoded(arm) -> tuple[str, ...]:
    counts = ("decode_failures", "full_precision_buckets", "skipped_buckets")
    return (
        arm["name"],
        *(f"{_mean_of_last(arm, name):.1f}" for name in counts),
        f"{_mean_of_last(arm, 'extra_bytes_per_worker') / 1e3:.1f}",
        f"{_mean_of_last(arm, 'extra_seconds_per_worker'):.2g}",
        f"{100 * _resent_share([repeat[-1] for repeat in arm['metrics']]):.1f}",
    )


def _mean_of_last(arm, name: str) -> float:
    return float(np.mean([repeat[-1].get(name) or 0.0 for repeat in arm["metrics"]]))


def _resent_share(last: list[dict]) -> float:
    """Bytes sent again, over the bytes of all first messages and answers."""
    sent = sum(record["planned_bytes_per_worker"] for record in last)
    return sum(record.get("extra_bytes_per_worker", 0.0) for record in last) / max(sent, 1.0)


def figures(workdir) -> None:
    """Write meetings.json and meetings.png: Gamma, samples, meetings per pair and stale copies.

    Of the first seed of every arm that meets in pairs, but Gamma of all local methods.
    """
    workdir = Path(workdir)
    meetings, curves = {}, {}
    for path in sorted(workdir.rglob(records.SCHEDULE)):
        summary, place = records.read_summary(path.parent), path.parent
        if summary["name"] in curves:
            continue
        curves[summary["name"]] = records.read_metrics(place)
        done = schedule.load(path)
        if done.partner is not None:
            config = records.read_json(place / records.CONFIG)
            meetings[summary["name"]] = _met(done, summary["workers"], config["batch_size"])
    records.write_json(
        workdir / "meetings.json",
        {
            name: {k: v for k, v in met.items() if k != "staleness"}
            for name, met in meetings.items()
        },
    )
    _draw(curves, meetings, workdir / "meetings.png")


def _met(done: schedule.Schedule, workers: int, batch_size: int) -> dict:
    """Samples per node, meetings of pairs that ever met, seconds since copies were renewed."""
    met = wavefront.meetings(done, workers)
    counts = met[np.triu_indices(workers, 1)]
    counts = counts[counts > 0]
    partners = wavefront.interactions(done).pairs
    staleness = wavefront.copy_staleness(done)[partners[:, 0] != partners[:, 1]]
    brought = np.bincount(done.workers.ravel(), done.batches.ravel(), workers + 1)[:workers]
    return {
        "samples": (batch_size * brought).astype(int),
        "pairs": counts.size,
        "meetings_of_a_pair": [int(counts.min()), float(counts.mean()), int(counts.max())],
        "copy_staleness_mean": float(staleness.mean()),  # s
        "copy_staleness_p99": float(np.quantile(staleness, 0.99)),
        "staleness": np.sort(staleness),
    }


def _draw(curves: dict, meetings: dict, path: Path):
    canvas = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    gamma, stale, samples = canvas.subplots(1, 3)
    for number, (name, metrics) in enumerate(curves.items()):
        row, column = divmod(number, len(COLOURS))
        line = {"color": COLOURS[column], "linestyle": DASHES[row % len(DASHES)], "linewidth": 1.4}
        points = [(r["samples"], r["consensus_distance"]) for r in metrics]
        points = [(x, y) for x, y in points if y and x]
        if points:
            gamma.plot(*zip(*points, strict=True), label=name, **line)
        if name in meetings:
            ages = meetings[name]["staleness"]
            stale.plot(ages, np.linspace(1, 0, ages.size), **line)
            samples.plot(meetings[name]["samples"], **line)
    gamma.set(yscale="log", xlabel="samples seen by all nodes", ylabel="Gamma / n")
    stale.set(xlabel="age of the partner's copy [s]", ylabel="share of meetings with an older one")
    samples.set(xlabel="node", ylabel="samples", ylim=(0, None))
    samples.xaxis.get_major_locator().set_params(integer=True)
    for axes in (gamma, stale, samples):
        axes.grid(color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    canvas.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save(canvas, path)
