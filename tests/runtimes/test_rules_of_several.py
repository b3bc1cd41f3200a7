"""Waiting rules whose workers live in several processes: the counts of the plan, and a replay."""

import numpy as np
import pytest

from stragglers.rule import whole
from stragglers.schedule import Schedule
from tests.runtimes.rules_of_several import METHODS, ROWS, most, rule, started
from tests.runtimes.toy import replayed
from tests.stragglers.test_contract import counted

LATE = 0.1  # s by which a round may last longer than planned, of ends that are 0.15 s apart
# What a rule promises of [rounds, workers] mini-batches however late a loaded machine is.
PROMISED = {
    "first_finisher": lambda row, found, plan: (found.max(1) == row.mini_batches).all(),
    "quorum": lambda row, found, plan: (
        (found.sum(1) >= row.own["k"]) & (found.sum(1) < row.own["k"] + found.shape[1])
    ).all(),
    "k_sync": lambda row, found, plan: (found.sum(1) == plan.sum(1)).all(),
    "k_batch_sync": lambda row, found, plan: (found.sum(1) == plan.sum(1)).all(),
    "deadline": lambda row, found, plan: (found <= plan).all(),
    "anytime": lambda row, found, plan: (found <= plan).all(),
}


def happened(tmp_path, count, devices, rows):
    """Return the results of the rows on `count` processes, the same on all: {row: arrays}."""
    with started(tmp_path, count, devices, *rows) as (running, outputs):
        for rank, process in enumerate(running):
            assert process.wait(600) == 0, (tmp_path / f"{rank}.txt").read_text()[-2000:]
    results = [dict(np.load(output)) for output in outputs]
    for other in results[1:]:
        for name, array in results[0].items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)
    assert not results[0].pop("keys").size  # of rounds, in the service
    found = {name: {} for name in rows}
    for name, array in results[0].items():
        row, _, key = name.partition(":")
        found[row][key] = array
    return found


def check(name, arrays, workers):
    """What the rule promises of every round, the mini-batches of the plan where all land together
    and the machine was in time, and the models of a replay.
    """
    row, models = ROWS[name], arrays.pop("models")
    schedule = Schedule(**arrays)
    schedule.validate()
    if rule(row, workers).trigger.calibration is not None:
        check_calibrated(schedule, row.own["calibration"])
    elif row.method == "all_reduce":
        plan = whole(rule(row, workers), row.rounds)
        counts = [counted(one, workers) for one in (schedule, plan)]
        assert PROMISED[row.wait](row, *counts)
        lasted, planned = ((s.finish.max(1) - s.start.min(1)) for s in (schedule, plan))
        if (np.abs(lasted - planned) < LATE).all():
            np.testing.assert_array_equal(*counts)
    else:  # neighbours land apart in the plan, and on CPU together
        assert PROMISED[row.wait](row, schedule.batches, None) and (schedule.batches > 0).all()
    replay = replayed(METHODS[row.method](workers), schedule, most(row, workers))
    np.testing.assert_allclose(replay, models, rtol=2e-4, atol=2e-5)


def check_calibrated(schedule, rounds):
    """Nobody is stopped in the first rounds; then the slowest worker decides no longer."""
    assert (schedule.batches[:rounds] == 3).all()
    assert (schedule.batches[rounds:, 3] < 3).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "devices", "rows"),
    [
        (2, 2, list(ROWS)),
        (4, 1, ["first_finisher", "quorum", "k_batch_sync"]),
    ],
    ids=["2 processes", "4 processes"],
)
def test_rules_count_across_processes_what_the_plan_counts(tmp_path, processes, devices, rows):
    found = happened(tmp_path, processes, devices, rows)
    for name in rows:
        check(name, found[name], 4)


@pytest.mark.slow
def test_a_process_for_every_device(tmp_path):
    """As on GPUs: eight processes, one worker each."""
    check("first_finisher", happened(tmp_path, 8, 1, ["first_finisher"])["first_finisher"], 8)
