"""Waiting rules of a server: the four protocols of "Slow and Stale Gradients", and their relatives.

Dutta, Joshi, Ghosh, Dube, Nagpurkar, arXiv 1803.01113. The server updates when k gradients have
been pushed. Two choices make four protocols:

    after its push a worker            is idle until the update    begins another at once
    an update restarts all workers     k_sync                      k_batch_sync
    an update lets the others go on    k_async                     k_batch_async

With k = P, k_sync is fully synchronous. With k = 1, both asynchronous protocols are Async-SGD.
k_sync is SGD with backup workers (1604.00981), k_batch_sync is Rennala SGD (2305.12387) with
interruption. A third choice is the largest staleness of a gradient, see `rennala` and `ringmaster`.
A fourth is a grace after the k-th push, in which an update takes further pushes: some seconds in
`k_async`, and as long as no worker waits for the update in `quorum_async`.

A contribution is `setting.mini_batches` mini-batches (a number, or one per worker): a gradient over
all of them, or as many local steps. `setting.communication` is in seconds, scalar or [workers], or
a function from the update to these. Bad values raise ValueError.

AdaSync waits for few gradients while the loss is high, and for more as it falls.

Dutta, Wang, Joshi, *Slow and Stale Gradients Can Win the Race*, arXiv 2003.10579. Over an interval
at a fixed rate, the error has a bound of two terms: F E[T(K)], for loss F and an update of T(K) s,
and c / K for noise. At the start of every interval the rule takes the K that minimises the bound.
With c such that K_0 is best at the initial loss F_0, rate, smoothness and variance cancel out.

    k_batch_sync, k_batch_async    K = K_0 sqrt(F_0 / F), as E[T(K)] is proportional to K
    k_sync, k_async, iid delays    the minimiser over the table of E[T(K)] = E[X_{K:P}]
    k_sync, k_async, otherwise     E[X_{K:P}] ~ log(P / (P - K)) of exponential durations, solved
"""

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from stragglers.delays import Law
from stragglers.order_statistics import sums_means
from stragglers.rule import AsyncProtocol, Decision, Goal, Rule, Setting, Trigger
from stragglers.schedule import Schedule, concatenate
from stragglers.server_clock import ANY_AGE, EventClock, GraceServer, Protocol, Server

# No parameter of a server's rule, not even the rule's name, is a constant of a compiled program.
ALL_DATA = ("name", "k", "limit", "interrupt", "gamma", "grace", "grows")
K_SYNC, K_BATCH_SYNC = Protocol(True, 1, True), Protocol(False, 1, True)
K_ASYNC, K_BATCH_ASYNC = Protocol(True), Protocol(False)


