"""Asynchronous SGD without gradients of too large staleness.

A gradient of staleness `limit` at its push does not count, and its worker goes on from the newest
version. It is ignored then, which costs the time until its push, or its worker is interrupted as
soon as it has this staleness. Settings and times are as in `stragglers.rules.k_protocols`.
"""

from stragglers.event_clock import ANY_AGE, Protocol
from stragglers.rule import Rule, Setting
from stragglers.rules.k_protocols import server_rule


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
