"""Messages smaller than a gradient, and pairs instead of a common exchange, on a small GPT.

The task is the same as in `configs/local_training.py`. DeMo sends the largest frequencies of its
momentum at every step; NoLoCo and SwarmSGD make local steps and meet in pairs, NoLoCo with
momentum, SwarmSGD without. Each method is compared at its best learning rate.

    --config=configs/small_messages.py:size=140k,steps=750 --sweep --seeds=3 --together
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import local_training
from experiments import papers, stats
from experiments.registry import part

DENSE, SIXTEEN, LEAST = "all_reduce", "bf16", "demo/1 of 256"
SWARM, NOLOCO = "swarm/H=30", "noloco/H=30"
METHODS = {
    DENSE: {},
    SIXTEEN: {"algorithm": part("all_reduce", exchange=part("bf16"))},
    "demo/8 of 64": {"algorithm": part("demo", chunk=64, k=8)},  # our defaults
    LEAST: {"algorithm": part("demo", chunk=256, k=1)},  # the fewest bytes
    NOLOCO: {"algorithm": part("noloco"), "mini_batches": 30},
    SWARM: {"algorithm": part("swarm"), "mini_batches": 30, "wait": part("random_pairs")},
}
RATES = {
    DENSE: (0.001, 0.002, 0.004, 0.008),
    SIXTEEN: (0.001, 0.002, 0.004, 0.008),
    "demo/8 of 64": (0.002, 0.004, 0.008, 0.016),
    LEAST: (0.001, 0.002, 0.004, 0.008, 0.016),
    NOLOCO: (0.008, 0.016, 0.032),
    SWARM: (0.00025, 0.0005, 0.001, 0.002, 0.004),
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Return one arm: all-reduce, with the arguments of `configs/local_training.py`."""
    return local_training.get_config(arg)


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """Yield every method at every rate of its grid."""
    schedule = config.optimizer.schedule
    decay = part("add_decayed_weights", weight_decay=config.optimizer.weight_decay)
    for method, changes in METHODS.items():
        for rate in RATES[method]:
            own = {"optimizer.learning_rate": rate}
            if method.startswith("demo"):
                signs = part("sgd", learning_rate=rate, schedule=schedule)
                own = {"optimizer": [decay, signs]}
            yield f"{method}/rate={rate:g}", changes | own


claims = papers.Judged("local_steps", "small_messages")
numbers = stats.at_best(stats.END, "bytes_per_worker")
