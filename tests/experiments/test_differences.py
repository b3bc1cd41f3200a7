"""The test of a difference against scipy's, and what it needs."""

import numpy as np
import pytest
from scipy import stats

from experiments import differences

OURS, THEIRS = [3.0, 4.5, 3.5, 5.0], [4.0, 5.0, 4.5, 5.5]


def arm(values, seeds=None, by_seed=True):
    found = {
        "name": "arm",
        "seeds": seeds or list(range(len(values))),
        "loss": float(np.mean(values)),
        "loss_std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    }
    return found | ({"loss_by_seed": values} if by_seed else {})


def test_arms_with_the_same_seeds_are_paired():
    found = differences.between(arm(OURS), arm(THEIRS), "loss")
    known = stats.ttest_rel(OURS, THEIRS)
    interval = known.confidence_interval(0.95)
    assert found.paired and found.seeds == 4
    assert found.mean == pytest.approx(-0.75) and found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.error == pytest.approx(np.std(np.subtract(OURS, THEIRS), ddof=1) / 2)


@pytest.mark.parametrize("how", [{"seeds": [4, 5, 6, 7]}, {"by_seed": False}])
def test_without_common_seeds_the_test_is_welch_s(how):
    found = differences.between(arm(OURS, **how), arm(THEIRS[:3]), "loss")
    known = stats.ttest_ind(OURS, THEIRS[:3], equal_var=False)
    interval = known.confidence_interval(0.95)
    assert not found.paired and found.seeds == 3
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_factor_scales_theirs():
    found = differences.between(arm(OURS), arm(THEIRS), "loss", factor=2.0)
    assert found.mean == pytest.approx(np.mean(np.subtract(OURS, np.multiply(2, THEIRS))))


def test_equal_differences_leave_no_doubt():
    found = differences.paired([0.5, 0.5])
    assert (found.p, found.low, found.high) == (0.0, 0.5, 0.5)
    assert differences.paired([0.0, 0.0]).p == 1.0


def test_one_seed_has_no_deviation():
    with pytest.raises(ValueError, match="arm: no deviation of loss over 1 seeds"):
        differences.between(arm([1.0]), arm([2.0]), "loss")
