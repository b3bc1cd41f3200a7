"""Asynchronous SGD that does without gradients which are too old.

A gradient that is `limit` updates old when it is pushed does not count, and its worker goes on
from the newest version.  It can be ignored then, which costs the time until it is pushed, or its
worker can be interrupted as soon as it is so old.  Rows and times are those of `stragglers.events`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from stragglers.events import protocol
from stragglers.rule import Rule, whole
from stragglers.schedule import Schedule


def _rennala(
    delay, workers, mini_batches, seed, *, k: int, interrupt: bool = False, **options
) -> Rule:
    rule = protocol("rennala", idle=False, limit=1, interrupt=interrupt)
    return rule(delay, workers, mini_batches, seed, k=k, **options)


def _ringmaster(
    delay, workers, mini_batches, seed, *, limit: int, interrupt: bool = False, k: int = 1,
    **options,
) -> Rule:  # fmt: skip
    if limit < 1:
        raise ValueError(f"ringmaster: needs limit >= 1 updates, got {limit}; 1 allows no delay")
    rule = protocol("ringmaster", idle=False, limit=limit, interrupt=interrupt)
    return rule(delay, workers, mini_batches, seed, k=k, **options)


def _with_options(rule: Callable[..., Rule]) -> Callable[..., Rule]:
    """Spell out the options of a protocol, for configs that look parameters up by name."""
    own = [p for p in inspect.signature(rule).parameters.values() if p.kind is not p.VAR_KEYWORD]
    known = {p.name for p in own}
    given = inspect.signature(protocol("", idle=False)).parameters.values()
    rule.__signature__ = inspect.Signature([*own, *(p for p in given if p.name not in known)])
    return rule


# (delay, workers, mini_batches, seed, *, k, ..., graph, links, communication, draw) -> Rule
LIMITED: dict[str, Callable[..., Rule]] = {
    "rennala": _with_options(_rennala),
    "ringmaster": _with_options(_ringmaster),
}


def rennala(law, workers, k, updates, seed, **options) -> Schedule:
    """k mini-batches at the newest version make an update, by whomever (arXiv 2305.12387).

    What is in flight at an update is ignored when it is pushed; interrupt=True: it is cancelled,
    which is `k_batch_sync`.  The other options are those of `k_batch_async`.
    """
    return whole(_rennala(law, workers, 1, seed, k=k, **options), updates)


def ringmaster(law, workers, limit, updates, seed, **options) -> Schedule:
    """Async-SGD without gradients that are `limit` or more updates old (arXiv 2501.16168).

    interrupt: their workers begin anew as soon as they are so old.  A large limit is
    `k_batch_async`, limit 1 is `rennala`; k (1) and the other options are those of
    `k_batch_async`.
    """
    return whole(_ringmaster(law, workers, 1, seed, limit=limit, **options), updates)
