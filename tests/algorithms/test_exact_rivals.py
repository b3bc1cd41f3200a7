"""Exact sparse reducers: the dense mean to rounding, whatever fits, and what they send in order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import all_reduce, omnireduce, parallax, s2_reducer, sparcml, sparse_all_gather
from algorithms.sparcml import steps
from comms import cost
from comms.messages import Row, collective_bytes, exchange_seconds, fallback_bytes, fallback_seconds
from tests.algorithms import compressed as small
from tests.algorithms.compressed import PARAMS, PATHS, ROWS, SGD, WIDTH, N
from tests.algorithms.test_compression_trains import trained
from tests.marks import slow_but

WHOLE = 4 * ROWS * WIDTH  # bytes of the table
RIVALS = {
    "sparcml": lambda budget: sparcml(SGD, sparse=PATHS, budget=budget),
    "omnireduce": lambda budget: omnireduce(SGD, sparse=PATHS, block=WIDTH, budget=budget),
    "omnireduce of blocks": lambda budget: omnireduce(SGD, sparse=PATHS, block=7, budget=budget),
    "parallax": lambda budget: parallax(SGD, sparse=PATHS, budget=budget),
    "sparse_all_gather": lambda budget: sparse_all_gather(SGD, sparse=PATHS, budget=budget),
    "s2_reducer": lambda budget: s2_reducer(SGD, sparse=PATHS, budget=N * budget),
    "s2_reducer of elements": lambda budget: s2_reducer(
        SGD, sparse=PATHS, granularity="element", budget=N * WIDTH * budget
    ),
}


@pytest.mark.parametrize("name", slow_but(("sparse_all_gather",), RIVALS))
def test_the_dense_mean_whether_or_not_it_fits(name):
    """Weights are whole numbers, so that sums are exact; a sketch's are to rounding."""
    weights = np.array([[1, 1, 1, 1], [2, 0, 1, 3]], np.float32)
    for budget, fits in ((4, True), (1, False)):
        method = RIVALS[name](4 * budget if "blocks" in name else budget)
        wanted, got, states = small.run(method, 2, weights, occupied=4 if fits else 16)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), got, wanted)
        counts = method.metrics(states)
        assert counts["fallbacks"] == (0 if fits else 2) and (counts["unresolved"] > 0) == (
            not fits
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparcml", "omnireduce", "parallax"])
def test_the_simulator_trains_as_with_the_dense_mean(name):
    """Non-blocking, with workers that finish more and fewer mini-batches."""
    dense, _, schedule = trained(all_reduce(SGD), 20)
    assert schedule.batches.min() < schedule.batches.max()
    method_of = {
        "sparcml": sparcml,
        "omnireduce": functools.partial(omnireduce, block=4),
        "parallax": parallax,
    }[name]
    for budget in (2, 64):
        method = method_of(SGD, budget=budget)
        model, memory, _ = trained(method, 20)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), model, dense)
        fell = method.metrics(memory)["fallbacks"]
        assert fell == 0 if budget == 64 else fell > 0


def test_sparcml_sends_a_list_to_each_partner_and_then_the_array():
    """Lists of 16 and 32 rows of 16 bytes, of 64 rows of 12 bytes: 256 and 512 of 768 bytes."""
    table = {"embedding": jnp.zeros((ROWS, WIDTH))}
    method = sparcml(SGD, budget=16)
    agreement, *lists = method.messages(table, N, Row(0))
    assert agreement.reduced == (4,)
    assert [payload.exchanged for payload in lists] == [256, 512]
    assert [collective_bytes(payload, N) for payload in lists] == [256, 512]
    *_, last = sparcml(SGD, budget=30).messages(table, N, Row(0))
    assert last.exchanged == WHOLE
    # Two tables travel together, step by step.
    both = method.messages({"embedding": table, "embeddings": table}, N, Row(0))
    assert [payload.exchanged for payload in both] == [0, 512, 1024]
    # An hour to start, a second per byte: a step is a message, the agreement a ring of 6.
    network = cost.uniform_network(3600.0, 1.0, workers=N)
    seconds = exchange_seconds(method, table, N, network)(0)
    assert seconds == 3600 * (2 + 6) + 256 + 512 + 6 * 1


