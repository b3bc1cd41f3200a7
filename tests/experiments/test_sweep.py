"""Arms of a sweep: which there are, what is refused, and what a launch of them says."""

import functools

import numpy as np
import pytest

from experiments import (
    executors,
    prepare,
    provenance,
    records,
    registry,
    report,
    restarts,
    stats,
    sweep,
    tasks,
    train,
)
from tests.refusals import sentence

# --- overrides ---


def test_override_replaces_dotted_keys_in_a_copy(config):
    for key in ("wiat", "optimizer.decay.x", "seed.x", ""):
        with pytest.raises(ValueError, match=f"the config has no entry {key!r}"):
            sweep.override(config, {key: 1})
    changes = {"optimizer.learning_rate": 1, "wait": "barrier", "seconds": 2}
    changed = sweep.override(config, changes)
    assert changed.optimizer.learning_rate == 1 and changed.seconds == 2
    assert changed.optimizer.decay == config.optimizer.decay
    assert config.optimizer.learning_rate != 1 and config.wait.name != "barrier"
    assert registry.text(changed.wait) == "barrier"
    plain = sweep.override(config, {"optimizer": "sgd(learning_rate=1)", "optimizer.decay": 0.5})
    assert registry.text(plain.optimizer) == "sgd(decay=0.5, learning_rate=1)"


# --- which arms ---


def test_a_sweep_gives_every_arm_its_name_and_changes(config, sweep_file):
    path = sweep_file("yield 'a/x', {'wait': 'barrier'}; yield 'a/y', {'mini_batches': 1}")
    arms = sweep.expand(config, path, {}, seeds=1)
    assert [(arm.path, arm.config.name) for arm in arms] == [("a/x", "a/x"), ("a/y", "a/y")]
    assert [arm.config.wait.name for arm in arms] == ["barrier", config.wait.name]
    assert [arm.config.mini_batches for arm in arms] == [2, 1]
    places = [arm.path for arm in sweep.expand(config, path, {}, seeds=2)]
    assert places == ["a/x/seed_0", "a/x/seed_1", "a/y/seed_0", "a/y/seed_1"]
    assert sweep.expand(config, None, {}, seeds=1) == [sweep.Arm("", config)]
    arms = sweep.expand(sweep.override(config, {"seed": 5}), None, {}, seeds=2)
    assert [(arm.path, arm.config.seed) for arm in arms] == [("seed_5", 5), ("seed_6", 6)]


def test_arms_at_points_of_a_grid_have_the_baseline_at_their_point(config, sweep_file):
    grids = {"mini_batches": ["1", "2"]}
    path = sweep_file("yield 'a', {'baseline': None}; yield 'b', {'baseline': 'a'}")
    arms = sweep.expand(config, path, {}, seeds=1, grids=grids)
    assert [arm.config.baseline for arm in arms] == [None, None, *(
        f"a/mini_batches={count}" for count in (1, 2))]  # fmt: skip


def test_a_grid_does_not_undo_what_the_command_gives(config):
    grids = {"wait": ["deadline(seconds=0.15)", "deadline(seconds=0.3)"]}
    for key in ("wait", "wait.leftovers"):
        with pytest.raises(ValueError, match=rf"--grid=wait replaces --config\.{key}; write it"):
            sweep.expand(config, None, {key: "drop"}, seeds=1, grids=grids)
    grids = {"optimizer.learning_rate": ["0.1", "0.2"]}
    assert len(sweep.expand(config, None, {"optimizer": "sgd"}, seeds=1, grids=grids)) == 2


def test_a_grid_does_not_undo_what_the_sweep_varies(config, sweep_file):
    path = sweep_file("yield 'a', {'wait': 'barrier'}; yield 'b', {'seed': 3}")
    grids = {"mini_batches": ["1", "2"]}
    assert len(sweep.expand(config, path, {}, seeds=1, grids=grids)) == 4
    path = sweep_file("yield 'a', {'mini_batches': 4}; yield 'b', {'mini_batches': 8}")
    words = "'a/mini_batches=1' and 'b/mini_batches=1' are the same, .* leave out that --grid"
    with pytest.raises(ValueError, match=words):
        sweep.expand(config, path, {}, seeds=1, grids=grids)


