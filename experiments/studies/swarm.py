"""What SwarmSGD claims against its rivals (Nadiradze et al., arXiv 1910.12308)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import aggregates, records
from experiments.reports.figure import COLOURS, DASHES, save
from stragglers import schedule, wavefront


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's claims beside this sweep, in means over the seeds."""
    by_name = {arm["name"]: arm for arm in arms}
    exact, coarse = by_name["swarm/H=2"], by_name["swarm/H=2/8 bits"]
    large, dpsgd = by_name["all_reduce"], by_name["dpsgd/ring"]
    yield (
        "quantised, non-blocking: within 1 point of large-batch accuracy (arXiv 1910.12308)",
        _points(coarse, large, at_least=-1.0),
    )
    for rival in (dpsgd, by_name["sgp"]):
        for ours in (exact, by_name["swarm/H=4"], by_name["swarm/H=2/blocking"], coarse):
            yield (
                f"{ours['name']}: half the bytes of {rival['name']} at equal accuracy",
                _fewer_bytes(ours, rival),
            )
    yield "8 bits cost less than 0.5 points", _points(coarse, exact, at_least=-0.5)
    slow = "" if "factors" in dpsgd["config"].delay else " (here nobody is slow)"
    for rival, when in ((dpsgd, "beside"), (by_name["dpsgd/ring/serial"], "after")):
        yield (
            "one node 4x slower: at most 0.6x the time of blocking D-PSGD, its exchange "
            f"{when} the gradient, to the same loss{slow}",
            "; ".join(_faster(arm, rival) for arm in (coarse, exact)),
        )
    for arm in arms:
        yield f"{arm['name']} (for the record)", _record(arm)


def _points(ours, theirs, at_least: float) -> str:
    points = 100 * (ours["test_accuracy"] - theirs["test_accuracy"])
    accuracies = (f"{100 * arm['test_accuracy']:.2f} %" for arm in (ours, theirs))
    verdict = "yes" if points >= at_least else "no"
    return f"{verdict}: {points:+.2f} points, {' against '.join(accuracies)}"


def _sent_to_target(arm) -> float | None:
    target = arm["config"].target_loss
    sent = [
        aggregates.at_target([r | {"sent": r["bytes_per_worker"]} for r in repeat], target, "sent")
        for repeat in arm["metrics"]
    ]
    return None if None in sent else float(np.mean(sent))


def _fewer_bytes(ours, theirs) -> str:
    whole = [
        float(np.mean([r[-1]["bytes_per_worker"] for r in arm["metrics"]]))
        for arm in (ours, theirs)
    ]
    points = 100 * (ours["test_accuracy"] - theirs["test_accuracy"])
    end = f"at equal samples {_half(*whole)}, {points:+.2f} points"
    sent = [_sent_to_target(arm) for arm in (ours, theirs)]
    if None in sent:
        return f"{end}; the target loss was not reached by every seed"
    megabytes = " against ".join(f"{1e-6 * value:.2f}" for value in sent)
    return f"{end}; to the target loss {_half(*sent)}, {megabytes} MB"


def _half(ours: float, theirs: float) -> str:
    percent = 100 * (1 - ours / theirs)
    verdict = "yes" if 2 * ours <= theirs else "no"
    return f"{verdict}: {abs(percent):.0f} % {'fewer' if percent >= 0 else 'more'}"


def _faster(ours, theirs) -> str:
    seconds = [arm["seconds_to_target"] for arm in (ours, theirs)]
    if None in seconds:
        return f"{ours['name']}: a target was not reached by every seed"
    return f"{ours['name']}: {seconds[0] / seconds[1]:.2f}x, {seconds[0]:.1f} s"


def _record(arm) -> str:
    """Single models, the distance between them, what was sent again."""
    last = [repeat[-1] for repeat in arm["metrics"]]

    def mean(name):
        return float(np.mean([record.get(name, 0.0) for record in last]))

    sentences = [
        f"{arm['samples'] / arm['config'].workers:,.0f} samples per node",
        f"accuracy of the mean model {100 * arm['test_accuracy']:.2f} %, of the nodes' "
        f"{100 * arm['test_accuracy_worst_worker']:.2f} to "
        f"{100 * arm['test_accuracy_best_worker']:.2f} %",
        f"Gamma / n {mean('consensus_distance'):.2g}",
        f"{np.mean([record['bytes_per_worker'] for record in last]) / 1e6:.2f} MB sent per node",
    ]
    if "decode_failures" in last[0]:
        sentences.append(
            f"{mean('decode_failures'):.1f} buckets failed to decode, "
            f"{mean('full_precision_buckets'):.1f} went in full precision, "
            f"{mean('skipped_buckets'):.1f} were skipped; "
            f"{mean('extra_bytes_per_worker') / 1e3:.1f} kB sent again per node in "
            f"{mean('extra_seconds_per_worker'):.2g} s, {_resent_share(last):.1%} of all bytes"
        )
    return "; ".join(sentences)


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
