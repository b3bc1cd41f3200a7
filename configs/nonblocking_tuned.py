"""Best non-blocking against best blocking: each with its own round length and learning rate.

Comparing at equal samples per round flatters non-blocking, since a blocking method is free to take
smaller rounds. Here every method picks the number of mini-batches per round and the learning rate
that bring it to the target first, on the grid below, under the same delays.

    python launch.py --config=configs/nonblocking_tuned.py:delay=pause --sweep --workdir=runs/pause
"""

from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from configs import nonblocking
from experiments import papers, stats
from experiments.parts import part
from stragglers.rule import DRAWS

BATCH = 4  # samples in a mini-batch
MINI_BATCHES = (1, 2, 4, 8, 16, 32)
LEARNING_RATES = (0.1, 0.2, 0.4, 0.8, 1.6)


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm, with the arguments of `configs/nonblocking.py`."""
    c = nonblocking.get_config(",".join(filter(None, (f"batch={BATCH}", arg))))
    if DRAWS[c.draw]:
        # A slow spell lasts for the work of a nominal round, however short a method's rounds are.
        c.draw = "mini_batch"
        c.delay = part("spells", law=c.delay, mini_batches=128 // c.batch_size)
    c.evaluate_every = 0.1  # seconds on the run's clock
    c.seconds = 40.0
    c.stop_at_target = True
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """The grid, for three mixers, blocking and not."""
    yield from grid(nonblocking.MIXERS, MINI_BATCHES, LEARNING_RATES)


def grid(
    mixers: Iterable[str], mini_batches: Iterable[int], rates: Iterable[float]
) -> Iterator[tuple[str, dict]]:
    """Keys of `nonblocking.MIXERS`, blocking and not, at all round lengths and learning rates."""
    for mixer in mixers:
        algorithm, wait_for_all = nonblocking.MIXERS[mixer]
        for variant, wait in (("blocking", wait_for_all), ("nonblocking", part("first_finisher"))):
            for length in mini_batches:
                for rate in rates:
                    yield (
                        f"{mixer}/{variant}/M={length}/rate={rate}",
                        {
                            "algorithm": algorithm,
                            "wait": wait,
                            "mini_batches": length,
                            "optimizer.learning_rate": rate,
                            "baseline": None,
                        },
                    )


claims = papers.claims("nonblocking", "nonblocking_tuned")
numbers = stats.at_best(stats.SECONDS)
