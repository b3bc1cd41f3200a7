"""A job with a pipeline whose steps are known, as recorded operations and as predicted ones."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import validation, validation_processes

STEPS, BATCHES = 6, 3
COMPUTED = np.random.default_rng(0).uniform(1, 2, (STEPS, 2, 2, BATCHES, 2))  # replica, stage, pass
MESSAGE, REDUCED, GAP, LATE, NORMS = 0.25, 0.5, 0.125, 0.375, 0.0625


def recorded():
    """Return the operations of all steps, as a table."""
    rows = [row for step in range(STEPS) for row in operations(step)]
    return pd.DataFrame(rows, columns=validation.COLUMNS)


def operations(step):
    """Return a step of 2 replicas of 2 stages that do all forward passes first.

    Stage 0 sends, stage 1 receives and sends back; then gradients of a stage are reduced over the
    replicas. The last stages wait for each other before, which no operation shows.
    """
    rows, clock = [], np.zeros((2, 2))  # s, [replica, stage]

    def add(kind, replica, stage, seq, start, took):
        rows.append((step, 2 * replica + stage, replica, stage, kind, seq, start, took))

    def compute(kind, replica, stage, seq, way):
        took = COMPUTED[step, replica, stage, seq, way]
        add(kind, replica, stage, seq, clock[replica, stage], took)
        clock[replica, stage] += took

    def move(way, replica, sender, seq):
        end = clock[replica].max() + MESSAGE
        for stage in (0, 1):
            kind = f"{way}-{'send' if stage == sender else 'recv'}"
            add(kind, replica, stage, seq, clock[replica, stage], end - clock[replica, stage])
        clock[replica] = end

    for replica in (0, 1):
        for seq in range(BATCHES):
            compute("forward-compute", replica, 0, seq, 0)
            move("forward", replica, 0, seq)
            compute("forward-compute", replica, 1, seq, 0)
        for seq in range(BATCHES):
            compute("backward-compute", replica, 1, seq, 1)
            move("backward", replica, 1, seq)
            compute("backward-compute", replica, 0, seq, 1)
    clock[:, 1] = clock[:, 1].max() + LATE
    clock[:, 0] += GAP
    for replica, stage in np.ndindex(2, 2):
        add(validation.AFTER_PIPELINE, replica, stage, 0, clock[replica, stage], NORMS)
    begin = clock + NORMS
    for replica, stage in np.ndindex(2, 2):
        took = begin[:, stage].max() + REDUCED - begin[replica, stage]
        add("grads-reduce-scatter", replica, stage, 0, begin[replica, stage], took)
    return rows


def test_steps_of_a_known_pipeline_are_predicted_from_the_other_half():
    """Every duration but that of computing is the same in all steps, so nothing is off."""
    job = validation.job(recorded())
    first, second = validation.judged(job)
    assert first["ranks"] == 4 and first["steps"] == second["steps"] == 3
    assert max(abs(row[name]) for row in (first, second)
               for name in ("median_error", "mean_error", "largest")) < 1e-9  # fmt: skip
    costs = validation.calibrated(job, np.arange(3))
    assert costs.transfer[validation.Operation(0, "forward-send", 1)] == pytest.approx(MESSAGE)
    assert costs.awaited[validation.Operation(0, validation.AFTER_PIPELINE, 0)] == [0]
    assert costs.awaited[validation.Operation(1, validation.AFTER_PIPELINE, 0)] == [1, 3]


def test_what_is_no_such_job_is_refused(tmp_path):
    with pytest.raises(ValueError, match="steps have different operations"):
        validation.job(recorded()[1:])
    with pytest.raises(ValueError, match=r"cannot be read \(.*; give a folder with AR.parquet"):
        validation.read(tmp_path / "AR.parquet")


def test_rankings_count_where_runs_can_tell_them():
    row = {"trace": "a", "rate": "1gbit", "deviation": 0.1, "error": 0.02}
    rows = [row | {"measured": value, "predicted": 2 * value} for value in (1.0, 1.05, 2.0)]
    rows.append(row | {"trace": "b", "measured": 9.0, "predicted": 1.0, "error": -0.2})
    found = validation_processes.summary(rows)
    assert (found["pairs"], found["ranked"], found["tau"]) == (3, 2, 1.0)
    assert found["beyond_10%"] == 1 and found["median_error"] == pytest.approx(0.02)
    assert len({*validation_processes.CELLS}) == 78
