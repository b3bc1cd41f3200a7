"""Asynchronous SGD's baselines against each other, each at its best learning rate and setting.

The task, the samples and the delays are those of `configs/slow_and_stale.py`, with one worker that
is always ten times slower unless `law` names another kind of straggler. The target is so low that
at a fixed rate the noise of the gradients limits every method.

    --config=configs/async_baselines.py:law=exponential --sweep

A method's own parameter, where it has one that must be chosen, is tuned together with its rate.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import slow_and_stale
from experiments.studies import async_baselines as study

RATES = (0.025, 0.063, 0.16, 0.4, 1.0, 2.5)
# Method -> (algorithm, waiting rule, name of its own parameter, values of it).
METHODS = {
    "async_sgd": ("all_reduce", "k_async(k=1)", None, ()),
    # Weights by staleness: arXiv 2206.08307, 1511.05950, 2106.06639 and 1903.03934.
    "delay_adaptive": ("delay_adaptive", "k_async(k=1)", None, ()),
    "inverse_staleness": ("inverse_staleness", "k_async(k=1)", None, ()),
    "fedbuff": ("polynomial_staleness(power=0.5)", "k_batch_async(k=4)", None, ()),
    "hinge": ("hinge_staleness(free=VALUE)", "k_async(k=1)", "free", (2, 6, 12)),
    # Corrections by how far the parameters have moved: arXiv 1609.08326 and 1803.01113.
    "dc_asgd": ("dc_asgd(strength=VALUE)", "k_async(k=1)", "strength", (0.04, 0.2, 1.0)),
    "compensated": (
        "compensated_rate(threshold=VALUE)", "k_async(k=1)", "threshold", (0.01, 0.1, 1.0),
    ),
    # Without gradients that are too old: arXiv 2501.16168 and 2305.12387.
    "ringmaster_ignore": ("all_reduce", "ringmaster(limit=VALUE)", "limit", (4, 8, 16)),
    "ringmaster_interrupt": (
        "all_reduce", "ringmaster(limit=VALUE, interrupt=true)", "limit", (4, 8, 16),
    ),
    "rennala_ignore": ("all_reduce", "rennala(k=VALUE)", "k", (2, 4, 8)),
    "rennala_interrupt": ("all_reduce", "rennala(k=VALUE, interrupt=true)", "k", (2, 4, 8)),
    "k_sync": ("all_reduce", "k_sync(k=VALUE)", "k", (2, 4, 7)),  # m-Synchronous, 2602.03802
}  # fmt: skip


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: Async-SGD; the arguments are those of `configs/slow_and_stale.py`."""
    c = slow_and_stale.get_config(",".join(filter(None, ("law=slow10,seconds=400", arg))))
    c.name = f"async_sgd/rate={slow_and_stale.COMMON}"  # method/rate, or method/parameter/rate
    logistic = c.task == slow_and_stale.MODELS["logistic"]
    c.target_loss = 0.78 if logistic else 0.1
    c.stop_at_target = True
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """The grid of every method."""
    for method, (algorithm, wait, parameter, values) in METHODS.items():
        for value in values or (None,):
            place = f"{method}/{parameter}={value}" if values else method
            for rate in RATES:
                yield (
                    f"{place}/rate={rate}",
                    {
                        "algorithm": algorithm.replace("VALUE", f"{value}"),
                        "wait": wait.replace("VALUE", f"{value}"),
                        "optimizer.learning_rate": rate,
                    },
                )


claims = study.claims
