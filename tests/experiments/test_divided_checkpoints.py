"""Checkpoints of state that is divided between devices, which are written in parts."""

import pathlib
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import dpsgd
from comms import topology
from configs import nonblocking
from experiments import checkpoints, files, sweep, train
from runtimes import mesh, slices
from tests import launcher, two_processes
from tests.experiments.test_checkpoints import resumable
from tests.runtimes.toy import DATA, SAMPLES_OF_FOUR
from tests.two_processes import said, wait_for
from tests.waiting import until

WIDTH = 4096
ENTRIES = {
    "task": "synthetic_logistic(samples=64, dimension=8)", "runtime": "mesh",
    "algorithm": "all_reduce(collective=psum)", "workers": 2, "devices_per_worker": 4,
    "sharding": "fsdp", "wait": "barrier", "delay": "none", "communication": 0.0, "batch_size": 4,
    "mini_batches": 1, "optimizer": {"name": "adam", "learning_rate": 0.1}, "seconds": 1000.0,
    "evaluate_every": 1e-3, "updates": 48,
}  # fmt: skip


def losses(params, examples):
    return (jnp.tanh(examples["x"] @ params["in"]) @ params["out"] - examples["y"]) ** 2


def model():
    """Return parameters that a store can hardly compress."""
    generator = np.random.default_rng(0)
    shapes = {"in": (6, WIDTH), "out": (WIDTH,)}
    return {name: generator.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def begun(*, devices_per_worker=4, rounds=4):
    """Return a runtime with a divided model, and its run after some rounds of Adam."""
    method = dpsgd(optax.adam(1e-3), topology.ring(2))
    runtime = mesh.Mesh(
        method, losses, DATA, SAMPLES_OF_FOUR, workers=2, mini_batches=1,
        rounds_per_dispatch=4, devices_per_worker=devices_per_worker, sharding=slices.fsdp(),
    )  # fmt: skip
    run = runtime.start(model())
    if rounds:
        run, _ = runtime.advance(run, np.inf, rounds)
    return runtime, run


def configured(**changes):
    return sweep.override(nonblocking.get_config(), ENTRIES | changes)


def left(workdir):
    """Return the trained parameters; the checkpoint of the end alone is left beside them."""
    assert len(list((workdir / "checkpoint").iterdir())) == 1
    with np.load(workdir / "parameters.npz") as stored:
        return {name: value.tobytes() for name, value in stored.items()}


def copied(old, new):
    """Return a copy of a directory in which somebody writes."""
    while True:
        try:
            return shutil.copytree(old, new, ignore=shutil.ignore_patterns("*.lock"))
        except (shutil.Error, OSError):  # a name has just changed
            shutil.rmtree(new, ignore_errors=True)


@pytest.mark.slow
def test_a_run_that_was_killed_at_any_moment_of_a_checkpoint_ends_bit_for_bit(
    tmp_path, monkeypatch
):
    """Also at one after which a damaged file of the checkpoint is one sentence."""
    snapshots = []

    def kill(moment, function):
        """Do what `function` does, after a copy of what a kill would leave."""

        def killed(*given, **more):
            if len(snapshots) < 12:
                copy = tmp_path / f"{len(snapshots)}_{moment}"
                snapshots.append(copied(tmp_path / "out", copy))
            return function(*given, **more)

        return killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", kill("begun", checkpoints.write))
        patch.setattr(files, "write_arrays", kill("part", files.write_arrays))
        patch.setattr(files, "move", kill("complete", files.move))
        patch.setattr(checkpoints, "keep_only", kill("both", checkpoints.keep_only))
        train.run(configured(), tmp_path / "out", checkpoint_seconds=0)
    result = left(tmp_path / "out")
    (evaluation,) = resumable(snapshots[4])
    for name in (checkpoints.PART.format(0), checkpoints.STATE, "more"):
        damaged = shutil.copytree(snapshots[4], snapshots[4].with_name(f"damaged_{name}"))
        (damaged / "checkpoint" / str(evaluation) / name).write_bytes(b"{}")
        with pytest.raises(ValueError, match=r"checkpoint .* cannot be read \(") as caught:
            checkpoints.read(damaged, evaluation)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"of shape .* but the run has nothing; resume with"):
        checkpoints.read(snapshots[4], evaluation).bring({})
    resumed = set()
    for place in snapshots[6:10]:  # of the second checkpoint
        found = resumable(place)
        resumed |= set(found)
        for evaluation in checkpoints.numbers(place):
            assert checkpoints.read(place, evaluation).bring is not None
        seen = []
        train.run(configured(), place, on_record=seen.append, checkpoint_seconds=1000)
        assert left(place) == result
        assert seen and seen[0]["update"] > 0
    assert len(resumed) == 2 and 1 in resumed


