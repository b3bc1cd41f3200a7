"""Training loss against what a worker has sent, for models whose exchange is what costs."""

import math
from collections.abc import Iterator
from pathlib import Path

import jax
from matplotlib.figure import Figure

from experiments import limits, records, tasks
from experiments.reports.figure import COLOURS, literal, save
from experiments.studies import axes as look

PICTURE = "loss_and_bytes.png"


def claims(arms) -> Iterator[tuple[str, str]]:
    """What was trained, then the loss and the bytes of every arm beside its baseline's."""
    first = arms[0]
    task = tasks.build(first["config"].task)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    sequences, length = task.train.tokens.shape
    yield (
        "the size that was run (for the record)",
        f"{parameters:,} parameters; {sequences:,} sequences of {length - 1} words to train on; "
        f"{first['config'].workers} workers, {first['samples']:,} sequences in all",
    )
    by_name = {arm["name"]: arm for arm in arms}
    for arm in arms:
        base = by_name.get(arm["config"].baseline)
        if base is not None and base is not arm:
            yield f"{arm['name']}: loss and bytes beside {base['name']}", _beside(arm, base)


def _beside(arm, base) -> str:
    sent = arm["bytes_per_worker"] / base["bytes_per_worker"]
    loss, of_base = arm["final_train_loss"], base["final_train_loss"]
    return (
        f"{sent:.3g}x the bytes, {limits.size(arm['bytes_per_worker'])} per worker; loss "
        f"{loss:.3f} against {of_base:.3f} after the same steps; test loss "
        f"{_last(arm, 'test_loss'):.3f} against {_last(base, 'test_loss'):.3f}"
    )


def _last(arm, name: str) -> float:
    """The mean over seeds of a column's last entry."""
    values = [repeat[-1][name] for repeat in arm["metrics"]]
    return sum(values) / len(values)


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
