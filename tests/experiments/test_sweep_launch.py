import pytest
from rich.console import Console

from experiments import executors, records, sweep


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
    outcome = sweep.launch(arms, str(root), overwrite=False, claims=claims.append)
    assert outcome.failures == {"b": "RuntimeError: no memory left"}
    assert not claims  # they need all arms
    printed = capsys.readouterr().out
    (stopped,) = [line for line in printed.splitlines() if line.startswith("stopped: a seed 0: ")]
    assert "not finite at update" in stopped
    where = root / "b" / "error.txt"
    assert f"failed: b: RuntimeError: no memory left; see {where}\n" in printed
    assert [arm["name"] for arm in records.read_summary(root)["arms"]] == ["a"]

    monkeypatch.setattr(executors.train, "run", run)
    outcome = sweep.launch(
        arms, str(root), overwrite=False, claims=lambda arms: [("it", "is")]
    )
    assert outcome == sweep.Outcome({}, [("it", "is")])
    assert capsys.readouterr().out.count("already finished") == 1 and not where.exists()

    def diverged(arms):
        yield "it", "is"
        raise TypeError("no loss")

    def undrawn(place):
        raise OSError(f"no room in {place.name}")

    claimed = sweep.launch(arms, str(root), False, claims=diverged, figures=undrawn).claims
    assert claimed == [
        ("it", "is"),
        ("claims()", "failed with TypeError: no loss"),
        ("figures()", "failed with OSError: no room in out"),
    ]


@pytest.mark.slow
def test_finished_arms_are_kept(config, sweep_file, tmp_path, capsys, monkeypatch):
    path = sweep_file("yield 'm/a', {'wait': 'barrier'}; yield 'm/b', {'baseline': 'm/a'}")
    arms, root = sweep.expand(config, path, {}, seeds=1), tmp_path / "out"
    assert sweep.launch(arms, str(root), overwrite=False).failures == {}
    written = records.read_summary(root)
    assert [(arm["name"], arm["seeds"]) for arm in written["arms"]] == [("m/a", [0]), ("m/b", [0])]
    assert (root / "m" / "a" / "metrics.jsonl").exists()
    assert (root / "figure.png").read_bytes().startswith(b"\x89PNG")
    first = capsys.readouterr().out
    assert "[2/2] m/b seed 0: started" in first and "speed-up" in first

    def forbidden(*_):
        raise AssertionError("a finished arm ran again")

    monkeypatch.setattr(executors.train, "Arm", forbidden)
    assert sweep.launch(arms, str(root), overwrite=False).failures == {}
    assert records.read_summary(root) == written
    again = capsys.readouterr().out
    assert again.count("already finished") == 2
    assert again[again.index(" arm ") :] == first[first.index(" arm ") :]  # the same table


@pytest.mark.slow
def test_a_launch_says_once_what_it_has_read_of_a_trace(config, sweep_file, tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("worker,time,batch_time_ms\n" + "".join(f"n{i},0,{4 + i}\n" for i in range(9)))
    delay = f"trace(path='{path}')"
    body = f"for n in (4, 10): yield f'w{{n}}', {{'workers': n, 'delay': {delay!r}}}"
    arms = sweep.expand(config, sweep_file(body), {}, seeds=2)
    sweep.launch(arms, str(tmp_path / "out"), overwrite=False)
    read = [line for line in capsys.readouterr().out.splitlines() if line.startswith("delay: ")]
    assert len(read) == 2 and all("9 durations of 9 workers, 1 each" in line for line in read)
    assert read[0].endswith("; n4, n5, n6, n7, n8 take no part among 4 workers")
    assert read[1].endswith("column batch_time_ms in ms")


@pytest.mark.slow
def test_a_terminal_gets_a_bar(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "Console", lambda **_: Console(force_terminal=True, width=120))
    sweep.launch([sweep.Arm("", config)], str(tmp_path), overwrite=False)
    shown = capsys.readouterr().out
    assert "tiny seed 0" in shown and "updates" in shown and "0.5/0.5 s" in shown
    assert "started" not in shown


@pytest.mark.slow
def test_seeds_are_reported_together_and_more_can_be_added(config, tmp_path):
    arms = sweep.expand(config, None, {}, seeds=2)
    sweep.launch(arms, str(tmp_path), overwrite=False)
    each = [records.read_summary(tmp_path / f"seed_{seed}") for seed in (0, 1)]
    (merged,) = records.read_summary(tmp_path)["arms"]
    assert merged["seeds"] == [0, 1]
    assert merged["train_loss"] == pytest.approx(
        (each[0]["train_loss"] + each[1]["train_loss"]) / 2
    )
    more = sweep.expand(config, None, {}, seeds=3)
    sweep.check(more, str(tmp_path), overwrite=False)
    sweep.launch(more, str(tmp_path), overwrite=False)
    assert records.read_summary(tmp_path)["arms"][0]["seeds"] == [0, 1, 2]
    assert [records.read_summary(tmp_path / f"seed_{seed}") for seed in (0, 1)] == each
