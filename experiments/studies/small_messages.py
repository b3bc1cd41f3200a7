"""Messages smaller than a gradient, and no common exchange: DeMo, and pairs with local steps."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from experiments import premises, quantities
from experiments.numbers import Numbers
from experiments.parts import part
from experiments.studies.local_training import LOSS, ends_near

DENSE, LEAST, SWARM, NOLOCO = "all_reduce", "demo/1 of 256", "swarm/H=30", "noloco/H=30"
FEWER = 100  # times, that DeMo's bytes are said to be below all-reduce's
METHODS = {
    DENSE: {},
    "demo/8 of 64": {"algorithm": part("demo", chunk=64, k=8)},  # its defaults here
    LEAST: {"algorithm": part("demo", chunk=256, k=1)},  # the fewest bytes
    NOLOCO: {"algorithm": part("noloco"), "mini_batches": 30},
    SWARM: {"algorithm": part("swarm"), "mini_batches": 30, "wait": part("random_pairs")},
}
RATES = {
    DENSE: (0.001, 0.002, 0.004, 0.008),
    "demo/8 of 64": (0.002, 0.004, 0.008, 0.016),
    LEAST: (0.001, 0.002, 0.004, 0.008, 0.016),
    NOLOCO: (0.008, 0.016, 0.032),
    SWARM: (0.00025, 0.0005, 0.001, 0.002, 0.004),
}


def arms(config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """(method/rate, entries of its config): signs go to SGD with the weight decay of AdamW."""
    schedule = config.optimizer.schedule
    decay = part("add_decayed_weights", weight_decay=config.optimizer.weight_decay)
    for method, changes in METHODS.items():
        for rate in RATES[method]:
            if method.startswith("demo"):
                signs = part("sgd", learning_rate=rate, schedule=schedule)
                how = {"optimizer": [decay, signs]}
            else:
                how = {"optimizer.learning_rate": rate}
            yield f"{method}/rate={rate:g}", changes | how


def claims(arms) -> Iterator[tuple[str, str]]:
    """What is claimed of bytes and losses, beside this sweep at the best rate of each."""
    for ours in (method for method in METHODS if method.startswith("demo")):
        yield (
            f"as good as all-reduce (arXiv 2411.19870): {ours} ends within 1 % of {DENSE}",
            premises.text(ends_near, arms, ours, DENSE, 0.01),
        )
        yield (
            f"far fewer bytes: {ours} sends {DENSE}'s over {FEWER}, places counted",
            premises.text(sends_less, arms, ours),
        )
    yield (
        f"outer momentum helps pairs (arXiv 2506.10911): {NOLOCO} ends below {SWARM}",
        premises.text(ends_near, arms, NOLOCO, SWARM, 0.0),
    )


def sends_less(arms, ours: str) -> premises.Answer:
    """Bytes after equal samples, which follow from shapes."""
    pair = [premises.best(premises.group(arms, name), LOSS) for name in (ours, DENSE)]
    premises.equal("samples", *pair)
    return premises.counted(*pair, "bytes_per_worker", factor=1 / FEWER)


def numbers(arms) -> Iterator[Numbers]:
    """Every method at the rate that ends lowest."""
    best = {name: premises.best(premises.group(arms, name), LOSS) for name in METHODS}
    dense = best[DENSE]["bytes_per_worker"]
    rows = [
        (
            name,
            f"{premises.settings(arm['name'])['rate']:g}",
            quantities.shown(arm, LOSS),
            f"{arm['bytes_per_worker'] / 1e6:.4g}",
            f"{dense / arm['bytes_per_worker']:.3g}",
        )
        for name, arm in best.items()
    ]
    columns = ("method", "rate", "loss", "MB per worker", "times fewer bytes")
    yield Numbers("at the rate that ends lowest", columns, rows)
