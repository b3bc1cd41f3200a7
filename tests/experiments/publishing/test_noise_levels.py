"""The picture of theory's levels shows the losses of the record and the numbers of theory."""

import numpy as np
import pytest

from configs import slow_and_stale as config
from experiments.publishing import noise_levels
from experiments.studies import noise_floor, slow_and_stale

LOSS = "final_train_loss"


@pytest.fixture(scope="module")
def records():
    return noise_levels.read()


def over_level(records, group: str) -> dict[float, float]:
    """Loss above the lowest over the level of theory, by rate; 0 where there is no level."""
    k = slow_and_stale.GROUPS[group][1]
    return {
        point.rate: point.excess
        / noise_floor.level(records.minimum, point.rate, k, noise_levels.BATCH)
        for point in noise_levels.points(records, group)
    }


@pytest.mark.slow
def test_every_arm_of_the_protocols_is_drawn_at_its_rate_over_k(records):
    panels = noise_levels.draw(records).axes
    for axes, protocols in zip(
        panels, (noise_levels.SYNCHRONOUS, noise_levels.ASYNCHRONOUS), strict=True
    ):
        measured = [line for line in axes.lines if line.get_marker() in ("o", "s")]
        groups = [group for group, (name, _) in slow_and_stale.GROUPS.items() if name in protocols]
        for line, group in zip(measured, groups, strict=True):
            protocol, k = slow_and_stale.GROUPS[group]
            arms = {
                float(name.rpartition("=")[2]): arm
                for name, arm in records.arms.items()
                if name.startswith(f"{group}/rate=")
            }
            rates = sorted(arms)
            assert line.get_xdata() == pytest.approx([rate / k for rate in rates])
            lowest = records.minimum.loss
            assert line.get_ydata() == pytest.approx([arms[r][LOSS] - lowest for r in rates])
            assert line.get_color() == noise_levels._colour(k)
            assert line.get_marker() == "os"[list(protocols).index(protocol)]


@pytest.mark.slow
def test_the_lines_of_theory_are_the_level_of_every_k_and_the_bound(records):
    minimum = records.minimum
    for axes in noise_levels.draw(records).axes:
        dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
        for line, k in zip(dotted, slow_and_stale.K, strict=True):
            assert line.get_color() == noise_levels._colour(k)
            for x, y in line.get_xydata():
                assert y == pytest.approx(noise_floor.level(minimum, x * k, k, noise_levels.BATCH))
        (dashed,) = (line for line in axes.lines if line.get_linestyle() == "--")
        for x, y in dashed.get_xydata():
            for k in slow_and_stale.K:
                bound = noise_floor.bound(minimum, x * k, k, noise_levels.BATCH)
                assert y == pytest.approx(bound)
        largest = 1 / (2 * minimum.curvatures[-1])  # 1 / 2 L, beyond which nothing is proved
        assert dashed.get_xdata()[-1] == pytest.approx(largest)
    assert config.get_config().batch_size == noise_levels.BATCH


def test_the_sentences_hold_in_the_record(records):
    minimum, bounds = records.minimum, []
    for group, (protocol, k) in slow_and_stale.GROUPS.items():
        by_rate = over_level(records, group)
        there = [ratio for ratio in by_rate.values() if ratio]
        assert 0.9 < min(there) < (1.1 if protocol in noise_levels.SYNCHRONOUS else 1.2), group
        assert by_rate[min(by_rate)] > 5, group
        highest = by_rate[max(by_rate)]
        assert highest == 0 or highest > 1.5, group
        bounds += [noise_floor.bound(minimum, rate, k, noise_levels.BATCH) for rate in by_rate]
    assert over_level(records, "k_async/K=1")[1.0] > 10 * over_level(records, "k_sync/K=1")[1.0]
    assert np.mean(np.array(bounds) > noise_levels.CHANCE - minimum.loss) > 0.5
    largest = 1 / (2 * minimum.curvatures[-1])
    level = noise_floor.level(minimum, largest, 1, noise_levels.BATCH)
    assert noise_floor.bound(minimum, largest, 1, noise_levels.BATCH) > 100 * level
