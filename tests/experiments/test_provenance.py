"""The commit that a record names."""

import subprocess

import gossax
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


def test_installed_code_has_no_commit_in_a_repository_of_its_user(tmp_path, monkeypatch):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "site-packages")
    (tmp_path / "site-packages").mkdir()
    assert provenance.commit() is None
    provenance.begin(tmp_path, "python -m gossax.launch")
    assert provenance.read(tmp_path)["versions"]["gossax"] == gossax.__version__