def test_the_users_values_win_over_the_sweeps_and_names_stay(config, sweep_file):
    path = sweep_file("yield 'a', {'wait': 'barrier'}; yield 'b', {'optimizer.decay': 0.5}")
    user = {"wait": "quorum(k=1)", "seed": 7, "name": "mine"}
    arms = sweep.expand(config, path, user, seeds=1)
    assert [arm.config.name for arm in arms] == ["a", "b"]
    assert [arm.config.optimizer.decay for arm in arms] == [config.optimizer.decay, 0.5]
    for arm in arms:
        assert registry.text(arm.config.wait) == "quorum(k=1)" and arm.config.seed == 7
    user |= {"optimizer.decay": 0.1}
    with pytest.raises(ValueError, match=r"'a' and 'b' are the same, .* out that --config\.w"):
        sweep.expand(config, path, user, seeds=1)
    (arm,) = sweep.expand(config, path, user, 2, only=["b/seed_8"])
    assert arm.config.optimizer.decay == 0.1
    with pytest.raises(ValueError, match=r"'a' and 'b' are the same"):
        sweep.expand(config, path, user, seeds=2, only=["a/seed_7", "b/seed_8"])
    path = sweep_file("yield 'a', {'wait': 'first_finisher', 'wait.leftovers': 'drop'}")
    (arm,) = sweep.expand(config, path, {"wait": "quorum(k=1)"}, seeds=1)
    assert registry.text(arm.config.wait) == "quorum(k=1)"
    network = {"communication": "link(seconds=1)", "communication.hides": False}
    path = sweep_file(f"yield 'a', {network}")
    (arm,) = sweep.expand(config, path, {"communication": 0.5}, seeds=1)
    assert arm.config.communication == 0.5


def test_a_sweep_that_makes_no_sense_is_refused(config, sweep_file):
    for body, words in (
        ("yield 'a', {'wiat': 1}", "the config has no entry 'wiat'"),
        ("yield 'a', {}; yield 'a', {}", "two arms of the sweep have the same"),
        ("yield from ()", "yields no arms"),
        ("return 3", "fails with TypeError: 'int' object is not iterable; let it yield (name, "),
        ("yield '', {}", "config.name must be a text, got ''"),
        ("yield '/a', {}", "arm '/a/seed_0' would leave the workdir"),
        ("yield 'a/../../b', {}", "arm 'a/../../b/seed_0' would leave the workdir"),
    ):
        with sentence(words):
            sweep.expand(config, sweep_file(body), {}, seeds=2)


# --- checks before the first arm ---


def test_a_launch_builds_the_task_of_its_arms_once(config, sweep_file, tmp_path, monkeypatch):
    config = sweep.override(config, {"updates": 2})
    task, builds, inits = tasks.TASK.build(config.task), [], []

    def init(key):
        inits.append(key)
        return task.init(key)

    def build(**given):
        builds.append(given)
        return task._replace(init=init)

    monkeypatch.setitem(tasks.TASKS, registry.spec(config.task)["name"], build)
    path = sweep_file("yield 'a', {}; yield 'b', {'optimizer.learning_rate': 0.01}")
    arms, shared = sweep.expand(config, path, {}, seeds=2), prepare.LastTask()
    sweep.check(arms, str(tmp_path / "out"), overwrite=False, shared=shared)
    assert len(inits) == 1
    here = functools.partial(executors.here, shared=shared)
    assert not sweep.run(arms, str(tmp_path / "out"), overwrite=False, execute=here)
    assert len(builds) == 1
    for arm in arms:
        alone = train.run(arm.config, tmp_path / "alone" / arm.path)
        shown = records.read_summary(tmp_path / "out" / arm.path)
        assert alone["train_loss"] == shown["train_loss"]
    other = shared.prepare(sweep.override(config, {"task": "digits(model=logistic)"})).task
    assert other.labels.shape != task.labels.shape
    assert shared.prepare(config).task.init is init and len(builds) == len(arms) + 2


