"""A tiny arm, and files that sweep over changes of it."""

import itertools

import pytest

from configs import nonblocking
from experiments import config_files, sweep

TINY = {
    "name": "tiny",
    "task": "synthetic_logistic(samples=64, dimension=4)",
    "workers": 2,
    "mini_batches": 2,
    "seconds": 0.5,
    "evaluate_every": 0.25,
    "delay": "jitter(mean=0.02, sigma=0.1)",
}


@pytest.fixture
def config():
    return sweep.override(nonblocking.get_config(), TINY).lock()


@pytest.fixture
def sweep_file(tmp_path):
    """Return a function that writes a config file whose sweep() has this body, and loads it."""
    count = itertools.count()

    def write(body):
        path = tmp_path / f"sweep_{next(count)}.py"
        path.write_text(f"def sweep():\n    {body}\n")
        return config_files.load(str(path))

    return write
