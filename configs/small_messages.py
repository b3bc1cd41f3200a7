"""Messages smaller than a gradient, and pairs instead of a common exchange, on a small GPT.

The task is the same as in `configs/local_training.py`. DeMo sends the largest frequencies of its
momentum at every step; NoLoCo and SwarmSGD make local steps and meet in pairs, NoLoCo with
momentum, SwarmSGD without. Each method is compared at its best learning rate.

    --config=configs/small_messages.py:size=140k,steps=750 --sweep --seeds=3 --together
"""

from configs import base, local_training
from experiments import papers, stats
from experiments.registry import part

RATES = (0.001, 0.002, 0.004, 0.008)
METHODS = {  # method -> its changes, its rates
    "all_reduce": ({}, RATES),
    "bf16": ({"algorithm": part("all_reduce", exchange=part("bf16"))}, RATES),
    "demo/8 of 64": ({"algorithm": part("demo", chunk=64, k=8)}, (*RATES[1:], 0.016)),  # default
    "demo/1 of 256": ({"algorithm": part("demo", chunk=256, k=1)}, (*RATES, 0.016)),  # fewest bytes
    "noloco/H=30": ({"algorithm": part("noloco"), "mini_batches": 30}, (0.008, 0.016, 0.032)),
    "swarm/H=30": (
        {"algorithm": part("swarm"), "mini_batches": 30, "wait": part("random_pairs")},
        (0.00025, 0.0005, *RATES[:3]),
    ),
}


get_config = local_training.get_config  # one arm: all-reduce


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield every method at every rate of its grid."""
    schedule = config.optimizer.schedule
    decay = part("add_decayed_weights", weight_decay=config.optimizer.weight_decay)
    for method, (changes, rates) in METHODS.items():
        for rate in rates:
            own = {"optimizer.learning_rate": rate}
            if method.startswith("demo"):
                own = {"optimizer": [decay, part("sgd", learning_rate=rate, schedule=schedule)]}
            yield f"{method}/rate={rate:g}", changes | own


claims = papers.Judged("local_steps", "small_messages")
numbers = stats.at_best(stats.END, "bytes_per_worker")
