"""SwarmSGD: epochs matter, local steps matter little (arXiv 1910.12308, Section 5).

The Gaussians of `configs/swarm.py`, with 10,000 test points, for 75 to 1,200 mini-batches of a
node; each length has a learning rate that falls over its own samples. Large batches with all-reduce
stand beside the middle length. Rates are untuned, as in that config.

    python launch.py --config=configs/swarm_epochs.py --sweep --seeds=5 --together --workdir=runs/e
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import swarm
from experiments import papers
from experiments.parts import part

LENGTHS = (75, 150, 300, 600, 1200)  # mini-batches of a node


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm, with the arguments of `configs/swarm.py`."""
    return swarm.get_config(f"task=gaussians,{arg or ''}")


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """Every number of local steps for every number of mini-batches, and large batches."""
    arms = dict(swarm.sweep())
    for method in ("all_reduce", "swarm/H=1", "swarm/H=2", "swarm/H=4"):
        for length in LENGTHS:
            samples = config.workers * config.batch_size * length
            yield (
                f"{method}/batches={length}",
                arms[method]
                | {
                    "updates": arms[method]["updates"] * length // swarm.MINI_BATCHES,
                    "optimizer.schedule": part("cosine", samples=samples),
                    "optimizer.warmup_samples": samples // 20,
                    "baseline": None,
                },
            )


claims = papers.claims("swarm", "swarm_epochs")
numbers = papers.numbers("swarm")
