"""Bytes and seconds of messages: by hand, by simulated collectives, and as NumPy fits them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from comms import cost
from tests.refusals import refused

LINK = {"alpha": 1e-5, "beta": 1e-9, "gamma": 4e-10}


def test_payload_counts_every_leaf_in_its_dtype():
    tree = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(5, jnp.bfloat16), "scalar": np.float64(1)}
    assert cost.payload_bytes(tree) == 3 * 4 * 4 + 5 * 2 + 8
    assert cost.payload_bytes(jax.eval_shape(lambda: tree["w"])) == 48
    assert cost.payload_bytes({}) == 0
    assert cost.payload_bytes(jax.ShapeDtypeStruct((1 << 20, 1 << 13), jnp.int8)) == 1 << 33


def test_ring_all_reduce_bytes():
    """Chunks are whole elements: 9 over 4 workers are padded to 3 each."""
    for elements, workers, sent in ((8, 4, 48), (9, 4, 72), (1, 8, 56), (100, 1, 0), (0, 4, 0)):
        assert cost.ring_all_reduce_bytes(4 * elements, workers) == sent
    assert cost.ring_all_reduce_bytes(2 * 5, 4, itemsize=2) == 6 * 2 * 2


# --- collectives ---


def test_collectives_by_hand():
    assert cost.ring(4, alpha=1e-5, beta=1e-9) == pytest.approx((6e-5, 1.5e-9))
    assert cost.ring(4, **LINK) == pytest.approx((6e-5, 1.8e-9))
    assert cost.double_binary_tree(8, **LINK) == pytest.approx((6e-5, 1.4e-9))
    assert cost.double_binary_tree(9, **LINK) == pytest.approx((8e-5, 1.4e-9))
    # 2 beta - (2 beta + gamma) / n + gamma, as the paper writes it.
    assert cost.halving_doubling(8, **LINK) == pytest.approx((6e-5, 2e-9 - 2.4e-9 / 8 + 4e-10))
    for of_whole in (cost.halving_doubling, cost.recursive_doubling):
        with pytest.raises(ValueError, match="6 workers are no power of two; use 8, or"):
            of_whole(6, **LINK)
    for collective in (cost.ring, cost.double_binary_tree, cost.halving_doubling):
        assert collective(1, **LINK) == (0, 0)
        assert collective(np.int64(8), **LINK) == collective(8, **LINK)
        with pytest.raises(ValueError, match="needs at least 1 worker, got 0"):
            collective(0, **LINK)


def tree_all_reduce(values, alpha, beta, gamma):
    """Return (sums, when the last worker has them) of a binomial tree; a byte per value."""
    workers, size = values.shape
    ready, sums = np.zeros(workers), values.copy()
    hops = [1 << k for k in range((workers - 1).bit_length())]
    for hop in hops:
        for i in range(0, workers - hop, 2 * hop):
            arrived = ready[i + hop] + alpha + beta * size
            ready[i] = max(ready[i], arrived) + gamma * size
            sums[i] += sums[i + hop]
    for hop in hops[::-1]:
        for i in range(0, workers - hop, 2 * hop):
            ready[i] += alpha + beta * size
            ready[i + hop] = ready[i]
            sums[i + hop] = sums[i]
    return sums, ready.max()


def doubling_all_reduce(values, alpha, beta, gamma):
    """Return the same where pairs swap; a link carries a message each way at a time."""
    workers, size = values.shape
    ready, sums = np.zeros(workers), values.copy()
    for k in range(workers.bit_length() - 1):
        partner = np.arange(workers) ^ (1 << k)
        ready = np.maximum(ready, ready[partner]) + alpha + (beta + gamma) * size
        sums = sums + sums[partner]
    return sums, ready.max()


def test_whole_payloads_cost_what_a_simulation_takes():
    for workers in (1, 2, 4, 8, 64):
        values = np.random.default_rng(workers).integers(0, 9, (workers, 50))
        for collective, simulated in (
            (cost.binary_tree, tree_all_reduce),
            (cost.recursive_doubling, doubling_all_reduce),
        ):
            sums, seconds = simulated(values, **LINK)
            np.testing.assert_array_equal(sums, np.tile(values.sum(0), (workers, 1)))
            assert collective(workers, **LINK).seconds(50) == pytest.approx(seconds)
    assert cost.binary_tree(5, **LINK) == cost.binary_tree(8, **LINK)


# --- networks ---


def test_a_matching_takes_as_long_as_its_slowest_link():
    network = cost.uniform_network(latency=1.0, bandwidth=4.0, slow={2: 3.0}, workers=4)
    both = cost.uniform_network(latency=1.0, bandwidth=4.0, slow={1: 2.0, 2: 3.0}, workers=4)
    assert (both.seconds(4.0, 0, 1), both.seconds(4.0, 1, 2)) == (2 * 2, 3 * 2)  # the slower end
    partners = np.array([[1, 0, 3, 2], [3, 1, 2, 0], [0, 1, 2, 3]])
    # 8 bytes take 1 + 8/4 seconds, three times that over a link of worker 2, nothing if unmatched.
    np.testing.assert_allclose(cost.matching_seconds(partners, 8.0, network), [9.0, 3.0, 0.0])
    link = cost.uniform_link(0.25, payload=1000, workers=2)
    assert cost.matching_seconds(np.array([[1, 0]]), 1000, link) == pytest.approx([0.25])


def test_the_ring_on_equal_links_is_the_alpha_beta_model():
    for workers in (2, 3, 8):
        network = cost.uniform_network(latency=1e-3, bandwidth=1e6, workers=workers)
        expected = cost.ring(workers, alpha=1e-3, beta=1e-6).seconds(4000)
        assert cost.ring_seconds(workers, 4000, network) == pytest.approx(expected)
        slow = cost.uniform_network(latency=1e-3, bandwidth=1e6, slow={1: 2.0}, workers=workers)
        assert cost.ring_seconds(workers, 4000, slow) == pytest.approx(2 * expected)
    assert cost.ring_seconds(1, 4000, cost.uniform_network(1.0, 1.0)) == 0


test_impossible_numbers_are_refused = refused(
    (lambda: cost.uniform_network(-1.0, 1.0), "latency >= 0 and bandwidth > 0, got -1.0"),
    (lambda: cost.uniform_network(0.0, 1.0, {5: 2.0}, 4), "names no worker of 4"),
    (lambda: cost.uniform_network(0.0, 1.0, [2.0], 4), r"slow=\[2.0\] names no workers; give"),
    (lambda: cost.measured_network([1, 2], [1, 2], 4, arrays=0), "arrays=0 are no messages"),
    (lambda: cost.uniform_network(latency=0.0), "needs latency and bandwidth; set"),
    (lambda: cost.uniform_link(0.0, 1.0), "needs seconds > 0, got 0.0"),
    (lambda: cost.measured_network([1, 2], [3.0, 3.0], 4), "no larger payload takes longer"),
    (lambda: cost.measured_network([1, 2], path="t.txt"), r"or path='...' alone"),
    (lambda: cost.fit([1, 2], [1.0]), r"sizes have shape \(2,\), seconds \(1,\)"),
    (lambda: cost.fit([1, 1], [1.0, 2.0]), "needs two different sizes"),
    (lambda: cost.fit([1, 2], [1.0, np.nan]), "seconds hold a value that is not >= 0"),
)


# --- measured ---


def test_a_table_is_linear_between_its_points_and_goes_on_as_it_ended():
    measured = cost.table([4, 2, 8], [3.0, 2.0, 7.0])
    assert measured.seconds(0) == measured.seconds(2) == 2
    assert measured.seconds(3) == 2.5
    np.testing.assert_allclose(measured.seconds(np.array([[4, 6], [8, 10]])), [[3, 5], [7, 9]])


def test_repeats_are_averaged_and_noise_never_makes_more_cheaper():
    measured = cost.table([1, 1, 2, 3, 4], [1.0, 3.0, 5.0, 4.0, 4.5])
    assert measured.sizes.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(measured.times, [2.0, 4.5, 4.5, 4.5])
    assert measured.seconds(10) == pytest.approx(4.5 + 2.5 * 6)  # the last slope that rises
    np.testing.assert_allclose(cost.table([1, 1, 1, 2], [4.0, 4.0, 4.0, 0.0]).times, [3, 3])
    assert cost.table([1, 2], [3.0, 3.0]).seconds(9) == 3


def test_a_noisy_fit_is_that_of_numpy():
    rng = np.random.default_rng(0)
    sizes = rng.uniform(1e4, 1e7, 200)
    seconds = 5e-3 + 1e-9 * sizes + rng.normal(0, 1e-3, 200)
    fitted, r_squared = cost.fit(sizes, seconds)
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    assert fitted == pytest.approx((alpha, beta))
    error = np.mean((fitted.seconds(sizes) - seconds) ** 2)
    assert r_squared == pytest.approx(1 - error / np.var(seconds))


def test_fits_whose_line_would_begin_below_zero():
    """A negative intercept is clipped, and the slope fitted anew; zeros weigh as the next time."""
    sizes, seconds = np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.0, 4.0])
    fitted, r_squared = cost.fit(sizes, seconds)
    rates = sizes / seconds
    assert fitted == pytest.approx((0, rates.sum() / (rates @ rates))) and 0 < r_squared < 1
    assert cost.fit([1.0, 2.0], [4.0, 2.0])[0] == pytest.approx((12 / 5, 0))
    assert cost.fit([1, 2], [0.0, 0.0]) == ((0, 0), 1)
    fitted, _ = cost.fit([1, 2, 3], [0.0, 1.0, 2.0])
    assert fitted == pytest.approx((0, (2 + 3 / 2) / (1 + 4 + 9 / 4)))


def test_a_network_of_a_measured_all_reduce_takes_its_table_as_it_is():
    sizes, seconds = [8, 1024, 65536], [3e-5, 9e-5, 1e-4]  # far from a line
    network = cost.measured_network(sizes, seconds, 4)
    assert [cost.ring_seconds(4, size, network) for size in sizes] == seconds
    assert cost.ring_seconds(1, 1024, network) == 0
    slow = np.array([1.0, 3.0, 2.0, 1.0])  # factors of the links to the next worker
    assert cost.ring_seconds(4, 1024, network, slow) == pytest.approx(3 * 9e-5)
    fitted = network._replace(all_reduce=None)  # of links alone
    model, _ = cost.fit(sizes, seconds)
    assert cost.ring_seconds(4, 1024, fitted) == pytest.approx(model.seconds(1024))
    assert network.seconds(100, 0, 1) == pytest.approx(model.alpha / 6 + 100 * model.beta * 4 / 6)


NCCL = """# nThread 1 nGpus 1
#
#       size   count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
#        (B)  (elements)                    (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)
           8       2  float    sum    -1   40.00   0.00   0.00      0   99.00   0.00   0.00      0
     2000000  500000  float    sum    -1  440.00   4.50   9.00      0   99.00   0.00   0.00      0
