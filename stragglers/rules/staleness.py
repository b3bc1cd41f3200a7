"""Asynchronous SGD that does without gradients which are too old.

A gradient that is `limit` updates old when it is pushed does not count, and its worker goes on from
the newest version. It is ignored then, which costs the time until it is pushed, or its worker is
interrupted as soon as it is so old. Settings and times are as in `stragglers.rules.k_protocols`.
"""

from stragglers.event_clock import ANY_AGE, Protocol
from stragglers.rule import Rule, Setting
from stragglers.rules.k_protocols import server_rule


def rennala(setting: Setting, *, k: int, interrupt: bool = False) -> Rule:
    """k contributions at the newest version make an update, by whomever (arXiv 2305.12387).

    What is in flight at an update is ignored when it is pushed; interrupt=True: it is cancelled,
    which is `k_batch_sync`.
    """
    return server_rule("rennala", setting, k, Protocol(False, 1, interrupt))


def ringmaster(setting: Setting, *, limit: int, interrupt: bool = False, k: int = 1) -> Rule:
    """Async-SGD without gradients that are `limit` or more updates old (arXiv 2501.16168).

    interrupt: their workers begin anew as soon as they are so old. A large limit is
    `k_batch_async`, limit 1 is `rennala`.
    """
    if limit < 1:
        raise ValueError(f"ringmaster: needs limit >= 1 updates, got {limit}; 1 allows no delay")
    return server_rule("ringmaster", setting, k, Protocol(False, min(limit, ANY_AGE), interrupt))
