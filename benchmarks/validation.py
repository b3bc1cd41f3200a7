"""Seconds of a training step, predicted from recorded operations, beside the seconds it took.

    python -m benchmarks.validation --data=FOLDER     # with AR.parquet, SE.parquet, ST.parquet

The files are of ByteDance's StragglerAnalysis (arXiv 2505.05713, Apache 2.0): every operation of
every rank of three jobs that train language models with replicated pipelines of stages.

A step is a graph. An operation begins when its rank's previous ones have ended, after a gap.
Computing takes its recorded seconds. A message or a collective begins to move when the last of its
ranks is there, and takes its transfer time, as its recorded seconds are mostly waiting. Gaps and
transfer times are medians over one half of the steps, and steps of the other half are predicted.
"""

import graphlib
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks import harness

RECORD = harness.Record(harness.FOLDER / "validation.json",
    "python -m benchmarks.validation --data=FOLDER", ("job", "calibrated"))  # fmt: skip
JOBS = ("AR", "SE", "ST")
FILES = "AR.parquet, SE.parquet and ST.parquet of github.com/ByteDance-Seed/StragglerAnalysis"
COLUMNS = ("step", "rank", "dp_rank", "stage", "optype", "seq_id", "start_ts", "duration")
COMPUTING = {"forward-compute", "backward-compute", "optimizer"}
MOVES = {"forward": 1, "backward": -1}  # stages that a message goes up the pipeline
GATHERED = {"params-all-gather": "stage", "grads-reduce-scatter": "stage",
            "embedding-grads-all-reduce": "replica", "optimizer-clip-main-grad": "all"}  # fmt: skip
AFTER_PIPELINE = "layernorm-grads-all-reduce"  # the first operation after the last micro-batch


class Operation(NamedTuple):
    """An operation of the program that every step runs: the seq-th of its kind on a rank."""

    rank: int
    kind: str
    seq: int


class Job(NamedTuple):
    """The operations of a job.

    start, seconds: of each operation in all steps [steps]. places: replica and stage of a rank.
    program: the operations of each rank in their order; all in a tuple begin together.
    """

    start: Mapping[Operation, np.ndarray]
    seconds: Mapping[Operation, np.ndarray]
    places: Mapping[int, tuple[int, int]]
    program: Mapping[int, list[tuple[Operation, ...]]]

    def end(self, operation: Operation) -> np.ndarray:
        """Return the times at which an operation has ended [steps]."""
        return self.start[operation] + self.seconds[operation]

    def steps(self) -> np.ndarray:
        """Return the seconds of each step [steps], from the first start to the last end."""
        last = np.max([self.end(operation) for operation in self.start], axis=0)
        return last - np.min(list(self.start.values()), axis=0)


def job(table: pd.DataFrame) -> Job:
    """Return the operations of a table; ValueError where not every step has the same ones."""
    table = table[table.optype != "gc"]
    wide = table.pivot_table(["start_ts", "duration"], ["rank", "optype", "seq_id"], "step", "last")
    if wide.isna().any(axis=None):
        raise ValueError("steps have different operations; keep those that have all")
    operations = [*map(Operation._make, wide.index)]
    start, seconds = (dict(zip(operations, wide[column].to_numpy(float), strict=True))
                      for column in ("start_ts", "duration"))  # fmt: skip
    places, program = table.groupby("rank")[["dp_rank", "stage"]].last(), {}
    for operation in sorted(start, key=lambda one: (one.rank, start[one][0], one.kind)):
        blocks = program.setdefault(operation.rank, [])
        together = blocks and operation.kind not in COMPUTING and np.array_equal(
            start[operation], start[blocks[-1][0]]
        )  # fmt: skip
        if together:
            blocks[-1] += (operation,)
        else:
            blocks.append((operation,))
    places = {rank: tuple(place) for rank, *place in places.itertuples()}
    return Job(start, seconds, places, program)


def peers(job: Job, operation: Operation) -> list[Operation]:
    """Return the operations that have to begin before this one moves, itself among them."""
    replica, stage = job.places[operation.rank]
    way, _, end = operation.kind.partition("-")
    if end in ("send", "recv"):
        other = stage + MOVES[way] * (1 if end == "send" else -1)
        kind = f"{way}-{'recv' if end == 'send' else 'send'}"
        ranks = [rank for rank, place in job.places.items() if place == (replica, other)]
        return [operation, *(Operation(rank, kind, operation.seq) for rank in ranks)]
    same = {"stage": (None, stage), "replica": (replica, None), "all": (None, None)}
    mine = same.get(GATHERED.get(operation.kind), (replica, stage))
    chosen = [
        operation._replace(rank=rank) for rank, place in job.places.items()
        if all(x in (None, y) for x, y in zip(mine, place, strict=True))
    ]  # fmt: skip
    return [one for one in chosen if one in job.start]


