"""Baselines of asynchronous SGD against each other, each at its best learning rate and setting.

The task, the samples and the delays come from `configs/slow_and_stale.py`, with one worker that
is always ten times slower unless `law` names another kind of straggler.

    --config=configs/async_baselines.py:law=exponential --sweep

A parameter of a method is tuned together with the rate. If one of its values makes the method
Async-SGD, its grid reaches this value.
"""

from configs import base, slow_and_stale
from experiments import papers, stats
from experiments.registry import part

RATES = (0.025, 0.063, 0.16, 0.4, 1.0, 2.5)


def _tuned(entry: str, part_of: base.ConfigDict, name: str, *values) -> tuple:
    return {entry: part_of}, f"{entry}.{name}", values


# Method -> (its changes of Async-SGD, the entry to tune or None, values of this entry).
METHODS = {
    "async_sgd": ({}, None, (None,)),
    # Weights by staleness: arXiv 2206.08307, 1511.05950, 2106.06639 and 1903.03934.
    "delay_adaptive": ({"algorithm": part("delay_adaptive")}, None, (None,)),
    "inverse_staleness": ({"algorithm": part("inverse_staleness")}, None, (None,)),
    "fedbuff": (
        {"algorithm": part("polynomial_staleness", power=0.5), "wait": part("k_batch_async", k=4)},
        None,
        (None,),
    ),
    "hinge": _tuned("algorithm", part("hinge_staleness"), "free", 2, 6, 12, 24, 96),
    # Corrections by the distance that the parameters have moved: arXiv 1609.08326 and 1803.01113.
    "dc_asgd": _tuned("algorithm", part("dc_asgd"), "strength", 0.0, 0.008, 0.04, 0.2, 1.0),
    "compensated": _tuned(
        "algorithm", part("compensated_rate"), "threshold", 0.01, 0.1, 1.0, 10.0, 100.0
    ),
    # Without gradients of too large staleness: arXiv 2501.16168 and 2305.12387.
    "ringmaster_ignore": _tuned("wait", part("ringmaster"), "limit", 4, 8, 16, 32, 128),
    "ringmaster_interrupt": _tuned(
        "wait", part("ringmaster", interrupt=True), "limit", 4, 8, 16, 32, 128
    ),
    "rennala_ignore": _tuned("wait", part("rennala"), "k", 2, 4, 8),
    "rennala_interrupt": _tuned("wait", part("rennala", interrupt=True), "k", 2, 4, 8),
    # m-Synchronous SGD, arXiv 2602.03802.
    "k_sync": _tuned("wait", part("k_sync"), "k", 2, 4, 7, 8),
}


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: Async-SGD, with the arguments of `configs/slow_and_stale.py`."""
    c = slow_and_stale.get_config(",".join(filter(None, ("law=slow10,seconds=400", arg))))
    c.name = f"async_sgd/rate={slow_and_stale.COMMON}"  # method/rate, or method/parameter/rate
    c.target_loss = 0.78 if c.task == slow_and_stale.MODELS["logistic"] else 0.1
    c.stop_at_target = True
    return c


def sweep() -> base.Arms:
    """Yield the grid of every method."""
    for method, (changes, entry, values) in METHODS.items():
        for value in values:
            chosen = {} if entry is None else {entry: value}
            place = [method, *(f"{key.partition('.')[2]}={value}" for key in chosen)]
            yield from base.at_rates("/".join(place), changes | chosen, RATES)


claims = papers.Judged("asynchronous", "async_baselines")
numbers = stats.at_best(stats.SECONDS)