def test_directories_of_other_runs_are_refused(config, sweep_file, tmp_path):
    arms = sweep.expand(config, sweep_file("yield 'a', {}; yield 'b', {}"), {}, seeds=1)
    records.Recorder(tmp_path / "out" / "b", sweep.override(arms[1].config, {"seed": 3})).finish({})
    with pytest.raises(ValueError, match=r"seed \(3 there, 0 here\)"):
        sweep.check(arms, str(tmp_path / "out"), overwrite=False)
    sweep.check(arms, str(tmp_path / "out"), overwrite=True)
    records.Recorder(tmp_path / "one", config).finish({})
    with pytest.raises(ValueError, match="holds a single run"):
        sweep.check(arms, str(tmp_path / "one"), overwrite=True)


def test_a_workdir_that_takes_no_files_is_refused(tmp_path, monkeypatch):
    def full(path, waits=False):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweep.files, "held", full)
    with pytest.raises(ValueError, match=r"cannot be written to \(.*No space left.*\); choose ano"):
        sweep.alone([], str(tmp_path))


@pytest.mark.parametrize(("seeds", "more"), [(1, 2), (2, 1)])
def test_an_arm_does_not_lie_there_twice(config, sweep_file, tmp_path, seeds, more):
    path = sweep_file("yield 'a', {}; yield 'a/b', {}")
    arms, others = (sweep.expand(config, path, {}, n) for n in (seeds, more))
    records.Recorder(tmp_path / arms[0].path, arms[0].config).finish({})
    sweep.check(arms, str(tmp_path), overwrite=False)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"another number of --seeds .* choose another"):
            sweep.check(others, str(tmp_path), overwrite)
    if seeds > 1:  # more seeds lie beside those that are there
        sweep.check(sweep.expand(config, path, {}, seeds + 1), str(tmp_path), overwrite=False)


def test_fewer_seeds_than_lie_there_are_refused_but_for_a_part(config, sweep_file, tmp_path):
    path = sweep_file("yield 'a', {}")
    for arm in sweep.expand(config, path, {}, 3):
        records.Recorder(tmp_path / arm.path, arm.config).finish({})
    fewer = sweep.expand(config, path, {}, 2)
    with pytest.raises(ValueError, match="seed_2 is beyond --seeds, and a report would count"):
        sweep.check(fewer, str(tmp_path), overwrite=False)
    sweep.check(fewer, str(tmp_path), overwrite=False, part=True)


@pytest.mark.parametrize(
    ("flags", "devices"), [("", 4), ("--xla_force_host_platform_device_count=3", None)]
)
def test_processes_share_the_devices_that_an_arm_asks_for(config, monkeypatch, flags, devices):
    updated = {}
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(sweep.distributed, "processes", lambda: 2)
    monkeypatch.setattr(sweep.jax.config, "update", updated.__setitem__)
    mesh = sweep.override(config, {"runtime": "mesh", "workers": 8})
    sweep.provide_cpu_devices([sweep.Arm("a", config), sweep.Arm("b", mesh)])
    assert updated.get("jax_num_cpu_devices") == devices


def test_some_arms_can_be_chosen(config, sweep_file):
    path = sweep_file("yield 'a', {}; yield 'b', {}")
    arms = sweep.expand(config, path, {}, seeds=2)
    some = ["b/seed_1", "a/seed_0", "b/seed_1"]
    assert sweep.expand(config, path, {}, seeds=2, only=some) == [arms[3], arms[0]]
    with pytest.raises(ValueError, match="there is no arm 'b'; known arms: a/seed_0, a/seed_1"):
        sweep.expand(config, path, {}, seeds=2, only=["b"])
    with pytest.raises(ValueError, match="there is no arm 'a'; add --sweep for arms"):
        sweep.expand(config, None, {}, seeds=1, only=["a"])


