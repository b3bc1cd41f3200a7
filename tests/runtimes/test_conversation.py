"""Two halves that hand each other their messages compute what one program computes under vmap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import ad_psgd, swarm
from algorithms.base import AXIS
from comms import collectives, topology
from runtimes import worker
from runtimes.conversation import Conversation
from tests.marks import slow_but

RNG = np.random.default_rng(0)
# Three buckets: one that is read at once, one that starts to differ, one that differs by far.
SCALES = np.repeat([0.01, 5.0, 5e3], 834)[:2_500]
PARAMS = {"w": np.zeros((124, 20), np.float32), "b": np.zeros(20, np.float32)}
MEETINGS = 6
GRAPH = topology.complete(4)
SWARM = functools.partial(swarm, optax.sgd(0.1), GRAPH)
METHODS = {
    "float32": SWARM,
    "8 bits": functools.partial(SWARM, bits=8),
    "4 bits": functools.partial(SWARM, bits=4),
    "unbiased": functools.partial(SWARM, bits=8, rounding="unbiased"),
    "blocking": functools.partial(SWARM, blocking=True),
    "blocking 8 bits": functools.partial(SWARM, bits=8, blocking=True),
    "ad_psgd": lambda: ad_psgd(optax.sgd(0.1), GRAPH),
}


def play(first, second):
    """The results of two halves, and how many messages each has sent."""
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


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def random_tree():
    vector = (RNG.normal(size=2_500) * SCALES).astype(np.float32)
    return {"w": vector[20:].reshape(124, 20), "b": vector[:20]}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(("float32", "8 bits", "blocking", "ad_psgd"), METHODS))
def test_two_halves_are_one_program(name):
    """Parameters and states over several meetings, in which all rungs are climbed."""
    method = METHODS[name]()
    body = body_of(method)
    whole = jax.jit(jax.vmap(body, axis_name=AXIS))
    params, state = [PARAMS] * 2, [method.exchange.init(PARAMS)] * 2
    batches = [np.int32(3), np.int32(3 if "blocking" in name else 0)]
    ids = [np.int32(5), np.int32(2)]
    contributions = [random_tree() for _ in range(2)]
    halves = [
        Conversation(
            functools.partial(body, partner=1 - i), i, PARAMS, state[i], PARAMS, batches[i], ids[i]
        )
        for i in range(2)
    ]
    counts = []
    for _ in range(MEETINGS):
        expected = whole(
            *map(stacked, (contributions, state, params)),
            *(jnp.array(numbers) for numbers in (batches, ids, [1, 0])),
        )
        own = zip(halves, contributions, state, params, batches, ids, strict=True)
        found, messages = play(*(half.begin(*arguments) for half, *arguments in own))
        jax.tree.map(np.testing.assert_array_equal, stacked(found), expected)
        params, state = map(list, zip(*found, strict=True))
        contributions = [random_tree() for _ in range(2)]
        counts.append(messages)
    if method.metrics is None:
        assert set(counts) == {1}
    else:
        counted = method.metrics(stacked(state))
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 3])
def test_all_collectives_and_containers_are_played(count):
    x, counts = jnp.asarray(RNG.normal(size=(2, 5)), jnp.float32), jnp.array([count, 1])
    expected = jax.jit(jax.vmap(everything, axis_name=AXIS))(x, counts)
    halves = [Conversation(everything, i, x[i], counts[i]).begin(x[i], counts[i]) for i in range(2)]
    found, _ = play(*halves)
    jax.tree.map(np.testing.assert_array_equal, stacked(found), expected)


def test_what_is_ready_goes_in_one_message():
    def body(x, y):
        return jax.lax.psum(x, AXIS), jax.lax.pmax(jnp.sin(y) + 1, AXIS), jax.lax.pmin(y, AXIS)

    halves = [Conversation(body, i, 1.0, 2.0).begin(1.0, 2.0) for i in range(2)]
    _, messages = play(*halves)
    assert messages == 1


def test_what_cannot_be_cut_out_is_refused():
    def scanned(x):
        return jax.lax.scan(lambda c, _: (jax.lax.psum(c, AXIS), None), x, None, length=2)[0]

    with pytest.raises(ValueError, match="message inside of a 'scan' cannot be cut out"):
        Conversation(scanned, 0, 1.0)
    with pytest.raises(ValueError, match="collective 'all_to_all' is not one that two can say"):
        Conversation(lambda x: jax.lax.all_to_all(x, AXIS, 0, 0), 0, jnp.ones(2))


def test_nothing_is_compiled_after_it_is_built():
    """Also where the first meetings need rungs that later ones do not."""
    compilations = []
    arguments = (jnp.ones(5), 2)
    halves = [Conversation(everything, i, *arguments) for i in range(2)]
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
    )
    play(*(half.begin(*arguments) for half in halves))
    assert not compilations
