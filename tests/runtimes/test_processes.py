"""The mesh over two processes with four devices each, against one process with eight."""

import numpy as np

from runtimes import simulate
from stragglers.rules.replay import recorded
from stragglers.schedule import Schedule
from tests.runtimes import one_of_several
from tests.runtimes.toy import DATA, SAMPLES, X0, losses


def test_two_processes_make_the_trajectory_of_one(tmp_path):
    """Bit for bit where the order of a sum is the program's; gloo has its own all-reduce."""
    with one_of_several.started(tmp_path) as (both, outputs):
        alone = one_of_several.undelayed()
        for rank, process in enumerate(both):
            assert process.wait(120) == 0, (tmp_path / f"{rank}.txt").read_text()[-2000:]
        first, second = (dict(np.load(output)) for output in outputs)
    check_that_they_share_the_reading(first.pop("read"), second.pop("read"))
    check_slices(first, second)
    for result in (first, second):
        np.testing.assert_array_equal(result.pop("streamed"), one_of_several.streamed(DATA))
    assert {name: array.tobytes() for name, array in first.items()} == {
        name: array.tobytes() for name, array in second.items()
    }
    for method, rtol in (("all_reduce", 2e-5), ("dpsgd", 0)):
        for arrays in (first, alone):
            np.testing.assert_array_equal(arrays[f"{method}/resumed"], arrays[f"{method}/straight"])
        for name in alone:
            if name.startswith(method) and not name.endswith(("/time", "/clock/seconds")):
                np.testing.assert_allclose(first[name], alone[name], rtol=rtol, err_msg=name)
        # The clock of a resumed run goes on.
        assert first[f"{method}/time"][0] >= first[f"{method}/packed/clock/seconds"][0]

    parts = {tuple(name.split("/", 1)): array for name, array in first.items()}
    check_what_happened({name: array for (of, name), array in parts.items() if of == "injected"})


def check_that_they_share_the_reading(*reads):
    """Every process reads what its own four workers take, and nothing else."""
    indices = one_of_several.sampler().on_host
    for rank, read in enumerate(reads):
        workers, counters = np.meshgrid(np.arange(4 * rank, 4 * rank + 4), np.arange(16))
        taken = indices(workers.ravel(), counters.ravel())
        assert set(read) == set(taken.ravel())
    assert not np.intersect1d(*reads).size


def check_slices(*results):
    """Two processes with two workers of two devices each, and one worker on all devices of both."""
    reads = [result.pop("read/sliced") for result in results]
    assert not np.intersect1d(*reads).size
    alone = one_of_several.of_slices(DATA)
    whole = one_of_several.across("replicated")["models"]
    for result in results:
        np.testing.assert_allclose(result.pop("sliced"), alone, rtol=2e-5)
        for kind in ("fsdp", "delayed"):
            np.testing.assert_allclose(result[f"across/{kind}/models"], whole, rtol=2e-5)
            assert (result[f"across/{kind}/batches"] == 2).all()


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
    runtime = simulate.Simulator(
        method, losses, DATA, SAMPLES, recorded(schedule), mini_batches=one_of_several.M
    )
    run, _ = runtime.advance(runtime.start(X0), np.inf)
    np.testing.assert_allclose(runtime.models(run), arrays["models"], rtol=2e-4, atol=2e-5)
