"""MindFlayer SGD: trials of a gradient that are given up after a time limit.

A. Maranjyan, O. Shaikh Omar, P. Richtarik, *MindFlayer SGD: Efficient Parallel SGD in the Presence
of Heterogeneous and Random Worker Compute Times*, arXiv 2410.04285, after the authors' code. In
every round worker i makes B_i trials, one after the other. A trial that takes longer than t_i
seconds is given up, and the next trial begins. The step is

    x <- x - rate / (sum_i p_i B_i) * (sum of the gradients that were ready in time)

with p_i the probability that a trial is ready in time. A limit pays if durations have a heavy tail:
see `trial_rate` and `best_limit` of `stragglers.theory`. Here all workers have one limit and
equally many trials, the M mini-batches of a round. A step takes the mean of the gradients that were
ready. The paper's step needs `batch_power=1` in the optimizer, and a rate over sum_i p_i B_i.
"""

from dataclasses import replace

import numpy as np

from stragglers import round_clock
from stragglers.processes import as_process
from stragglers.round_clock import ClockState, RoundClock
from stragglers.rule import Rule, Setting, per_round
from stragglers.rules.rounds import DATA
from stragglers.schedule import Schedule


def mindflayer(setting: Setting, *, seconds: float) -> Rule:
    """Give up mini-batches after `seconds`; wait for M trials of every worker (2410.04285).

    A round with g trials given up skips its last g mini-batches of samples. Bad values raise
    ValueError.
    """
    process = as_process(setting.delay)
    if process.costs is not None:
        raise ValueError(
            "mindflayer: durations belong to samples here, so that long ones would never be "
            "learnt; take a delay without costs of samples, or another rule"
        )
    if not process.shortest <= seconds < np.inf:
        raise ValueError(
            f"mindflayer: needs a finite limit of at least {process.shortest:g} s, the shortest "
            f"mini-batch, got seconds={seconds}; set a longer one"
        )
    whole, by_round = process.seeded(setting.seed), per_round("mindflayer", setting.draw)

    def bind(seed: int):
        draw = process.seeded(seed).duration
        return lambda worker, start, count: np.minimum(draw(worker, start, count), seconds)

    given_up = replace(process, bind=bind, draw=None, in_time=None, records=())
    clock = RoundClock(
        setting._replace(delay=given_up), round_clock.never, "all", "carry", "finish"
    )

    def extend(state: ClockState, updates: int) -> tuple[ClockState, Schedule]:
        after, rows = clock.extend(state, updates)
        worker, now = np.arange(clock.workers), rows.start
        done = np.zeros(rows.batches.shape, np.int32)
        t = np.arange(state.update, after.update)[:, None]
        for trial in range(clock.mini_batches):
            count = t if by_round else t * clock.mini_batches + trial
            took = whole.duration(worker, now, count)
            done += took <= seconds
            now = now + (0 if by_round else np.minimum(took, seconds))
        return after, replace(rows, batches=done)

    return Rule(clock.workers, clock.init, extend, data=DATA)
