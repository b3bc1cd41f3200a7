"""AdaSync against every fixed K (Dutta, Wang, Joshi, arXiv 2003.10579), each at its best rate.

Eight workers train logistic regression on scikit-learn's digits with tiny mini-batches, so that
gradient noise sets a floor of the loss, which only a larger K or a smaller rate lowers. AdaSync
raises K as it trains; further arms of AdaSync scale the rate by K or by the square root of K. All
arms have the same delays, initial parameters and samples per worker.

    --config=configs/adasync.py:protocol=k_sync,delay=shifted_exponential --sweep --seeds=5
"""

from configs import arguments, base
from experiments import papers, stats
from experiments.registry import part

DELAYS = {
    "exponential": part("exponential", scale=1),
    "shifted_exponential": part("shifted_exponential", shift=0.5, scale=0.5),
    "pareto": part("pareto", minimum=0.6666667, shape=3),
    "slow4": part("persistent", law=part("exponential", scale=1), factors={0: 4.0}),
}
FIXED = (1, 2, 4, 8)  # K, whose learning rates are in proportion: with less noise larger ones help
RATES = (0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0)
ADAPTIVE = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
FOLLOWING = {"adasync_sqrt": 0.5, "adasync_linear": 1.0}  # power of K that the rate follows


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm.

    Arguments: protocol (k_sync, k_batch_sync, k_async, k_batch_async), delay (a key of DELAYS),
    rate (this arm's learning rate; the sweep sets its own).
    """
    a = arguments.parse(arg, protocol="k_async", delay="exponential", rate=0.5)
    return base.arm(
        name="adasync",
        task=part("digits", model="logistic", l2=0.001),
        batch_size=2,
        optimizer=part("sgd", learning_rate=a["rate"]),
        # K_0 = 1 grows by the square root of the loss, evaluated every `interval` seconds.
        wait=part("adasync", protocol=a["protocol"], interval=5.0, k=1, lowest_loss=0.0),
        delay=arguments.chosen(a, "delay", DELAYS),
        seconds=400.0,
        target_loss=0.35,
    )


def sweep() -> base.Arms:
    """Yield every fixed K at its rates, then three forms of AdaSync, with the config's protocol."""
    for k in FIXED:  # 1e9 s: K never changes
        rates = (k * rate for rate in RATES)
        yield from base.at_rates(f"fixed/K={k}", {"wait.k": k, "wait.interval": 1e9}, rates)
    yield from base.at_rates("adasync", {}, ADAPTIVE)
    for name, power in FOLLOWING.items():
        yield from base.at_rates(name, {"optimizer.batch_power": power}, ADAPTIVE)


claims = papers.Judged("adasync", "adasync")
numbers = stats.at_best(stats.SECONDS, stats.END)
