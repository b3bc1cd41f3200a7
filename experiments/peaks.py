"""What devices can do at best, and how much of it a step uses.

Model FLOPs utilisation is what a step has to compute over what the device could in that time; a
roofline is the time in which it can at best compute and move what a step does (S. Williams et al.,
*Roofline: an insightful visual performance model*, CACM 2009).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

FORMULA = (
    "utilisation = FLOPs of the hand-written step / (its device's peak FLOP/s x seconds of our "
    "step); FLOPs as XLA counts them before any optimisation, 2 for a multiply-add; the peak is "
    "that of dense products of float32 arrays at JAX's default precision"
)


class Peak(NamedTuple):
    """One device by its maker's data sheet: dense FLOP/s, without sparsity, and its memory."""

    bfloat16: float
    default: float  # of products of float32 arrays at JAX's default precision
    precision: str  # what that precision is
    bandwidth: float  # bytes per second
    memory: float  # bytes


def _nvidia(bfloat16: float, bandwidth: float, memory: float) -> Peak:
    """Tensor cores: TF32 has half the rate of bfloat16."""
    return Peak(bfloat16, bfloat16 / 2, "TF32", bandwidth, memory)


def _tpu(bfloat16: float, bandwidth: float, memory: float) -> Peak:
    """The matrix unit rounds float32 to bfloat16 by default."""
    return Peak(bfloat16, bfloat16, "bfloat16", bandwidth, memory)


# By a part of jax.Device.device_kind; of several that occur in it the longest counts.
PEAKS = {
    "A100": _nvidia(312e12, 1.555e12, 40e9),
    "A100-SXM4-80GB": _nvidia(312e12, 2.039e12, 80e9),
    "A100 80GB": _nvidia(312e12, 1.935e12, 80e9),  # PCIe
    "H100": _nvidia(989.4e12, 3.35e12, 80e9),  # SXM
    "H100 PCIe": _nvidia(756e12, 2.0e12, 80e9),
    "H100 NVL": _nvidia(835e12, 3.9e12, 94e9),
    "H200": _nvidia(989.4e12, 4.8e12, 141e9),
    "TPU v4": _tpu(275e12, 1.2e12, 32e9),
    "TPU v5 lite": _tpu(197e12, 0.819e12, 16e9),
    "TPU v5e": _tpu(197e12, 0.819e12, 16e9),
    "TPU v5": _tpu(459e12, 2.765e12, 95e9),
    "TPU v5p": _tpu(459e12, 2.765e12, 95e9),
    "TPU v6 lite": _tpu(918e12, 1.64e12, 32e9),
    "TPU v6e": _tpu(918e12, 1.64e12, 32e9),
}


def peak_of(kind: str) -> Peak | None:
    """What is known of a device of this kind; None: nothing."""
    known = [name for name in PEAKS if name.lower() in kind.lower()]
    return PEAKS[max(known, key=len)] if known else None


def flops(step: Callable, *arguments) -> float:
    """FLOPs of one call, by XLA's count before optimisation; nothing is compiled.

    Counted for the CPU, which every JAX has: in a program for a GPU, products are calls of a
    library that the count leaves out. A loop counts once, so the step must not hold any.
    """
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
    with jax.default_device(jax.devices("cpu")[0]):
        return float(jax.jit(step).lower(*shapes).cost_analysis()["flops"])


def utilisation(flops: float, seconds: float, peak: Peak | None) -> dict:
    """FLOP/s reached and their share of the peak (None: unknown), for a record."""
    reached = {"TFLOP/s": 1e-12 * flops / seconds}
    if peak is None:
        return reached | {"utilisation": None, "peak": "unknown"}
    share = flops / (seconds * peak.default)
    return reached | {"utilisation": share, "peak": f"{1e-12 * peak.default:.4g} {peak.precision}"}


def roofline(flops: Mapping[str, float], moved: float, peak: Peak) -> float:
    """Seconds of a step at best: the longer of computing and of moving bytes.

    flops: by the name of the type that products take; 16 bits have the rate of bfloat16.
    """
    rates = {
        name: peak.bfloat16 if jnp.dtype(name).itemsize == 2 else peak.default for name in flops
    }
    return max(sum(flops[name] / rates[name] for name in flops), moved / peak.bandwidth)
