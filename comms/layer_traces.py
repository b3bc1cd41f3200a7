"""What the planners need of a model: bytes and times of every layer, measured or estimated."""

from pathlib import Path
from typing import NamedTuple

import numpy as np


class LayerTrace(NamedTuple):
    """Layers with parameters in forward order; a layer's times include what has none after it."""

    name: str
    sizes: np.ndarray  # [L] bytes of the gradient
    forward: np.ndarray  # [L] s
    backward: np.ndarray  # [L] s

    @property
    def compute(self) -> float:
        """Seconds of a forward and a backward pass."""
        return float(self.forward.sum() + self.backward.sum())

    def backward_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes [L] and ready times [L], in seconds from the start of backward, last layer first.

        The first two arguments of the planners in `comms.buckets`.
        """
        return self.sizes[::-1], np.cumsum(self.backward[::-1])


def googlenet(forward_seconds: float | None = None) -> LayerTrace:
    """GoogLeNet on a K80: 64 layers, 13.4 M parameters, a backward pass of 201.5 ms.

    Only backward was measured. A layer's forward takes the same share of `forward_seconds`; by
    default it is half as long, as one of the three products of a layer's weights. Raises
    ValueError if they are negative.
    """
    path = Path(__file__).parent / "data" / "googlenet_k80.csv"  # its source is in there
    sizes, microseconds = np.loadtxt(path, delimiter=",", skiprows=4, unpack=True)
    backward = 1e-6 * microseconds
    if forward_seconds is None:
        forward_seconds = backward.sum() / 2
    if forward_seconds < 0:
        raise ValueError(f"googlenet: forward_seconds = {forward_seconds}; set 0 or more")
    return LayerTrace("googlenet", sizes, forward_seconds * backward / backward.sum(), backward)
