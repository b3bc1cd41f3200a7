"""Four protocols of "Slow and Stale Gradients": a server waits for k contributions.

Dutta, Joshi, Ghosh, Dube, Nagpurkar, arXiv 1803.01113. The server updates when k gradients have
been pushed. Two choices make four protocols:

    after its push a worker            is idle until the update    begins another at once
    an update restarts all workers     k_sync                      k_batch_sync
    an update lets the others go on    k_async                     k_batch_async

k = P: k_sync is fully synchronous. k = 1: both asynchronous ones are Async-SGD. k_sync is SGD with
backup workers (1604.00981), k_batch_sync is Rennala SGD (2305.12387) with interruption. The largest
staleness of a gradient is a third choice, see `rennala` and `ringmaster`. A fourth is a grace, in
which an update waits on for workers that are nearly there: in `k_async` for some seconds, in
`quorum_async` for as long as it keeps no worker waiting.

A contribution is `setting.mini_batches` mini-batches (a number, or one per worker): a gradient over
all of them, or as many local steps. `setting.communication` is in seconds, or a function of the
update, then scalar or [workers]. Bad values raise ValueError.
"""

import math

from stragglers.rule import Goal, Rule, Setting, Trigger
from stragglers.server_clock import ANY_AGE, EventClock, GraceServer, Protocol, Server

# A compiled program has nothing of a server's rule as a constant, not even its name.
ALL_DATA = ("name", "k", "limit", "interrupt", "gamma", "grace")
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
            None, most, cuts=True, sees_all=False, whole=each, goal=goal, renews=clock.renews
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

    Communication delays the restart of all workers after an update. Source: 1803.01113, K-sync.
    """
    return server_rule("k_sync", setting, k, K_SYNC)


def k_batch_sync(setting: Setting, *, k: int) -> Rule:
    """Update with the first k contributions, by any workers, and cancel those in flight.

    A worker that has pushed begins another at the same version. Communication as in `k_sync`.
    Source: 1803.01113, K-batch-sync.
    """
    return server_rule("k_batch_sync", setting, k, K_BATCH_SYNC)


def k_async(setting: Setting, *, k: int, grace: float = 0.0) -> Rule:
    """Update with the first k workers to push, which go on from it; the others are let alone.

    grace: seconds for which an update waits on after the k-th push, and takes along further pushes
    (2401.09135); it is made at once when all workers have pushed. Communication delays the restart
    of the contributors. Source: 1803.01113, K-async.
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
    """Update with k workers, and all that push before the first of them is nearly back.

    A worker that has pushed goes on at once, without this update: it reads the newest version when
    it pushes, and no worker waits for another. The first of an update's workers will push again
    after about the seconds of its last contribution. At the k-th push some of these are left, and
    the update waits for the share `gamma` of them, and for `grace` seconds at most. So a worker
    that is less late than that comes along, and no time is lost by it: at the latest the update is
    made when any of its workers is back. Only if the k-th worker is slower still, a worker that is
    back waits until the update is made, as it is in an update only once. Where workers are
    processes, a contribution lasts from its order to its delivery on the server's clock.

    After Decoupled DiLoCo, arXiv 2604.21428, whose Eq. 3, as others' code quotes it, grants
    gamma (tau xi_step - xi_quorum - xi_sync). tau xi_step are the seconds of the local steps that
    hide an exchange, here all of a contribution; xi_quorum are the seconds of the quorum. xi_sync,
    the seconds of the exchange itself, is left out, so that this grace is longer by gamma xi_sync.
    Communication lies between a push and the worker's next contribution.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"quorum_async: needs 0 <= gamma <= 1, got {gamma}; 1 is all that is left")
    if not grace > 0:
        raise ValueError(f"quorum_async: needs grace > 0 s, got {grace}; gamma=0 grants none")
    protocol = K_BATCH_ASYNC._replace(grace=float(grace), share=float(gamma))
    return server_rule("quorum_async", setting, k, protocol)


def rennala(setting: Setting, *, k: int, interrupt: bool = False) -> Rule:
    """Update with k contributions at the newest version, by any workers (arXiv 2305.12387).

    Contributions in flight at an update are ignored when they are pushed; interrupt=True: they are
    cancelled, which is `k_batch_sync`.
    """
    return server_rule("rennala", setting, k, Protocol(False, 1, interrupt))


def ringmaster(setting: Setting, *, limit: int, interrupt: bool = False, k: int = 1) -> Rule:
    """Run Async-SGD without gradients of a staleness of `limit` or more (arXiv 2501.16168).

    interrupt: their workers begin anew as soon as they have this staleness. A large limit is
    `k_batch_async`, limit 1 is `rennala`.
    """
    if limit < 1:
        raise ValueError(f"ringmaster: needs limit >= 1 updates, got {limit}; 1 allows no delay")
    return server_rule("ringmaster", setting, k, Protocol(False, min(limit, ANY_AGE), interrupt))
