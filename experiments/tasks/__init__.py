"""The tasks, by the names that configs use."""

from collections.abc import Mapping

from experiments.kinds import Kind
from experiments.tasks import dense_tasks, sparse_tasks, token_tasks
from experiments.tasks.base import Task, evaluate, row_sparse

__all__ = ["TASK", "TASKS", "Task", "build", "evaluate", "row_sparse"]

TASKS = dense_tasks.TASKS | sparse_tasks.TASKS | token_tasks.TASKS
TASK = Kind("task", TASKS, Task)


def build(spec: str | Mapping) -> Task:
    """The task that `spec` describes: {"name": a key of TASKS, its parameters}, or as a call.

    Unknown names and parameters are errors that list the known ones.
    """
    return TASK.build(spec)
