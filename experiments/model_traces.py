"""Layer traces of models of well-known sizes, by name.

Nothing is run: the time of a layer is the FLOPs of its matrix products and convolutions over a
stated speed of the device. Layers that memory limits, such as normalisation and activations, are
free here; so a speed should be one that was reached in training, not the device's peak.

For each model, layer_traces.json has the bytes of its layers in float32 and the FLOPs of their
forward pass for one example, 2 for a multiply-add. A layer is a module with parameters of its own;
layers are in the order of their first use. FLOPs of operations without parameters, or of a second
use of shared ones, belong to the layer before them, whose gradient has to wait for them. Backward
takes twice the FLOPs of forward: the gradients of a product's two factors.
"""

import json
from pathlib import Path

import numpy as np

from comms.iteration import LayerTrace, googlenet, read
from experiments import files

MODELS = json.loads(files.read_text(Path(__file__).with_name("layer_traces.json")))
NAMES = ("googlenet", *MODELS)


def build(name: str, batch: int, flops_per_second: float) -> LayerTrace:
    """Return the measured trace of `googlenet`, or the trace of a CSV file or of one of `MODELS`.

    name: googlenet, a model, or a path that ends with .csv, see `comms.iteration.read`. Raises
    ValueError for an unknown name, and for a speed that is not positive.
    """
    if name == "googlenet":
        return googlenet()
    if isinstance(name, str) and name.lower().endswith(".csv"):
        return read(name)._replace(name=name)
    if name not in MODELS:
        raise ValueError(
            f"layer trace {name!r} is unknown; choose one of {', '.join(NAMES)}, or a CSV file"
        )
    if not flops_per_second > 0:
        raise ValueError(
            f"layer trace: needs flops_per_second > 0, got {flops_per_second}; set the device's"
        )
    sizes, flops = (np.array(MODELS[name][column], float) for column in ("bytes", "flops"))
    forward = batch * flops / flops_per_second
    return LayerTrace(name, sizes, forward, 2 * forward)
