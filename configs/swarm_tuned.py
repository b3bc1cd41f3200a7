"""SwarmSGD and its rivals, each at its best learning rate.

`configs/swarm.py` compares all of them at rates that were tuned for a few, by accuracy. Here every
method takes the rate of a grid that brings it to the target loss first, under the same delays, and
after the same samples. SwarmSGD in 8 bits may take its best number of local steps as well.

    python launch.py --config=configs/swarm_tuned.py --sweep --seeds=10 --together --workdir=runs/s
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import swarm
from experiments import papers, stats

RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
METHODS = (
    "all_reduce", "dpsgd/ring", "sgp", "sgp/overlap", "ad_psgd", "swarm/H=1", "swarm/H=2",
    "swarm/H=4", "swarm/H=1/8 bits", "swarm/H=2/8 bits", "swarm/H=4/8 bits",
)  # fmt: skip


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm, with the arguments of `configs/swarm.py`."""
    return swarm.get_config(arg)


def sweep() -> Iterator[tuple[str, dict]]:
    """Every method at every rate."""
    arms = dict(swarm.sweep())
    for method in METHODS:
        for rate in RATES:
            yield f"{method}/rate={rate}", arms[method] | {"optimizer.learning_rate": rate}


claims = papers.claims("swarm", "swarm_tuned")
numbers = stats.at_best(stats.SECONDS)
