"""Processes that live and do not go on are not mistaken for slow ones."""

import contextlib
import json
import time

import pytest

from experiments import distributed, endings, watchdog
from experiments.watchdog import SILENT, State
from runtimes import phases
from stragglers import inject
from stragglers.rule import Trigger


def state(phase, seconds, dispatches=4, update=32):
    return State(dispatches, update, phase, seconds)


WAITS = state(phases.OTHERS, 65.0)


def test_the_process_that_is_behind_is_named_and_a_slow_one_is_not():
    for others, named in (
        ([state(phases.INPUT, 66.0)], [1]),
        ([state(phases.EVALUATION, 66.0), state(phases.OTHERS, 64.0)], [1]),
        ([state(phases.DEVICES, 66.0, dispatches=3)], [1]),  # its devices have not ended yet
        ([state(SILENT, 66.0, dispatches=5)], [1]),
        ([WAITS, state(phases.INPUT, 70.0), state(phases.CHECKPOINT, 61.0)], [2, 3]),
        ([state(phases.INPUT, 70.0), state(phases.COMPILING, 70.0)], [1]),
        ([WAITS, WAITS], []),  # nobody in particular
    ):
        sentence, found = watchdog.standing(dict(enumerate([WAITS, *others])), patience=60.0)
        assert found == named
        assert all(f"process {p} of {1 + len(others)} " in sentence for p in named)
        assert all(others[p - 1].phase in sentence for p in named) and "update 32" in sentence
    for phase, seconds in (
        (phases.COMPILING, 500.0), (phases.DELAY, 500.0), (phases.INPUT, 3.0), (phases.DEVICES, 1),
    ):  # fmt: skip
        assert watchdog.standing({0: WAITS, 1: state(phase, seconds)}, patience=60.0) is None


def test_a_silent_process_is_named_before_jax_gives_it_up(clock, monkeypatch, capsys):
    """A process that was stopped is silent; what the others publish is never the same twice."""
    put = {}
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    monkeypatch.setattr(distributed, "say", lambda key, text, again: put.update({key: text}))
    monkeypatch.setattr(distributed, "texts", lambda folder: dict(put))
    put[f"{watchdog.PLACE}/1"] = json.dumps([*state(phases.DEVICES, 0.0), 1.0])
    watch = watchdog._Watch(600.0)
    with phases.within(phases.OTHERS):
        looks(watch, clock, 25)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: process 1 of 2 has stood still") and SILENT in line


@pytest.mark.parametrize("count", [600, 1200])
def test_many_processes_look_less_often_and_count_the_seconds_between(clock, monkeypatch, count):
    monkeypatch.setattr(distributed, "processes", lambda: count)
    monkeypatch.setattr(distributed, "say", lambda key, text, again: None)
    assert watchdog.silence() + watchdog.pause() < 30.0  # when JAX gives up on who is silent

    def texts(folder):
        words = json.dumps([*state(phases.OTHERS, 0.0, dispatches=1000), clock[0]])
        return {f"{folder}/{p}": words for p in range(count)}

    monkeypatch.setattr(distributed, "texts", texts)
    watch = watchdog._Watch(100.0)
    with phases.within(phases.INPUT), pytest.raises(Given, match=f"process 0 of {count}"):
        for _ in range(16):  # 112 s
            clock[0] += watchdog.pause()
            watch.look()


def test_another_program_may_take_longer_than_the_last_one():
    with phases.dispatch(0):
        pass
    assert phases.now().median is not None
    with phases.within(phases.COMPILING):
        pass
    assert phases.now().median is None


def test_devices_may_take_any_time_until_it_is_known_what_a_dispatch_takes():
    both = {0: state(phases.DEVICES, 500.0, 0), 1: state(phases.DEVICES, 500.0, 0)}
    assert watchdog.standing(both, patience=60.0, timed=False) is None
    behind = both | {1: state(phases.INPUT, 61.0, 0)}
    assert watchdog.standing(behind, patience=60.0, timed=False)[1] == [1]


def test_a_signal_waits_for_a_process_that_evaluates_or_writes():
    for phase, ends in ((phases.INPUT, True), (phases.EVALUATION, False)):
        states = {0: WAITS, 1: state(phase, 20.0)}
        assert (watchdog.standing(states, patience=5.0, slow=60.0) is not None) == ends


class Given(Exception):
    """The end of a process."""


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that is set by hand; ends are raised."""
    now = [1000.0]

    def give_up(code, why):
        raise Given(code, why)

    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(distributed, "give_up", give_up)
    return now


def looks(watch, clock, seconds):
    for _ in range(seconds):
        clock[0] += 1.0
        watch.look()


def test_a_process_alone_has_one_line_about_its_reader_and_ends(clock, capsys):
    watch = watchdog._Watch(600.0)
    with phases.within(phases.INPUT):
        looks(watch, clock, 590)
        assert capsys.readouterr().err.count("it waits for its input reader") == 1
        with pytest.raises(Given, match=r"3.*this process has stood still for .*input reader"):
            looks(watch, clock, 20)


def test_zero_never_ends_and_an_evaluation_alone_may_take_any_time(clock, capsys):
    watch = watchdog._Watch(0.0)
    with phases.within(phases.INPUT):
        looks(watch, clock, 2000)
    assert "never of itself" in capsys.readouterr().err
    watch = watchdog._Watch(10.0)
    with phases.within(phases.EVALUATION):
        looks(watch, clock, 2000)
    watch = watchdog._Watch(600.0)
    with phases.within(phases.INPUT):
        clock[0] += 10_000.0  # the machine slept
        looks(watch, clock, 5)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("phase, seconds", [(phases.INPUT, 8), (phases.DELAY, 18)])
def test_a_signal_ends_who_stands_still_within_seconds(clock, monkeypatch, phase, seconds):
    monkeypatch.setattr(endings, "asked", lambda: 15)
    watch = watchdog._Watch(600.0)
    with endings.deferred(), phases.within(phase):
        with pytest.raises(Given, match=rf"143.*ended by SIGTERM without.*it {phase}"):
            looks(watch, clock, seconds)
        monkeypatch.setattr(endings, "asked", lambda: None)


def test_a_delay_that_is_slept_is_no_hanging_callback():
    injector = inject.Injector(2, Trigger(None, 1), 0)
    with phases.dispatch(8, injector.due):
        assert phases.now().what == phases.DEVICES
        injector._due[1] = time.monotonic() + 100.0
        assert phases.now().what == phases.DELAY
        injector._due[1] = time.monotonic()
        assert phases.now().what == phases.CALLBACK
        with phases.within(phases.INPUT):
            assert phases.now()[::3] == (phases.INPUT, 8)
    with contextlib.suppress(ValueError), phases.within(phases.CHECKPOINT):
        raise ValueError
    assert phases.now().what == phases.PREPARING
