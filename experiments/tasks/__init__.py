"""The tasks, by the names that configs use."""

from collections.abc import Mapping

from experiments import parts
from experiments.kinds import Kind
from experiments.tasks import dense_tasks, sources, sparse_tasks, token_tasks
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
    "TASK",
    "TASKS",
    "Task",
    "build",
    "check",
    "count",
    "evaluate",
    "first_draw",
    "in_pieces",
    "row_sparse",
    "streams",
    "take",
    "tested",
    "worker_accuracy",
]

TASKS = dense_tasks.TASKS | sparse_tasks.TASKS | token_tasks.TASKS
TASK = Kind("task", TASKS, Task)


def streams(spec: str | Mapping) -> bool:
    """Whether a task, described as for `build`, reads its examples as they are needed."""
    reading = parts.spec(spec).get("reading")
    return reading is not None and sources.READING.build(reading).readers is not None


def build(spec: str | Mapping) -> Task:
    """The task that `spec` describes: {"name": a key of TASKS, its parameters}, or as a call.

    Unknown names and parameters are errors that list the known ones.
    """
    return TASK.build(spec)
