"""Workers under a server, without processes: the server's orders are carried out at once.

Their arrivals come in the order of a virtual clock, so that the rows equal the rule's plan.
"""

import heapq

import numpy as np
import pytest

from runtimes.asynchronous import runtime as asynchronous_runtime
from runtimes.asynchronous.server import Begin, ParameterServer, Stop
from runtimes.asynchronous.worker import AsynchronousWorker
from stragglers.processes import as_process
from stragglers.rule import most_mini_batches
from tests import planned
from tests.runtimes.free import LAW, N, parts, replayed
from tests.runtimes.toy import SAMPLES, X0

RULES = {
    "k_sync": {"k": 2},
    "k_batch_sync": {"k": 3},
    "k_async": {"k": 2},
    "k_batch_async": {"k": 2},
    "ringmaster": {"limit": 2, "interrupt": True},
    "rennala": {"k": 3},
    "k_async/grace": {"k": 1, "grace": 0.01},
    "quorum_async": {"k": 2, "gamma": 0.7},
}
GRACES = ("k_async/grace", "quorum_async")  # updates that wait on after their k-th push
REPEATING = ("k_batch_sync", "k_batch_async", "rennala")  # a worker may deliver twice in an update


class World:
    """A server and workers on a virtual clock, in which processes can be lost."""

    def __init__(self, method, wait, mini_batches=1, **knobs):
        built = parts(method, mini_batches, None)
        self.algorithm = built.algorithm
        self.rule = planned.rule(wait.split("/")[0], LAW, N, mini_batches, 3, **knobs)
        self.recipe, self._delay = lambda: built, as_process(LAW).seeded(3)
        self.server = ParameterServer(
            built.algorithm,
            self.rule.arrivals,
            X0,
            workers=N,
            mini_batches=most_mini_batches(mini_batches),
            batch_size=SAMPLES.batch_size,
        )
        self.workers = {who: self.process(who) for who in range(N)}
        self.queue, self.seconds = [], 0.0
        self.carry_out(self.server.begin(0.0))

    def process(self, who):
        worker = AsynchronousWorker(self.recipe, who)
        worker.ready(X0)
        return worker

    def carry_out(self, commands):
        for command in commands:
            if isinstance(command, Stop):
                self.workers[command.worker].interrupt(command.number)
                self.queue = [e for e in self.queue if e[1:3] != (command.worker, command.number)]
                heapq.heapify(self.queue)
            else:
                self.begin(command)

    def begin(self, command: Begin):
        order, now = command.order, self.seconds
        for step in range(order.batches):
            now += float(self._delay.duration(command.worker, now, order.attempt + step))
        params = self.server.point(command.worker, order)
        delivery = self.workers[command.worker].step(order, params)
        heapq.heappush(self.queue, (now, command.worker, order.number, delivery))

    def step(self):
        """To the next delivery, or to the time at which the server reacts without any."""
        if not self.queue or self.server.due < self.queue[0][0]:
            self.seconds = self.server.due
            self.carry_out(self.server.passed(self.seconds))
        else:
            self.seconds, who, _, delivery = heapq.heappop(self.queue)
            self.carry_out(self.server.arrived(who, delivery, self.seconds))

    def run(self, updates):
        while self.server.update < updates:
            self.step()
        return self.server.rows()

    def run_into_a_grace(self):
        """Until an update waits on for others, and has more than it needs; the rows until then."""
        while not (self.server.due > self.seconds and len(self.server._held) > 2):
            self.step()
        return self.server.rows()

    def lose(self, who):
        """The process of a worker goes, and another one comes at once."""
        self.queue = [event for event in self.queue if event[1] != who]
        heapq.heapify(self.queue)
        self.server.lost(who, self.seconds)
        self.workers[who] = self.process(who)
        self.carry_out(self.server.returned(who, self.seconds))


def difference(world, method, schedule, mini_batches):
    """Between the parameters of the server and of a simulated replay, relative."""
    simulator = replayed(method, schedule, mini_batches)
    run, _ = simulator.advance(simulator.start(X0), np.inf)
    ours, theirs = world.server.state.params, np.asarray(simulator.models(run))[0]
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def fitting(method, wait, mini_batches):
    """A world of the method under one of `RULES`; skips the test where they do not go together."""
    world = World(method, wait, mini_batches, **RULES[wait])
    reason = asynchronous_runtime.misfit(world.algorithm, world.rule, X0, mini_batches)
    if reason is not None:
        pytest.skip(reason)
    return world


def same_rows(schedule, plan):
    width = schedule.workers.shape[1]
    assert (plan.batches[:, width:] == 0).all()
    np.testing.assert_allclose(schedule.time, plan.time, atol=1e-9)
    for column in ("workers", "batches", "first", "version"):
        planned = getattr(plan, column)[:, :width]
        np.testing.assert_array_equal(getattr(schedule, column), planned, err_msg=column)
    for column in ("start", "finish"):
        planned = getattr(plan, column)[:, :width]
        np.testing.assert_allclose(getattr(schedule, column), planned, atol=1e-9, err_msg=column)
