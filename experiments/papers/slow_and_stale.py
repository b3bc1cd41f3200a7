"""Slow and stale gradients (Dutta et al., arXiv 1803.01113): K-sync, K-async, their batch forms."""

from experiments.papers.base import Panel, drawn, swept
from experiments.stats import END, Claim

TITLE = "Slow and stale gradients"
PAPER = "arXiv 1803.01113"
SWEEPS = (
    swept("slow_and_stale", "slow_and_stale.py", 0.3, seeds=5),
    swept("slow_and_stale_real", "slow_and_stale.py:real", 0.7, last=""),
)
# The swept rules of a server, with and without waiting for its workers.
WITH = (*(f"k_sync/K={k}" for k in (1, 2, 4, 8)), *(f"k_batch_sync/K={k}" for k in (2, 4, 8)))
WITHOUT = (*(f"k_async/K={k}" for k in (1, 2, 4)), *(f"k_batch_async/K={k}" for k in (2, 4, 8)))
FIXED = "k_async/K=1"
CLAIMS = (
    Claim("rate 0.16: K-batch-async (K = 4) ends lower in loss, K-async (K = 1) is first",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=4/rate=0.16",
          f"{FIXED}/rate=0.16", END),
    Claim("at its best rate, the first at the target, k_async/K=2, does not end lowest",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=2", "k_async/K=2", END,
          tuned=True, equal=("seconds",)),
    Claim("the lowest end without waiting is below the lowest with waiting", "", "slow_and_stale",
          WITHOUT, WITH, END, tuned=True, equal=("seconds",)),
    Claim("a staleness-compensating rate ends 1 % lower than the tuned fixed rate",
          f"{PAPER}, Sec. 4", "slow_and_stale", "compensated", FIXED, END, 0.99, tuned=True),
    Claim("the staleness of processes under K-async is at most 1.1x that of simulated ones",
          f"{PAPER}, Sec. 3", "slow_and_stale_real", f"real/exponential/{FIXED}",
          f"simulated/exponential/{FIXED}", "staleness_mean", 1.1),
)  # fmt: skip
GROUPS = {name: name.replace("/K=", ", K = ") for name in WITH + WITHOUT} | {
    f"compensated/threshold={c}": f"compensated, C = {c:g}" for c in (0.01, 0.1, 1.0)
}
figure = drawn(
    Panel("first at training loss 1", "slow_and_stale", GROUPS),
    Panel("after the same time", "slow_and_stale", GROUPS, END),
)
