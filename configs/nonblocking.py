"""Non-blocking against blocking SGD over four mixers (He & Dube, arXiv 2211.00889).

Workers train an MLP on scikit-learn's digits. All arms see the same delays, the same initial
parameters and the same order of samples; a round's communication costs half a nominal round. One
worker is always four times slower unless `delay` names another kind of straggler:

    --config=configs/nonblocking.py:workers=16,delay=pause,communication=0.25
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments import papers
from experiments.parts import part

NOMINAL = 0.2  # seconds of a round of 128 samples per worker at nominal speed


def delays(each: float, trace: str = "trace.csv") -> dict[str, tuple[ConfigDict, str]]:
    """Kinds of stragglers: the time of a mini-batch, whose nominal number of seconds is `each`, and
    whether a delay holds for a mini-batch or for a whole round."""
    jitter = part("jitter", mean=each, sigma=0.1)
    return {
        "equal": (part("deterministic", value=each), "mini_batch"),
        "jitter": (jitter, "mini_batch"),
        "slow2": (part("persistent", law=jitter, factors={0: 2.0}), "mini_batch"),
        "slow4": (part("persistent", law=jitter, factors={0: 4.0}), "mini_batch"),
        "shifted_exponential": (part("shifted_exponential", shift=each, scale=each), "round"),
        "pause": (part("bernoulli_slowdown", value=each, factor=5, probability=0.1), "round"),
        "pareto": (part("pareto", minimum=each, shape=3), "round"),
        # Slow a tenth of the time, in spells of ten nominal rounds.
        "markov": (
            part("markov", law=jitter, factor=5, mean_normal=18, mean_slow=2),
            "mini_batch",
        ),
        "trace": (
            part("trace", path=trace, duration="batch_time_norm", mean=each),
            "mini_batch",
        ),
    }


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: Ring All-Reduce, non-blocking.

    Arguments: workers (8 or 16 for the hypercube); delay, a kind of `delays`; communication, in
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
    known = delays(NOMINAL * a["batch"] / 128, a["trace"])
    if a["delay"] not in known:
        raise ValueError(f"unknown delay {a['delay']!r}; known delays: {', '.join(known)}")
    delay, draw = known[a["delay"]]

    return base.arm(
        name="all_reduce/nonblocking",
        baseline="all_reduce/blocking",
        workers=a["workers"],
        batch_size=a["batch"],
        mini_batches=a["mini_batches"],
        algorithm=part("all_reduce", collective="ring"),
        graph=part("hypercube"),  # of D-PSGD and MATCHA
        # The best rate of 0.05, 0.1, ... 1.6 for every arm with delay=slow4.
        optimizer=part("momentum", decay=0.9, learning_rate=0.4),
        wait=part("first_finisher"),
        delay=delay,
        draw=draw,
        communication=a["communication"] * NOMINAL,
        evaluate_every=0.3,
        target_loss=0.36788,  # log(train loss) = -1
    )


MIXERS = {
    "all_reduce": (part("all_reduce", collective="ring"), part("barrier")),
    # As published: the exchange goes on beside the gradient.
    "dpsgd": (part("dpsgd", order="combine_while_adapting"), part("neighbour_barrier")),
    "matcha": (part("matcha", budget=0.5), part("neighbour_barrier")),
}
SERIAL = {  # the same with the exchange after the gradient, as that of MATCHA is
    "dpsgd_serial": (part("dpsgd", order="adapt_then_combine"), part("neighbour_barrier")),
}


def sweep() -> Iterator[tuple[str, dict]]:
    """Four mixers, each with equal samples per round, blocking and not, and two alternatives."""
    for mixer, (algorithm, wait_for_all) in (MIXERS | SERIAL).items():
        common = {"algorithm": algorithm, "baseline": f"{mixer}/blocking"}
        yield f"{mixer}/blocking", common | {"wait": wait_for_all}
        yield f"{mixer}/nonblocking", common | {"wait": part("first_finisher")}
        yield f"{mixer}/small_batch", common | {"wait": wait_for_all, "mini_batches": 1}
        # One nominal round of eight mini-batches of 16 samples.
        yield f"{mixer}/deadline", common | {"wait": part("deadline", seconds=NOMINAL)}


claims = papers.claims("nonblocking", "nonblocking_slow4")