class Costs(NamedTuple):
    """Seconds of a job's operations, calibrated on half of its steps.

    gap: from the end of a rank's previous operations, or of the `awaited` ranks' last
    micro-batches, to each operation. transfer: of each message and collective after the start of
    its last rank. awaited: ranks that an operation waits for although no recorded operation says
    so, as for the sum of losses after the last micro-batch.
    """

    gap: Mapping[Operation, float]
    transfer: Mapping[Operation, float]
    awaited: Mapping[Operation, Sequence[int]]


def calibrated(job: Job, steps: np.ndarray) -> Costs:
    """Return the costs in the given steps."""
    gap, transfer, awaited = {}, {}, {}
    last = max(stage for _, stage in job.places.values())
    over = {}  # when a rank's last micro-batch has ended
    for rank, blocks in job.program.items():
        over[rank] = np.max([job.end(one)[steps] for one in itertools.chain(*blocks)
                             if one.kind.startswith(("forward", "backward"))], axis=0)  # fmt: skip
    for rank, blocks in job.program.items():
        free = np.zeros(len(job.steps()))[steps]
        replica, _ = job.places[rank]
        for block in blocks:
            start = job.start[block[0]][steps]
            gap[block[0]] = float(np.median(start - free))
            if block[0].kind == AFTER_PIPELINE:
                candidates = [
                    [rank],
                    [one for one, place in job.places.items() if place[0] == replica],
                    [one for one, place in job.places.items() if place[1] == last],
                    [*job.places],
                ]
                late = [start - np.max([over[i] for i in ranks], axis=0) for ranks in candidates]
                best = int(np.argmin([np.subtract(*np.quantile(x, (0.75, 0.25))) for x in late]))
                awaited[block[0]] = candidates[best]
                gap[block[0]] = float(np.median(late[best]))
            free = np.max([job.end(one)[steps] for one in block], axis=0)
            for one in block:
                if one.kind not in COMPUTING:
                    there = np.max([job.start[other][steps] for other in peers(job, one)], axis=0)
                    transfer[one] = float(np.median(job.end(one)[steps] - there))
    return Costs(gap, transfer, awaited)


def predicted(job: Job, costs: Costs, steps: np.ndarray) -> np.ndarray:
    """Return the seconds of the given steps, by their recorded computing and the costs."""
    # An event, a beginning or an end -> the events that it follows, and the seconds after the last.
    before: dict[tuple[str, Operation], list] = {}
    after: dict[tuple[str, Operation], float | np.ndarray] = {}
    blocks = [pair for own in job.program.values() for pair in itertools.pairwise([(), *own])]
    over = {block[0].rank: previous for previous, block in blocks
            if block[0].kind == AFTER_PIPELINE}  # fmt: skip
    for previous, block in blocks:
        ranks = costs.awaited.get(block[0], ())
        waited = [one for rank in ranks for one in over[rank]] or previous
        for one in block:
            before["begin", one] = [("end", other) for other in waited]
            after["begin", one] = costs.gap[block[0]]
            computes = one.kind in COMPUTING
            first = [one] if computes else peers(job, one)
            before["end", one] = [("begin", other) for other in first]
            after["end", one] = job.seconds[one][steps] if computes else costs.transfer[one]
    times: dict[tuple[str, Operation], np.ndarray] = {}
    for event in graphlib.TopologicalSorter(before).static_order():
        ready = [times[one] for one in before[event]] or [np.zeros(len(steps))]
        times[event] = np.max(ready, axis=0) + after[event]
    return np.max([*times.values()], axis=0) - np.min([*times.values()], axis=0)


def judged(job: Job) -> list[dict]:
    """Return the errors if the first half of the steps calibrates, and if the second one does."""
    seconds = job.steps()
    halves = np.array_split(np.arange(len(seconds)), 2)
    rows = []
    for name, own, other in (("first", *halves), ("second", *halves[::-1])):
        found, real = predicted(job, calibrated(job, own), other), seconds[other]
        each = np.abs(found / real - 1)
        rows.append({
            "calibrated": name, "steps": len(other), "ranks": len(job.places),
            "median_step": float(np.median(real)), "mean_step": float(real.mean()),
            "median_error": float(np.median(found) / np.median(real) - 1),
            "mean_error": float(found.mean() / real.mean() - 1),
            "error_of_a_step": float(np.median(each)), "largest": float(each.max()),
        })  # fmt: skip
    return rows


def read(path: pathlib.Path) -> Job:
    """Return the operations in a Parquet file; ValueError for another file."""
    try:
        return job(pd.read_parquet(path, columns=list(COLUMNS)))
    except (OSError, ValueError, KeyError) as error:  # ValueErrors of pyarrow among them
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read ({reason}); give a folder with {FILES}") from error


def main() -> None:
    options = harness.options(__doc__, data=("", "folder of the three Parquet files"))
    if not options.data:
        raise SystemExit(f"error: give --data=FOLDER with {FILES}")
    for name in JOBS:
        try:
            rows = judged(read(pathlib.Path(options.data, f"{name}.parquet")))
        except ValueError as error:
            raise SystemExit(f"error: {error}") from error
        RECORD.put([{"job": name, **row} for row in rows])


if __name__ == "__main__":
    main()
