"""The picture of sketches shows what the records say."""

import pytest

from experiments.publishing import sparse

LOSS = sparse.LOSS
PEELED = "s2/sketch"


def record(**more) -> dict:
    """A record of dense training, of another order of its sums, and of both sketches."""
    rows = {
        "dense": {"bytes_per_worker": 100.0, "fallback_share": None, LOSS: [1.0, 2.0]},
        "dense/reordered": {"bytes_per_worker": 400.0, "fallback_share": None, LOSS: [1.1, 2.0]},
        PEELED: {"bytes_per_worker": 25.0, "fallback_share": 0.5, LOSS: [1.5, 2.2]},
        "s2/median": {"bytes_per_worker": 20.0, "fallback_share": 0.0, LOSS: [1.0, 2.2]},
    }
    columns = ["name", "bytes_per_worker", "fallback_share", LOSS]
    return {
        "arms": {
            "columns": columns,
            "rows": [[name, *(row[c] for c in columns[1:])] for name, row in rows.items()],
        },
        **more,
    }


def table(gigabits: int, factor: float) -> dict:
    return {
        "title": f"a step at {gigabits} Gbit/s",
        "columns": ["arm", "over dense", "ms"],
        "rows": [[name, "1x", f"{factor * k:.1f}"] for k, name in enumerate(sparse.STEPS, 1)],
    }


def labels(axes) -> list[str]:
    return [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]


def test_a_point_is_a_size_and_all_is_over_dense_training_of_its_own_record():
    (point,) = sparse.sizes(sparse.Records({5: record()}, {}), PEELED)
    assert point == (5, 0.25, 0.5, pytest.approx((1.5, 1.1)), pytest.approx((1.1, 1.0)))


def test_a_step_is_read_of_the_table_of_its_link():
    by_workers = {4: record(numbers=[table(1, 1), table(10, 3)])}
    records = sparse.Records({}, by_workers | {16: record(numbers=[table(10, 4), table(1, 2)])})
    assert sparse.steps(records, 1)["s2/sketch"] == [2.0, 4.0]
    assert sparse.steps(records, 10)["s2/sketch"] == [6.0, 8.0]


def test_the_picture_has_a_line_for_every_sketch_and_every_rival_with_the_numbers_of_the_records():
    records = sparse.read()
    sent, losses, *links = sparse.draw(records).axes
    exact = {name: label for name, label in sparse.STEPS.items() if name != sparse.DENSE}
    assert labels(sent) == [*exact.values()]
    for name, label in exact.items():
        points = sparse.sizes(records, name)
        place = [line.get_label() for line in sent.lines].index(label)
        line, hollow = sent.lines[place : place + 2]
        assert line.get_xdata().tolist() == [*sparse.SIZES] == [p.percent for p in points]
        assert line.get_ydata().tolist() == [point.sent for point in points]
        fallen = [point.percent for point in points if point.fell_back > 0.5]
        assert list(hollow.get_xdata()) == fallen
    for name, label in sparse.SKETCHES.items():
        (line,) = (line for line in losses.lines if line.get_label() == label)
        means = [sum(p.losses) / len(p.losses) for p in sparse.sizes(records, name)]
        assert line.get_ydata() == pytest.approx(means)
    assert labels(losses) == [*sparse.SKETCHES.values(), "dense, summed in another order"]
    for axes, gigabits in zip(links, sparse.LINKS, strict=True):
        assert labels(axes) == [*sparse.STEPS.values()] and axes.get_xlabel() == "workers"
        lines, hollow = axes.lines[::2], axes.lines[1::2]
        drawn = [line.get_ydata().tolist() for line in lines]
        assert drawn == list(sparse.steps(records, gigabits).values())
        for line, gone in zip(hollow, sparse.fallen(records).values(), strict=True):
            at = [n for n, there in zip(sparse.WORKERS, gone, strict=True) if there]
            assert list(line.get_xdata()) == at
        assert axes.get_title().startswith(f"a step over {gigabits} Gbit/s")
    for axes in (sent, losses, *links):
        least, most = (4, 64) if axes in links else (1, 50)
        left, right = axes.get_xlim()
        assert 0.5 * least < left < least and most < right < 2 * most
