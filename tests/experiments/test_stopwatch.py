import itertools
import time

import jax.numpy as jnp
import pytest

from experiments import stopwatch


@pytest.mark.parametrize(
    ("times", "mean"),
    [([3.0], 3.0), ([5.0, 1.0], 1.0), ([9.0, 1.0, 2.0], 1.5), ([4.0, 1.0, 99.0, 3.0, 1e9], 8 / 3)],
)
def test_the_faster_half_counts(times, mean):
    assert stopwatch.faster_half(times) == pytest.approx(mean)


@pytest.fixture
def calls(monkeypatch):
    """Programs that take as many seconds as their turn says, on a clock that only they move."""
    now, called = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def program(name, takes):
        takes = iter(takes)

        def run():
            called.append(name)
            now[0] += next(takes)
            return jnp.zeros(())

        return run

    return called, program


def test_programs_take_turns_and_the_warm_up_does_not_count(calls):
    called, program = calls
    programs = {"a": program("a", [50, 4, 1, 2]), 7: program(7, [90, 10, 10, 1000])}
    assert stopwatch.seconds(programs, 3) == {"a": 1.5, 7: 10.0}
    assert called == ["a", 7, 7, "a", "a", 7, 7, "a"]


def test_turns_stop_when_the_budget_is_used_up(calls):
    called, program = calls
    programs = {name: program(name, itertools.repeat(1.0)) for name in "ab"}
    stopwatch.seconds(programs, 9, budget=0.0)
    assert len(called) == 8  # one untimed, three at least
    stopwatch.seconds(programs, 9, budget=9.0)
    assert len(called) == 8 + 12  # ten seconds are gone after five turns
