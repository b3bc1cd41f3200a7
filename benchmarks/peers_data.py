"""The task that all sides of `benchmarks.peers` train on, and how a side takes its turns.

Other libraries run in environments of their own, in which only NumPy is sure to be there.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

SAMPLES, INPUTS, CLASSES = 8192, 784, 10
RATE = 0.05  # of local steps
STALE_RATE = 0.001  # of gradients that are some updates old
CLIENTS, STEPS, BATCH = 64, 10, 20  # of a round of local SGD
WORKERS, STALE_BATCH = 8, 32  # of asynchronous training
HIDDEN = 128  # of the MLP


def images() -> tuple[np.ndarray, np.ndarray]:
    """Noise of the shape of images, float32 [samples, inputs], and classes, int32 [samples]."""
    rng = np.random.default_rng(0)
    inputs = rng.random((SAMPLES, INPUTS), np.float32)
    return inputs, rng.integers(0, CLASSES, SAMPLES).astype(np.int32)


def events(updates: int, workers: int = WORKERS) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of every mini-batch [workers, updates], and its samples [workers, updates, batch]."""
    rng = np.random.default_rng(1)
    seconds = 1.0 + rng.exponential(1.0, (workers, updates))
    return seconds, rng.integers(0, SAMPLES, (workers, updates, STALE_BATCH)).astype(np.int32)


def take_turns(turn: Callable[[], object]) -> None:
    """Answer every line on standard input with the seconds of a turn; the first one compiles."""
    turn()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        turn()
        print(time.perf_counter() - began, flush=True)
