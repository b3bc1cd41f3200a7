"""Error against time of the four protocols (Dutta et al., arXiv 1803.01113): slow or stale.

Eight workers train logistic regression, or a CNN, on scikit-learn's digits, with mini-batches so
small that the noise of the gradients sets the final loss. A server that waits for few mini-batches
updates often, with noisy and, if workers are not restarted, with stale gradients.

    --config=configs/slow_and_stale.py:law=pareto,model=cnn --sweep
    --config=configs/slow_and_stale.py:real          one arm with processes, 30 s and 10 s to start
    --config=configs/slow_and_stale.py:real --sweep  36 arms, 12 minutes a seed

Claims and figures compare each protocol and K at one common rate, at its rate that reaches the
target first, and at its rate with the lowest final loss.
"""

from configs import arguments, base
from experiments import papers, stats
from experiments.registry import part

PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
K = (1, 2, 4, 8)
TWINS = {  # protocol and K -> another protocol and K with the same events
    "k_batch_sync/K=1": "k_sync/K=1",
    "k_batch_async/K=1": "k_async/K=1",
    "k_async/K=8": "k_sync/K=8",
}
GROUPS = {  # name of an arm before its rate -> protocol and K
    f"{protocol}/K={k}": (protocol, k)
    for protocol in PROTOCOLS
    for k in K
    if f"{protocol}/K={k}" not in TWINS
}
COMMON = 0.16  # the one rate for all K
# Time of a mini-batch; its mean is 1 s, except for a slow worker.
LAWS = {
    "exponential": part("exponential", scale=1.0),
    "shifted_exponential": part("shifted_exponential", shift=0.5, scale=0.5),
    "pareto": part("pareto", minimum=0.6666667, shape=3),
    "slow4": part("persistent", law=part("jitter", mean=1.0, sigma=0.1), factors={0: 4.0}),
    "slow10": part("persistent", law=part("jitter", mean=1.0, sigma=0.1), factors={0: 10.0}),
}
MODELS = {
    "logistic": part("digits", model="logistic", l2=0.01),
    "cnn": part("digits", model=part("cnn", channels=[16, 32])),
}
# Factors of 1.4 to 1.5. The best rates for the time to the target and for the end lie inside.
_GRID = (
    0.018, 0.026, 0.038, 0.055, 0.08, 0.115, 0.16, 0.235, 0.34, 0.49, 0.7, 1.0, 1.45, 2.1, 3.0,
)  # fmt: skip
RATES = {1: _GRID[:11], 2: _GRID[2:13], 4: _GRID[4:14], 8: _GRID[6:]}  # higher with less noise
# Of the staleness-compensating rate min(C / distance^2, eta): values of eta, and of C / eta, the
# squared distance up to which the rate is eta.
ETA_MAX = _GRID[:10]
THRESHOLDS = (0.01, 0.1, 1.0, 10.0)


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: Async-SGD.

    Arguments: law, a key of LAWS; model, logistic or cnn; batch, the samples of a mini-batch;
    seconds, the budget.
    """
    a = arguments.parse(arg, law="shifted_exponential", model="logistic", batch=4, seconds=600.0)
    return base.arm(
        name=f"k_async/K=1/rate={COMMON}",  # protocol/K/rate
        task=arguments.chosen(a, "model", MODELS),
        batch_size=a["batch"],
        optimizer=part("sgd", learning_rate=COMMON),  # as in the paper's analysis
        wait=part("k_async", k=1),
        delay=arguments.chosen(a, "law", LAWS),
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 200,
        target_loss=1.0,  # loose: a guess has 2.3; the final loss matters too
    )


def sweep() -> base.Arms:
    """Yield protocols, K and rates; then Async-SGD with the staleness-compensating rate."""
    for group, (protocol, k) in GROUPS.items():
        yield from base.at_rates(group, {"wait": part(protocol, k=k)}, RATES[k])
    for threshold in THRESHOLDS:
        changes = {"algorithm": part("compensated_rate", threshold=threshold)}
        yield from base.at_rates(f"compensated/threshold={threshold}", changes, ETA_MAX)


claims = papers.Judged("slow_and_stale", "slow_and_stale")
numbers = stats.at_best(stats.SECONDS, stats.END)


# --- with workers that are processes ---

MEAN = 0.2  # s of a mini-batch, of which computing takes a hundredth
REAL_LAWS = {
    "exponential": part("exponential", scale=MEAN),
    "shifted_exponential": part("shifted_exponential", shift=MEAN / 2, scale=MEAN / 2),
}
REAL_TWINS = (("k_batch_sync", 1), ("k_batch_async", 1), ("k_async", 4))  # equal k_sync, k_async


def _real(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: K-async with K = 2. Arguments: workers, seconds (the budget on the clock)."""
    a = arguments.parse(arg, workers=4, seconds=30.0)
    return base.arm(
        name="real/exponential/k_async/K=2",  # real or simulated / law / protocol / K
        task=part("digits", model="logistic", l2=0.01),
        runtime="actors",
        workers=a["workers"],
        batch_size=8,
        optimizer=part("sgd", learning_rate=0.1),
        wait=part("k_async", k=2),
        delay=REAL_LAWS["exponential"],
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 30,
        target_loss=1.0,
        actors=base.actors(least_workers=1),
    )


def _real_sweep() -> base.Arms:
    """Yield both laws, four protocols, K = 1, 2, 4, once with processes and once simulated."""
    for law, delay in REAL_LAWS.items():
        for protocol in PROTOCOLS:
            for k in (1, 2, 4):
                if (protocol, k) in REAL_TWINS:
                    continue
                wait = {"wait": part(protocol, k=k), "delay": delay}
                yield f"simulated/{law}/{protocol}/K={k}", wait | {"runtime": "simulate"}
                yield f"real/{law}/{protocol}/K={k}", wait


VARIANTS = {
    "real": base.Variant(
        "The protocols of arXiv 1803.01113 with workers that are processes, beside theory and "
        "simulation.\n\n"
        "Four workers train logistic regression on scikit-learn's digits. They sleep for the "
        "delays of the simulated arms; the difference is a real update's own time: a gradient on "
        "its way to the server, the update, parameters on their way back. A process takes about "
        "270 MB of memory.",
        _real,
        sweep=_real_sweep,
        claims=papers.Judged("slow_and_stale", "slow_and_stale_real"),
        numbers=stats.at_best("staleness_mean", "updates", "seconds"),
    )
}
