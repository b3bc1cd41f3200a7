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
    outcome = sweep.launch(arms, str(root), False, claims=lambda arms: [("it", "is")])
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
def test_seeds_are_reported_together_and_more_can_be_added(config, tmp_path, monkeypatch):
    root, begun, trained = str(tmp_path), executors.train.Arm, []
    monkeypatch.setattr(executors.train, "Arm", lambda *args: trained.append(1) or begun(*args))
    for seeds in (2, 3):
        arms = sweep.expand(config, None, {}, seeds)
        sweep.check(arms, root, overwrite=False)
        assert sweep.launch(arms, root, overwrite=False).failures == {}
        assert len(trained) == seeds  # a finished one is not run again
        (merged,) = records.read_summary(tmp_path)["arms"]
        each = [records.read_summary(tmp_path / f"seed_{seed}") for seed in range(seeds)]
        assert merged["seeds"] == list(range(seeds))
        mean = sum(one["train_loss"] for one in each) / seeds
        assert merged["train_loss"] == pytest.approx(mean)
