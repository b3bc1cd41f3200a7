"""Metrics for TensorBoard or Weights & Biases, beside the metrics.jsonl that every run has.

Neither is needed to run anything: `pip install tensorboardX` or `pip install wandb`.
"""

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from experiments import files

# The axes that a curve can be drawn over; all other entries of a record are curves.
AXES = ("update", "samples", "seconds", "bytes_per_worker", "wall_seconds")
ON_RECORD = Callable[[dict], None]


@contextlib.contextmanager
def tensorboard(workdir: Path, config: ConfigDict) -> Iterator[ON_RECORD]:
    """Write `workdir`/tensorboard: every metric over updates, samples and bytes per worker.

    A point's wall time is the run's clock, so that TensorBoard's axis "relative" shows its seconds.
    """
    import tensorboardX

    writer = None

    def on_record(record: dict) -> None:
        nonlocal writer
        seconds = record["seconds"]
        if writer is None:
            # No purge_step, as it would also purge points whose steps are samples or bytes.
            writer = tensorboardX.SummaryWriter(str(workdir / "tensorboard"))
            writer.add_text("config", f"```\n{config}\n```", walltime=seconds)
        axes = {"": "update", "_by_samples": "samples", "_by_bytes": "bytes_per_worker"}
        for name, value in _finite(record).items():
            for suffix, axis in axes.items() if name not in AXES else ():
                writer.add_scalar(name + suffix, value, int(record[axis]), walltime=seconds)
        writer.flush()

    try:
        yield on_record
    finally:
        if writer is not None:
            writer.close()


@contextlib.contextmanager
def wandb(workdir: Path, config: ConfigDict) -> Iterator[ON_RECORD]:
    """Log to the project "gossax" of Weights & Biases; WANDB_MODE=offline needs no network.

    Curves are over updates; samples, seconds and bytes can be chosen as axis. A run that resumes
    from a checkpoint resumes its run there, too; a run that starts over makes another.
    """
    import wandb as client

    run, failed = None, True

    def on_record(record: dict) -> None:
        nonlocal run
        if run is None:
            known = workdir / "wandb_id.txt"
            if record["update"] == 0 or not known.exists():
                files.write(known, client.util.generate_id())
            run = client.init(
                project="gossax",
                dir=str(workdir),
                name=f"{config.name} seed {config.seed}",
                group=config.name,
                config=config.to_dict(),
                id=files.read_text(known),
                resume="allow",
                reinit="create_new",  # each of several arms that train together has its run
            )
            run.define_metric("*", step_metric="update")
        run.log(_finite(record))

    try:
        yield on_record
        failed = False
    finally:
        if run is not None:
            run.finish(exit_code=int(failed))


def _finite(record: dict) -> dict:
    """Return the finite numbers of a record, without fields that are None."""
    return {k: v for k, v in record.items() if v is not None and math.isfinite(v)}


# Name -> (logger, the package that it needs); a logger opens at the first record.
LOGGERS = {"tensorboard": (tensorboard, "tensorboardX"), "wandb": (wandb, "wandb")}


def check(names: Sequence[str]) -> None:
    """Raise ValueError for a logger that is unknown or whose package is not installed."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(f"unknown logger {name!r}; known loggers: {', '.join(LOGGERS)}")
        package = LOGGERS[name][1]
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"logger {name!r} needs a package that is not installed; "
                f"run pip install {package} or leave out --loggers"
            )


@contextlib.contextmanager
def attach(
    names: Sequence[str], workdir: Path, config: ConfigDict, on_record: ON_RECORD
) -> Iterator[ON_RECORD]:
    """Yield a function that passes a record to `on_record`, then to every logger named."""
    with contextlib.ExitStack() as opened:
        receivers = [opened.enter_context(LOGGERS[name][0](workdir, config)) for name in names]

        def tell(record: dict) -> None:
            for receiver in (on_record, *receivers):
                receiver(record)

        yield tell
