"""The watchdog of processes that are alive but stand still, as when an input reader hangs.

A thread of each process publishes the phase of the process in JAX's coordination service, about
once a second. A process that has waited for long reads the phases of all processes. Then it prints
for which process the run waits, and at last ends the run. A look adds only a few seconds to a wait,
so that a program does not count as late after the program was stopped or its host slept.
"""

import contextlib
import json
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax

from experiments import distributed, endings
from runtimes import phases

PLACE = "gossax/phases"
LOOK = 1.0  # s between two looks, and another second for every hundred processes
LONGEST = 7.0  # s between two looks; JAX gives up on a process only after four of these
PATIENCE = 60.0  # s in one phase before the waiting processes print for whom they wait
ASKED = 5.0  # s in place of PATIENCE after a signal has asked the run to end
SILENCE = 15.0  # s without news of a process; JAX gives up on a process after 30 s
TIMES_MEDIAN = 5  # patience in multiples of the median time of a dispatch
SILENT = "does not answer; it was stopped, or its host or link has gone"
WAITING = {phases.DEVICES, phases.OTHERS}  # phases that another process may prolong
WATCHED = WAITING | {phases.INPUT, phases.CALLBACK}
EXCUSED = {phases.COMPILING, phases.DELAY}  # phases that may take any time
HANGING = {phases.INPUT, phases.CALLBACK, SILENT}  # phases that never lead to a checkpoint


def pause() -> float:
    """Return the seconds between two looks of a process."""
    return min(LOOK * (1 + distributed.processes() // 100), LONGEST)


def silence() -> float:
    """Return the seconds without news after which a process is SILENT, at least three looks."""
    return max(SILENCE, 3 * pause())


class State(NamedTuple):
    """The published state of a process."""

    dispatches: int  # the dispatches that have ended
    update: int
    phase: str
    seconds: float  # the time since its last progress
    host: str = ""


def standing(
    states: Mapping[int, State], patience: float, slow: float = 0.0, timed: bool = True
) -> tuple[str, list[int]] | None:
    """Return (a sentence, the processes that it names) if a run stands still, else None.

    patience: seconds that a process may stay in its phase. slow: the least patience with phases
    such as evaluation. timed: whether dispatches have been timed; else devices may take any time.
    """
    fewest = min(state.dispatches for state in states.values())
    last = {p: s for p, s in states.items() if s.dispatches == fewest or s.phase == SILENT}
    behind = {p: state for p, state in last.items() if state.phase not in WAITING}
    if not (behind or timed):
        return None
    if not behind and len(last) == len(states) > 1:
        seconds = min(state.seconds for state in states.values())
        update = max(state.update for state in states.values())
        sentence = (
            f"all {len(states)} processes have waited for each other for {seconds:.0f} s after "
            f"update {update}, and none is behind: a device or the network stands still"
        )
        return (sentence, []) if seconds > patience else None
    sentences, named = [], []
    for p, state in (behind or last).items():
        most = patience if state.phase in HANGING | WAITING else max(patience, slow)
        if state.phase in EXCUSED or state.seconds <= most:
            continue
        who = "this process"
        if len(states) > 1:
            who = f"process {p} of {len(states)}" + (f" ({state.host})" if state.host else "")
        after = f" after update {state.update}" if state.dispatches else ""
        named.append(p)
        sentences.append(
            f"{who} has stood still for {state.seconds:.0f} s{after}: it {state.phase}"
        )
    more = [f"{len(named) - 3} others stand still, too"] if len(named) > 3 else []
    return ("; ".join(sentences[:3] + more), named) if named else None


class _Watch:
    """The watchdog of one process."""

    def __init__(self, seconds: float):
        self._end, self._last, self._late = seconds, time.monotonic(), 0.0
        self._patience = min(PATIENCE, seconds / 2) if seconds else PATIENCE
        self._at: tuple = ()
        self._heard: dict[int, tuple[str, float]] = {}  # process -> (its words, their age [s])
        self._warned = False

    def look(self) -> None:
        """Publish the phase of this process; warn of a standstill, and end the run if it lasts."""
        phase, now, me = phases.now(), time.monotonic(), distributed.process_id()
        passed, self._last = min(now - self._last, 2 * pause()), now
        at = (phase.what, phase.steps)
        self._late = self._late + passed if at == self._at else 0.0
        self._warned, self._at = self._warned and self._late > 0, at
        mine = State(phase.dispatches, phase.update, phase.what, self._late, platform.node())
        if distributed.processes() > 1:
            words = json.dumps([*mine, now])  # never the same twice
            distributed.say(f"{PLACE}/{me}", words, again=True)
        dispatch = TIMES_MEDIAN * (phase.median or 0.0)
        if phase.what == phases.DELAY and self._late > max(SILENCE, dispatch):
            self._end_if_asked(f"it {phases.DELAY}")
        if phase.what not in WATCHED or self._late <= min(ASKED, SILENCE, self._patience):
            self._heard.clear()
            return
        states = self._others(passed) | {me: mine}
        usual, timed = max(self._patience, dispatch), phase.median is not None
        if self._late > max(ASKED, dispatch):
            found = standing(states, max(ASKED, dispatch), usual, timed)
            if found:
                self._end_if_asked(found[0])
        found = standing(states, usual, timed=timed) if self._late > usual else None
        if found is None:
            answering = {p: s._replace(seconds=0.0) for p, s in states.items() if s.phase != SILENT}
            found = standing(states | answering, silence())
        if found is None:
            return
        sentence, named = found
        if not self._warned and (me in named or me == min(states.keys() - named, default=me)):
            when = f"after {self._end:g} s (--stuck_seconds)" if self._end else "never of itself"
            print(f"warning: {sentence}; the run ends {when}", file=sys.stderr, flush=True)
        self._warned = True
        if self._end and self._late > max(self._end, usual):
            distributed.give_up(distributed.DEAD, sentence)

    def _end_if_asked(self, why: str) -> None:
        """End the run without a checkpoint if a signal has asked for its end; why: the reason."""
        number = distributed.signalled() if endings.is_deferred() else None
        if number is None:
            return
        how = endings.sentence(number).partition(";")[0]
        distributed.give_up(
            endings.code(number),
            f"{how} without a new checkpoint, as {why}; the same command goes on from the last one",
        )

    def _others(self, passed: float) -> dict[int, State]:
        """Return the published states; a process without news for `silence()` s is SILENT."""
        states, count = {}, distributed.processes()
        published = distributed.texts(PLACE) if count > 1 else {}
        for p in range(count):
            words = published.get(f"{PLACE}/{p}", "")
            before, seconds = self._heard.get(p, (words, 0.0))
            seconds = seconds + passed if words == before else 0.0
            self._heard[p] = words, seconds
            state = State(*json.loads(words)[:-1]) if words else State(0, 0, phases.PREPARING, 0.0)
            silent = state._replace(phase=SILENT, seconds=seconds)
            states[p] = silent if seconds > silence() else state
        return states


@contextlib.contextmanager
def watching(seconds: float) -> Iterator[None]:
    """Watch the run within this context; print warnings, and end a standstill with exit code 3.

    seconds: the standstill that ends the run, at least five median dispatches; 0: never.
    """
    over, watch = threading.Event(), _Watch(seconds)

    def work() -> None:
        while not over.wait(pause()):
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # JAX itself reports it
                if not distributed.is_joining():
                    watch.look()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2)
