"""The tasks, by the names that configs use; a task is imported when it is asked for."""

from collections.abc import Mapping

from comms.registry import Registry
from experiments import registry
from experiments.registry import Kind
from experiments.tasks import sources
from experiments.tasks.base import (
    Task,
    check,
    count,
    evaluate,
    first_draw,
    in_pieces,
    row_sparse,
    take,
    tested,
    worker_accuracy,
)

__all__ = [
    "TASK", "TASKS", "Task", "build", "check", "count", "evaluate", "first_draw", "in_pieces",
    "row_sparse", "streams", "take", "tested", "worker_accuracy",
]  # fmt: skip

TASKS = Registry(
    {
        "cifar10": "experiments.tasks.dense_tasks:cifar10",
        "cifar100": "experiments.tasks.dense_tasks:cifar100",
        "digits": "experiments.tasks.dense_tasks:digits",
        "fashion_mnist": "experiments.tasks.dense_tasks:fashion_mnist",
        "gaussians": "experiments.tasks.dense_tasks:gaussians",
        "hashed_logistic": "experiments.tasks.text_tasks:hashed_logistic",
        "imagenet2012": "experiments.tasks.dense_tasks:imagenet2012",
        "images": "experiments.tasks.dense_tasks:labelled_images",
        "language_model": "experiments.tasks.text_tasks:language_model",
        "mnist": "experiments.tasks.dense_tasks:mnist",
        "ncf": "experiments.tasks.text_tasks:ncf",
        "next_token": "experiments.tasks.text_tasks:next_token",
        "packed_text": "experiments.tasks.text_tasks:packed_text",
        "points": "experiments.tasks.point_files:points",
        "skip_gram": "experiments.tasks.text_tasks:skip_gram",
        "synthetic_logistic": "experiments.tasks.dense_tasks:synthetic_logistic",
        "synthetic_quadratic": "experiments.tasks.dense_tasks:synthetic_quadratic",
        "uneven_lengths": "experiments.tasks.dense_tasks:uneven_lengths",
    }
)
TASK = Kind("task", TASKS, Task)


def streams(spec: str | Mapping) -> bool:
    """Return whether a task, described as for `build`, reads its examples as they are needed."""
    reading = registry.spec(spec).get("reading")
    return reading is not None and sources.READING.build(reading).readers is not None


def build(spec: str | Mapping) -> Task:
    """Return the task of {"name": a key of TASKS, its parameters}, or of a call as a text.

    Unknown names and parameters are errors that list the known ones.
    """
    return TASK.build(spec)
