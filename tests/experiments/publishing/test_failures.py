"""The picture of learners that fail shows what the two records say."""

import pytest

from experiments.publishing import failures

REAL = (
    ("Decoupled DiLoCo", 0.8, [0.7, 0.9], [0.75, 0.85]),
    ("DiLoCo", 0.2, [0.1, 0.3], [0.65, 0.95]),
)


def simulated(of_method: dict[str, float], **place) -> list[dict]:
    return [{"method": method, "goodput": share, **place} for method, share in of_method.items()]


@pytest.fixture
def canvas():
    few = dict(zip(failures.METHODS, (0.96, 0.95, 0.7, 0.9), strict=True))
    many = dict(zip(failures.METHODS, (0.97, 0.94, 0.1, 0.4), strict=True))
    by_workers = [
        *simulated(few, workers=8, between=7200.0),
        *simulated(many, workers=1000, between=7200.0),
    ]
    by_between = [
        *simulated(many, workers=64, between=3600.0),
        *simulated(few, workers=64, between=14400.0),
    ]
    real = [
        {"name": name, "share": share, "share_by_seed": seeds, "there_by_seed": there}
        for name, share, seeds, there in REAL
    ]
    records = failures.Records(
        {"by_workers": by_workers, "by_between": by_between}, {"methods": real}
    )
    return failures.draw(records)


def test_a_line_per_method_goes_through_its_shares(canvas):
    learners, hours, _ = canvas.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in learners.lines}
    assert lines == {
        "Decoupled DiLoCo": [[8, 0.96], [1000, 0.97]],
        "asynchronous DiLoCo": [[8, 0.95], [1000, 0.94]],
        "DiLoCo": [[8, 0.7], [1000, 0.1]],
        "elastic all-reduce": [[8, 0.9], [1000, 0.4]],
    }
    lines = {line.get_label(): line.get_xydata().tolist() for line in hours.lines}
    assert lines["DiLoCo"] == [[1, 0.1], [4, 0.7]] and len(lines) == 4
    assert "after 2 h of work" in learners.get_title() and "64 learners" in hours.get_title()
    assert learners.get_ylim() == hours.get_ylim() and learners.get_ylim()[0] == 0


def test_real_processes_have_a_mean_dots_for_seeds_and_dashes_for_learners_that_were_there(canvas):
    real = canvas.axes[2]
    found = {"share": [], "seeds": [], "there": []}
    for line in real.lines:
        kind = {".": "seeds", "_": "there"}.get(line.get_marker(), "share")
        found[kind].append(list(line.get_ydata()))
    assert found["share"] == [[share] for _, share, _, _ in REAL]
    assert found["seeds"] == [seeds for _, _, seeds, _ in REAL]
    assert found["there"] == [there for _, _, _, there in REAL]
    assert [label.get_text() for label in real.get_xticklabels()] == [row[0] for row in REAL]
    for line in real.lines:  # a dot or a dash lies nearest to the method that it belongs to
        name = REAL[round(float(line.get_xdata()[0]) - 0.1)][0]
        if line.get_marker() != "_":
            assert line.get_color() == failures.LOOKS[name]["color"]


def test_the_picture_of_the_records_has_all_of_their_points():
    records = failures.read()
    learners, hours, real = failures.draw(records).axes
    for axes, points in (
        (learners, records.simulated["by_workers"]),
        (hours, records.simulated["by_between"]),
    ):
        drawn = sorted(float(y) for line in axes.lines for y in line.get_ydata())
        assert drawn == sorted(point["goodput"] for point in points)
    shares = [share for method in records.real["methods"] for share in method["share_by_seed"]]
    dots = [float(y) for line in real.lines if line.get_marker() == "." for y in line.get_ydata()]
    assert dots == shares


def test_the_sentences_hold_in_the_records():
    records = failures.read()
    shares = {}
    for point in sorted(records.simulated["by_workers"], key=lambda point: point["workers"]):
        shares.setdefault(point["method"], []).append(point["goodput"])
    ours, asynchronous, barrier, elastic = (shares[method] for method in failures.METHODS)
    assert max(ours) - min(ours) < 0.02
    assert asynchronous == pytest.approx(ours, abs=0.01)
    for losing in (barrier, elastic):
        assert losing == sorted(losing, reverse=True)
    ages = {point["method"]: point["staleness"] for point in records.simulated["by_workers"]}
    assert ages["asynchronous DiLoCo"] > 100 * ages["Decoupled DiLoCo"]
    ours, barrier = (method["share"] for method in records.real["methods"])
    assert ours > barrier
