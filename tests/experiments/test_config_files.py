"""Config files, their variants and grids, and `--list`."""

import io
import json
import os
import sys

import pytest
from rich.console import Console

from experiments import config_files, registry, sweep
from tests import launcher
from tests.refusals import sentence


def test_every_name_of_every_kind_is_listed_with_a_sentence():
    text = io.StringIO()
    config_files.show_names(Console(file=text, width=100))
    lines = text.getvalue().splitlines()
    heads = {line.strip().partition("(")[0] for line in lines}
    for _, _, kind in config_files.sections():
        assert set(kind.factories) <= heads
        for name, factory in kind.factories.items():
            assert registry.first_sentence(factory), name
    paths = dict(config_files.listed_configs())
    assert len(paths) > 10 and set(paths) <= heads and all(paths.values())
    kinds = {entry: kind for _, entry, kind in config_files.sections()}
    assert kinds["wait"].call("rennala") == "rennala(k, interrupt=false)"
    assert kinds["algorithm"].call("inverse_staleness") == "inverse_staleness"


def test_a_config_is_read_anew_however_soon_it_has_changed(tmp_path, monkeypatch):
    """And nothing is left beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = tmp_path / "own.py"
    for value in (1, 2):
        path.write_text(f"def get_config():\n    return {value}\n")
        os.utime(path, (1e9, 1e9))
        assert config_files.load(str(path)).get_config() == value
    assert os.listdir(tmp_path) == ["own.py"]


def test_a_listed_config_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_files.read("configs/demo.py").config.name
    with pytest.raises(ValueError, match=r"there is no file 'launch\.py'"):
        config_files.load("launch.py")


def test_a_path_may_have_a_colon_and_a_wrong_argument_is_named(tmp_path):
    folder = tmp_path / "10:30"
    folder.mkdir()
    (folder / "x.py").write_text(launcher.CONFIG)
    file = config_files.read(f"{folder}/x.py:workers=3,pace=0.5")
    assert file.config.workers == 3 and file.path == f"{folder}/x.py"
    assert config_files.read(f"{folder}/x.py").config.workers == 2
    for path in ("typo.py", "typo.py:workers=3", "typo.json"):
        with pytest.raises(ValueError, match=r"there is no file '.*/10:30/typo\.(py|json)'"):
            config_files.read(f"{folder}/{path}")
    with pytest.raises(ValueError, match=r"ZeroDivisionError: .*imagenet\.py, or its argument 'wo"):
        config_files.read("configs/imagenet.py:workers=0")


def test_a_variant_is_the_first_word_of_an_argument():
    file = config_files.read("configs/nonblocking.py:tuned,delay=pause", {"workers": "16"})
    assert (file.config.workers, file.config.batch_size) == (16, 4)
    assert len([*file.module.sweep()]) == 210  # the variant's own
    with pytest.raises(ValueError, match=r"has no variant 'tunde'; did you mean 'tuned'\?"):
        config_files.read("configs/nonblocking.py:tunde")
    with pytest.raises(ValueError, match="'delay' is unknown"):  # its sweep has delays of its own
        config_files.read("configs/nonblocking.py:traces,delay=pause")


@pytest.mark.parametrize(("flags", "name"), [
    ({"algorithm.collective": "pmean", "wait.min_workers": "1"}, "all_reduce/nonblocking"),
    ({"algorithm": "dpsgd(order=adapt_then_combine)"}, "dpsgd/first_finisher"),
    ({"wait.name": "barrier"}, "all_reduce/barrier"),
    ({"wait": "barrier", "name": "mine"}, "mine"),
])  # fmt: skip
def test_an_arm_with_another_method_or_rule_has_another_name(flags, name):
    assert config_files.read("configs/nonblocking.py", flags).config.name == name


def test_entries_of_a_config_are_flags_in_all_forms_of_absl():
    given = ["--x", "--config.a=1", "-config.b", "-2", "--config.c", "--noconfig.d", "--config.a=3"]
    rest, found = config_files.overrides([*given, "--", "--config.e=1"])
    assert rest == ["--x", "--", "--config.e=1"]
    assert list(found.items()) == [("b", "-2"), ("c", True), ("d", False), ("a", "3")]


# --- grids ---


def expanded(config, swept, *grids):
    return sweep.expand(config, swept, {}, 1, config_files.read_grids(grids))


def test_a_grid_makes_an_arm_of_every_combination(config):
    arms = expanded(config, None, "optimizer.learning_rate=1, 2", "wait=barrier,quorum(k=1)")
    points = [(rate, wait) for rate in (1, 2) for wait in ("barrier", "quorum(k=1)")]
    assert [arm.path for arm in arms] == [f"learning_rate={r}/wait={wait}" for r, wait in points]
    assert all(arm.config.name == arm.path for arm in arms)
    found = [(arm.config.optimizer.learning_rate, arm.config.wait.to_dict()) for arm in arms]
    waits = ({"name": "barrier"}, {"name": "quorum", "k": 1})
    assert found == [(rate, wait) for rate in (1.0, 2.0) for wait in waits]


def test_a_grid_takes_a_parameter_that_the_config_leaves_out_and_texts_with_commas(config):
    arms = expanded(config, None, "task.l2=0.5,0.25", "graph=npy(path='a,b/c.npy'),ring")
    assert [arm.config.task.l2 for arm in arms] == [0.5, 0.5, 0.25, 0.25]
    assert arms[0].config.graph.path == "a,b/c.npy"
    assert arms[0].path == "l2=0.5/graph=npy(path='a,b_c.npy')"
    named = config_files.override(config, {"task.path": "q.csv"})
    for grid in ("task.path='a,b.csv',c.csv", "task.target='a,b.csv',c.csv"):
        entry = grid.partition("=")[0].removeprefix("task.")
        paths = [arm.config.task[entry] for arm in expanded(named, None, grid)]
        assert paths == ["a,b.csv", "c.csv"]


def test_arms_of_a_sweep_run_at_every_point_beside_the_baseline_of_the_point(config, sweep_file):
    swept = sweep_file("yield 'a', {}; yield 'b', {'baseline': 'a'}")
    arms = expanded(config, swept, "seconds=3,4")
    assert [arm.path for arm in arms] == [f"{name}/seconds={s}" for name in "ab" for s in (3, 4)]
    assert [arm.config.seconds for arm in arms] == [3, 4, 3, 4]
    assert [arm.config.baseline for arm in arms[2:]] == ["a/seconds=3", "a/seconds=4"]


def test_entries_with_the_same_last_word_are_written_out(config):
    arms = expanded(config, None, "wait.seed=1", "task.seed=2")
    assert [arm.path for arm in arms] == ["wait.seed=1/task.seed=2"]


def test_a_grid_that_makes_no_sense_is_refused(config):
    for grids, says in (
        (["workers"], "is no list of values; write it as"),
        (["workers=1,,2"], "is no list of values"),
        (["workers=2,2"], "has a value twice"),
        (["seconds=1,1.0"], "the arms 'seconds=1' and 'seconds=1.0' are the same; leave"),
        (["wait=barrier,barrier()"], "and 'wait=barrier()' are the same"),
        (["workers=1,2", "workers=3"], "--grid gives workers twice"),
        (["wait.k=1,2", "wait=quorum(k=3)"], "one of which is inside of the other"),
        (["name=a,b"], "names its arms after their values"),
        (["wrokers=1,2"], "has no entry 'wrokers'; did you mean 'workers'?"),
        (["workers=1,many"], "config.workers must be a positive whole number, got 'many'"),
    ):
        with sentence(says):
            expanded(config, None, *grids)


def test_a_grid_runs_from_the_command_line(call, here):
    flags = ("--config=config.py", "--workdir=out", "--grid=optimizer.learning_rate=0.1,0.2")
    code, said, _ = call(*flags, "--together", "--config.updates=2")
    assert code == 0, said
    for rate in (0.1, 0.2):
        place = here / "out" / f"learning_rate={rate}"
        written = json.loads((place / "config.json").read_text())
        assert written["optimizer"]["learning_rate"] == rate
        assert (place / "summary.json").exists()
    assert (here / "out" / "report.html").exists()
