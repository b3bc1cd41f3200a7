"""Asynchronous SGD without and with local steps, its baselines, and uneven data."""

from experiments.papers.base import Panel, drawn, swept
from experiments.stats import END, Claim

TITLE = "Asynchronous methods"
SWEEPS = (
    swept("async_baselines", "async_baselines.py", 0.2, seeds=5),
    swept("frontier_async", "frontier_async.py", 0.1),
)
# Groups that leave old gradients out, without the limit of 128 updates, which no gradient reaches.
LIMITED = (
    *(f"ringmaster_ignore/limit={limit}" for limit in (8, 16, 32)),
    *(f"ringmaster_interrupt/limit={limit}" for limit in (8, 16, 32)),
    "rennala_ignore",
    "rennala_interrupt",
)
OTHERS = ("async_sgd", "delay_adaptive", "inverse_staleness", "fedbuff")


def _below(source: str, ours: str, theirs: str) -> Claim:
    """Return the claim that a method ends below another's training loss after equal seconds."""
    return Claim(f"one worker 4x slower: {ours} ends below {theirs}", source, "frontier_async",
                 ours, theirs, END, tuned=True, equal=("seconds",))  # fmt: skip


CLAIMS = (
    Claim("less time than Async-SGD, as old gradients are left out",
          "arXiv 2501.16168 and 2305.12387", "async_baselines", LIMITED, "async_sgd", tuned=True),
    Claim("the fastest K workers take at most 1.1x the time of the first of all methods",
          "arXiv 2602.03802", "async_baselines", "k_sync", (*OTHERS, *LIMITED), bound=1.1,
          tuned=True),
    _below("arXiv 2401.09135", "async_diloco", "async_nesterov"),
    _below("", "async_diloco", "diloco"),
    _below("arXiv 2509.22860", "ringleader", "ringmaster"),
)  # fmt: skip
FRONTIER = {
    "diloco": "DiLoCo, all wait", "async_nesterov": "momentum at every push",
    "async_average": "averages, no momentum", "async_diloco": "asynchronous DiLoCo",
    "async_diloco_by_speed": "the same, steps by speed", "ringleader": "Ringleader, uneven data",
    "ringmaster": "Ringmaster, uneven data", "rennala": "Rennala, uneven data",
    "k_async": "K-async, uneven data",
}  # fmt: skip
BASELINES = {
    "async_sgd": "Async-SGD", "delay_adaptive": "delay-adaptive rate",
    "inverse_staleness": "inverse staleness", "hinge": "hinge of staleness",
    "fedbuff": "FedBuff", "dc_asgd": "DC-ASGD", "compensated": "compensated rate",
    "ringmaster_ignore": "Ringmaster, ignores", "ringmaster_interrupt": "Ringmaster, interrupts",
    "rennala_ignore": "Rennala, ignores", "rennala_interrupt": "Rennala, interrupts",
    "k_sync": "K-sync",
}  # fmt: skip
figure = drawn(
    Panel("one worker 4x slower", "frontier_async", FRONTIER, END, log=True),
    Panel("one worker 10x slower", "async_baselines", BASELINES),
)
