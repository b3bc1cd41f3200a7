"""Slow and stale gradients (Dutta et al., arXiv 1803.01113): K-sync, K-async, their batch forms."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments import stats
from experiments.papers.base import HEADLINE, Panel, drawn, swept
from experiments.stats import END, Answer, Arm, Claim

TITLE = "Slow and stale gradients"
PAPER = "arXiv 1803.01113"
SWEEPS = (
    swept("slow_and_stale", "slow_and_stale.py", 0.2, seeds=5, tier=HEADLINE),
    swept("slow_and_stale_real", "slow_and_stale.py:real", 0.6, last=""),
)
# The swept rules of a server, with and without waiting for its workers.
WITH = (*(f"k_sync/K={k}" for k in (1, 2, 4, 8)), *(f"k_batch_sync/K={k}" for k in (2, 4, 8)))
WITHOUT = (*(f"k_async/K={k}" for k in (1, 2, 4)), *(f"k_batch_async/K={k}" for k in (2, 4, 8)))
FIXED = "k_async/K=1"
WORKERS, SHIFT, SCALE = 8, 0.5, 0.5  # delays: SHIFT s plus an exponential of mean SCALE s
ERROR = 0.02  # relative error of a ratio of counted updates
ONE_RATE = "all have this rate"


def as_in_theory(arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge the claim: updates by all P workers take P E[largest] / E[X] times Async-SGD's time.

    With exponential delays X the factor is P times the P-th harmonic number, about P log P.
    """
    every, anyone = stats.named(arms, f"k_sync/K={WORKERS}/rate=0.16", f"{FIXED}/rate=0.16")
    stats.equal("seconds", every, anyone)
    if every["updates"] < 100:
        raise stats.Inconclusive(f"{every['name']} made only {every['updates']:,.0f} updates")
    largest = SHIFT + SCALE * sum(1 / k for k in range(1, WORKERS + 1))
    expected = WORKERS * largest / (SHIFT + SCALE)
    found = anyone["updates"] / every["updates"]
    verdict = stats.HOLDS if abs(found / expected - 1) <= ERROR else stats.FAILS
    return Answer(verdict, f"{found:.2f}x the updates without waiting, {expected:.2f}x expected")


CLAIMS = (
    Claim("rate 0.16: K-batch-async (K = 4) ends lower in loss than K-async (K = 1)",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=4/rate=0.16",
          f"{FIXED}/rate=0.16", END, condition=ONE_RATE, headline=True),
    Claim("rate 0.16: K-async (K = 1) is the first at a moderate loss", f"{PAPER}, abstract",
          "slow_and_stale", f"{FIXED}/rate=0.16",
          tuple(f"{name}/rate=0.16" for name in WITH + WITHOUT if name != FIXED),
          condition=ONE_RATE, headline=True),
    Claim("an update with all P workers takes P E[largest] / E[X] times as long as Async-SGD's",
          f"{PAPER}, Sec. 3", "slow_and_stale", judge=as_in_theory, headline=True),
    Claim("K-batch-async (K = 4) at its best rate ends below K-async (K = 1) at its best",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=4", FIXED, END, tuned=True,
          equal=("seconds",), headline=True),
    Claim("K-batch-async (K = 4) at its best rate ends below K-async (K = 4) at its best",
          f"{PAPER}, Sec. 3", "slow_and_stale", "k_batch_async/K=4", "k_async/K=4", END,
          tuned=True, equal=("seconds",), headline=True),
    Claim("at its best rate, the first at the target, k_async/K=2, does not end lowest",
          f"{PAPER}, abstract", "slow_and_stale", "k_batch_async/K=2", "k_async/K=2", END,
          tuned=True, equal=("seconds",)),
    Claim("the lowest end without waiting is below the lowest with waiting", "", "slow_and_stale",
          WITHOUT, WITH, END, tuned=True, equal=("seconds",), headline=True),
    # A threshold above all squared distances between parameters gives the fixed rate.
    Claim("K-async (K = 1), threshold 0.01: a staleness-compensating rate ends below the tuned "
          "fixed one", f"{PAPER}, Sec. 4", "slow_and_stale", "compensated/threshold=0.01", FIXED,
          END, tuned=True, headline=True),
    Claim("rate 0.24: a staleness-compensating rate, threshold 0.01, ends below the fixed one",
          f"{PAPER}, Sec. 4", "slow_and_stale", "compensated/threshold=0.01/rate=0.235",
          f"{FIXED}/rate=0.235", END, condition=ONE_RATE, headline=True),
    Claim("the staleness of processes under K-async is at most 1.1x that of simulated ones",
          f"{PAPER}, Sec. 3", "slow_and_stale_real", f"real/exponential/{FIXED}",
          f"simulated/exponential/{FIXED}", "staleness_mean", 1.1),
)  # fmt: skip
GROUPS = {name: name.replace("/K=", ", K = ") for name in WITH + WITHOUT} | {
    f"compensated/threshold={c}": f"compensated, threshold {c:g}" for c in (0.01, 0.1, 1.0)
}
figure = drawn(
    Panel("first at training loss 1", "slow_and_stale", GROUPS),
    Panel("after the same time", "slow_and_stale", GROUPS, END),
)
