"""Messages smaller than a gradient, and pairs instead of a common exchange, on a small GPT.

The task of `configs/local_training.py`. DeMo sends the fastest moving frequencies of
its momentum at every step; NoLoCo and SwarmSGD make local steps and meet in pairs, with momentum
and without. Each method is compared at its best learning rate.

    --config=configs/small_messages.py:size=140k,steps=750 --sweep --seeds=3 --together
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import local_training
from experiments.studies import small_messages as study


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: all-reduce, with the arguments of `configs/local_training.py`."""
    return local_training.get_config(arg)


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
    """Every method at every rate of its grid."""
    yield from study.arms(config)


claims = study.claims
numbers = study.numbers
