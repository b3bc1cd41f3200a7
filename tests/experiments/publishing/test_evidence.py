"""Everything published is listed once, and repeating it skips what is finished."""

import json
import shlex
import sys

import pytest

from configs import demo
from experiments import config_files, formats, provenance, records
from experiments.publishing import evidence, published, verdict_rows
from tests.launcher import ROOT

TINY = [
    evidence.Sweep("one", "--config=configs/demo.py --sweep", 0.5),
    evidence.Sweep("two", "--config=configs/demo.py:delay=pause --sweep", 0.25),
]
DEMO = [name for name, _ in demo.sweep()]


def arm(name):
    return {
        "name": name, "baseline": name, "clock": "virtual", "target_loss": 0.5, "updates": 10,
        "samples": 80, "seconds": 4.0, "seconds_to_target": 1.0, "train_loss": 0.25,
        "test_accuracy": 0.9, "idle_fraction": 0.0, "bytes_per_worker": 1e6,
    }  # fmt: skip


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Where sweeps run and records lie; ran: the names of the sweeps that were launched."""
    ran, codes = [], {}

    def launch(sweep, workdir):
        ran.append(sweep.name)
        if codes.get(sweep.name):
            return codes[sweep.name]
        workdir.mkdir(parents=True, exist_ok=True)
        records.write_json(workdir / records.SUMMARY, {"arms": list(map(arm, DEMO))})
        for name, config in evidence.arms(sweep).items():
            (workdir / name).mkdir(parents=True, exist_ok=True)
            records.write_json(workdir / name / records.CONFIG, config.to_dict())
        provenance.begin(workdir, f"python launch.py {sweep.arguments} --workdir={workdir}")
        return 0

    how = {"workdirs": tmp_path / "runs", "folder": tmp_path / "records", "launch": launch}
    return how | {"write": lambda: None}, ran, codes


def test_every_record_is_listed_once_and_every_row_of_the_verdicts():
    names = [sweep.name for sweep in evidence.SWEEPS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in published.FOLDER.glob("*.json")} <= set(names)
    asked = {row.record for row in verdict_rows.ROWS}
    measured = {record for record in asked if record.startswith("benchmarks/")}
    assert asked - measured <= set(names)
    assert all((published.FOLDER / f"{record}.json").exists() for record in measured)


@pytest.mark.parametrize("sweep", evidence.SWEEPS, ids=lambda sweep: sweep.name)
def test_every_command_names_a_config_that_is_there(sweep):
    words = shlex.split(sweep.arguments)
    place, _, argument = words[0].removeprefix("--config=").partition(":")
    module = config_files.load(str(ROOT / place))
    config = module.get_config(argument) if argument else module.get_config()
    assert config.name and sweep.hours > 0
    assert hasattr(module, "sweep" if "--sweep" in words else "analyse")


# Exact diffusion on their Base-2 graphs, which diverged, is refused since; the other arms stand.
TO_RUN_AGAIN = ("heterogeneous_workers_64", "heterogeneous_workers_256")


@pytest.mark.few(1)
@pytest.mark.parametrize("path", sorted(published.FOLDER.glob("*.json")), ids=lambda x: x.stem)
def test_every_record_is_what_its_command_gives_today(path):
    sweep = {sweep.name: sweep for sweep in evidence.SWEEPS}[path.stem]
    record = formats.read(path, formats.QUOTED)
    assert evidence.repeats(sweep, record) == (path.stem not in TO_RUN_AGAIN)
    assert not evidence.repeats(sweep._replace(arguments=f"{sweep.arguments} --x=1"), record)


def test_what_is_finished_is_skipped_and_the_rest_goes_on(room, capsys):
    how, ran, codes = room
    codes["two"] = 3
    assert evidence.repeat(TINY, **how) == ["two: launch.py ended with exit code 3"]
    assert ran == ["one", "two"]
    record = json.loads((how["folder"] / "one.json").read_text())
    assert record["count"] == len(DEMO) and record["command"].startswith("python launch.py")
    places = {key: how[key] for key in ("workdirs", "folder")}
    evidence.plan(TINY, **places)
    printed = capsys.readouterr().out
    for line in ("published  one", "0.25 h  two", "0.25 h  are left"):
        assert line in printed
    codes.clear()
    assert evidence.repeat(TINY, **how) == [] and ran == ["one", "two", "two"]
    assert evidence.repeat(TINY, **how) == [] and len(ran) == 3


def test_other_arguments_or_a_newer_run_are_not_what_is_published(room):
    how, _, _ = room
    evidence.repeat(TINY[:1], **how)
    changed = [TINY[0]._replace(arguments=TINY[1].arguments)]
    assert not evidence.is_published(changed[0], how["workdirs"], how["folder"])
    note = how["workdirs"] / "one" / provenance.NOTE
    note.write_text(note.read_text().replace('"date": "20', '"date": "21'))
    assert not evidence.is_published(TINY[0], how["workdirs"], how["folder"])


def test_a_config_with_other_arms_is_not_what_is_published(room, monkeypatch):
    how, _, _ = room
    monkeypatch.setattr(sys.modules[__name__], "DEMO", DEMO[1:])
    evidence.repeat(TINY[:1], **how)
    assert not evidence.is_published(TINY[0], how["workdirs"], how["folder"])
    monkeypatch.undo()
    evidence.repeat(TINY[:1], **how)
    assert evidence.is_published(TINY[0], how["workdirs"], how["folder"])


def test_a_config_with_other_settings_of_its_arms_is_not_what_is_published(room):
    how, _, _ = room
    evidence.repeat(TINY[:1], **how)
    config = how["workdirs"] / "one" / DEMO[0] / records.CONFIG
    config.write_text(config.read_text().replace('"batch_size": 16', '"batch_size": 32'))
    published.take_in(how["workdirs"] / "one", how["folder"])
    assert not evidence.is_published(TINY[0], how["workdirs"], how["folder"])


@pytest.mark.slow
def test_pages_whose_numbers_are_gone_are_named_and_the_next_sweep_goes_on(room):
    how, ran, _ = room

    def unwritable():
        raise ValueError("results/one.json: cannot find 'seconds of c'")

    wrong = evidence.repeat(TINY, **how | {"write": unwritable})
    assert ran == ["one", "two"] and len(wrong) == 2
    assert wrong[0] == "one: results/one.json: cannot find 'seconds of c'"


def test_only_what_is_published_can_be_chosen():
    assert [sweep.name for sweep in evidence.chosen(TINY, ["two"])] == ["two"]
    assert evidence.chosen(TINY, []) == TINY
    with pytest.raises(ValueError, match="'three' is not published; choose of one, two"):
        evidence.chosen(TINY, ["three"])