def server_rule(name: str, setting: Setting, k: int, protocol: Protocol) -> Rule:
    """Return the rule of a server that updates on k contributions; name: for errors."""
    clock = EventClock(name, setting, k, protocol)
    server = GraceServer if protocol.waits_on else Server
    trigger, each = None, clock.mini_batches
    if protocol.cancels:  # an update restarts all workers, as a round does
        # A worker that idles after its push takes one contribution, else a fast one may push all k.
        most, goal = each if protocol.idle else k * each, Goal(lambda finished: finished // each, k)
        trigger = Trigger(
            None,
            most,
            cuts=True,
            sees_all=False,
            whole=each,
            goal=goal,
            renews=clock.renews,
            everywhere=True,
        )
    return Rule(
        clock.workers,
        clock.init,
        clock.extend,
        asynchronous=clock.asynchronous,
        trigger=trigger,
        arrivals=server(protocol, k, each).face(),
        data=ALL_DATA,
        turnout=clock.turnout(k, k),
    )


def k_sync(setting: Setting, *, k: int) -> Rule:
    """Update with the k fastest of all workers, and cancel the others.

    The update is made at the k-th end of computing and does not wait for the bytes of pushes. After
    the update every worker restarts after the seconds of its own communication. Source: 1803.01113,
    K-sync.
    """
    return server_rule("k_sync", setting, k, K_SYNC)


def k_batch_sync(setting: Setting, *, k: int) -> Rule:
    """Update with the first k contributions, of any workers, and cancel contributions in flight.

    A worker that has pushed begins another contribution at the same version. Communication is as in
    `k_sync`. Source: 1803.01113, K-batch-sync.
    """
    return server_rule("k_batch_sync", setting, k, K_BATCH_SYNC)


def k_async(setting: Setting, *, k: int, grace: float = 0.0) -> Rule:
    """Update with the first k workers to push; these restart from the update, the others go on.

    grace: seconds after the k-th push in which the update takes further pushes (2401.09135); the
    update is made at once when all workers have pushed. Communication delays the restart of the
    contributors. Source: 1803.01113, K-async.
    """
    if not 0 <= grace < math.inf:
        raise ValueError(f"k_async: needs grace >= 0 in finite seconds, got {grace}; 0 is none")
    return server_rule("k_async", setting, k, K_ASYNC._replace(grace=float(grace)))


def k_batch_async(setting: Setting, *, k: int) -> Rule:
    """Update at every k-th push; a worker that has pushed goes on from the newest version.

    Communication lies between a push and the start of the worker's next contribution. Source:
    1803.01113, K-batch-async.
    """
    return server_rule("k_batch_async", setting, k, K_BATCH_ASYNC)


def quorum_async(setting: Setting, *, k: int, gamma: float = 0.5, grace: float = math.inf) -> Rule:
    """Update with the first k workers to push, and with workers that push in a grace after them.

    A worker that has pushed goes on at once from the newest version, without this update, and waits
    for no other worker. The first worker of an update is expected to push again after the seconds
    of its last contribution. At the k-th push some of these seconds are left. The update waits for
    the share `gamma` of them, for `grace` seconds at most, and takes the pushes in that time. The
    wait costs no time: the update is made at the latest when any of its workers is back. Only a
    worker that is back before the k-th push waits for the update, as a worker is in an update only
    once. If workers are processes, a contribution lasts from its order to its delivery on the
    server's clock.

    The grace follows Decoupled DiLoCo, arXiv 2604.21428, whose Eq. 3, as others' code quotes it, is
    gamma (tau xi_step - xi_quorum - xi_sync). tau xi_step are the seconds of the local steps that
    hide an exchange, here of a whole contribution. xi_quorum are the seconds of the quorum.
    xi_sync, the seconds of the exchange itself, is left out, so that this grace is longer by gamma
    xi_sync. Communication lies between a push and the worker's next contribution.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"quorum_async: needs 0 <= gamma <= 1, got {gamma}; 1 is all that is left")
    if not grace > 0:
        raise ValueError(f"quorum_async: needs grace > 0 s, got {grace}; gamma=0 grants none")
    protocol = K_BATCH_ASYNC._replace(grace=float(grace), share=float(gamma))
    return server_rule("quorum_async", setting, k, protocol)


def rennala(setting: Setting, *, k: int, interrupt: bool = False) -> Rule:
    """Update with k contributions at the newest version, of any workers (arXiv 2305.12387).

    Contributions in flight at an update are ignored when they are pushed. With interrupt=True they
    are cancelled at the update, which is `k_batch_sync`.
    """
    return server_rule("rennala", setting, k, Protocol(False, 1, interrupt))


def ringmaster(
    setting: Setting, *, limit: int, interrupt: bool = False, k: int = 1, grows: bool = False
) -> Rule:
    """Run Async-SGD without gradients of a staleness of `limit` or more (arXiv 2501.16168).

    interrupt: a worker begins anew as soon as its gradient has this staleness. A large limit is
    `k_batch_async`, limit 1 is `rennala`. grows: after t updates the limit is sqrt(t - 1), rounded
    down, if that is more (Ringmaster LMO, arXiv 2605.18174, as in the authors' code, where the rate
    falls with t^(-3/4) and the momentum is 1 - t^(-1/2)); with limit=1 nothing is left to choose.
    """
    if limit < 1:
        raise ValueError(f"ringmaster: needs limit >= 1 updates, got {limit}; 1 allows no delay")
    protocol = Protocol(False, min(limit, ANY_AGE), interrupt, grows=grows)
    return server_rule("ringmaster", setting, k, protocol)


PROTOCOLS = {
    "k_sync": K_SYNC,
    "k_batch_sync": K_BATCH_SYNC,
    "k_async": K_ASYNC,
    "k_batch_async": K_BATCH_ASYNC,
}


class AdaState(NamedTuple):
    """State of an adaptive rule."""

    protocol: Any  # state of the protocol's clock, or of its server
    k: int  # the newest
    first_loss: float  # initial loss above the lowest one; nan before it is known
    next_choice: float  # s, begin of the next choice of k
    earlier: tuple[tuple[float, int], ...] = ()  # (s, k) that holds for pushes up to these seconds

    update = property(lambda self: self.protocol.update)


def exponential_k(workers: int, k: int) -> Callable[[float], float]:
    """Return the function F_0 / F -> K for E[T(K)] ~ log(P / (P - K)): K^2 / (P - K) ~ F_0 / F."""

    def chosen(ratio: float) -> float:
        if k == workers:
            return k
        a = k**2 / (workers - k) * ratio
        # The root (-a + sqrt(a^2 + 4 a P)) / 2 without the cancellation for a large a.
        return 2 * workers / (1 + math.sqrt(1 + 4 * workers / a))

    return chosen


def tabled_k(law: Law, workers: int, k: int, mini_batches: int = 1) -> Callable[[float], float]:
    """Return the function F_0 / F -> K in 1..P that minimises F E[X_{K:P}] + c / K, for any law.

    X is the time of `mini_batches` mini-batches. With F_0 / F = 1, K is k, unless k is best for no
    c, as where a longer wait hardly takes longer. Raises ValueError if E[X_{k:P}] is infinite, and
    for sums of durations with too heavy a tail.
    """
    try:
        seconds = sums_means(law, workers, mini_batches)
    except ValueError as error:
        raise ValueError(
            f"adasync: the tail of {law} is too heavy for the mean times of {mini_batches} "
            "mini-batches; set mini_batches=1, or protocol=k_batch_sync or k_batch_async"
        ) from error
    finite = np.isfinite(seconds)
    ks = np.arange(1, workers + 1)
    if not finite[k - 1]:
        raise ValueError(
            f"adasync: the k={k}-th of {workers} durations {law} has no mean; set k to at most "
            f"{finite.sum()}"
        )
    # Equal times differ by rounding if they are times of sums.
    seconds = np.where(np.isclose(seconds, seconds[k - 1], 1e-12, 0), seconds[k - 1], seconds)
    # K_0 is the minimiser at F_0 = 1 for every c between these two; the last K is for any large c.
    weights = ks * k / np.maximum(abs(ks - k), 1)  # 1 / |1 / K - 1 / K_0|
    bounds = weights * (seconds - seconds[k - 1])
    low = float(np.max(-bounds[: k - 1], initial=0.0))
    last = k == workers or not finite[k]
    high = 2 * low if last else float(np.min(bounds[k:]))
    c = (low + high) / 2 or 1.0  # where waiting for more takes no longer, any c leads to all

    def chosen(ratio: float) -> float:
        error = np.where(finite, seconds, np.inf) / ratio + c / ks
        return float(ks[np.argmin(error)])

    return chosen


def adasync(
    setting: Setting,
    *,
    protocol: Literal["k_sync", "k_batch_sync", "k_async", "k_batch_async"],
    interval: float,
    k: int = 1,
    lowest_loss: float = 0.0,
) -> Rule:
    """Run one of the four protocols with a K that follows the loss (2003.10579).

    protocol: k_sync, k_batch_sync, k_async or k_batch_async; interval: seconds for which a K holds;
    k: K_0, the K at the beginning; lowest_loss: lower limit of the training loss. K is rounded and
    lies in 1..P. A row has the K of its last push. Bad values raise ValueError.
    """
    workers = setting.workers
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"adasync: unknown protocol {protocol!r}; choose one of {', '.join(PROTOCOLS)}"
        )
    if not 0 < interval < math.inf:
        raise ValueError(f"adasync: needs interval > 0, got {interval}; set it in seconds")
    if not math.isfinite(lowest_loss):
        raise ValueError(f"adasync: needs a finite lowest_loss, got {lowest_loss}; 0 is usual")
    if not 1 <= k <= workers:
        raise ValueError(f"adasync: needs 1 <= k <= {workers} workers, got k={k}; set k in it")
    clock = EventClock("adasync", setting, k, PROTOCOLS[protocol])
    if not clock.protocol.idle:

        def chosen(ratio: float) -> float:
            return k * math.sqrt(ratio)

    elif isinstance(setting.delay, Law) and len(set(clock.mini_batches.tolist())) == 1:
        chosen = tabled_k(setting.delay, workers, k, int(clock.mini_batches[0]))
    else:
        chosen = exponential_k(workers, k)
    return _Adaptive(clock, chosen, interval, lowest_loss).rule()


class _Adaptive:
    """Protocol whose K is a part of its state.

    chosen: function F_0 / F -> K, before rounding.
    """

    def __init__(
        self, clock: EventClock, chosen: Callable[[float], float], interval: float, lowest: float
    ):
        self._clock, self._chosen = clock, chosen
        self._interval, self._lowest = interval, lowest
        self._server = Server(clock.protocol, clock.k, clock.mini_batches)

    def rule(self) -> Rule:
        """Return the rule, with its plan and its reactions to arrivals."""
        return Rule(
            self._clock.workers,
            lambda: self._begun(self._clock.init()),
            self.extend,
            asynchronous=self._clock.asynchronous,
            observe=self.planned,
            arrivals=AsyncProtocol(
                lambda: self._begun(self._server.init()),
                self.on_arrival,
                lambda state, worker: self._server.mini_batches(state.protocol, worker),
                self.begun,
                self.observe,
            ),
            data=(*ALL_DATA, "protocol", "interval", "lowest_loss"),
            turnout=self._clock.turnout(1, self._clock.workers),
        )

    def _begun(self, protocol) -> AdaState:
        return AdaState(protocol, self._clock.k, math.nan, self._interval)

    def extend(self, state: AdaState, updates: int) -> tuple[AdaState, Schedule]:
        """Return the next state and `updates` rows; an update has the K of its last push."""
        rows = []
        while state.earlier and len(rows) < updates:
            size = self._size(state)
            pushed = self._pushed(state, size)
            after, row = self._clock.extend(state.protocol, 1, k=size)
            still = tuple(one for one in state.earlier if one[0] > pushed)
            state = state._replace(protocol=after, earlier=still)
            rows.append(row)
        after, rest = self._clock.extend(state.protocol, updates - len(rows), k=state.k)
        return state._replace(protocol=after), concatenate([*rows, rest]) if rows else rest

    def _size(self, state: AdaState) -> int:
        """Return the contributions of the next update: it is made by the push that brings K."""
        held = 0  # pushes before the present K
        for until, k in state.earlier:
            size = max(k, held + 1)
            if self._pushed(state, size) <= until:
                return size
            held += bisect.bisect_right(
                range(held + 1, size), until, key=functools.partial(self._pushed, state)
            )
        return max(state.k, held + 1)

    def _pushed(self, state: AdaState, k: int) -> float:
        """Return the time [s] of the k-th push for the next update."""
        row = self._clock.extend(state.protocol, 1, k=k)[1]
        return float((row.start + row.busy).max())  # in `k_batch_sync` all are busy until then

    def on_arrival(self, state: AdaState, worker: int, version: int, now: float) -> Decision:
        """Return the protocol's decision, with the K of the state."""
        decision = self._server.on_arrival(state.protocol, worker, version, now, k=state.k)
        return decision._replace(state=state._replace(protocol=decision.state))

    def begun(self, state: AdaState, worker: int, version: int, now: float) -> AdaState:
        """Return the state in which the worker has begun anew at this version."""
        return state._replace(protocol=self._server.begun(state.protocol, worker, version, now))

    def planned(self, state: AdaState, seconds: float, loss: float) -> AdaState:
        """Choose K as `observe` does, for a plan, where earlier pushes keep their K."""
        new = self.observe(state, seconds, loss)
        if new.k == state.k:
            return new
        return new._replace(earlier=(*state.earlier, (seconds, state.k)))

    def observe(self, state: AdaState, seconds: float, loss: float) -> AdaState:
        """Record the first loss; once the interval is over, choose K anew by a later loss."""
        loss = loss - self._lowest
        if not math.isfinite(loss):
            return state
        if math.isnan(state.first_loss):
            if loss <= 0:
                raise ValueError(
                    f"adasync: training begins at a loss of {loss + self._lowest:g}, not above "
                    f"lowest_loss={self._lowest:g}; set lowest_loss to what the loss tends to"
                )
            return state._replace(first_loss=loss)
        if seconds < state.next_choice:
            return state
        passed = self._interval * (1 + seconds // self._interval)
        ratio = state.first_loss / loss if loss > 0 else math.inf
        most = self._clock.workers
        new = most if math.isinf(ratio) else min(max(round(self._chosen(ratio)), 1), most)
        return state._replace(k=new, next_choice=passed)
