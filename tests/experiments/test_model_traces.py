"""Layer traces of models against their known sizes."""

import numpy as np
import pytest

from experiments import model_traces
from tests.refusals import refused

test_what_has_no_trace_is_refused = refused(
    (lambda: model_traces.build("vgg16", 1, 0.0), "needs flops_per_second > 0"),
    (lambda: model_traces.build("alexnet", 1, 1.0),
     "'alexnet' is unknown; choose one of googlenet, resnet50"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layers", "parameters", "flops"),
    [
        ("resnet50", 107, 25_557_032, 2 * 4.09e9),
        ("vgg16", 16, 138_357_544, 2 * 15.47e9),
        # 30,522 + 512 embeddings, a norm, and 12 layers; 64 tokens through all but the embeddings.
        ("transformer", 99, 768 * (30_522 + 512) + 1536 + 12 * 7_087_872, 14.02e9),
    ],
)
def test_models_have_their_known_sizes(name, layers, parameters, flops):
    trace = model_traces.build(name, batch=2, flops_per_second=2e9)
    assert len(trace.sizes) == layers and trace.sizes.sum() == 4 * parameters
    assert 1e9 * trace.forward.sum() == pytest.approx(flops, rel=2e-3)
    np.testing.assert_array_equal(trace.backward, 2 * trace.forward)
