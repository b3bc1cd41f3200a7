import json

import pytest

from experiments import provenance, records
from experiments.publishing import published


def arm(name, seconds, **more):
    return {
        "name": name, "baseline": "slow", "clock": "virtual", "target_loss": 0.5, "updates": 10,
        "samples": 80, "seconds": 4.0, "seconds_to_target": seconds, "train_loss": 0.25,
        "test_accuracy": 0.9, "idle_fraction": 0.0, "bytes_per_worker": 1e6,
    } | more  # fmt: skip


def test_a_sweep_is_told_with_its_command_its_numbers_and_its_claims(tmp_path):
    root = tmp_path / "two_arms"
    root.mkdir()
    records.write_json(
        root / records.SUMMARY,
        {"arms": [arm("slow", 3.0, seeds=[0]), arm("fast", 1.5, seeds=[0, 1, 2])]},
    )
    for place, rate in (("slow", 0.1), ("fast/seed_0", 0.4), ("fast/seed_1", 9.0)):
        (root / place).mkdir(parents=True)
        config = {"name": place[:4], "workers": 4, "optimizer": f"sgd(learning_rate={rate})"}
        records.write_json(root / place / records.CONFIG, config)
    provenance.begin(root, "python launch.py --sweep")
    provenance.claim(root, [("fast | slow", "yes:\n2x")])
    published.take_in(root, tmp_path / "taken")
    kept = json.loads((tmp_path / "taken" / "two_arms.json").read_text())["settings"]
    assert kept["workers"] == "4" and kept["optimizer"].startswith("differs by arm")
    page = published.page(tmp_path / "taken")
    assert "Arms: 2, seeds: 3." in page
    assert "## two arms\n`python launch.py --sweep`" in page
    row = next(line for line in page.splitlines() if line.startswith("| fast |"))
    assert "2.00x" in row and "90.0" in row
    assert "- **fast | slow**\n  - yes:\n  - 2x\n" in page


def test_a_directory_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no summary\.json; give the --workdir"):
        published.take_in(tmp_path, tmp_path / "taken")
    assert not (tmp_path / "taken").exists()


def test_a_long_line_of_measurements_is_divided_and_no_text_is_markup():
    long = f"{'a' * 60}; {'b' * 60}"
    assert published._claim("2 * 3 * 4", f"1; 2\n{long}\n\n<b>") == [
        "- **2 \\* 3 \\* 4**", "  - 1; 2", f"  - {'a' * 60}", f"  - {'b' * 60}", "  - \\<b>",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_page_can_be_read():
    """Its tables have numbers in them, not sentences."""
    cells = [cell for line in published.page().splitlines() if line.startswith("|")
             for cell in line.split("|")]  # fmt: skip
    assert max(map(len, cells)) <= 120


def test_the_page_is_what_its_sources_say():
    advice = "run python -m experiments.publishing.published"
    assert published.PAGE.read_text() == published.page(), advice
    for path in published.FOLDER.glob("*.json"):
        assert json.loads(path.read_text())["command"].startswith("python launch.py")
