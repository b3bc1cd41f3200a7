"""The mesh over several processes: against one of as many devices, against plans, and replayed."""

import numpy as np
import pytest

from stragglers.rule import whole
from stragglers.schedule import Schedule
from tests import planned
from tests.runtimes import one_of_several
from tests.runtimes.one_of_several import ROWS, results
from tests.runtimes.toy import DATA, replayed


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path):
    """A device per worker, slices in one process and across both, and what happens under delays.

    Bit for bit where the order of a sum is the program's; gloo has its own all-reduce.
    """
    both, reads = results(tmp_path, "rounds")
    check_that_they_share_the_reading(*reads)
    np.testing.assert_array_equal(both["streamed"], one_of_several.streamed(DATA))
    alone = one_of_several.undelayed()
    for method, rtol in (("all_reduce", 2e-5), ("dpsgd", 0)):
        for arrays in (both, alone):
            np.testing.assert_array_equal(arrays[f"{method}/resumed"], arrays[f"{method}/straight"])
        for name in alone:
            if name.startswith(method) and not name.endswith(("/time", "/clock/seconds")):
                np.testing.assert_allclose(both[name], alone[name], rtol=rtol, err_msg=name)
        # The clock of a resumed run goes on.
        assert both[f"{method}/time"][0] >= both[f"{method}/packed/clock/seconds"][0]

    np.testing.assert_allclose(both["sliced"], one_of_several.streamed(DATA, 4), rtol=2e-5)
    whole = one_of_several.across(one_of_several.slices.REPLICATED)["models"]
    coded = one_of_several.across(one_of_several.CODED)["models"]
    for kind, models in (("fsdp", whole), ("delayed", whole), ("coded", coded)):
        np.testing.assert_allclose(both[f"across/{kind}/models"], models, rtol=2e-5)
        assert (both[f"across/{kind}/batches"] == 2).all()
    own = "injected/"
    check_what_happened({n.removeprefix(own): a for n, a in both.items() if n.startswith(own)})


def check_that_they_share_the_reading(*reads):
    """Every process reads what its own four workers take, and nothing else."""
    assert not np.intersect1d(*reads).size
    indices = one_of_several.sampler().on_host
    for rank, read in enumerate(reads):
        workers, counters = np.meshgrid(np.arange(4 * rank, 4 * rank + 4), np.arange(16))
        taken = indices(workers.ravel(), counters.ravel())
        assert set(read) == set(taken.ravel())


def check_what_happened(arrays):
    """Every process's part is in the schedule, and the simulator replays it to the same model."""
    shape = arrays["batches"].shape
    schedule = Schedule(
        workers=np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        communication=np.zeros(shape),
        **{name: array for name, array in arrays.items() if name != "models"},
    )
    schedule.validate()
    # No time is left for a second one; who had not begun by the deadline has made none at all.
    assert (schedule.batches[:, 5] <= 1).all() and (schedule.batches.sum(0) > 0).all()
    np.testing.assert_array_equal(np.diff(schedule.first, axis=0), schedule.batches[:-1])
    method = one_of_several.METHODS["top_k"]()
    replay = replayed(method, schedule, one_of_several.M)
    np.testing.assert_allclose(replay, arrays["models"], rtol=2e-4, atol=2e-5)


LATE = 0.1  # s by which a round may last longer than planned, of ends that are 0.15 s apart
# The promise of a rule on [rounds, workers] mini-batches however late a loaded machine is.
PROMISED = {
    "first_finisher": lambda row, found, plan: (found.max(1) == row.mini_batches).all(),
    "quorum": lambda row, found, plan: (
        (found.sum(1) >= row.own["k"]) & (found.sum(1) < row.own["k"] + found.shape[1])
    ).all(),
    "k_sync": lambda row, found, plan: (found.sum(1) == plan.sum(1)).all(),
    "k_batch_sync": lambda row, found, plan: (found.sum(1) == plan.sum(1)).all(),
    "deadline": lambda row, found, plan: (found <= plan).all(),
}


@pytest.mark.slow
def test_rules_count_across_processes_what_the_plan_counts(tmp_path):
    """The promise of the rule, the counts of the plan if the machine was in time, and a replay."""
    arrays, _ = results(tmp_path, "rules", count=4, devices=1)
    assert not arrays.pop("keys").size  # of rounds, in the service
    for name, row in ROWS.items():
        rule, own = one_of_several.rule_of(row)[0], f"{name}:"
        mine = {n.removeprefix(own): a for n, a in arrays.items() if n.startswith(own)}
        models, schedule = mine.pop("models"), Schedule(**mine)
        schedule.validate()
        if rule.trigger.calibration is not None:  # then the slowest worker decides no longer
            begun = row.own["calibration"]
            assert (schedule.batches[:begun] == 3).all() and (schedule.batches[begun:, 3] < 3).all()
        elif row.method == "all_reduce":
            plan = whole(rule, row.rounds)
            counts = [planned.counted(one, len(one_of_several.APART)) for one in (schedule, plan)]
            assert PROMISED[row.wait](row, *counts)
            lasted, expected = ((s.finish.max(1) - s.start.min(1)) for s in (schedule, plan))
            if (np.abs(lasted - expected) < LATE).all():
                np.testing.assert_array_equal(*counts)
        else:  # neighbours land apart in the plan, and on CPU together
            assert PROMISED[row.wait](row, schedule.batches, None) and (schedule.batches > 0).all()
        replay = replayed(one_of_several.method_of(row), schedule, one_of_several.most(row))
        np.testing.assert_allclose(replay, models, rtol=2e-4, atol=2e-5)
