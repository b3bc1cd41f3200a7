"""The two parts of an exchange, at the worker and at the server, are the whole of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.base import AXIS
from comms import collectives
from comms.messages import Row
from runtimes.uplink import OWN, Uplink, alone, uplink
from tests.algorithms.methods import METHODS, RELATIVES

K, M = 5, 4  # contributions of an update, mini-batches of a full round
PARAMS = {"w": jnp.zeros((40, 24)), "b": jnp.zeros(())}
# Why a method has no two parts.
REMEMBERS, COUNTS, ALL = "remembers depends on the others", "sends depends on how many", "of 1 cont"
WHOLE = {
    "all_reduce/ring": COUNTS,
    "local_sgd/ring": COUNTS,
    "mg_wfbp/ring": COUNTS,
    "all_reduce/bf16": COUNTS,
    "int8_all_reduce": COUNTS,
    "all_reduce/fp16": REMEMBERS,
    "all_reduce/chain": REMEMBERS,
    "random_k": REMEMBERS,
    "top_k/momentum": REMEMBERS,
    "powersgd": REMEMBERS,
    "centred_clipping": REMEMBERS,
    "ef21/int8": REMEMBERS,
    "one_bit_adam": ALL,
    "one_bit_adam/equal": ALL,
    **dict.fromkeys(
        (
            name
            for name in METHODS
            if name.split("/")[0]
            in ("omnireduce", "parallax", "s2_reducer", "sparcml", "sparse_all_gather")
        ),
        REMEMBERS,
    ),
}
# A message is smaller than a contribution.
ENCODED = {
    "local_sgd/bf16", "local_sgd/top_k", "local_sgd/lists", "top_k", "qsgd", "natural_compression",
    "ef_sign", "ef21", "ef21_sgdm", "sparse_loco", "demo",
}  # fmt: skip
SERVED = [name for name, build in METHODS.items() if not build().own_models]


@functools.cache
def method_of(name):
    return METHODS[name]()


def rows(names):
    slow = {name for name in names if "/" in name or name in RELATIVES} - ENCODED
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in names]


def stacked(tree):
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (K, *jnp.shape(a))), tree)


def drawn(rng, like):
    return jax.tree.map(lambda a: np.float32(rng.standard_normal(np.shape(a))), like)


def whole_exchange(method):
    """The exchange of K workers, compiled."""

    @jax.jit
    def whole(contributions, states, points, own, staleness, update):
        def of_worker(contribution, state, params, own, staleness):
            return method.exchange.update(
                contribution, state, params,
                nominal=M, active=None, staleness=staleness, **own, **update,
            )  # fmt: skip

        with collectives.on_one_device():
            return jax.vmap(of_worker, axis_name=AXIS)(
                contributions, states, points, own, staleness
            )

    return whole


def some_updates(method):
    """(contributions, points, what workers know, staleness, what the update knows) of each."""
    rng = np.random.default_rng(0)
    for t, batches in enumerate(np.int32([[4, 1, 3, 2, 2], [2, 0, 4, 1, 1], [3, 3, 1, 4, 2]])):
        contributions, points = (drawn(rng, stacked(PARAMS)) for _ in range(2))
        own = dict.fromkeys(OWN, np.arange(K, dtype=np.int32) + t)
        own |= {"batches": batches, "weight": np.asarray(method.weight(batches))}
        staleness = np.int32([t, 2 * t, 0, 1, t])
        update = {
            "samples": np.float32(64 * t),
            "count": np.uint32(64 * t),
            "current": drawn(rng, PARAMS),
        }
        yield contributions, points, own, staleness, update


@pytest.mark.few(1)
@pytest.mark.parametrize("name", rows([name for name in SERVED if name not in WHOLE]))
def test_encoded_at_the_worker_and_reduced_at_the_server_is_the_exchange(name):
    """Bit for bit what it returns and what every worker remembers, over several updates.

    Both under `vmap` over all of them; alone a worker may add up squares in another order.
    """
    method, parts = method_of(name), Uplink(method_of(name), PARAMS, M)
    whole = whole_exchange(method)
    encode = jax.jit(
        jax.vmap(lambda mine, state, params, own: parts.encode(mine, state, params, **own))
    )
    reduce = jax.jit(
        lambda messages, staleness, update: parts.reduce(messages, staleness, **update)
    )

    kept = states = stacked(method.exchange.init(PARAMS))
    for contributions, points, own, staleness, update in some_updates(method):
        expected, states = whole(contributions, states, points, own, staleness, update)

        messages, kept = encode(contributions, kept, points, own)
        found = reduce(messages, staleness, update)
        jax.tree.map(np.testing.assert_array_equal, found, jax.tree.map(lambda a: a[0], expected))
        jax.tree.map(np.testing.assert_array_equal, kept, states)
    assert any(leaf.any() for leaf in jax.tree.leaves(found))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", rows([name for name in SERVED if name in WHOLE]))
def test_an_exchange_that_needs_more_than_its_worker_knows_is_left_whole(name):
    with pytest.raises(ValueError, match=f"{WHOLE[name]}.*let the server run the whole exchange"):
        Uplink(method_of(name), PARAMS, M)
    assert uplink(method_of(name), PARAMS, M) is None


@pytest.mark.few(4)
@pytest.mark.parametrize("name", rows([name for name in SERVED if name not in WHOLE]))
def test_a_message_weighs_what_the_method_says_and_a_weight(name):
    """It is sent in place of a contribution where it is smaller."""
    found = uplink(method_of(name), PARAMS, M)
    assert (found is not None) == (name in ENCODED)
    if found is not None:
        payloads = method_of(name).messages(PARAMS, K, Row(0, pushed=True))
        assert found.message_bytes == sum(payload.size for payload in payloads) + 4


ADOPTING = [name for name, build in METHODS.items() if build().adopt is not None]


@pytest.mark.parametrize("name", rows(ADOPTING))
def test_what_a_contribution_does_to_its_worker_is_known_without_the_others(name):
    """Bit for bit what the exchange of all makes of each one's own model and memory, if it is."""
    method = method_of(name)
    follows = alone(method, PARAMS, M)
    assert (follows is None) == (name == "easgd")
    if follows is None:
        return
    whole = whole_exchange(method)
    each = jax.jit(jax.vmap(lambda mine, state, params, own: follows(mine, state, params, **own)))
    kept = states = stacked(method.exchange.init(PARAMS))
    for contributions, points, own, staleness, update in some_updates(method):
        expected, states = whole(contributions, states, points, own, staleness, update)
        change, kept = each(contributions, kept, points, own)
        jax.tree.map(np.testing.assert_array_equal, change, expected.own)
        jax.tree.map(np.testing.assert_array_equal, kept, states)
    assert any(leaf.any() for leaf in jax.tree.leaves(change))
