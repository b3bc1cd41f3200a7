"""Files of a workdir: ours, or untouched, whatever the flags."""

import json
import os
import shutil

import pytest

from experiments import records
from tests import launcher

OK = ("--config=config.py", "--workdir=out", "--config.updates=2")
SWEEP = (*OK, "--sweep")


def everything(place):
    """Contents of all files, and what else there is, with where links lead."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in place.rglob("*")
    }


def refused(call, here, words, *flags):
    """Check that the flags are refused in one sentence and nothing is touched."""
    before = everything(here)
    launcher.refused(call(*flags), words)
    assert everything(here) == before


def put_mine(path):
    """Something of somebody else under a name of ours."""
    folder = path.name in records.FOLDERS
    (path / "5" if folder else path.parent).mkdir(parents=True)
    for file in [path / "5" / "thesis.txt", path / "thesis.txt"] if folder else [path]:
        file.write_text("mine")


def put_link(path):
    """Link a name of ours to something of somebody else."""
    path.parent.mkdir(parents=True)
    path.symlink_to(path.parent.parent / ("folder" if path.name in records.FOLDERS else "file"))


@pytest.mark.few(1)
@pytest.mark.parametrize(("flags", "put"), [(OK, put_mine), (OK, put_link), (SWEEP, put_mine)])
def test_files_of_others_are_left_alone(call, here, flags, put):
    """Under every name that we write, at every place where we write it."""
    (here / "folder").mkdir()
    launch = {*records.LAUNCH_FILES, *records.LAUNCH_FOLDERS}
    run = {*records.RUN_FILES, *records.RUN_FOLDERS}
    places = {"out": launch | run}
    if flags is SWEEP:
        places = {"out": launch, "out/all_reduce/blocking": run}
    for place, names in places.items():
        for name in sorted(names):
            put(here / place / name)
            refused(call, here, name, *flags)
            refused(call, here, name, *flags, "--overwrite")
            shutil.rmtree(here / "out")


@pytest.mark.slow
def test_links_that_somebody_could_guess_are_not_followed(call, here):
    (here / "victim").write_text("mine")
    (here / "folder").mkdir()
    (here / "out").mkdir()
    for name in records.FILES:
        (here / "out" / f"{name}.tmp").symlink_to(here / "victim")
    assert call(*OK)[0] == 0
    assert (here / "victim").read_text() == "mine"
    (here / "linked").mkdir()
    (here / "linked" / "all_reduce").symlink_to(here / "folder")
    refused(call, here, "is a link", *SWEEP, "--workdir=linked")


@pytest.mark.slow
def test_overwriting_removes_our_files_and_nothing_else(call, here):
    assert call(*SWEEP)[0] == 0
    made = [path for path in (here / "out").rglob("*") if path.is_file()]
    assert {path.name for path in made if "checkpoint" not in path.parts} <= records.FILES
    arm = here / "out" / "all_reduce" / "blocking"
    ours, checkpoint = set(os.listdir(arm)), arm / "checkpoint"
    for name in ("7", "unfinished", "mine"):
        (checkpoint / name).mkdir()
    (checkpoint / "mine" / "thesis.txt").write_text("mine")
    (arm / "notes.txt").write_text("mine")
    assert call(*SWEEP, "--config.seed=1", "--overwrite")[0] == 0
    assert set(os.listdir(arm)) == ours | {"notes.txt"}
    assert len(set(os.listdir(checkpoint)) - {"mine", "7", "unfinished"}) == 1  # of the end
    assert (checkpoint / "mine" / "thesis.txt").read_text() == "mine"
    assert json.loads((arm / "config.json").read_text())["seed"] == 1
    (here / "model").mkdir()
    for text in ('{"name": "llama", "hidden": 3}', "{", "[]"):
        (here / "model" / "config.json").write_text(text)
        flags = ("--config=config.py", "--workdir=model", "--overwrite")
        refused(call, here, "holds a config.json that", *flags)


@pytest.mark.slow
def test_nothing_may_stand_in_the_way(call, here):
    """In a finished run: a directory or a pipe under any of our names, and no wait for the pipe."""
    assert call(*OK)[0] == 0
    for number, name in enumerate(sorted(records.FILES - {"metrics.jsonl"})):
        path, make = here / "out" / name, (os.mkdir, os.mkfifo)[number % 2]
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        make(path)
        launcher.refused(call(*OK), name)
        (os.rmdir if path.is_dir() else os.unlink)(path)
        if before is not None:
            path.write_bytes(before)
    os.mkfifo(here / "pipe")
    for flag in ("--config.delay=trace(path='pipe')", "--config.wait=replay(path='pipe')"):
        refused(call, here, "pipe", *OK, flag)


def test_a_kill_at_any_moment_leaves_a_workdir_that_goes_on(call, here):
    """Locks, a note or a claimed directory alone are no results of others."""
    (here / "out").mkdir()
    for name in records.LOCKS:
        (here / "out" / name).write_text("process 12 on somewhere")
    assert call(*OK)[0] == 0
    leftover = here / "out" / ".gossax-0123456789abcdef.tmp"
    other = here / "out" / ".gossax-mine.tmp"
    for path in (leftover, other):
        path.write_text("{")
    for name in ("summary.json", "metrics.jsonl", "schedule.npz"):
        (here / "out" / name).unlink()
    code, out, err = call(*OK)
    assert code == 1 and "the same command trains that run again" in out + err
    shutil.rmtree(here / "out" / "checkpoint")  # of the end, which relied on the metrics
    assert call(*OK)[0] == 0
    assert not leftover.exists() and other.exists()


NAMES = {
    **{"summary.json": "take the place", "Summary.JSON": "take the place", ".": "without a letter"},
    **{"checkpoint": "take the place", "a\x1b[2Jb": "control characters", "a\nb": "control"},
    **{"\ud800": "control characters", "a" * 256: "more than 255 bytes"},
    **{"/".join(["a" * 200] * 30): "longer than", "a/\u202eb": "control characters"},
}


def test_names_that_no_directory_can_have(call, here):
    for name, words in NAMES.items():
        text = f"\n\ndef sweep():\n    yield {name!a}, {{}}\n"
        (here / "named.py").write_text(launcher.CONFIG.partition("def sweep")[0] + text)
        refused(call, here, words, "--config=named.py", "--sweep", "--workdir=out")
    for place in ("a" * 256, "c\udc80", "e\x07"):
        for flags in (("--config=config.py", f"--workdir={place}"), (f"--report={place}",)):
            before = everything(here)
            err = launcher.refused(call(*flags), "")
            assert len(err) < 700 and "\x07" not in err
            assert everything(here) == before


@pytest.mark.slow
def test_damaged_files_of_a_finished_run_are_named(call, here):
    """By the same command and by a report; a damaged note is only reported, and written anew."""
    assert call(*OK)[0] == 0
    out = here / "out"
    line = (out / "metrics.jsonl").read_text().splitlines()[0]
    damages = {
        "summary.json": ("[]", '{"clock": 1}', "[" * 10**5),
        "metrics.jsonl": ("{}}\n", f"{line}\n{{}}\n", "\x00"),
        "config.json": ("", '{"name": 5}'),
    }
    for name, texts in damages.items():
        before = (out / name).read_bytes()
        for text in texts:
            (out / name).write_text(text)
            for flags in (OK, ("--report=out",)):
                code, _, err = call(*flags)
                words = err.replace(f"workdir out holds a {name}", f"out/{name}")
                assert code == 2 and err.count("\n") == 1 and f"out/{name}" in words, err
            assert (out / name).read_text() == text
        (out / name).write_bytes(before)
    before = (out / "schedule.npz").read_bytes()
    (out / "schedule.npz").write_bytes(before[:300] + b"x" + before[301:])
    launcher.refused(call("--report=out"), "schedule.npz cannot be read (its SHA-256 is not")
    (out / "schedule.npz").write_bytes(before)
    note = out / "report.json"
    for text in ("", '{"command": 1}'):
        note.write_text(text)
        code, _, err = call("--report=out")
        assert code == 0 and err.startswith("warning: ") and note.read_text() == text
        code, shown, err = call(*OK)
        assert code == 0 and "already finished" in shown and err.startswith("warning: "), err
        assert json.loads(note.read_text())["command"].endswith("--config.updates=2")
