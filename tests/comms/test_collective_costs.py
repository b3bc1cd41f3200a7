import numpy as np
import pytest

from comms import cost

LINK = {"alpha": 1e-5, "beta": 1e-9, "gamma": 4e-10}


def test_double_binary_trees():
    assert cost.double_binary_tree(8, **LINK) == pytest.approx((6e-5, 1.4e-9))
    assert cost.double_binary_tree(9, **LINK) == pytest.approx((8e-5, 1.4e-9))
    assert cost.double_binary_tree(1, **LINK) == (0, 0)


def test_halving_and_doubling():
    # 2 beta - (2 beta + gamma) / n + gamma, as the paper writes it.
    assert cost.halving_doubling(8, **LINK) == pytest.approx((6e-5, 2e-9 - 2.4e-9 / 8 + 4e-10))
    assert cost.halving_doubling(1, **LINK) == (0, 0)
    with pytest.raises(ValueError, match="6 workers are no power of two; use 8, or ring"):
        cost.halving_doubling(6, **LINK)


def test_halving_and_doubling_sends_the_bytes_of_a_ring():
    for workers in (2, 16, 2048):
        assert cost.halving_doubling(workers, **LINK).beta == cost.ring(workers, **LINK).beta


def tree_all_reduce(values, alpha, beta, gamma):
    """(sums, when the last worker has them) of a binomial tree; a byte per value."""
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
    """The same where pairs swap; a link carries a message each way at a time."""
    workers, size = values.shape
    ready, sums = np.zeros(workers), values.copy()
    for k in range(workers.bit_length() - 1):
        partner = np.arange(workers) ^ (1 << k)
        ready = np.maximum(ready, ready[partner]) + alpha + (beta + gamma) * size
        sums = sums + sums[partner]
    return sums, ready.max()


@pytest.mark.parametrize(
    ("collective", "simulated", "sizes"),
    [
        (cost.binary_tree, tree_all_reduce, (1, 2, 4, 8, 64)),
        (cost.recursive_doubling, doubling_all_reduce, (1, 2, 4, 8, 64)),
    ],
)
def test_whole_payloads_cost_what_a_simulation_takes(collective, simulated, sizes):
    for workers in sizes:
        values = np.random.default_rng(workers).integers(0, 9, (workers, 50))
        sums, seconds = simulated(values, **LINK)
        np.testing.assert_array_equal(sums, np.tile(values.sum(0), (workers, 1)))
        assert collective(workers, **LINK).seconds(50) == pytest.approx(seconds)


def test_a_tree_is_as_deep_as_that_of_the_next_power_of_two():
    for workers in (3, 5, 9, 100):
        values = np.ones((workers, 7), int)
        sums, seconds = tree_all_reduce(values, **LINK)
        assert (sums == workers).all()
        assert seconds <= cost.binary_tree(workers, **LINK).seconds(7) * (1 + 1e-12)
        assert cost.binary_tree(workers, **LINK) == cost.binary_tree(
            1 << (workers - 1).bit_length(), **LINK
        )
    with pytest.raises(ValueError, match="recursive_doubling: 6 workers are no power of two; use"):
        cost.recursive_doubling(6, **LINK)


def test_large_payloads_are_cheaper_in_parts():
    """What is sent whole pays log2 n times for a byte, but starts fewer messages."""
    few, many = 1e2, 1e9  # bytes
    for workers in (8, 64):
        whole, parts = (f(workers, **LINK) for f in (cost.recursive_doubling, cost.ring))
        assert whole.seconds(few) < parts.seconds(few)
        assert whole.seconds(many) > parts.seconds(many)


def test_nobody_to_reduce():
    for collective in (
        cost.ring,
        cost.binary_tree,
        cost.recursive_doubling,
        cost.double_binary_tree,
        cost.halving_doubling,
    ):
        with pytest.raises(ValueError, match="needs at least 1 worker, got 0"):
            collective(0, **LINK)


