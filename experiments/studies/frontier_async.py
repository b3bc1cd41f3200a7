"""Asynchronous local steps: which outer momentum bears stale progress, and who should step less.

Then asynchronous gradients on uneven data: whose data steps follow when workers differ in speed.
"""

import contextlib
from collections.abc import Iterator

from experiments import premises, quantities
from experiments.numbers import Numbers
from experiments.parts import part
from stragglers import local_updates

LOSS = "final_train_loss"  # a mean over the last tenth of the evaluations
LOCAL_STEPS, WORKERS, FACTOR = 20, 8, 4
# The best of DiLoCo's outer rates and momenta (arXiv 2311.08105, Sec. 3.1).
OUTER = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7)
GENTLE = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7 / WORKERS)
AVERAGING = part("sgd", learning_rate=1 / WORKERS)
BY_SPEED = local_updates.dynamic([1 / FACTOR, *[1.0] * (WORKERS - 1)], LOCAL_STEPS)


def _pushed(**changes) -> dict:
    """The server updates at every push."""
    return {"wait": part("k_async", k=1)} | changes


GROUPS = {  # method -> what it changes
    "diloco": {},
    "async_nesterov": _pushed(algorithm=part("local_sgd", server=OUTER)),
    "async_nesterov_small": _pushed(algorithm=part("local_sgd", server=GENTLE)),
    "async_average": _pushed(algorithm=part("local_sgd", server=AVERAGING)),
    "async_diloco": _pushed(algorithm=part("async_diloco")),
    "async_diloco_by_speed": _pushed(algorithm=part("async_diloco"), mini_batches=list(BY_SPEED)),
}
RATES = (0.0004, 0.0008, 0.0016, 0.0032, 0.0063, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
LOWER_RATES = {"async_nesterov": (0.00005, 0.0001, 0.0002)}  # below its optimum


def _uneven(wait, method: str = "all_reduce") -> dict:
    """Gradients of one mini-batch, of which every worker has few classes."""
    split = part("dirichlet", alpha=0.1)
    return {"algorithm": part(method), "wait": wait, "split": split, "mini_batches": 1}


UNEVEN = {  # method -> what it changes
    "ringleader": _uneven(part("k_async", k=1), "ringleader"),
    "ringmaster": _uneven(part("ringmaster", limit=FACTOR * WORKERS)),  # the slow worker counts
    "rennala": _uneven(part("rennala", k=WORKERS)),
    "k_async": _uneven(part("k_async", k=WORKERS // 2)),
}
UNEVEN_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
ALL = GROUPS | UNEVEN
CLAIMS = (  # ours, theirs, what is said of them; without a source, in arXiv 2401.09135
    ("async_diloco", "async_nesterov", "momentum at every push suffers, delayed does not"),
    ("async_diloco", "async_nesterov_small", "nor is it the outer rate alone"),
    ("async_diloco", "async_average", "delayed momentum helps"),
    ("async_diloco_by_speed", "async_diloco", "local steps by speed help"),
    ("async_diloco", "diloco", "nobody waits for the slow worker"),
    *(
        ("ringleader", rival, "uneven data and speeds leave no bias (arXiv 2509.22860)")
        for rival in ("ringmaster", "rennala", "k_async")
    ),
)


def rates_of(group: str) -> tuple[float, ...]:
    """The grid of a method."""
    return UNEVEN_RATES if group in UNEVEN else LOWER_RATES.get(group, ()) + RATES


def arms() -> Iterator[tuple[str, dict]]:
    """(method/rate, entries of its config)."""
    for group, changes in ALL.items():
        for rate in rates_of(group):
            yield f"{group}/rate={rate:g}", changes | {"optimizer.learning_rate": rate}


def claims(arms) -> Iterator[tuple[str, str]]:
    """What is claimed beside this sweep, at the rate of each method that ends lowest."""
    for ours, theirs, claim in CLAIMS:
        yield f"{claim}: {ours} against {theirs}", premises.text(ends_below, arms, ours, theirs)


def ends_below(arms, ours: str, theirs: str) -> premises.Answer:
    """Final losses after the same seconds, each at a best rate that lies inside of its grid."""
    pair = [premises.tuned(arms, name, LOSS) for name in (ours, theirs)]
    return premises.at_most(*pair, LOSS)


def numbers(arms) -> Iterator[Numbers]:
    """Of every method that was run, at the rate that ends lowest: its loss, and when it came."""
    rows = []
    for group in ALL:
        with contextlib.suppress(premises.CannotTell):
            arm = premises.best(premises.group(arms, group), LOSS)
            rows.append((group, *_row(arm)))
    columns = ("method", "rate", "loss", "seconds to the target")
    yield Numbers("at the rate that ends lowest", columns, rows)


def _row(arm: dict) -> tuple[str, ...]:
    seconds = arm.get("seconds_to_target")
    return (
        f"{arm['config'].optimizer.learning_rate:g}",
        quantities.shown(arm, LOSS),
        "never" if seconds is None else f"{seconds:.3g}",
    )
