"""Layer traces against FLOPs and parameters counted by hand."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from experiments import model_traces
from experiments.tasks.models import mlp
from tests.refusals import refused


def test_dense_layers_and_convolutions_by_hand():
    trace = model_traces.from_model(mlp(3, hidden=(5,)), (4, 2, 2, 1), 1e3)
    np.testing.assert_array_equal(trace.sizes, [4 * (4 * 5 + 5), 4 * (5 * 3 + 3)])
    np.testing.assert_allclose(trace.forward, [2 * 4 * 4 * 5 / 1e3, 2 * 4 * 5 * 3 / 1e3])
    np.testing.assert_allclose(trace.backward, 2 * trace.forward)
    model = nn.Conv(6, (3, 3), strides=2, feature_group_count=2)
    trace = model_traces.from_model(model, (2, 8, 8, 4), 1.0)
    # 4 x 4 places, 6 channels, of 9 pixels of the 2 channels of a group.
    np.testing.assert_array_equal(trace.forward, [2 * 2 * 16 * 6 * 9 * 2])
    np.testing.assert_array_equal(trace.sizes, [4 * (9 * 2 * 6 + 6)])


class Tied(nn.Module):
    """A model with its first layer at the end, too, and a product without parameters between."""

    @nn.compact
    def __call__(self, x):
        first, second = nn.Dense(4, name="z"), nn.Dense(4, name="a")
        y = second(first(x))
        return first(y @ y.T @ y)


def test_layers_are_in_order_of_first_use_and_the_rest_belongs_to_the_layer_before():
    trace = model_traces.from_model(Tied(), (8, 4), 1.0)
    dense, product = 2 * 8 * 4 * 4, 2 * 8 * 4 * 8
    np.testing.assert_array_equal(trace.forward, [dense, dense + 2 * product + dense])


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.jit(nn.remat(nn.Dense))(4)(x)
        body = nn.scan(
            lambda layer, x, _: (layer(x), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=5,
        )
        return body(nn.Dense(4), x, None)[0]


def test_scanned_and_nested_programs_are_counted():
    trace = model_traces.from_model(Scanned(), (8, 4), 1.0)
    np.testing.assert_array_equal(trace.forward, [2 * 8 * 4 * 4, 5 * 2 * 8 * 4 * 4])
    np.testing.assert_array_equal(trace.sizes, [4 * 20, 5 * 4 * 20])


class Looped(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: y + 1, nn.Dense(2)(x))


test_what_has_no_trace_is_refused = refused(
    (lambda: model_traces.from_model(nn.Dense(2), (1, 2), 0.0), "needs flops_per_second > 0"),
    (lambda: model_traces.from_model(Looped(), (1, 2), 1.0), "cannot count the FLOPs of while"),
    (lambda: model_traces.build("alexnet", 1, 1.0),
     "'alexnet' is unknown; choose one of googlenet, resnet50"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layers", "parameters", "flops"),
    [
        ("resnet50", 107, 25_557_032, 2 * 4.09e9),
        # 30,522 + 512 embeddings, a norm, and 12 layers; 64 tokens through all but the embeddings.
        ("transformer", 99, 768 * (30_522 + 512) + 1536 + 12 * 7_087_872, 14.02e9),
    ],
)
def test_models_have_their_known_sizes(name, layers, parameters, flops):
    trace = model_traces.build(name, batch=2, flops_per_second=2e9)
    assert len(trace.sizes) == layers and trace.sizes.sum() == 4 * parameters
    assert 1e9 * trace.forward.sum() == pytest.approx(flops, rel=2e-3)