# --- measured ---


def test_a_table_is_linear_between_its_points_and_goes_on_as_it_ended():
    measured = cost.table([4, 2, 8], [3.0, 2.0, 7.0])
    assert measured.seconds(0) == measured.seconds(2) == 2
    assert measured.seconds(3) == 2.5
    np.testing.assert_allclose(measured.seconds(np.array([[4, 6], [8, 10]])), [[3, 5], [7, 9]])


def test_a_table_of_an_affine_cost_is_that_cost():
    affine = cost.AlphaBeta(1e-3, 2e-9)
    sizes = 2.0 ** np.arange(12, 27)
    payload = np.random.default_rng(0).uniform(2**12, 2**30, 100)
    np.testing.assert_allclose(
        cost.table(sizes, affine.seconds(sizes)).seconds(payload), affine.seconds(payload)
    )


def test_repeats_are_averaged_and_noise_never_makes_more_cheaper():
    measured = cost.table([1, 1, 2, 3, 4], [1.0, 3.0, 5.0, 4.0, 4.5])
    assert measured.sizes.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(measured.times, [2.0, 4.5, 4.5, 4.5])
    assert measured.seconds(10) == pytest.approx(4.5 + 2.5 * 6)  # the last slope that rises
    np.testing.assert_allclose(cost.table([1, 1, 1, 2], [4.0, 4.0, 4.0, 0.0]).times, [3, 3])
    rng = np.random.default_rng(0)
    noisy = cost.table(np.arange(1, 40), np.arange(1, 40) + rng.normal(0, 5, 39).clip(-1))
    assert np.all(np.diff(noisy.seconds(np.linspace(0, 80, 500))) >= 0)
    assert cost.table([1, 2], [3.0, 3.0]).seconds(9) == 3


def test_a_fit_finds_what_it_was_given():
    sizes = 2.0 ** np.arange(12, 27)
    affine = cost.AlphaBeta(3e-4, 7e-10)
    fitted, r_squared = cost.fit(sizes, affine.seconds(sizes))
    assert fitted == pytest.approx(affine) and r_squared == pytest.approx(1)


def test_a_noisy_fit_is_that_of_numpy():
    rng = np.random.default_rng(0)
    sizes = rng.uniform(1e4, 1e7, 200)
    seconds = 5e-3 + 1e-9 * sizes + rng.normal(0, 1e-3, 200)
    fitted, r_squared = cost.fit(sizes, seconds)
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    assert fitted == pytest.approx((alpha, beta))
    error = np.mean((fitted.seconds(sizes) - seconds) ** 2)
    assert r_squared == pytest.approx(1 - error / np.var(seconds))


def test_a_slow_large_message_does_not_hide_what_a_small_one_takes():
    """As in tables of real all-reduces, whose sizes double: the last one is all of the squares."""
    sizes = 2.0 ** np.arange(2, 31)
    seconds = 4e-5 + 2e-10 * sizes
    seconds[20:24] *= 0.7  # another protocol
    seconds[-1] *= 1.03
    fitted, r_squared = cost.fit(sizes, seconds)
    assert fitted.alpha == pytest.approx(4e-5, rel=0.1) and r_squared > 0.95
    worst = np.max(np.abs(fitted.seconds(sizes) / seconds - 1))
    assert cost.largest_error(fitted, sizes, seconds) == pytest.approx(worst) and worst < 0.5
    assert cost.largest_error(cost.table(sizes, seconds), sizes, seconds) == pytest.approx(0)


def test_a_time_below_what_a_clock_sees_weighs_as_the_shortest_other_one():
    assert cost.fit([1, 2], [0.0, 0.0]) == ((0, 0), 1)
    fitted, _ = cost.fit([1, 2, 3], [0.0, 1.0, 2.0])
    assert fitted == pytest.approx((0, (2 + 3 / 2) / (1 + 4 + 9 / 4)))
    assert cost.largest_error(fitted, [1, 2, 3], [0.0, 1.0, 2.0]) == pytest.approx(fitted.beta)


