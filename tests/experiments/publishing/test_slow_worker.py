"""The picture of methods with one slow worker shows what the two records say."""

import pytest

from configs import async_baselines, frontier_async
from experiments.publishing import slow_worker

LOSS, SECONDS = slow_worker.LOSS, slow_worker.SECONDS
HOLLOW = "The rate or setting of a hollow marker is the lowest or the highest that was tried."


def arms_of(group: str, values: dict[float, float | None], field: str = LOSS) -> dict[str, dict]:
    """The arms of a record: the field by rate, None where a seed does not have it."""
    return {
        f"{group}/rate={rate}": {
            "name": f"{group}/rate={rate}",
            "seeds": [0, 1],
            "seconds": 600.0,
            "target_loss": 0.5,
            "reached": "1/2" if value is None else "2/2",
            field: value,
            f"{field}_by_seed": [1.0, None] if value is None else [value - 0.1, value + 0.1],
        }
        for rate, value in values.items()
    }


def records_of(values: dict[float, float | None]) -> slow_worker.Records:
    """Every method has the same values."""
    frontier, baselines = {}, {}
    for group in slow_worker.LOCAL_STEPS | slow_worker.UNEVEN:
        frontier |= arms_of(group, values)
    for group in slow_worker.METHODS:
        baselines |= arms_of(group, values, SECONDS)
    return slow_worker.Records(frontier, baselines)


def rows_of(axes) -> dict[str, tuple[float, list[float]]]:
    """By the label of a row: its mean, and its seeds, which lie a little below."""
    labels = [label.get_text() for label in axes.get_yticklabels()]
    means, seeds = ([line for line in axes.lines if line.get_marker() == kind] for kind in "o.")
    rows = {}
    for mean, dots in zip(means, seeds, strict=True):
        row = round(float(mean.get_ydata()[0]))
        assert all(row < y < row + 0.5 for y in dots.get_ydata())
        rows[labels[row]] = float(mean.get_xdata()[0]), sorted(map(float, dots.get_xdata()))
    return rows


def test_every_method_has_a_row_with_the_least_mean_of_the_record_and_its_seeds():
    records = slow_worker.read()
    panels = slow_worker.draw(records).axes
    for axes, arms, labels, field in (
        (panels[0], records.frontier, slow_worker.LOCAL_STEPS, LOSS),
        (panels[1], records.frontier, slow_worker.UNEVEN, LOSS),
        (panels[2], records.baselines, slow_worker.METHODS, SECONDS),
    ):
        rows = rows_of(axes)
        assert list(rows) == list(labels.values())
        for group, label in labels.items():
            mine = [arm for name, arm in arms.items() if name.startswith(f"{group}/")]
            best = min((arm for arm in mine if arm[field]), key=lambda arm: arm[field])
            assert rows[label] == (best[field], sorted(best[f"{field}_by_seed"]))
    assert panels[0].get_xlim() == panels[1].get_xlim()


def test_the_groups_of_the_records_are_all_drawn():
    records = slow_worker.read()
    assert {name.partition("/")[0] for name in records.baselines} == set(slow_worker.METHODS)
    drawn = {*slow_worker.LOCAL_STEPS, *slow_worker.UNEVEN}
    assert {name.partition("/")[0] for name in records.frontier} == drawn


@pytest.mark.parametrize("best", [0.1, 0.2, 0.4])
def test_a_hollow_marker_has_its_best_rate_at_an_end_and_a_sentence_says_so(best):
    values = {rate: 0.3 if rate == best else 0.6 for rate in (0.1, 0.2, 0.4)}
    canvas = slow_worker.draw(records_of(values))
    hollow = best != 0.2
    for axes in canvas.axes:
        means = [line for line in axes.lines if line.get_marker() == "o"]
        assert means and all(line.get_xdata() == [0.3] for line in means)
        assert all((line.get_markerfacecolor() == "white") == hollow for line in means)
    assert (HOLLOW in canvas.get_supxlabel()) == hollow


def test_a_method_that_never_comes_to_the_target_in_every_seed_is_left_out_and_named():
    records = records_of({0.1: 0.6, 0.2: 0.3, 0.4: 0.6})
    late = records.baselines | arms_of("k_sync", dict.fromkeys((0.1, 0.2, 0.4)), SECONDS)
    canvas = slow_worker.draw(records._replace(baselines=late))
    assert "K-sync" not in rows_of(canvas.axes[2]) and len(rows_of(canvas.axes[2])) == 11
    assert canvas.get_supxlabel().endswith("at any rate: K-sync.")
    assert "Left out" not in slow_worker.draw(records).get_supxlabel()


def test_the_titles_say_by_what_the_configs_slow_a_worker_down():
    titles = [axes.get_title() for axes in slow_worker.draw(slow_worker.read()).axes]
    configs = (frontier_async, frontier_async, async_baselines)
    for title, config in zip(titles, (module.get_config() for module in configs), strict=True):
        (factor,) = dict(config.delay.factors).values()
        assert f"one worker {factor:g}x slower" in title and config.workers == 8


def test_no_baseline_is_sooner_at_the_target_than_async_sgd_as_the_text_says():
    plain, *others = slow_worker.points(slow_worker.read().baselines, slow_worker.METHODS, SECONDS)
    assert all(plain.mean <= other.mean for other in others)
