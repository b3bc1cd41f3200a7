"""Non-blocking against blocking SGD over three mixers (He & Dube, arXiv 2211.00889).

Workers train an MLP on scikit-learn's digits. All arms see the same delays, the same initial
parameters and the same order of samples; a round's communication costs half a nominal round. One
worker is always four times slower unless `delay` names another kind of straggler:

    --config=configs/nonblocking.py:workers=16,delay=pause,communication=0.25
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments.studies import nonblocking as study

NOMINAL = 0.2  # seconds of a round of 128 samples per worker at nominal speed

# Time of a mini-batch, where EACH is its nominal number of seconds, and whether a delay holds for a
# mini-batch or for a whole round.
DELAYS = {
    "equal": ("deterministic(value=EACH)", "mini_batch"),
    "jitter": ("jitter(mean=EACH, sigma=0.1)", "mini_batch"),
    "slow2": ("persistent(law=jitter(mean=EACH, sigma=0.1), factors={0: 2.0})", "mini_batch"),
    "slow4": ("persistent(law=jitter(mean=EACH, sigma=0.1), factors={0: 4.0})", "mini_batch"),
    "shifted_exponential": ("shifted_exponential(shift=EACH, scale=EACH)", "round"),
    "pause": ("bernoulli_slowdown(value=EACH, factor=5, probability=0.1)", "round"),
    "pareto": ("pareto(minimum=EACH, shape=3)", "round"),
    # Slow a tenth of the time, in spells of ten nominal rounds.
    "markov": (
        "markov(law=jitter(mean=EACH, sigma=0.1), factor=5, mean_normal=18, mean_slow=2)",
        "mini_batch",
    ),
    "trace": ("trace(path='TRACE', duration='batch_time_norm', mean=EACH)", "mini_batch"),
}


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: Ring All-Reduce, non-blocking.

    Arguments: workers (8 or 16 for the hypercube); delay, a key of DELAYS; communication, in
    nominal rounds; mini_batches per round; batch, the samples of a mini-batch, whose time is
    proportional to them; trace, the CSV file of delay=trace (columns worker, time,
    batch_time_norm).
    """
    a = arguments.parse(
        arg,
        workers=8,
        delay="slow4",
        communication=0.5,
        mini_batches=8,
        batch=16,
        trace="trace.csv",
    )
    if a["delay"] not in DELAYS:
        raise ValueError(f"unknown delay {a['delay']!r}; known delays: {', '.join(DELAYS)}")
    delay, draw = DELAYS[a["delay"]]

    each = NOMINAL * a["batch"] / 128
    return base.arm(
        name="all_reduce/nonblocking",
        baseline="all_reduce/blocking",
        workers=a["workers"],
        batch_size=a["batch"],
        mini_batches=a["mini_batches"],
        algorithm="all_reduce(collective=ring)",
        graph="hypercube",  # of D-PSGD and MATCHA
        optimizer={
            "name": "momentum",
            "decay": 0.9,
            "learning_rate": 0.4,  # the best of 0.05, 0.1, ... 1.6 for every arm with delay=slow4
            "schedule": "constant",
            "warmup_samples": 0,
        },
        wait="first_finisher",
        delay=delay.replace("EACH", f"{each:g}").replace("TRACE", a["trace"]),
        draw=draw,
        communication=a["communication"] * NOMINAL,
        evaluate_every=0.3,
        target_loss=0.36788,  # log(train loss) = -1
    )


MIXERS = {
    "all_reduce": ("all_reduce(collective=ring)", "barrier"),
    "dpsgd": ("dpsgd", "neighbour_barrier"),
    "matcha": ("matcha(budget=0.5)", "neighbour_barrier"),
}


def sweep() -> Iterator[tuple[str, dict]]:
    """Three mixers, each with equal samples per round, blocking and not, and two alternatives."""
    for mixer, (algorithm, wait_for_all) in MIXERS.items():
        common = {"algorithm": algorithm, "baseline": f"{mixer}/blocking"}
        yield f"{mixer}/blocking", common | {"wait": wait_for_all}
        yield f"{mixer}/nonblocking", common | {"wait": "first_finisher"}
        yield f"{mixer}/small_batch", common | {"wait": wait_for_all, "mini_batches": 1}
        # One nominal round of eight mini-batches of 16 samples.
        yield f"{mixer}/deadline", common | {"wait": f"deadline(seconds={NOMINAL})"}


claims = study.claims