# --- launches ---


def test_what_a_note_cannot_hold_is_no_claim_and_no_number(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "run", lambda *given: {})
    monkeypatch.setattr(sweep, "_compare", lambda *given: [])
    monkeypatch.setattr(report, "write", lambda root: root)
    good = stats.Numbers("", ("a", "b"), [("c", "d")])

    def launched(claims, numbers):
        how = {"claims": lambda arms: claims, "numbers": lambda arms: numbers}
        assert not sweep.launch([sweep.Arm("", config)], str(tmp_path), False, **how)
        note = provenance.read(tmp_path)
        return note["claims"], [table["rows"] for table in note["numbers"]]

    assert launched([("it", "is")], [good]) == ([["it", "is"]], [[["c", "d"]]])
    for claims, numbers in (
        (["only a text"], [5]),
        ([(1, 2)], [good._replace(rows=[("c", 1.0)])]),
        ([("it", "is", "not")], [good._replace(rows=[("c",)])]),
    ):
        (wrong, also), none = launched(claims, numbers)
        assert wrong[0] == "claims()" and "; yield pairs of texts" in wrong[1] and not none
        assert also[0] == "numbers()" and "; yield stats.Numbers" in also[1]


def test_a_grid_may_grow_at_its_beginning(config, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write", lambda root: root)
    config = sweep.override(config, {"baseline": "an arm of the file's own sweep"})
    for points in (["0.2", "0.3"], ["0.1", "0.2", "0.3"]):  # the complete arms stay
        grids = {"optimizer.learning_rate": points}
        arms = sweep.expand(config, None, {}, seeds=1, grids=grids)
        assert not sweep.launch(arms, str(tmp_path), False)
        found = records.read_summary(tmp_path)["arms"]
        shown = [arm.summary for arm in report.gather(tmp_path)[0]]
        assert [arm["name"] for arm in shown] == [arm.path for arm in arms]
        for arm in (*found, *shown):
            assert arm["baseline"] == f"learning_rate={points[0]}"


@pytest.mark.slow
def test_what_fails_or_stops_early_is_told_at_the_end(
    config, sweep_file, tmp_path, capsys, monkeypatch
):
    run = executors.train.run

    def failing(config, place, **how):
        if config.name == "b":
            raise RuntimeError("no memory left")
        return run(config, place, **how)

    monkeypatch.setattr(executors.train, "run", failing)
    path = sweep_file("yield 'a', {'optimizer.learning_rate': 1e30}; yield 'b', {}")
    arms, root = sweep.expand(config, path, {}, seeds=1), tmp_path / "out"
    claims = []
    failures = sweep.launch(arms, str(root), overwrite=False, claims=claims.append)
    assert failures == {"b": "RuntimeError: no memory left"}
    assert not claims  # they need all arms
    printed = capsys.readouterr().out
    (stopped,) = [line for line in printed.splitlines() if line.startswith("stopped: a seed 0: ")]
    assert "not finite at update" in stopped
    where = root / "b" / "error.txt"
    assert f"failed: b: RuntimeError: no memory left; see {where}\n" in printed
    assert [arm["name"] for arm in records.read_summary(root)["arms"]] == ["a"]

    monkeypatch.setattr(executors.train, "run", run)

    def diverged(arms):
        yield "it", "is"
        raise TypeError("no loss")

    def undrawn(place):
        raise OSError(f"no room in {place.name}")

    assert not sweep.launch(arms, str(root), False, claims=diverged, figures=undrawn)
    assert capsys.readouterr().out.count("already finished") == 1 and not where.exists()
    assert provenance.read(root)["claims"] == [
        ["it", "is"],
        ["claims()", "failed with TypeError: no loss"],
        ["figures()", "failed with OSError: no room in out"],
    ]


def test_runs_are_overwritten_once_and_all_before_the_first_begins(
    config, sweep_file, tmp_path, monkeypatch
):
    """So that whoever goes on without the flag takes no old run for a new one."""
    arms = sweep.expand(config, sweep_file("yield 'a', {}; yield 'b', {}"), {}, seeds=1)
    for arm in arms:
        with records.Recorder(tmp_path / arm.path, arm.config) as recorder:
            recorder.begin()
            recorder.finish({"name": arm.path})

    def execute(groups, root, shown):
        assert len(groups) == 2 and not list(root.rglob(records.SUMMARY))
        assert len(list(root.rglob(records.CONFIG))) == 2
        return {}

    sweep.run(arms, str(tmp_path), False, execute=lambda groups, root, shown: {})
    assert len(list(tmp_path.rglob(records.SUMMARY))) == 2
    sweep.run(arms, str(tmp_path), True, execute=execute)


@pytest.mark.parametrize("slurm", [False, True])
def test_a_launch_that_starts_again_overwrites_what_it_has_not_yet(
    config, sweep_file, tmp_path, monkeypatch, slurm
):
    """It was ended after it had removed the first of two runs, and trained it."""

    def start(number):
        monkeypatch.setenv("SLURM_RESTART_COUNT", f"{number}")

    monkeypatch.setenv(*(("SLURM_JOB_ID", "7") if slurm else (restarts.LAUNCH, "a1")))
    arms = sweep.expand(config, sweep_file("yield 'a', {}; yield 'b', {}"), {}, seeds=1)
    places = [tmp_path / arm.path for arm in arms]

    def finish(place, arm):
        with records.Recorder(place, arm.config) as recorder:
            recorder.begin()
            recorder.finish({"name": arm.path})

    def overwrite(some):
        sweep.run(some, str(tmp_path), True, execute=lambda groups, root, shown: {})
        return [(place / records.SUMMARY).exists() for place in places]

    for place, arm in zip(places, arms, strict=True):
        finish(place, arm)
    if slurm:
        start(0)
    assert overwrite(arms[:1]) == [False, True]
    finish(places[0], arms[0])
    if slurm:
        assert overwrite(arms[:1]) == [False, True]  # the next command of the same job
        finish(places[0], arms[0])
        start(1)
    assert sweep.unfinished(arms, str(tmp_path), True) == arms[1:]
    assert overwrite(arms) == [True, False]
    monkeypatch.setenv(restarts.LAUNCH, "another")
    start(0)
    assert sweep.unfinished(arms, str(tmp_path), True) == arms
    assert overwrite(arms) == [False, False]


def test_an_arm_does_not_begin_from_one_that_is_overwritten(config, sweep_file, tmp_path):
    arms = sweep.expand(config, sweep_file("yield 'a', {}; yield 'b', {}"), {}, seeds=1)
    with records.Recorder(tmp_path / "a", arms[0].config):
        pass
    path = tmp_path / "a" / records.PARAMETERS
    np.savez(path, x=np.zeros(1))
    arms[1] = arms[1]._replace(config=sweep.override(arms[1].config, {"initial": str(path)}))
    with pytest.raises(ValueError, match=r"a: --overwrite would remove .* config\.initial names"):
        sweep.check(arms, str(tmp_path), overwrite=True)


def test_a_launch_says_once_what_it_has_read_of_a_trace(config, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("worker,time,batch_time_ms\n" + "".join(f"n{i},0,{4 + i}\n" for i in range(9)))
    changes = [{"workers": n, "delay": f"trace(path='{path}')"} for n in (4, 4, 10)]
    read = [*prepare.traces(sweep.override(config, change) for change in changes)]
    assert len(read) == 2 and all("9 durations of 9 workers, 1 each" in line for line in read)
    assert read[0].endswith("; n4, n5, n6, n7, n8 take no part among 4 workers")
    assert read[1].endswith("in ms; workers from 9 on have the same durations in turn")
    drawn = sweep.override(config, {"workers": 4, "delay": "alibaba_job_1"})
    assert "in turn" not in next(prepare.traces([drawn]))  # each has draws of its own
