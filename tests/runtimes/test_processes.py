"""The mesh over two processes with four devices each, against one process with eight."""

import numpy as np
import pytest

from stragglers.schedule import Schedule
from tests.runtimes import one_of_several
from tests.runtimes.toy import DATA, replayed


def results(tmp_path, part):
    """The arrays of both processes, which agree to the bit but for what each has read."""
    with one_of_several.started(tmp_path, part) as (both, outputs):
        for rank, process in enumerate(both):
            assert process.wait(120) == 0, (tmp_path / f"{rank}.txt").read_text()[-2000:]
        first, second = (dict(np.load(output)) for output in outputs)
    reads = first.pop("read"), second.pop("read")
    assert not np.intersect1d(*reads).size
    assert {name: array.tobytes() for name, array in first.items()} == {
        name: array.tobytes() for name, array in second.items()
    }
    return first, reads


def test_two_processes_make_the_trajectory_of_one(tmp_path):
    """Bit for bit where the order of a sum is the program's; gloo has its own all-reduce."""
    both, reads = results(tmp_path, "rounds")
    check_that_they_share_the_reading(*reads)
    np.testing.assert_array_equal(both.pop("streamed"), one_of_several.streamed(DATA))
    alone = one_of_several.undelayed()
    for method, rtol in (("all_reduce", 2e-5), ("dpsgd", 0)):
        for arrays in (both, alone):
            np.testing.assert_array_equal(arrays[f"{method}/resumed"], arrays[f"{method}/straight"])
        for name in alone:
            if name.startswith(method) and not name.endswith(("/time", "/clock/seconds")):
                np.testing.assert_allclose(both[name], alone[name], rtol=rtol, err_msg=name)
        # The clock of a resumed run goes on.
        assert both[f"{method}/time"][0] >= both[f"{method}/packed/clock/seconds"][0]


@pytest.mark.slow
def test_two_processes_hold_slices_and_write_down_what_happened(tmp_path):
    """Two workers of two devices in each process, and one worker on all devices of both."""
    both, _ = results(tmp_path, "slices")
    np.testing.assert_allclose(both["sliced"], one_of_several.of_slices(DATA), rtol=2e-5)
    whole = one_of_several.across("replicated")["models"]
    for kind in ("fsdp", "delayed"):
        np.testing.assert_allclose(both[f"across/{kind}/models"], whole, rtol=2e-5)
        assert (both[f"across/{kind}/batches"] == 2).all()
    parts = {tuple(name.split("/", 1)): array for name, array in both.items()}
    check_what_happened({name[1]: array for name, array in parts.items() if name[0] == "injected"})


def check_that_they_share_the_reading(*reads):
    """Every process reads what its own four workers take, and nothing else."""
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
