"""Records of finished sweeps, their state beside the configs of today, and tables of pages."""

import functools
import json
import re
import shlex

import pytest

from experiments import formats, provenance, publish, stats
from experiments.papers import mg_wfbp
from experiments.papers.base import Sweep
from tests import launcher
from tests.refusals import sentence

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
    needed = (*formats.NOTE.needed, "count", "seeds", "arms")
    found = formats.read(path, formats.PUBLISHED._replace(needed=needed))
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


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("goodput", {}, "record 'goodput' has no arms to compare; ask the record of a sweep"),
        ("demo", {"quantity": "second"}, "has a number 'second'; did you mean 'seconds'. known"),
        ("demo", {"bound": "0.9"}, "bound must be a number, 0 or more, got '0.9'; correct it"),
    ],
)
def test_a_question_that_a_record_cannot_answer_is_refused(name, how, words):
    with sentence(words):
        publish.ask(name, "dpsgd/blocking", "all_reduce/blocking", **how)


# Sweeps whose configs have changed since, or that never ran: a run of theirs ends their row here.
DUE: set[str] = set()


@pytest.mark.slow
def test_no_record_has_drifted_from_its_config():
    drifted = {
        sweep.name: state
        for paper in publish.papers()
        for sweep in paper.SWEEPS
        if (state := publish.state(sweep)) != "published"
    }
    assert set(drifted) <= DUE, drifted


def evident(monkeypatch, **patches):
    """Replace what `publish.evidence` calls; return the sweeps that it runs."""
    ran = []

    def launch(sweep, workdir):
        ran.append(sweep.name)
        return int(sweep.name == "matcha")

    patches = {
        "take": lambda workdir: workdir.name, "state": lambda sweep: "missing",
        "launched": launch, "write_pages": lambda: None, **patches,
    }  # fmt: skip
    for name, function in patches.items():
        monkeypatch.setattr(publish, name, function)
    return ran


def test_evidence_is_of_a_tier_and_of_one_commit_if_asked(monkeypatch, capsys):
    tiers = {sweep.name: sweep.tier for paper in publish.papers() for sweep in paper.SWEEPS}
    with pytest.raises(ValueError, match="unknown sweep 'swam'; choose of demo, "):
        publish.evidence(["swam"])
    ran = evident(monkeypatch)
    assert publish.evidence(tier="secondary") == []
    assert ran and {tiers[name] for name in ran} == {"secondary"}
    now = {"commit": "abc"}
    monkeypatch.setattr(publish.provenance, "commit", lambda: now["commit"])
    monkeypatch.setattr(publish, "commit_of", lambda name: "abc" if name == "adasync" else "def")
    ran = evident(monkeypatch, state=lambda sweep: "published")
    assert publish.evidence(tier="all") == [] and not ran  # there is nothing to do
    capsys.readouterr()
    assert publish.evidence(only_list=True, tier="all", fresh=True) == [] and not ran
    listed = capsys.readouterr().out
    assert "secondary  abc         *  adasync: published\n" in listed
    assert "headline   def            matcha: of another commit than abc\n" in listed
    assert "made by no sweep: goodput_real, " in listed
    wrong = publish.evidence(tier="all", fresh=True)
    assert set(ran) == tiers.keys() - {"adasync"}
    assert wrong == ["matcha: launch.py ended with exit code 1"]
    now["commit"] = "abc-dirty"
    with pytest.raises(ValueError, match="the commit of this code is abc-dirty, "):
        publish.evidence(fresh=True)
    commits = iter(("abc", "abc", "ghi"))  # at first, before a sweep, before the next one
    monkeypatch.setattr(publish.provenance, "commit", lambda: next(commits))
    ran.clear()
    wrong = publish.evidence(["swarm_epochs", "adasync"], fresh=True)
    assert ran == ["swarm_epochs"]
    assert wrong == ["adasync and all after it: the code has left abc; go back"]


def test_arms_of_another_commit_are_trained_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish.provenance, "commit", lambda: "abc")
    monkeypatch.setattr(publish.subprocess, "run", lambda *_, **__: publish.argparse.Namespace(
        returncode=0))  # fmt: skip
    sweep, workdir = Sweep("tiny", "--config=own.py", 0.1), tmp_path / "tiny"
    for commit, stays in (("abc", True), ("def", False)):
        workdir.mkdir(exist_ok=True)
        note = {"command": "python launch.py", "versions": {"gossax": commit}, "claims": [],
                "date": "2026-11-27T00:00:00+00:00"}  # fmt: skip
        (workdir / provenance.NOTE).write_text(json.dumps(note))
        assert publish.launched(sweep, workdir) == 0 and workdir.exists() == stays
    assert "is of commit def, this is abc: it begins anew" in capsys.readouterr().out


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


def test_a_claim_that_does_not_stand_beside_all_others_is_not_for_quoting():
    rows = [line for paper in publish.papers() for line in publish.of_paper(paper)]
    alone = [row for row in rows if re.search(r"\| [\d.e-]+\* \|", row)]
    assert alone
    assert not [row for row in alone if "**" in row]


def test_one_bucket_beside_one_bucket_is_no_comparison():
    points = [
        {"hosts": 2, "rate": "1gbit", "model": model, "schedule": schedule, "buckets": buckets,
         "turns": turns}
        for model, schedule, buckets, turns in (
            ("small", "greedy", 1, [1.31, 1.33, 1.32]), ("small", "single", 1, [1.0, 1.01, 1.02]),
            ("large", "greedy", 2, [0.8, 0.83, 0.82]), ("large", "single", 1, [1.0, 1.01, 1.02]))
    ]  # fmt: skip
    answer = mg_wfbp.faster_in_cells("single", points, {})
    assert answer.verdict == stats.HOLDS
    assert answer.measured.endswith("faster in 1 of 1 cells, slower in 0")
