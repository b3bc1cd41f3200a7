"""Records of finished sweeps, their state beside the configs of today, and tables of pages."""

import functools
import json
import re
import shlex

import pytest

from experiments import formats, provenance, publish, stats
from experiments.papers.base import Sweep
from tests import launcher

FLAGS = (
    "--config.task=synthetic_logistic(samples=64,dimension=4)", "--config.split=iid",
    "--config.workers=2", "--config.seconds=1.0", "--config.target_loss=0.69",
)  # fmt: skip


def test_a_finished_sweep_becomes_a_record_that_can_be_asked(tmp_path, monkeypatch, capsys):
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
    path = publish.take("tiny", tmp_path / "records")
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
    (tmp_path / "tiny" / provenance.NOTE).unlink()
    with pytest.raises(ValueError, match=f"holds no {provenance.NOTE}; give the --workdir of a"):
        publish.take("tiny", tmp_path / "records")


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


def test_a_record_of_a_benchmark_names_a_program_that_is_there_or_says_that_it_is_gone():
    named = re.compile(r"python -m ([\w.]+)")
    for path in (publish.FOLDER / "benchmarks").glob("*.json"):
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or "command" not in found:
            continue  # spans of a timeline, trials
        program, *others = named.findall(f"{found['command']} {found.get('remark', '')}")
        there = [(launcher.ROOT / f"{one.replace('.', '/')}.py").exists()
                 for one in (program, *others)]  # fmt: skip
        assert there[0] != found.get("remark", "").startswith("That program is gone"), path.name
        assert all(there[1:]), path.name


def test_pages_have_the_tables_of_their_records(monkeypatch):
    """No claim asks its record for an arm or a table that is not in it."""
    for name in ("record", "answers"):  # each once, though several tables ask for it
        monkeypatch.setattr(publish, name, functools.cache(getattr(publish, name)))
    for paper in publish.papers():
        for claim, found, _ in publish.answers(paper):
            assert "there is no" not in found.reason, (claim.claim, found.reason)
    for path in publish.pages():
        text = path.read_text()
        assert text.count("<!-- table: ") == text.count("<!-- end -->"), path.name
        assert publish.filled(text) == text, f"{path.name}: run python -m experiments.publish"
    with pytest.raises(ValueError, match="unknown table 'swarms'; known tables: nonblocking, "):
        publish.filled("<!-- table: swarms -->\n<!-- end -->")
    headlines = [line for line in publish.of_headlines() if line.startswith("| [")]
    assert len(headlines) == len(publish.papers())
    assert max(len(cell.strip()) for line in headlines for cell in line.split("|")) <= 80
