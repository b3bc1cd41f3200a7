"""The loop of a server whose workers are scripted, on a clock that moves as the loop waits."""

import heapq
import queue

import pytest

from runtimes import serving
from runtimes.crew import News
from runtimes.free_worker import FreeWorker
from runtimes.overseer import Options
from runtimes.parameter_server import ParameterServer
from stragglers.processes import as_process
from stragglers.rule import whole
from tests import planned
from tests.runtimes.free import LAW, N, parts, used_once
from tests.runtimes.toy import SAMPLES, X0
from tests.runtimes.world import GRACES, RULES, same_rows


class Script:
    """A crew, and its queue of news: members deliver after the seconds that the law says."""

    def __init__(self, over):
        """over: () -> whether nobody is to say anything any more."""
        self.news, self.now, self._over, self._events = self, 0.0, over, []
        self.waits = []  # s for which the loop would have waited at most
        self._delay = as_process(LAW).seeded(3)
        self._workers = [FreeWorker(lambda: parts("local_sgd", 1, None), who) for who in range(N)]
        for worker in self._workers:
            worker.ready(X0)

    def call(self, member, method, order, params, tag):
        assert (method, tag) == ("step", "order")
        lasts = float(self._delay.duration(member, self.now, order.attempt))
        delivery = self._workers[member].step(order, params)
        news = News(member, "answer", delivery, tag)
        heapq.heappush(self._events, (self.now + lasts, member, news))

    def get(self, timeout):
        self.waits.append(timeout)
        if not self._over():
            if self._events and self._events[0][0] <= self.now + timeout:
                self.now, _, news = heapq.heappop(self._events)
                return news
            self.now += timeout
        raise queue.Empty

    def submit(self, call, *arguments):
        """Of the thread that talks to the workers: at once."""
        call(*arguments)


class Loop(serving.Serving):
    """A server's loop until an update, in the thread of the test."""

    def __init__(self, server, updates):
        super().__init__(server, X0, Options())
        self._sender.shutdown()
        self._crew = self._sender = Script(self._ends)
        self._updates, self.limit = updates, float("inf")

    def now(self):
        return self._crew.now

    def _ends(self):
        self._closing = self._server.update >= self._updates
        return self._closing

    def run(self):
        self._alive.update(range(N))
        for command in list(self._server.begin(0.0)):
            self._send(command)
        self._watch()
        if self.error is not None:
            raise self.error
        return self._server.rows()


@pytest.mark.parametrize("wait", GRACES)
def test_an_update_is_made_as_its_grace_ends_though_nobody_pushes(wait, monkeypatch):
    """The loop wakes in time, and what it makes of news and of time is what is planned."""
    monkeypatch.setattr(serving, "_put", lambda params: params)
    rule = planned.rule(wait.split("/")[0], LAW, N, 1, 3, **RULES[wait])
    method = parts("local_sgd", 1, None).algorithm
    numbers = {"workers": N, "mini_batches": 1, "batch_size": SAMPLES.batch_size}
    loop = Loop(ParameterServer(method, rule.arrivals, X0, **numbers), 40)
    schedule = loop.run()
    same_rows(schedule, whole(rule, schedule.updates))
    used_once(schedule, 1)
    counts = (schedule.batches > 0).sum(axis=1)
    assert (counts < N).sum() > 5 and counts.max() > RULES[wait]["k"]
    assert min(loop._crew.waits) >= 0
