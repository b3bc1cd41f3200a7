"""A config and a sweep of your own."""

from gossax.configs import base
from gossax.experiments.registry import part


def get_config():
    """Return a run in which eight workers fit a line."""
    return base.arm(
        task=part("mine:line"), algorithm=part("mine:unit_length"), seconds=20.0, updates=50,
        delay=part("exponential", scale=1.0), mini_batches=2,
    )


def sweep():
    """Compare a barrier with rounds that end at half of the mini-batches."""
    yield "all", {"wait": part("barrier")}
    yield "half", {"wait": part("mine:half"), "algorithm.longest": 2.0}
