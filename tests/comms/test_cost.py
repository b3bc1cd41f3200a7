import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import cost


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


def test_seconds_of_many_payloads():
    seconds = cost.AlphaBeta(1.0, 2.0).seconds(np.array([0, 3]))
    np.testing.assert_array_equal(seconds, [1.0, 7.0])


def test_a_matching_takes_as_long_as_its_slowest_link():
    network = cost.uniform_network(latency=1.0, bandwidth=4.0, slow={2: 3.0}, workers=4)
    partners = np.array([[1, 0, 3, 2], [3, 1, 2, 0], [0, 1, 2, 3]])
    # 8 bytes take 1 + 8/4 seconds, three times that over a link of worker 2, nothing if unmatched.
    np.testing.assert_allclose(cost.matching_seconds(partners, 8.0, network), [9.0, 3.0, 0.0])


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_ring_on_equal_links_is_the_alpha_beta_model(workers):
    network = cost.uniform_network(latency=1e-3, bandwidth=1e6, workers=workers)
    expected = cost.ring(workers, alpha=1e-3, beta=1e-6).seconds(4000)
    assert cost.ring_seconds(workers, 4000, network) == pytest.approx(expected)
    slow = cost.uniform_network(latency=1e-3, bandwidth=1e6, slow={1: 2.0}, workers=workers)
    assert cost.ring_seconds(workers, 4000, slow) == pytest.approx(2 * expected)


def test_one_worker_communicates_for_free():
    assert cost.ring_seconds(1, 4000, cost.uniform_network(1.0, 1.0)) == 0


def test_a_link_is_sized_by_the_time_of_one_model():
    link = cost.uniform_link(0.25, payload=1000, workers=2)
    assert cost.matching_seconds(np.array([[1, 0]]), 1000, link) == pytest.approx([0.25])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: cost.uniform_network(-1.0, 1.0), "latency >= 0 and bandwidth > 0, got -1.0"),
        (lambda: cost.uniform_network(0.0, 0.0), "bandwidth > 0"),
        (lambda: cost.uniform_network(0.0, 1.0, {5: 2.0}, 4), "names no worker of 4"),
        (lambda: cost.uniform_link(0.0, 1.0), "needs seconds > 0, got 0.0"),
    ],
)
def test_impossible_networks_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