def test_what_is_stored_comes_back_also_on_fewer_devices(tmp_path):
    runtime, run = begun()
    packed = runtime.pack(run)
    before = {name: np.asarray(value) for name, value in packed.items()}
    checkpoints.write(tmp_path, checkpoints.Checkpoint(3, 4, 0.5, packed, None))
    del packed
    run, _ = runtime.advance(run, np.inf, 4)
    assert resumable(tmp_path) == [3]
    back = checkpoints.read(tmp_path, 3)
    assert back[:3] == (3, 4, 0.5)
    changed = runtime.pack(run)
    stored = back.bring(changed)
    assert stored.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(stored[name], value, err_msg=name)
    assert any(not np.array_equal(before[name], changed[name]) for name in before)
    runtime, run = begun(devices_per_worker=2, rounds=0)
    like = runtime.pack(run)
    stored = checkpoints.read(tmp_path, 3).bring(like)
    for name, value in before.items():
        np.testing.assert_array_equal(stored[name], value, err_msg=name)
        if isinstance(stored[name], jax.Array):
            assert stored[name].sharding.is_equivalent_to(like[name].sharding, value.ndim)
    run, _ = runtime.resume(run, stored, ())
    assert run.update == 4 and np.isfinite(runtime.models(run)["in"]).all()


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    runtime, run = begun()
    first = checkpoints.Checkpoint(1, 1, 0.0, runtime.pack(run), None)
    checkpoints.write(tmp_path, first)
    before = launcher.files(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(files.NotWritten, match=r"checkpoint cannot be written \(No space left"):
            checkpoints.write(tmp_path, first._replace(evaluation=2))
    assert launcher.files(tmp_path) == before


@pytest.mark.slow
def test_two_processes_end_bit_for_bit_from_a_copy_of_their_workdir(here):
    """While both are stopped, a copy of their workdir is what a kill would leave."""
    flags = [f"--config.{key}={value}" for key, value in ENTRIES.items()
             if key not in ("optimizer", "algorithm", "updates")]  # fmt: skip
    flags += [f"--config={launcher.ROOT}/configs/nonblocking.py", "--config.algorithm=dpsgd"]
    flags += ["--checkpoint_seconds=0", "--config.updates=80"]
    for workdir in ("whole", "out"):
        with two_processes.started(here, *flags, f"--workdir={workdir}") as both:
            if workdir == "whole":
                wait_for(here / "whole" / "metrics.jsonl", 4)
                stop(both)
                copied(here / "whole", here / "out")
                send(both, signal.SIGCONT)
            codes = [process.wait(300) for process in both]
            assert codes == [0, 0], said(here, 0) + said(here, 1)
    assert left(here / "out") == left(here / "whole")
    (folder,) = (here / "out" / "checkpoint").iterdir()  # each has written its own half
    parts = [np.load(folder / checkpoints.PART.format(rank)) for rank in range(2)]
    assert not set(parts[0].files) & set(parts[1].files)
    sizes = [sum(part[name].nbytes for name in part.files) for part in parts]
    assert max(sizes) < 0.51 * sum(sizes)


def send(processes, number):
    for process in processes:
        process.send_signal(number)


def stop(processes):
    """Stop processes, and return once no thread of them runs."""
    send(processes, signal.SIGSTOP)
    until(lambda: all(stands(process.pid) for process in processes), "a process does not stop")


def stands(pid):
    """Return whether Linux shows all threads of a process as stopped."""
    try:
        stats = [path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # one has just ended
        return False
    return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)
