"""ATA: tasks of a round are allocated to workers whose speeds are learnt, as arms of a bandit.

A. Maranjyan, E. M. Saad, P. Richtarik, F. Orabona, *ATA: Adaptive Task Allocation for Efficient
Resource Management in Distributed Machine Learning*, arXiv 2502.00775, after the authors' code. In
a round the workers compute B mini-batches (tasks), and the round ends with the last task. After k
rounds, let mu_i be the mean of worker i's K_i durations so far. Worker i gets a_i tasks, with

    s_i   <- max(0, mu_i - 4 e alpha (sqrt(c_i) + c_i)),    c_i = ln(2 k^2) / K_i
    a     <- the whole numbers of sum B that minimise max_i a_i s_i

alpha bounds the spread of a duration. The default is 2 mu_i, as in ATA-Empirical, whose bounds are
wide: s_i is 0 until worker i has done 515 ln(2 k^2) tasks, some thousands. While some s_i are 0,
the workers with s_i = 0 share all tasks evenly. A worker without a task so far gets one first.

Ties go to the worker with the fewest tasks so far, then to the lowest number; the authors draw
lots. A worker takes at most the M mini-batches of a full round. The greedy choice of the next
task's worker is optimal, as is the authors' recursion.
"""

import heapq
import math

import numpy as np

from stragglers import round_clock
from stragglers.round_clock import Learning, RoundClock, Signal
from stragglers.rule import Rule, Setting
from stragglers.rules.rounds import DATA
from stragglers.schedule import Schedule


def scores(seconds: np.ndarray, tasks: np.ndarray, k: int, alpha: float | None) -> np.ndarray:
    """Return lower bounds [P] of the workers' mean durations after k rounds; -inf without a task.

    seconds, tasks: [P], of all rounds so far. alpha: s, spread of a duration; None: twice the mean.
    """
    known = np.maximum(tasks, 1)
    mean, c = seconds / known, math.log(2 * max(k, 1) ** 2) / known
    spread = 2 * mean if alpha is None else alpha
    bound = mean - 4 * math.e * spread * (np.sqrt(c) + c)
    return np.where(tasks > 0, np.maximum(bound, 0.0), -np.inf)


def allocated(score: np.ndarray, tasks: np.ndarray, total: int, most: int) -> np.ndarray:
    """Return whole numbers a [P] up to `most`, of sum `total`, that minimise max_i a_i score_i.

    A worker of score -inf gets its first task before the others. Ties go to the fewest `tasks` [P].
    """
    given = np.zeros(score.size, np.int64)
    waiting = [(s, 0, n, i) for i, (s, n) in enumerate(zip(score, tasks, strict=True))]
    heapq.heapify(waiting)  # (a_i s_i with one more task, tasks this round, tasks so far, worker)
    for _ in range(total):
        _, _, before, i = heapq.heappop(waiting)
        given[i] += 1
        if given[i] < most:
            # After its first task a worker of unknown speed is taken for the slowest.
            after = np.inf if score[i] == -np.inf else (given[i] + 1) * score[i]
            heapq.heappush(waiting, (after, given[i], before + 1, i))
    return given


def ata(setting: Setting, *, tasks: int, alpha: float | None = None) -> Rule:
    """Share out `tasks` mini-batches a round by the durations so far, and wait for all of them.

    alpha: spread of a duration in seconds; a smaller alpha learns faster; None: twice the mean so
    far. Source: 2502.00775.
    """
    clock = RoundClock(setting, round_clock.never, "all", "carry", "finish")
    workers, most = clock.workers, clock.mini_batches
    if not 1 <= tasks <= workers * most:
        raise ValueError(
            f"ata: needs 1 <= tasks <= {workers * most} (workers x mini-batches), got {tasks}; "
            "set tasks in this range"
        )
    if alpha is not None and not 0 <= alpha < math.inf:
        raise ValueError(f"ata: needs alpha >= 0 in finite seconds, got {alpha}; leave it out")

    def signal_of(state: Learning) -> Signal:
        seconds, done = state.known  # [P] of all tasks so far, and their numbers
        share = allocated(scores(seconds, done, state.update, alpha), done, tasks, most)
        return lambda begin, ends: np.column_stack([begin, ends])[np.arange(workers), share]

    def learnt(known: tuple, row: Schedule) -> tuple[np.ndarray, np.ndarray]:
        seconds, done = known
        return seconds + row.busy[0], done + row.batches[0]

    nothing = np.zeros(workers), np.zeros(workers, np.int64)
    init, extend = clock.learning(nothing, signal_of, learnt)
    return Rule(workers, init, extend, data=(*DATA, "tasks", "alpha"))
