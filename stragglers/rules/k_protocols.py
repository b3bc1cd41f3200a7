"""The four protocols of "Slow and Stale Gradients": a server waits for k contributions.

Dutta, Joshi, Ghosh, Dube, Nagpurkar, arXiv 1803.01113. The server updates when k gradients have
been pushed. Two questions make four protocols:

    what a worker does after a push    idle until the update    begin another at once
    an update restarts everybody       k_sync                   k_batch_sync
    an update lets the others go on    k_async                  k_batch_async

k = P: k_sync is fully synchronous. k = 1: both asynchronous ones are Async-SGD. k_sync is SGD with
backup workers (1604.00981), k_batch_sync is Rennala SGD (2305.12387) with interruption. How old a
gradient may be is a third question, see `stragglers.rules.staleness`.

A contribution is `setting.mini_batches` mini-batches (a number, or one per worker): a gradient over
all of them, or as many local steps. `setting.communication` is in seconds, or a function of the
update, then scalar or [workers]. Bad values raise ValueError.
"""

from stragglers.event_clock import EventClock, Protocol
from stragglers.rule import Goal, Rule, Setting, Trigger
from stragglers.server_arrivals import Server

# Nothing of a server's rule is a constant of a compiled program, not even which of them it is.
ALL_DATA = ("name", "k", "limit", "interrupt")
K_SYNC, K_BATCH_SYNC = Protocol(True, 1, True), Protocol(False, 1, True)
K_ASYNC, K_BATCH_ASYNC = Protocol(True), Protocol(False)


def server_rule(name: str, setting: Setting, k: int, protocol: Protocol) -> Rule:
    """The rule of a server that updates on k contributions; name: for errors."""
    clock = EventClock(name, setting, k, protocol)
    return Rule(
        clock.workers,
        clock.init,
        clock.extend,
        asynchronous=clock.asynchronous,
        trigger=_trigger(clock) if protocol.cancels else None,
        arrivals=Server(protocol, k, clock.mini_batches).face(),
        data=ALL_DATA,
    )


def _trigger(clock: EventClock) -> Trigger:
    """Of a protocol in which an update restarts everybody: that is a round."""
    each, k = clock.mini_batches, clock.k
    goal = Goal(lambda finished: finished // each, k)
    # Who idles after its push takes one contribution, else one fast worker may push all k.
    most = each if clock.protocol.idle else k * each
    return Trigger(None, most, cuts=True, sees_all=False, whole=each, goal=goal)


def k_sync(setting: Setting, *, k: int) -> Rule:
    """The k fastest of all workers make an update; the others are cancelled.

    Communication delays everybody's restart after an update. Source: 1803.01113, K-sync.
    """
    return server_rule("k_sync", setting, k, K_SYNC)


def k_batch_sync(setting: Setting, *, k: int) -> Rule:
    """The first k contributions make an update, by whomever; what is in flight is cancelled.

    A worker that has pushed begins another at the same version. Communication as in `k_sync`.
    Source: 1803.01113, K-batch-sync.
    """
    return server_rule("k_batch_sync", setting, k, K_BATCH_SYNC)


def k_async(setting: Setting, *, k: int) -> Rule:
    """The first k workers to push make an update and go on from it; the others are let alone.

    Communication delays the restart of the k contributors. Source: 1803.01113, K-async.
    """
    return server_rule("k_async", setting, k, K_ASYNC)


def k_batch_async(setting: Setting, *, k: int) -> Rule:
    """Every k-th push makes an update; a worker that has pushed goes on from the newest version.

    Communication lies between a push and the start of the worker's next contribution. Source:
    1803.01113, K-batch-async.
    """
    return server_rule("k_batch_async", setting, k, K_BATCH_ASYNC)
