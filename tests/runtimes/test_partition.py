"""Programs that are computed in parts give what they give as a whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import ad_psgd, swarm
from algorithms.base import AXIS
from comms import collectives, topology
from comms.messages import Row
from runtimes import worker
from runtimes.asynchronous.worker import OWN, Uplink, alone, uplink
from runtimes.gossip.partition import PairProgram
from tests.algorithms.methods import METHODS
from tests.compilations import compilations
from tests.marks import slow_but

RNG = np.random.default_rng(0)
# Three buckets: one that is read at once, one that starts to differ, one that differs by far.
SCALES = np.repeat([0.01, 5.0, 5e3], 834)[:2_500]
PAIR_PARAMS = {"w": np.zeros((124, 20), np.float32), "b": np.zeros(20, np.float32)}
MEETINGS = 6
GRAPH = topology.complete(4)
PAIRED = {
    "8 bits": lambda: swarm(optax.sgd(0.1), GRAPH, bits=8),
    "ad_psgd": lambda: ad_psgd(optax.sgd(0.1), GRAPH),
    "blocking 8 bits": lambda: swarm(optax.sgd(0.1), GRAPH, bits=8, blocking=True),
}


def play(first, second):
    """Return the results of two halves, and how many messages each has sent."""
    said, messages = [next(first), next(second)], 1
    while True:
        heard = [[np.asarray(a) for a in message] for message in said[::-1]]
        results, said = [], []
        for half, message in zip((first, second), heard, strict=True):
            try:
                said.append(half.send(message))
            except StopIteration as end:
                results.append(end.value)
        if results:
            assert len(results) == 2
            return results, messages
        messages += 1


def body_of(method):
    def body(contribution, state, params, batches, me, partner):
        given = {"nominal": 1, "active": None, "worker": me, "staleness": 0, "partner": partner}
        local = worker.WorkerState((), state)
        with collectives.on_one_device():
            updates, local = worker.exchange(
                method, contribution, params, local, batches, given, None
            )
        return optax.apply_updates(params, updates), local.exchange

    return body


def of_both(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def random_tree():
    vector = (RNG.normal(size=2_500) * SCALES).astype(np.float32)
    return {"w": vector[20:].reshape(124, 20), "b": vector[:20]}


@pytest.mark.parametrize("name", slow_but(("ad_psgd",), PAIRED))
def test_two_halves_are_one_program(name):
    """Parameters and states over several meetings, in which all rungs are climbed."""
    method = PAIRED[name]()
    body = body_of(method)
    whole = jax.jit(jax.vmap(body, axis_name=AXIS))
    params, state = [PAIR_PARAMS] * 2, [method.exchange.init(PAIR_PARAMS)] * 2
    batches, ids = [np.int32(3), np.int32(0)], [np.int32(5), np.int32(2)]
    contributions = [random_tree() for _ in range(2)]
    examples = [(PAIR_PARAMS, state[i], PAIR_PARAMS, batches[i], ids[i]) for i in range(2)]
    halves = [
        PairProgram(functools.partial(body, partner=1 - i), i, *examples[i]) for i in range(2)
    ]
    counts = []
    for _ in range(MEETINGS):
        expected = whole(
            *map(of_both, (contributions, state, params)),
            *(jnp.array(numbers) for numbers in (batches, ids, [1, 0])),
        )
        own = zip(halves, contributions, state, params, batches, ids, strict=True)
        found, messages = play(*(half.begin(*arguments) for half, *arguments in own))
        jax.tree.map(np.testing.assert_array_equal, of_both(found), expected)
        params, state = map(list, zip(*found, strict=True))
        contributions = [random_tree() for _ in range(2)]
        counts.append(messages)
    if method.metrics is None:
        assert set(counts) == {1}
    else:
        counted = method.metrics(of_both(state))
        assert counted["decode_failures"] >= counted["full_precision_buckets"] > 0
        assert max(counts) > 3  # more than colours and answers, so that something went again


KEPT = np.linspace(-1, 1, 5, dtype="f4")  # a constant inside of a container


def everything(x, count):
    """All collectives, inside of whatever they can be cut out of, and what depends on them.

    The products that something is added to are exact: XLA rounds such a product or not, as it is
    used elsewhere or not, which differs between the halves and the whole.
    """
    me = jax.lax.axis_index(AXIS)
    total = jax.lax.psum({"a": x, "b": 2 * x}, AXIS)
    turned = jax.lax.ppermute(x + me, AXIS, [(0, 1), (1, 0)])
    joined = jax.lax.all_gather(x, AXIS, axis=1)
    tiled = jax.lax.all_gather(x, AXIS, tiled=True)
    most = jax.jit(lambda x: jax.lax.pmax(jnp.sin(x), AXIS) - jax.lax.pmin(x * KEPT, AXIS))(
        x + total["a"]
    )
    limit = jax.lax.pmax(count, AXIS)

    def further(carry):
        step, x = carry
        shared = jax.lax.all_gather(x, AXIS).sum(0) / 4
        return step + 1, jnp.where(jax.lax.axis_index(AXIS) == 0, shared, shared - x)

    step, looped = jax.lax.while_loop(lambda c: jax.lax.pmax(c[0], AXIS) < limit, further, (0, x))
    branches = [lambda x: x, lambda x: x + jax.lax.ppermute(x, AXIS, [(0, 0), (1, 1)])]
    chosen = jax.lax.switch(jax.lax.pmax(step, AXIS) % 2, branches, looped + total["b"])
    return turned, joined, tiled, most, looped, chosen, jax.lax.axis_size(AXIS), me


def test_all_collectives_and_containers_are_played_and_nothing_is_compiled_meanwhile():
    """Also where the first meetings need rungs that later ones do not."""
    x = jnp.asarray(RNG.normal(size=(2, 5)), jnp.float32)
    halves = [PairProgram(everything, i, x[i], jnp.int32(1)) for i in range(2)]
    whole = jax.jit(jax.vmap(everything, axis_name=AXIS))
    for count in (0, 3):
        counts = jnp.array([count, 1])
        expected = whole(x, counts)
        begun = [half.begin(x[i], counts[i]) for i, half in enumerate(halves)]
        compilations.clear()
        found, _ = play(*begun)
        assert not compilations
        jax.tree.map(np.testing.assert_array_equal, of_both(found), expected)


def test_what_is_ready_goes_in_one_message():
    def body(x, y):
        return jax.lax.psum(x, AXIS), jax.lax.pmax(jnp.sin(y) + 1, AXIS), jax.lax.pmin(y, AXIS)

    halves = [PairProgram(body, i, 1.0, 2.0).begin(1.0, 2.0) for i in range(2)]
    _, messages = play(*halves)
    assert messages == 1


def test_what_cannot_be_cut_out_is_refused():
    def scanned(x):
        return jax.lax.scan(lambda c, _: (jax.lax.psum(c, AXIS), None), x, None, length=2)[0]

    with pytest.raises(ValueError, match="message inside of a 'scan' cannot be cut out"):
        PairProgram(scanned, 0, 1.0)
    with pytest.raises(ValueError, match="collective 'all_to_all' is not one that two can say"):
        PairProgram(lambda x: jax.lax.all_to_all(x, AXIS, 0, 0), 0, jnp.ones(2))


# --- both ends of an exchange with a server

K, M = 5, 4  # contributions of an update, mini-batches of a full round
PARAMS = {"w": jnp.zeros((40, 24)), "b": jnp.zeros(())}
# A message is smaller than a contribution.
ENCODED = ["top_k", "qsgd", "ef21", "demo"]
# The reason why a method has no two parts.
WHOLE = {
    "all_reduce/ring": "sends depends on how many",
    "random_k": "remembers depends on the others",
    "one_bit_adam": "of 1 cont",
}


@functools.cache
def method_of(name):
    return METHODS[name]()


def stacked(tree):
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (K, *jnp.shape(a))), tree)


def drawn(rng, like):
    return jax.tree.map(lambda a: np.float32(rng.standard_normal(np.shape(a))), like)


def whole_exchange(method):
    """Return the exchange of K workers, compiled."""

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


@pytest.mark.parametrize("name", slow_but(("top_k",), [*ENCODED, "ringleader"]))
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


@pytest.mark.parametrize("name", WHOLE)
def test_an_exchange_that_needs_more_than_its_worker_knows_is_left_whole(name):
    with pytest.raises(ValueError, match=f"{WHOLE[name]}.*let the server run the whole exchange"):
        Uplink(method_of(name), PARAMS, M)
    assert uplink(method_of(name), PARAMS, M) is None


@pytest.mark.parametrize("name", slow_but(("top_k", "local_sgd"), [*ENCODED, "local_sgd"]))
def test_a_message_weighs_what_the_method_says_and_a_weight(name):
    """It is sent in place of a contribution where it is smaller."""
    found = uplink(method_of(name), PARAMS, M)
    assert (found is not None) == (name in ENCODED)
    if found is not None:
        payloads = method_of(name).messages(PARAMS, K, Row(0, pushed=True))
        assert found.message_bytes == sum(payload.size for payload in payloads) + 4


@pytest.mark.parametrize("name", ["decoupled_diloco", "easgd"])
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
