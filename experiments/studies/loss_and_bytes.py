"""Training loss against what a worker has sent, for models whose exchange is what costs."""

import math
from collections.abc import Iterator
from pathlib import Path

import jax
from matplotlib.figure import Figure

from experiments import limits, premises, records, tasks
from experiments.numbers import Numbers
from experiments.reports.figure import COLOURS, literal, save
from experiments.studies import axes as look

LITTLE = 0.1  # nats
PICTURE = "loss_and_bytes.png"


def claims(arms) -> Iterator[tuple[str, str]]:
    """Whether every arm loses little for fewer bytes than its baseline."""
    names = {arm["name"] for arm in arms}
    for arm in arms:
        base = arm["config"].baseline
        if base in names and base != arm["name"]:
            yield (
                f"{arm['name']}: at most {LITTLE:g} more loss than {base} after the same steps",
                premises.text(loses_little, arms, arm["name"], base),
            )


def loses_little(arms, ours: str, theirs: str) -> premises.Answer:
    """Final training losses after the same samples."""
    pair = premises.named(arms, ours, theirs)
    premises.equal("samples", *pair)
    return premises.at_most(*pair, "final_train_loss", margin=LITTLE)


def numbers(arms) -> Iterator[Numbers]:
    """What was trained, then the loss and the bytes of every arm."""
    first = arms[0]
    task = tasks.build(first["config"].task)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    sequences, length = task.train.tokens.shape
    yield Numbers(
        "the size that was run",
        ("parameters", "training sequences", "words of one", "workers", "sequences seen"),
        [tuple(f"{count:,.0f}" for count in (
            parameters, sequences, length - 1, first["config"].workers, first["samples"]))],
    )  # fmt: skip
    yield Numbers(
        "loss and bytes",
        ("arm", "bytes per worker", "training loss", "test loss"),
        [
            (
                arm["name"],
                limits.size(arm["bytes_per_worker"]),
                _loss(arm["final_train_loss"]),
                _loss(_last(arm, "test_loss")),
            )
            for arm in arms
        ],
    )


def _loss(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3f}"


def _last(arm, name: str) -> float | None:
    """The mean over seeds of a column's last entry, None where a seed has none."""
    values = [repeat[-1][name] for repeat in arm["metrics"]]
    return None if None in values else sum(values) / len(values)


def figures(workdir: Path) -> None:
    """Write loss_and_bytes.png: both losses of every arm's first seed against bytes per worker."""
    workdir, curves = Path(workdir), {}
    for path in sorted(workdir.rglob(records.CONFIG)):
        curves.setdefault(records.read_json(path)["name"], records.read_metrics(path.parent))
    canvas = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    panels = canvas.subplots(1, 2, sharey=True)
    columns = {"train_loss": "training loss", "test_loss": "test loss"}
    for axes, (column, label) in zip(panels, columns.items(), strict=True):
        for number, (name, metrics) in enumerate(curves.items()):
            points = [
                (entry["bytes_per_worker"], entry[column])
                for entry in metrics
                if entry["bytes_per_worker"] and entry[column] is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    marker=".",
                    color=COLOURS[number % len(COLOURS)],
                    linewidth=1.4,
                    label=literal(name) if axes is panels[0] else None,
                )
        axes.set(xscale="log", xlabel="bytes sent by a worker", ylabel=label)
        look.linear(axes)
    canvas.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    save(canvas, workdir / PICTURE)
