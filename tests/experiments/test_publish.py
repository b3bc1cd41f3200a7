"""Records of finished sweeps, their state beside the configs of today, and tables of pages."""

import shlex

import pytest

from experiments import formats, provenance, publish, stats
from experiments.papers.base import Sweep
from tests import launcher

FLAGS = (
    "--config.task=synthetic_logistic(samples=64,dimension=4)", "--config.split=iid",
    "--config.workers=2", "--config.seconds=1.0", "--config.target_loss=0.69",
)  # fmt: skip


@pytest.fixture
def swept(tmp_path, monkeypatch, capsys):
    """Return a finished sweep of two arms and two seeds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "from configs import nonblocking\nfrom experiments.registry import part\n"
        "def get_config(arg=None):\n    return nonblocking.get_config()\n"
        "def sweep():\n"
        "    yield 'all', {'wait': part('barrier')}\n"
        "    yield 'first', {'wait': part('first_finisher')}\n"
    )
    call = launcher.caller(monkeypatch, capsys)
    code, _, err = call("--config=own.py", "--sweep", "--seeds=2", "--workdir=tiny", *FLAGS)
    assert code == 0, err
    return tmp_path / "tiny"


def test_a_finished_sweep_becomes_a_record_that_can_be_asked(swept, tmp_path, monkeypatch):
    path = publish.take(swept, tmp_path / "records")
    found = formats.read(path, formats.PUBLISHED_SWEEP)
    assert found["count"] == 2 and found["seeds"] == 2 and "--workdir=tiny" in found["command"]
    first = publish.arms(found)[1]
    assert first["name"] == "first" and len(first["seconds_to_target_by_seed"]) == 2
    monkeypatch.setattr(publish, "FOLDER", tmp_path / "records")
    answer = publish.ask("tiny", "first", "all", "train_loss", margin=10.0)
    assert answer.verdict == stats.HOLDS
    with pytest.raises(ValueError, match="there is no record 'tinny'; published are tiny"):
        publish.ask("tinny", "first", "all")
    sweep = Sweep("tiny", shlex.join(
        ["--config=own.py", "--sweep", "--seeds=2", *FLAGS]), 0.1)  # fmt: skip
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    assert publish.state(sweep, tmp_path / "records") == "published"
    own = tmp_path / "own.py"
    own.write_text(own.read_text().replace("part('barrier')", "part('deadline', seconds=0.1)"))
    assert publish.state(sweep, tmp_path / "records") == "drifted: wait"
    changed = sweep._replace(arguments=sweep.arguments.replace("--seeds=2", "--seeds=3"))
    assert publish.state(changed, tmp_path / "records") == "drifted: the command"
    path.write_text("{")
    assert publish.state(sweep, tmp_path / "records") == "damaged"
    (swept / provenance.NOTE).unlink()
    with pytest.raises(ValueError, match=f"holds no {provenance.NOTE}; give the --workdir of a"):
        publish.take(swept, tmp_path / "records")


@pytest.mark.slow
def test_no_record_has_drifted_from_its_config():
    """Except two whose arms are refused today, which their remarks say."""
    drifted = {
        sweep.name: state
        for paper in publish.papers()
        for sweep in paper.SWEEPS
        if (state := publish.state(sweep)) != "published"
    }
    assert set(drifted) == {"heterogeneous_workers_64", "heterogeneous_workers_256"}, drifted


def test_evidence_runs_what_is_named_and_goes_on_after_a_failure(monkeypatch, capsys):
    ran, finished = [], []

    def launch(sweep, workdir):
        ran.append(sweep.name)
        return int(sweep.name == "matcha")

    monkeypatch.setattr(publish, "take", lambda workdir: workdir.name)
    monkeypatch.setattr(publish, "state", lambda sweep: "missing")
    monkeypatch.setattr(publish, "launched", launch)
    monkeypatch.setattr(publish, "write_pages", lambda: finished.append(1))
    wrong = publish.evidence(["matcha", "swarm"])
    assert ran == ["matcha", "swarm"] and finished == [1]
    assert wrong == ["matcha: launch.py ended with exit code 1"]
    assert "matcha: missing" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown sweep 'swam'; choose of demo, "):
        publish.evidence(["swam"])


def test_pages_have_the_tables_of_their_records():
    for path in publish.pages():
        text = path.read_text()
        assert text.count("<!-- table: ") == text.count("<!-- end -->"), path.name
        assert publish.filled(text) == text, f"{path.name}: run python -m experiments.publish"
    headlines = [line for line in publish.of_headlines() if line.startswith("| [")]
    assert len(headlines) == len(publish.papers())
    assert max(len(cell.strip()) for line in headlines for cell in line.split("|")) <= 80


def test_a_headline_does_not_depend_on_the_seeds_that_choose(monkeypatch):
    holds, unsure = stats.Answer("holds", "2 s", p=0.03), stats.Answer("inconclusive", "2 s")
    claims = [stats.Claim(f"claim {n}", "", "demo") for n in range(2)]
    both = [(claims[0], holds, unsure), (claims[1], holds, holds)]
    monkeypatch.setattr(publish, "both_answers", lambda paper: iter(both))
    (line,) = [line for line in publish.of_headlines("adasync") if line.startswith("| [")]
    assert "claim 1" in line and "claim 0" not in line
    (paper,) = publish.papers(["adasync"])
    changed, stays = [line for line in publish.of_paper(paper) if line.startswith("| claim 0")
                         or line.startswith("| claim 1")]  # fmt: skip
    assert "**holds**; inconclusive if other seeds choose |" in changed
    assert "if other seeds" not in stays


def test_tables_of_points_and_of_arms_are_chosen_by_their_words(tmp_path, monkeypatch):
    points = [{"form": form, "rate": rate, "hosts": hosts, "ms": ms} for form, rate, hosts, ms in (
        ("dense", "1gbit", 2, 4.0), ("dense", "10gbit", 2, 2.0), ("few", "1gbit", 2, 1.0),
        ("few", "1gbit", 4, 9.0))]  # fmt: skip
    rows = [[f"{name}/rate={rate}", [0, 1], "2/2", seconds, [seconds - 1, seconds + 1]]
            for name, rate, seconds in (("a", 0.1, 9.0), ("a", 0.2, 4.0), ("a", 0.4, 7.0),
                                        ("b", 0.1, 8.0), ("b", 0.2, 9.0))]  # fmt: skip
    columns = ["name", "seeds", "reached", "seconds_to_target", "seconds_to_target_by_seed"]
    note = {"command": "python -m b", "versions": {}, "date": "2026-01-01T00:00:00+00:00",
            "claims": [], "summary": {"points": points},
            "arms": {"columns": columns, "rows": rows}}  # fmt: skip
    monkeypatch.setattr(publish, "record", lambda name: note)
    words = "points b rows=form columns=rate value=ms hosts=2 over=dense"
    lines = publish.filled(f"<!-- table: {words} -->\n<!-- end -->").split("\n")
    assert lines[1:5] == ["| form | 1gbit | 10gbit |", "|---|---|---|",
                          "| dense | 4.00 | 2.00 |", "| few | 4.00x | – |"]  # fmt: skip
    assert publish.filled("\n".join(lines)) == "\n".join(lines)
    with pytest.raises(ValueError, match="unknown table 'swarms'; known tables: nonblocking, "):
        publish.filled("<!-- table: swarms -->\n<!-- end -->")
    best = list(publish.of_arms("c", "seconds_to_target"))
    assert best[2:4] == ["| a | rate=0.2 | 4 ± 1.4 s |", "| b | rate=0.1* | 8 ± 1.4 s |"]
    ratio = list(publish.of_ratios("seconds_to_target", "c", "b : a", "b : none"))
    assert ratio[2] == "| c | 2.00x | – |"
