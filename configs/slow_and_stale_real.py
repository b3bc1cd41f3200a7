"""The protocols of arXiv 1803.01113 with workers that are processes, beside theory and simulation.

Four workers train logistic regression on scikit-learn's digits. They sleep for the delays that the
simulated arms have, so that both see the same durations; what is left between them is what a real
update takes beside: a gradient on its way to the server, the update, parameters on their way back.

    --config=configs/slow_and_stale_real.py                          one arm, 30 s and 10 s to start
    --config=configs/slow_and_stale_real.py --sweep                  36 arms, 12 minutes a seed

A process takes about 270 MB of memory. Real arms count seconds of the wall.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments import papers
from experiments.parts import part

MEAN = 0.2  # s of a mini-batch, of which computing takes a hundredth
PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
LAWS = {
    "exponential": part("exponential", scale=MEAN),
    "shifted_exponential": part("shifted_exponential", shift=MEAN / 2, scale=MEAN / 2),
}
TWINS = (("k_batch_sync", 1), ("k_batch_async", 1), ("k_async", 4))  # as k_sync and k_async


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: K-async with K = 2. Arguments: workers, seconds (the budget on the clock)."""
    a = arguments.parse(arg, workers=4, seconds=30.0)
    config = base.arm(
        name="real/exponential/k_async/K=2",  # real or simulated / law / protocol / K
        task=part("digits", model="logistic", l2=0.01),
        runtime="actors",
        workers=a["workers"],
        batch_size=8,
        optimizer=part("sgd", learning_rate=0.1),
        wait=part("k_async", k=2),
        delay=LAWS["exponential"],
        seconds=a["seconds"],
        evaluate_every=a["seconds"] / 30,
        target_loss=1.0,
    )
    config.actors = ConfigDict(
        {
            "cpus": 1.0,  # of a process; Ray starts as many as the machine or the cluster has
            "gpus": 0.0,  # a share below 1 is a part of one, its memory as well
            "least_workers": 1,  # with fewer for a minute the run ends, exit code 3
            "bad_contribution": "end",  # the run where one fails or is not finite; or drop it
        }
    )
    return config


def sweep() -> Iterator[tuple[str, dict]]:
    """Both laws, four protocols, K = 1, 2, 4; each once with processes and once simulated."""
    for law, delay in LAWS.items():
        for protocol in PROTOCOLS:
            for k in (1, 2, 4):
                if (protocol, k) in TWINS:
                    continue
                wait = {"wait": part(protocol, k=k), "delay": delay}
                yield f"simulated/{law}/{protocol}/K={k}", wait | {"runtime": "simulate"}
                yield f"real/{law}/{protocol}/K={k}", wait


claims = papers.claims("slow_and_stale", "slow_and_stale_real")
numbers = papers.numbers("slow_and_stale")
