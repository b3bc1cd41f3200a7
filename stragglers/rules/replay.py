"""Waiting rule that replays a recorded schedule: offline studies of real runs."""

from dataclasses import replace

import numpy as np

from stragglers.round_clock import ClockState
from stragglers.rule import Rule, Setting, Turnout, most_mini_batches
from stragglers.schedule import Schedule, load


def recorded(schedule: Schedule) -> Rule:
    """Return the rule that gives the rows of `schedule` in order, and then no more rows.

    `held` of a segment are the versions that later rows read, so that stale reads across segments
    are known ahead.
    """
    schedule.validate()
    workers = schedule.all_workers

    def init() -> ClockState:
        nothing = np.zeros(workers, np.int64)
        return ClockState(schedule.offset, np.zeros(workers), nothing, nothing)

    def extend(state: ClockState, updates: int) -> tuple[ClockState, Schedule]:
        begin = state.update - schedule.offset
        end = min(begin + updates, schedule.updates)
        later = schedule.version[end:]
        held = np.unique(later[later <= end + schedule.offset]).astype(np.int32)
        rows = schedule.slice(begin, end)
        return state._replace(update=end + schedule.offset), replace(rows, held=held)

    stale, twice = bool(schedule.staleness.any()), bool(schedule.twice.any())
    ignores = schedule.ignored is not None and bool(schedule.ignored.any())
    # With an age limit that nothing reached, all work in flight at an update was cancelled.
    cancels = schedule.ignored is not None and not (ignores or stale)
    turnout = Turnout(
        schedule.fewest,
        schedule.partner is not None,
        schedule.stopped,
        early=twice,
        twice=twice,
        cancels=cancels,
        wastes=ignores or cancels,
    )
    return Rule(workers, init, extend, asynchronous=stale, turnout=turnout)


def replay(setting: Setting, *, path: str) -> Rule:
    """Return the rule of a file by `Schedule.save`; ValueError if the setting does not fit it."""
    schedule = load(path)
    if not schedule.updates:
        raise ValueError(
            f"replay: {path} has no updates; give the schedule of a run that made some"
        )
    most, taken = int(schedule.batches.max()), most_mini_batches(setting.mini_batches)
    if most > taken:
        raise ValueError(
            f"replay: {path} has rounds of {most} mini-batches, the config takes {taken}; "
            f"set config.mini_batches={most}"
        )
    there = 0 if schedule.matchings is None else schedule.matchings.shape[1]
    here = 0 if setting.links is None else len(setting.links.partners)
    if there != here:
        raise ValueError(
            f"replay: {path} was recorded with {there} matchings that come and go, the method "
            f"has {here}; replay it with the method and graph that it was recorded with"
        )
    rule = recorded(schedule)
    if rule.workers != setting.workers:
        raise ValueError(
            f"replay: {path} has {rule.workers} workers, the config asks for {setting.workers}; "
            f"set config.workers={rule.workers}"
        )
    return rule
