"""The arms that train together in a benchmark are arms of their sweeps, which may change."""

import pytest

from benchmarks import together_arms


@pytest.mark.parametrize("case", together_arms.CASES)
def test_every_case_is_an_arm_of_its_sweep(case):
    first, second = together_arms.arms_of(case, 2)
    assert first.name == second.name == together_arms.CASES[case][1]
    assert (first.seed, second.seed) == (0, 1)
