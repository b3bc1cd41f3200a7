"""The commit that a record names."""

import subprocess

from experiments import provenance


def git(folder, *words):
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def test_changed_code_is_dirty_and_changed_pages_and_records_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    git(tmp_path, "init")
    code, record = tmp_path / "code.py", tmp_path / "docs" / "results" / "demo.json"
    record.parent.mkdir(parents=True)
    for file in (code, record, tmp_path / "README.md"):
        file.write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")

    clean = provenance.commit()
    assert len(clean) == 12
    record.write_text("b")
    (tmp_path / "README.md").write_text("b")
    (tmp_path / "new.py").write_text("not known to git")
    assert provenance.commit() == clean
    code.write_text("b")
    assert provenance.commit() == f"{clean}-dirty"


def test_code_outside_of_a_checkout_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit() is None