def test_owners_get_own_rows_and_send_sums():
    """Room for 4 + 4 sigma = 11 of 16 own rows, and for all 16 that an owner has."""
    table = {"embedding": jnp.zeros((ROWS, WIDTH))}
    method = parallax(SGD, budget=16)
    _, push, pull = method.messages(table, N, Row(0))
    assert (push.gathered, pull.gathered) == ((11 * 16,), (16 * 16,))
    _, _, pull = parallax(SGD, budget=16, union_ratio=0.25).messages(table, N, Row(0))
    assert pull.gathered == (11 * 16,)
    (pushed,) = method.messages(table, N, Row(0, pushed=True))
    assert pushed.size == 16 * 16
    (pushed,) = sparcml(SGD, budget=16).messages(table, N, Row(0, pushed=True))
    assert pushed.size == 16 * 16


@pytest.mark.few(1)
@pytest.mark.parametrize("name", RIVALS)
def test_bytes_and_seconds_of_fallbacks_are_those_of_what_was_sent(name):
    """The planned messages are not sent then, except the one that shows that they do not fit."""
    method = RIVALS[name](1)
    _, _, states = small.run(method, 2, occupied=16)
    found = method.fallbacks(states, PARAMS, N, Row(0))
    assert found.updates == 2 and sum(a.times for a in found.alternatives) == 2
    network = cost.uniform_network(0.0, 1.0, workers=N)
    planned = 2 * exchange_seconds(method, PARAMS, N, network)(0)
    more = fallback_bytes(found, N)
    assert more > 0
    # Without start-up costs a ring, and each of these steps, takes a second per byte sent.
    assert fallback_seconds(found, N, network) == pytest.approx(more, rel=0.05, abs=16)
    dense = cost.ring_all_reduce_bytes(4 * 64, N) + cost.ring_all_reduce_bytes(WHOLE, N)
    if "s2" not in name:
        assert planned + more == pytest.approx(2 * dense, rel=0.1)


@pytest.mark.slow
def test_a_pull_that_does_not_fit_has_cost_the_push():
    method = parallax(SGD, sparse=PATHS, budget=16, union_ratio=0.02)
    _, _, states = small.run(method, 1, occupied=12)
    found = method.fallbacks(states, PARAMS, N, Row(0))
    assert [alternative.times for alternative in found.alternatives] == [0, 1]
    _, _, pull, _ = method.messages(PARAMS, N, Row(0))
    more = cost.ring_all_reduce_bytes(WHOLE, N) - collective_bytes(pull, N)
    assert fallback_bytes(found, N) == more


def test_refusals():
    with pytest.raises(ValueError, match="needs a block of 1 element or more, got 0"):
        omnireduce(SGD, block=0)
    with pytest.raises(ValueError, match="parallax: needs 0 < ratio <= 1, got 2"):
        parallax(SGD, union_ratio=2)
    with pytest.raises(ValueError, match="sparcml: the model has no parameter"):
        sparcml(SGD).exchange.init({"matrix": jnp.zeros((3, 3))})
    assert steps(1, 10, 2, 4) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparcml", "omnireduce", "parallax"])
def test_the_dense_mean_in_every_runtime(spmd, name):
    """Of whole numbers; on devices too, whose types say what is equal on all of them."""
    method = RIVALS[name](4)

    def body(x):
        state = method.exchange.init(PARAMS)
        out, state = method.exchange.update(x, state, PARAMS, samples=jnp.float32(0), version=0)
        return out, state.fallen

    for occupied, fell in ((4, 0), (16, 1)):
        given = small.gradients(occupied=occupied)
        out, fallen = spmd(body, given)
        assert (np.asarray(fallen) == fell).all()
        jax.tree.map(
            lambda got, x: np.testing.assert_allclose(
                got, np.broadcast_to(x.mean(0), x.shape), atol=2e-5
            ),
            out,
            given,
        )
