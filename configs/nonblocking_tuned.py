"""Best non-blocking against best blocking: each with its own round length and learning rate.

Comparing at equal samples per round flatters non-blocking, since a blocking method is free to take
smaller rounds. Here every method picks the number of mini-batches per round and the learning rate
that bring it to the target first, on the grid below, under the same delays.

    python launch.py --config=configs/nonblocking_tuned.py:delay=pause --sweep --workdir=runs/pause
"""

from ml_collections import ConfigDict

from configs import nonblocking
from stragglers.rule import DRAWS

BATCH = 8  # samples in a mini-batch
MINI_BATCHES = (1, 2, 4, 8, 16)
LEARNING_RATES = (0.1, 0.2, 0.4, 0.8, 1.6)


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm; the arguments are those of `configs/nonblocking.py`."""
    c = nonblocking.get_config(",".join(filter(None, (f"batch={BATCH}", arg))))
    if DRAWS[c.draw]:
        # A slow spell lasts for the work of a nominal round, however short a method's rounds are.
        c.draw, c.delay = "mini_batch", f"spells(law={c.delay}, mini_batches={128 // c.batch_size})"
    c.evaluate_every = 0.1  # seconds on the run's clock
    c.seconds = 40.0
    c.stop_at_target = True
    return c


def sweep():
    """The grid, for three mixers, blocking and not."""
    for mixer, (algorithm, wait_for_all) in nonblocking.MIXERS.items():
        for variant, wait in (("blocking", wait_for_all), ("nonblocking", "first_finisher")):
            for mini_batches in MINI_BATCHES:
                for rate in LEARNING_RATES:
                    yield (
                        f"{mixer}/{variant}/M={mini_batches}/rate={rate}",
                        {
                            "algorithm": algorithm,
                            "wait": wait,
                            "mini_batches": mini_batches,
                            "optimizer.learning_rate": rate,
                            "baseline": None,
                        },
                    )


def best(arms, group: str) -> dict | None:
    """The arm of `method/variant` that is at the target first; None: none gets there."""
    reached = [
        arm
        for arm in arms
        if arm["name"].startswith(group + "/") and arm["seconds_to_target"] is not None
    ]
    return min(reached, key=lambda arm: arm["seconds_to_target"], default=None)


def _described(arm) -> str:
    """Time, place in the grid, and a warning where the optimum may lie outside of it."""
    _, _, mini_batches, rate = arm["name"].split("/")
    edges = [
        f"{name} at the grid's end"
        for name, value, ends in (
            ("M", mini_batches, MINI_BATCHES[-1:]),  # no round is shorter than one mini-batch
            ("rate", rate, (LEARNING_RATES[0], LEARNING_RATES[-1])),
        )
        if float(value.partition("=")[2]) in ends
    ]
    place = ", ".join([f"{mini_batches}, {rate}", *edges])
    return f"{arm['seconds_to_target']:.2f} s ({place})"


def claims(arms):
    """Best against best, and whether the optimum lies inside the grid."""
    for mixer in nonblocking.MIXERS:
        found = {v: best(arms, f"{mixer}/{v}") for v in ("blocking", "nonblocking")}
        if None in found.values():
            yield f"{mixer}: best non-blocking against best blocking", "a target was not reached"
            continue
        described = ", ".join(f"{v} {_described(arm)}" for v, arm in found.items())
        gain = found["blocking"]["seconds_to_target"] / found["nonblocking"]["seconds_to_target"]
        yield f"{mixer}: best non-blocking against best blocking", f"{gain:.2f}x: {described}"
