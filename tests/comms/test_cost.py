import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import cost, matching, topology


def test_payload_counts_every_leaf_in_its_dtype():
    tree = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(5, jnp.bfloat16), "scalar": np.float64(1)}
    assert cost.payload_bytes(tree) == 3 * 4 * 4 + 5 * 2 + 8
    assert cost.payload_bytes(jax.eval_shape(lambda: tree["w"])) == 48
    assert cost.payload_bytes({}) == 0
    assert cost.payload_bytes(jax.ShapeDtypeStruct((1 << 20, 1 << 13), jnp.int8)) == 1 << 33


@pytest.mark.parametrize(
    ("elements", "workers", "sent"),
    [
        (8, 4, 6 * 2 * 4),
        (9, 4, 6 * 3 * 4),
        (1, 8, 14 * 4),
        (100, 1, 0),
        (0, 4, 0),
        (6, 2, 2 * 3 * 4),
    ],
)
def test_ring_all_reduce_bytes(elements, workers, sent):
    assert cost.ring_all_reduce_bytes(4 * elements, workers) == sent


def test_ring_all_reduce_bytes_pads_by_elements():
    assert cost.ring_all_reduce_bytes(2 * 5, 4, itemsize=2) == 6 * 2 * 2


def test_gossip_bytes():
    degrees = [d for _, d in topology.star(4).degree]
    np.testing.assert_array_equal(cost.gossip_bytes(100, degrees), [300, 100, 100, 100])
    assert cost.gossip_bytes(1 << 33, [2])[0] == 1 << 34


def test_ring_cost():
    assert cost.ring(4, alpha=1e-5, beta=1e-9) == pytest.approx((6e-5, 1.5e-9))
    assert cost.ring(4, alpha=1e-5, beta=1e-9, gamma=4e-10) == pytest.approx((6e-5, 1.8e-9))
    assert cost.ring(1, alpha=1e-5, beta=1e-9, gamma=1e-10) == (0, 0)


def test_ring_cost_is_that_of_the_bytes_it_sends():
    # 14 messages, each paying alpha, and beta for every byte.
    payload, alpha, beta = 8000, 1e-5, 1e-9
    assert cost.ring(8, alpha, beta).seconds(payload) == pytest.approx(
        14 * alpha + beta * cost.ring_all_reduce_bytes(payload, 8)
    )


def test_neighbour_exchange_is_one_exchange_per_matching():
    one = cost.AlphaBeta(1e-5, 1e-9)
    matchings = len(matching.decompose(topology.torus(16)))
    model = cost.neighbour_exchange(matchings, *one)
    assert model.seconds(1000) == pytest.approx(4 * one.seconds(1000))


def test_seconds_of_many_payloads():
    seconds = cost.AlphaBeta(1.0, 2.0).seconds(np.array([0, 3]))
    np.testing.assert_array_equal(seconds, [1.0, 7.0])