# Avg bus bandwidth    : 4.5
"""
RCCL = """rccl-tests: Version develop:4b2d2bf
[node1:1234] NCCL INFO comm 0x55 rank 0
#       size         count    type   redop     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)
           8             2   float     sum     40.0    0.00    0.00  0e+00
     2000000        500000   float     sum    440.0    8.36   14.63  2e-07
"""
OSU = """# OSU MPI-CUDA Allreduce Latency Test v7.4
# Size       Avg Latency(us)
8                     40.0
2000000              440.0
"""


@pytest.mark.parametrize(
    "text, words",
    [
        (NCCL, None),
        (OSU, None),
        (RCCL, None),
        (OSU.replace("Allreduce", "Bandwidth"), "no table of one all-reduce"),
        (NCCL.replace(" sum ", " none "), "another collective"),
        (NCCL.replace("  -1  ", "   0  "), "another collective"),  # a reduction to one worker
        (NCCL.replace("4.50   9.00", "9.00   4.50"), "another collective"),  # of two, half as much
        ("# Collective test starting: reduce_scatter_perf\n" + NCCL, "another collective"),
        (NCCL + NCCL, "no table of one"),
        (NCCL.replace("40.00", "fast"), "could not convert string to float: 'fast'"),
    ],
)
def test_a_network_of_what_benchmarks_print(tmp_path, text, words):
    path = tmp_path / "t.txt"
    path.write_text(text)
    if words:
        with pytest.raises(ValueError, match=words):
            cost.measured_network(path=str(path))
    else:
        network = cost.measured_network(path=str(path), workers=4)
        np.testing.assert_allclose(network.all_reduce.sizes, [8, 2e6])
        np.testing.assert_allclose(network.all_reduce.times, [4e-5, 4.4e-4])
        several = cost.measured_network(path=str(path), workers=4, arrays=5)
        np.testing.assert_allclose(several.all_reduce.times, [2e-4, 6e-4])
        np.testing.assert_allclose(several.alpha, 5 * network.alpha)  # of links
    given = [8, 16], [1.0, 2.0], 4
    both_ways = cost.measured_network(*given, swaps=[3.0, 5.0], arrays=2)
    pairs = np.array([[1, 0, 3, 2], [0, 2, 1, 3], [0, 1, 2, 3]])
    np.testing.assert_allclose(cost.matching_seconds(pairs, 12, both_ways), [4 + 3, 4 + 3, 0])
    assert cost.ring_seconds(4, 16, both_ways) == 2 + 1


def test_a_network_of_what_iperf3_prints(tmp_path):
    path = tmp_path / "iperf.json"
    tcp = {"streams": [{"sender": {"min_rtt": 400, "mean_rtt": 900}}]}
    udp = {"sum": {"bits_per_second": 8e6}}

    def network(text, **given):
        path.write_text(text)
        return cost.uniform_network(path=str(path), workers=2, **given)

    rated = json.dumps({"end": tcp | {"sum_received": {"bits_per_second": 8e8}}})
    assert network(rated).seconds(1e8, 0, 1) == pytest.approx(1.0002)
    assert network(rated, latency=1.0).seconds(0, 0, 1) == 1.0
    assert network(json.dumps({"end": udp}), latency=0.0).seconds(1e6, 0, 1) == pytest.approx(1.0)
    for text, words in (
        (json.dumps({"end": udp}), "needs a latency, which iperf3 has not seen"),
        (json.dumps({"end": {}, "error": "unable to connect"}), "says: unable to connect"),
        (json.dumps({"end": {}}), "no sum of the received"),
        ("[1]", "JSON of something else"),
        ("[" * 200_000, "maximum recursion depth"),
        ("[ ID] Interval", "Expecting value"),
    ):
        with pytest.raises(ValueError, match=words):
            network(text)
    with pytest.raises(ValueError, match="No such file or directory"):
        cost.uniform_network(path=str(tmp_path / "none"))
