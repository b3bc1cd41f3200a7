"""Training with one slow worker: DiLoCo's asynchronous forms, and rules on uneven data.

Eight workers train an MLP on scikit-learn's digits, with H local steps between two pushes, or with
as many as their speed allows. One worker is `factor` times slower. DiLoCo waits for all, the others
update at every push. Ringleader ASGD and its rivals push gradients of one mini-batch instead, and
their workers hold fewer classes.

    --config=configs/frontier_async.py:factor=4 --sweep --seeds=3

The sweep goes over the rates of the local steps, or of the server in arms without local steps; the
outer optimizers are fixed, and most have DiLoCo's momentum.
"""

from configs import arguments, base
from experiments import papers, stats
from experiments.registry import part
from stragglers import local_updates

LOCAL_STEPS, WORKERS, FACTOR = 20, 8, 4
# The best of DiLoCo's outer rates and momenta (arXiv 2311.08105, Sec. 3.1).
OUTER = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7)
GENTLE = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7 / WORKERS)
AVERAGING = part("sgd", learning_rate=1 / WORKERS)


def _pushed(**changes) -> dict:
    """Return changes that make the server update at every push."""
    return {"wait": part("k_async", k=1)} | changes


GROUPS = {  # method -> its changes
    "diloco": {},
    "async_nesterov": _pushed(algorithm=part("local_sgd", server=OUTER)),
    "async_nesterov_small": _pushed(algorithm=part("local_sgd", server=GENTLE)),
    "async_average": _pushed(algorithm=part("local_sgd", server=AVERAGING)),
    "async_diloco": _pushed(algorithm=part("async_diloco")),
    "async_diloco_by_speed": _pushed(algorithm=part("async_diloco")),  # with own steps, see `sweep`
}
RATES = (0.0004, 0.0008, 0.0016, 0.0032, 0.0063, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
LOWER_RATES = {"async_nesterov": (0.00005, 0.0001, 0.0002)}  # rates below the common grid


def _uneven(wait, method: str = "all_reduce") -> dict:
    """Return changes for pushes of one gradient, from workers with few classes each."""
    split = part("dirichlet", alpha=0.1)
    return {"algorithm": part(method), "wait": wait, "split": split, "mini_batches": 1}


UNEVEN = {  # method -> its changes
    "ringleader": _uneven(part("k_async", k=1), "ringleader"),
    "ringmaster": _uneven(part("ringmaster", limit=1)),  # and its limit, see `sweep`
    "rennala": _uneven(part("rennala", k=WORKERS)),
    "k_async": _uneven(part("k_async", k=WORKERS // 2)),
}
UNEVEN_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
ALL = GROUPS | UNEVEN


def rates_of(group: str) -> tuple[float, ...]:
    """Return the grid of a method."""
    return UNEVEN_RATES if group in UNEVEN else LOWER_RATES.get(group, ()) + RATES


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: DiLoCo. Arguments: factor, worker 0's slowdown; seconds, the budget."""
    a = arguments.parse(arg, factor=float(FACTOR), seconds=600.0)
    return base.arm(
        name="diloco/rate=0.1",  # method/rate
        split=part("dirichlet", alpha=1.0),
        batch_size=16,
        mini_batches=LOCAL_STEPS,
        algorithm=part("local_sgd", server=OUTER),
        optimizer=part("sgd", learning_rate=0.1),
        wait=part("barrier"),
        delay=part("persistent", law=part("jitter", mean=1.0, sigma=0.1), factors={0: a["factor"]}),
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 100,
        target_loss=0.1,
    )


def by_speed(factor: float) -> list[int]:
    """Return local steps by worker that let a slow worker 0 push as often as others (DyLU)."""
    return list(local_updates.dynamic([1 / factor, *[1.0] * (WORKERS - 1)], LOCAL_STEPS))


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield every method at every rate of its grid; the slow worker sets limits and steps."""
    factors = config.delay.get("factors")
    factor = factors.to_dict().get(0, 1.0) if factors else 1.0
    limit = part("ringmaster", limit=round(factor * WORKERS))  # so that slow gradients count
    own = {"async_diloco_by_speed": {"mini_batches": by_speed(factor)},
           "ringmaster": {"wait": limit}}  # fmt: skip
    for group, changes in ALL.items():
        yield from base.at_rates(group, changes | own.get(group, {}), rates_of(group), "g")


claims = papers.Judged("asynchronous", "frontier_async")
numbers = stats.at_best(stats.END, stats.SECONDS)
