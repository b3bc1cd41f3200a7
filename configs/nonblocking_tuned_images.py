"""Best non-blocking against best blocking: ResNet-18 on images of CIFAR's shape.

The question of `configs/nonblocking_tuned.py`, on another model. The images are drawn from a
mixture of Gaussians, 32x32 pixels of three colours in ten classes, so that nothing has to be
downloaded; ResNet-18 has a quarter of its usual channels. Four workers, mini-batches of one image
and two mixers are what a CPU trains in an hour. The classes hardly overlap, so that a loss of 1.2
comes after some twenty updates.

    python launch.py --config=configs/nonblocking_tuned_images.py --sweep --seeds=3 --together \
        --workdir=runs/images
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import nonblocking_tuned
from experiments import papers, stats
from experiments.parts import part

WORKERS, BATCH = 4, 1  # images of a mini-batch
COMMUNICATION = 0.03125  # nominal rounds of 128 images: the time of four mini-batches
MIXERS = ("all_reduce", "dpsgd")
MINI_BATCHES = (1, 2, 4, 8, 16)
LEARNING_RATES = (0.000625, 0.00125, 0.0025, 0.005, 0.01)


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm, with the arguments of `configs/nonblocking.py`."""
    own = f"workers={WORKERS},batch={BATCH},communication={COMMUNICATION}"
    c = nonblocking_tuned.get_config(f"{own},{arg or ''}")
    c.task = part(
        "images",
        source=part("gaussians", separation=12.0),
        model=part("resnet18", width=16, products=True),
        evaluated=64,
    )
    c.optimizer.learning_rate = 0.005
    c.target_loss = 1.2
    c.seconds = 0.8
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """The grid, for two mixers, blocking and not."""
    yield from nonblocking_tuned.grid(MIXERS, MINI_BATCHES, LEARNING_RATES)


claims = papers.claims("nonblocking", "nonblocking_tuned_images")
numbers = stats.at_best(stats.SECONDS)
