"""Weights of non-blocking rounds on uneven data, where one worker is always slow.

Eight workers train logistic regression on scikit-learn's digits, of which each holds few classes: a
Dirichlet split with alpha .1. One worker is always four times slower, so that it finishes two of
eight mini-batches in a non-blocking round (He & Dube, arXiv 2211.00889). Weights then decide which
optimum a run has: weights in proportion to finished mini-batches minimise the loss on the samples
that were computed, of which the slow worker's are too few, and equal weights the mean of the
workers' losses, as blocking rounds do. Workers hold unlike numbers of samples, so that neither is
exactly the loss over all data. The l2 term makes the task strongly convex, so that these optima
differ; a model that can fit every sample has one that is common to all weights.

All arms have the same seconds on the run's clock, delays, initial parameters and order of samples.
What is compared is the training loss over all data at the end, a mean over the last tenth of the
evaluations, and the test accuracy. A time to a target would only say how fast a run is.

    --config=configs/nonblocking_weightings.py:alpha=1,slow=2 --sweep --seeds=3 --together

The sweep has every weighting of three mixers, and their blocking rounds, at every rate of a grid.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from algorithms import base as algorithms
from algorithms import gossip
from configs import arguments, nonblocking
from experiments import papers, stats
from experiments.parts import part

# Where every worker has a model of its own, a high rate drives these apart on uneven data.
_LOW, _HIGH = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
RATES = {"all_reduce": _HIGH, "dpsgd": _LOW, "matcha": _LOW}
TASK = part("digits", model="logistic", l2=0.01)  # its lowest loss is 0.733


WEIGHTINGS = {  # of every mixer, its own default among them
    "all_reduce": tuple(algorithms.WEIGHTINGS),
    "dpsgd": tuple(gossip.STEP_WEIGHTINGS),
    "matcha": tuple(gossip.STEP_WEIGHTINGS),
}


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: Ring All-Reduce, non-blocking, weights in proportion to finished mini-batches.

    Arguments: alpha of the Dirichlet split; slow, the factor of the slow worker; seconds, the
    budget; workers, communication, mini_batches and batch, as in `configs/nonblocking.py`.
    """
    a = arguments.parse(
        arg,
        alpha=0.1,
        slow=4.0,
        seconds=60.0,
        workers=8,
        communication=0.5,
        mini_batches=8,
        batch=16,
    )
    common = ("workers", "communication", "mini_batches", "batch")
    c = nonblocking.get_config(",".join(f"{name}={a[name]}" for name in common))
    c.name, c.baseline = "all_reduce/proportional", None
    c.task = TASK
    c.split = part("dirichlet", alpha=a["alpha"])
    c.delay.factors = {0: a["slow"]}
    c.seconds, c.evaluate_every = a["seconds"], a["seconds"] / 60
    c.target_loss = None
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """Three mixers, each with all of its weightings and blocking, at all rates."""
    for mixer, (algorithm, wait_for_all) in nonblocking.MIXERS.items():
        rounds = {
            weighting: {"algorithm": algorithm, "algorithm.weighting": weighting}
            for weighting in WEIGHTINGS[mixer]
        }
        rounds["blocking"] = {"algorithm": algorithm, "wait": wait_for_all}
        for variant, changes in rounds.items():
            for rate in RATES[mixer]:
                yield (
                    f"{mixer}/{variant}/rate={rate}",
                    changes | {"optimizer.learning_rate": rate},
                )


claims = papers.claims("nonblocking", "nonblocking_weightings")
numbers = stats.at_best(stats.END, stats.ACCURACY)
