"""Files of a workdir: ours, or untouched, whatever the flags."""

import json
import os
import shutil

import pytest

from experiments import checkpoints, provenance, records, report, timeline
from tests import launcher
from tests.launcher import files, start

OK = ("--config=config.py", "--workdir=out", "--config.updates=2")
SWEEP = (*OK, "--sweep")


@pytest.fixture
def here(tmp_path, monkeypatch):
    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def call(here, monkeypatch, capsys):
    return launcher.caller(monkeypatch, capsys)


def everything(place):
    """Contents of all files, and what else there is, with where links lead."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in place.rglob("*")
    }


def refused(call, here, words, *flags):
    """The launcher refuses the flags in one sentence and touches nothing."""
    before = everything(here)
    code, _, err = call(*flags)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
    assert words in err, err
    assert everything(here) == before


def put(path, name):
    """Something of somebody else under a name of ours."""
    path.mkdir(parents=True)
    if name in records.FOLDERS:
        (path / name / "5").mkdir(parents=True)
        (path / name / "5" / "thesis.txt").write_text("mine")
        (path / name / "thesis.txt").write_text("mine")
    else:
        (path / name).write_text("mine")


@pytest.mark.few(1)
@pytest.mark.parametrize("flags", [OK, SWEEP])
def test_files_of_others_are_left_alone(call, here, flags):
    """Every name that we write, at every place where we write it."""
    sweep = flags is SWEEP
    root = {*records.LAUNCH_FILES, *records.LAUNCH_FOLDERS}
    run = {*records.RUN_FILES, *records.RUN_FOLDERS}
    places = {"out": root, "out/all_reduce/blocking": run} if sweep else {"out": root | run}
    for place, names in places.items():
        for name in sorted(names):
            for more in ((), ("--overwrite",)):
                put(here / place, name)
                refused(call, here, name, *flags, *more)
                shutil.rmtree(here / "out")


@pytest.mark.slow
def test_overwriting_removes_what_is_ours_and_nothing_else(call, here):
    assert call(*OK)[0] == 0
    ours = set(os.listdir(here / "out"))
    assert ours <= records.FILES | records.FOLDERS
    checkpoint = here / "out" / "checkpoint"
    (checkpoint / "7").mkdir(parents=True)
    (checkpoint / "unfinished").mkdir()
    (checkpoint / "mine").mkdir()
    (checkpoint / "mine" / "thesis.txt").write_text("mine")
    (here / "out" / "notes.txt").write_text("mine")
    assert call(*OK, "--config.seed=1", "--overwrite")[0] == 0
    assert set(os.listdir(here / "out")) == ours | {"notes.txt", "checkpoint"}
    assert len(set(os.listdir(checkpoint)) - {"mine", "7", "unfinished"}) == 1  # of the end
    assert (checkpoint / "mine" / "thesis.txt").read_text() == "mine"
    assert json.loads((here / "out" / "config.json").read_text())["seed"] == 1


@pytest.mark.slow
def test_a_sweep_may_be_overwritten_and_a_config_of_others_may_not(call, here):
    assert call(*SWEEP)[0] == 0
    made = [path for path in (here / "out").rglob("*") if path.is_file()]
    assert {path.name for path in made if "checkpoint" not in path.parts} <= records.FILES
    assert call(*SWEEP, "--config.seed=1", "--overwrite")[0] == 0
    (here / "model").mkdir()
    for text in ('{"name": "llama", "hidden": 3}', "{", "[]", "5"):
        (here / "model" / "config.json").write_text(text)
        for more in ((), ("--overwrite",)):
            flags = ("--config=config.py", "--workdir=model", *more)
            refused(call, here, "holds a config.json that", *flags)


def test_every_name_that_is_written_is_in_the_manifest():
    written = {
        *(records.CONFIG, records.METRICS, records.SUMMARY, records.SCHEDULE, records.PARAMETERS),
        *(records.ERROR, report.REPORT, report.STRIP, report.FIGURE, provenance.NOTE),
        timeline.TIMELINE,
    }
    assert written <= records.FILES and checkpoints.CHECKPOINT in records.FOLDERS
    assert set(records.REMOVED) | set(records.LOCKS) <= records.FILES


@pytest.mark.slow
def test_links_are_not_followed(call, here):
    """Neither under our names nor under temporary ones that somebody could guess."""
    (here / "victim").write_text("mine")
    (here / "folder").mkdir()
    for name in sorted(records.FILES | records.FOLDERS):
        (here / "out").mkdir()
        (here / "out" / name).symlink_to(here / ("folder" if "." not in name else "victim"))
        refused(call, here, name, *OK)
        refused(call, here, name, *OK, "--overwrite")
        shutil.rmtree(here / "out")
    (here / "out").mkdir()
    for name in records.FILES:
        for suffix in (f"{name}.tmp", f"{name.partition('.')[0]}.tmp"):
            if not (here / "out" / suffix).is_symlink():
                (here / "out" / suffix).symlink_to(here / "victim")
    assert call(*OK)[0] == 0
    assert (here / "victim").read_text() == "mine" and not list((here / "folder").iterdir())
    (here / "linked").mkdir()
    (here / "linked" / "all_reduce").symlink_to(here / "folder")
    refused(call, here, "is a link", *SWEEP, "--workdir=linked")


@pytest.mark.slow
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_nothing_may_stand_in_the_way(call, here, make):
    """In a finished run: a directory or a pipe under any of our names, and no wait for the pipe."""
    assert call(*OK)[0] == 0
    for name in sorted(records.FILES - {"metrics.jsonl"}):
        path = here / "out" / name
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        make(path)
        code, _, err = call(*OK)
        assert code == 2 and err.count("\n") == 1 and name in err, err
        (os.rmdir if path.is_dir() else os.unlink)(path)
        if before is not None:
            path.write_bytes(before)
    os.mkfifo(here / "out" / "picture.png")
    assert call("--report=out")[0] == 0
    for flag in (
        "--report=pipe",
        "--config.delay=trace(path='pipe')",
        "--config.wait=replay(path='pipe')",
    ):
        if not (here / "pipe").exists():
            os.mkfifo(here / "pipe")
        refused(call, here, "pipe", *((flag,) if "report" in flag else (*OK, flag)))


def test_a_kill_at_any_moment_leaves_a_workdir_that_goes_on(call, here):
    """Locks, a note or a claimed directory alone are no results of others."""
    (here / "out").mkdir()
    for name in records.LOCKS:
        (here / "out" / name).write_text("process 12 on somewhere")
    assert call(*OK)[0] == 0
    leftover = here / "out" / ".gossax-0123456789abcdef.tmp"
    leftover.write_text("{")
    other = here / "out" / ".gossax-mine.tmp"
    other.write_text("mine")
    for name in ("summary.json", "metrics.jsonl", "schedule.npz"):
        (here / "out" / name).unlink()
    code, out, err = call(*OK)
    assert code == 1 and "the same command trains that run again" in out + err
    shutil.rmtree(here / "out" / "checkpoint")  # of the end, which relied on the metrics
    assert call(*OK)[0] == 0
    assert not leftover.exists() and other.exists()


NAMES = {
    **{name: "take the place" for name in sorted(records.FILES | records.FOLDERS)},
    **{"Summary.JSON": "take the place", ".": "without a letter", " ": "without a letter"},
    **{"a\x1b[2Jb": "control characters", "a\x00": "control characters", "a\nb": "control"},
    **{"\ud800": "control characters", "a" * 256: "more than 255 bytes"},
    **{"/".join(["a" * 200] * 30): "longer than", "a/\u202eb": "control characters"},
}


def test_names_that_no_directory_can_have(call, here):
    for name, words in NAMES.items():
        text = f"\n\ndef sweep():\n    yield {name!a}, {{}}\n"
        (here / "named.py").write_text(launcher.CONFIG.partition("def sweep")[0] + text)
        refused(call, here, words, "--config=named.py", "--sweep", "--workdir=out")
    for place in ("a" * 256, "b/" * 2000, "c\udc80", "d\x00", "e\x07"):
        for flags in (("--config=config.py", f"--workdir={place}"), (f"--report={place}",)):
            before = everything(here)
            code, _, err = call(*flags)
            assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
            assert len(err) < 700 and err.isprintable() is False and "\x07" not in err
            assert everything(here) == before


@pytest.mark.slow
def test_long_texts_are_not_repeated(call, here):
    long = "x" * 100_000
    for flag in (f"--config.wait={long}", f"--config.delay={long}(a=1)", f"--config.{long}=1"):
        code, _, err = call(*OK, flag)
        assert code == 2 and len(err) < 1200 and err.count("\n") == 1
        assert "x" * 100 in err and "x" * 201 not in err


@pytest.mark.slow
def test_another_locale_and_a_terminal_without_utf_8_are_fine(here):
    text = launcher.CONFIG.replace('"all_reduce/nonblocking"', '"all_reduce/\\u00b5\\u4e2d"')
    (here / "config.py").write_text(text, encoding="utf-8")
    ended = start(here, *OK, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ended.returncode == 0, ended.stderr
    assert "\\xb5" in ended.stdout
    assert "all_reduce/\u00b5\u4e2d" in (here / "out" / "report.html").read_text(encoding="utf-8")
    assert files(here / "out")


@pytest.mark.slow
def test_damaged_records_of_a_finished_run_are_named(call, here):
    """When the same command finds its work done, and when only the report is written again."""
    assert call(*OK)[0] == 0
    out = here / "out"
    summary = json.loads((out / "summary.json").read_text())
    incomplete = {key: value for key, value in summary.items() if key != "clock"}
    line = (out / "metrics.jsonl").read_text().splitlines()[0]
    damages = {
        "summary.json": ("[]", "5", '"x"', json.dumps(incomplete), "[" * 10**5),
        "metrics.jsonl": ("{}}\n", '{"step": 1}\n', f"{line}\n{{}}\n", "[" * 10**5 + "\n", "\x00"),
        "config.json": ("", "[]", '{"name": 5}'),
    }
    for name, texts in damages.items():
        before = (out / name).read_bytes()
        for text in texts:
            (out / name).write_text(text)
            for flags in (OK, ("--report=out",)):
                code, _, err = call(*flags)
                assert (
                    code == 2
                    and err.count("\n") == 1
                    and f"out/{name}" in err.replace(f"workdir out holds a {name}", f"out/{name}")
                ), err
            assert (out / name).read_text() == text
        (out / name).write_bytes(before)
    before = (out / "schedule.npz").read_bytes()
    for damaged in (b"", before[:100], before[:300] + b"x" + before[301:]):
        (out / "schedule.npz").write_bytes(damaged)
        code, _, err = call("--report=out")
        assert code == 2 and "schedule.npz holds no schedule" in err and err.count("\n") == 1
    (out / "schedule.npz").write_bytes(before)
    assert call(*OK)[0] == 0


@pytest.mark.slow
def test_a_damaged_note_is_written_anew(call, here):
    assert call(*OK)[0] == 0
    note, finished = here / "out" / "report.json", (here / "out" / "summary.json").read_bytes()
    broken = ("", "null", "[]", "5", '{"command": 1}', "[" * 10**5, '{"claims": [1]}')
    for text in broken:
        note.write_text(text)
        code, _, err = call("--report=out")
        assert code == 0 and err.startswith("warning: ") and err.count("\n") == 1
        assert note.read_text() == text
        code, shown, err = call(*OK)
        assert code == 0 and "already finished" in shown and err.startswith("warning: "), err
        assert json.loads(note.read_text())["command"].endswith("--config.updates=2")
        assert (here / "out" / "summary.json").read_bytes() == finished
        assert call("--report=out")[2] == ""
