"""Layers of a model as planners need them: bytes and times, measured or estimated."""

import csv
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np


class LayerTrace(NamedTuple):
    """Layers with parameters in forward order, each with the parameterless layers after it."""

    name: str
    sizes: np.ndarray  # [L] bytes of the gradient
    forward: np.ndarray  # [L] s
    backward: np.ndarray  # [L] s

    @property
    def compute(self) -> float:
        """Seconds of a forward and a backward pass."""
        return float(self.forward.sum() + self.backward.sum())

    def backward_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bytes [L] and ready times [L] from the start of backward, last layer first.

        The first two arguments of the planners in `comms.buckets`.
        """
        return self.sizes[::-1], np.cumsum(self.backward[::-1])


def googlenet(forward_seconds: float | None = None) -> LayerTrace:
    """Return GoogLeNet on a K80: 64 layers, 13.4 M parameters, a backward pass of 201.5 ms."""
    path = Path(__file__).parent / "data" / "googlenet_k80.csv"  # the file names its source
    return read(path, forward_seconds)._replace(name="googlenet")


def read(path: str | os.PathLike, forward_seconds: float | None = None) -> LayerTrace:
    """Read the layers of a CSV file with the columns `bytes` and `backward_us`, in forward order.

    Lines that begin with # and other columns are ignored. A layer's forward takes the same share of
    `forward_seconds` as its backward; by default it is half as long, as one of the three products
    of a layer's weights. Raises ValueError for any other file, and for negative numbers.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"layer trace: cannot read {path} ({reason}); give a CSV file") from error
    rows = csv.DictReader(line.replace(" ", "") for line in lines if line[:1] != "#")
    missing = {"bytes", "backward_us"} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(
            f"layer trace: {path} has no column {min(missing)!r}; write bytes,backward_us in its "
            "first line, and a layer in each of the others"
        )
    try:
        layers = [(float(row["bytes"]), float(row["backward_us"])) for row in rows]
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"layer trace: {path} has a layer without two numbers ({error}); give each its bytes "
            "and microseconds"
        ) from error
    sizes, microseconds = np.array(layers).reshape(-1, 2).T
    backward = 1e-6 * microseconds
    if not (len(sizes) and np.all(sizes > 0) and np.all(backward >= 0) and backward.sum() > 0):
        raise ValueError(
            f"layer trace: {path} needs layers of bytes > 0 and backward_us >= 0, some of them "
            "above 0; correct its lines"
        )
    if forward_seconds is None:
        forward_seconds = backward.sum() / 2
    if forward_seconds < 0:
        raise ValueError(f"layer trace: forward_seconds = {forward_seconds}; set 0 or more")
    forward = forward_seconds * backward / backward.sum()
    return LayerTrace(Path(path).stem, sizes, forward, backward)