def test_a_network_of_a_measured_all_reduce_takes_its_table_as_it_is():
    sizes, seconds = [8, 1024, 65536], [3e-5, 9e-5, 1e-4]  # far from a line
    network = cost.measured_network(sizes, seconds, 4)
    assert [cost.ring_seconds(4, size, network) for size in sizes] == seconds
    assert cost.ring_seconds(1, 1024, network) == 0
    fitted = network._replace(all_reduce=None)  # of links alone
    model, _ = cost.fit(sizes, seconds)
    assert cost.ring_seconds(4, 1024, fitted) == pytest.approx(model.seconds(1024))
    assert network.seconds(100, 0, 1) == pytest.approx(model.alpha / 6 + 100 * model.beta * 4 / 6)
    with pytest.raises(ValueError, match="no larger payload takes longer"):
        cost.measured_network([1, 2], [3.0, 3.0], 4)


def test_a_negative_intercept_is_clipped_and_the_slope_fitted_anew():
    sizes, seconds = np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.0, 4.0])
    fitted, r_squared = cost.fit(sizes, seconds)
    rates = sizes / seconds
    assert fitted == pytest.approx((0, rates.sum() / (rates @ rates)))
    assert 0 < r_squared < 1
    assert cost.fit([1.0, 2.0], [4.0, 2.0])[0] == pytest.approx((12 / 5, 0))


@pytest.mark.parametrize("measure", [cost.table, cost.fit])
@pytest.mark.parametrize(
    ("sizes", "seconds", "words"),
    [
        ([1, 2], [1.0], r"sizes have shape \(2,\), seconds \(1,\)"),
        ([1, 1], [1.0, 2.0], "needs two different sizes"),
        ([], [], "needs two different sizes"),
        ([1, 2], [1.0, np.nan], "seconds hold a value that is not >= 0"),
        ([-1, 2], [1.0, 1.0], "sizes hold a value that is not >= 0"),
    ],
)
def test_measurements_that_say_nothing_are_refused(measure, sizes, seconds, words):
    with pytest.raises(ValueError, match=words):
        measure(sizes, seconds)


NCCL = """# nThread 1 nGpus 1
#
#       size   count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
#        (B)  (elements)                    (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)
           8       2  float    sum    -1   40.00   0.00   0.00      0   99.00   0.00   0.00      0
     2000000  500000  float    sum    -1  440.00   4.50   9.00      0   99.00   0.00   0.00      0
# Avg bus bandwidth    : 4.5
"""
OSU = """# OSU MPI-CUDA Allreduce Latency Test v7.4
# Size       Avg Latency(us)
8                     40.0
2000000              440.0
"""


@pytest.mark.parametrize("text", [NCCL, OSU])
def test_a_network_of_what_benchmarks_print(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    network = cost.measured_network(path=str(tmp_path / "t.txt"), workers=4)
    np.testing.assert_allclose(network.all_reduce.sizes, [8, 2e6])
    np.testing.assert_allclose(network.all_reduce.times, [4e-5, 4.4e-4])


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no table of one all-reduce"),
        (NCCL.replace(" sum ", " none "), "another collective"),
        (NCCL.replace("  -1  ", "   0  "), "another collective"),  # a reduction to one worker
        (OSU.replace("Allreduce", "Broadcast"), "no table of one all-reduce"),
        (NCCL + NCCL, "no table of one"),
        (NCCL.replace("40.00", "fast"), "could not convert string to float: 'fast'"),
    ],
)
def test_what_is_no_table_of_all_reduces_is_one_sentence(tmp_path, text, words):
    (tmp_path / "t.txt").write_text(text)
    with pytest.raises(ValueError, match=words):
        cost.measured_network(path=str(tmp_path / "t.txt"))
    with pytest.raises(ValueError, match=r"or path='...' alone"):
        cost.measured_network([1, 2], path="t.txt")
