"""Nothing that a run counts or keeps is lost between `pack` and `resume`, whatever has it.

Every value is filled with one of its own that is not zero, as what is not packed begins at zero.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtimes.asynchronous.server import Made
from runtimes.gossip.worker import Counted
from stragglers import delays, inject
from tests import planned
from tests.runtimes import free, meeters
from tests.runtimes.test_contract import M, N
from tests.runtimes.toy import X0

NUMBERS = (bool, int, float, np.ndarray, np.generic)


def filled(tree):
    """Return the tree with other values in every leaf: all different, none zero if possible."""
    numbers = itertools.count(1)

    def other(leaf):
        count = int(np.prod(np.shape(leaf)))
        values = np.fromiter(itertools.islice(numbers, count), np.int64, count)
        kind = np.asarray(leaf).dtype if not hasattr(leaf, "dtype") else leaf.dtype
        limit = 1 if np.dtype(kind).kind == "b" else 100 if np.dtype(kind).itemsize == 1 else 10**6
        values = (1 + (values - 1) % limit).reshape(np.shape(leaf)).astype(kind)
        return jnp.asarray(values) if isinstance(leaf, jax.Array) else values

    return jax.tree.map(other, tree)


def bits(tree):
    return [(np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]


def changed(ours, theirs):
    """Return the names under which two objects have other numbers."""
    one, two = (
        {k: v for k, v in vars(o).items() if isinstance(v, NUMBERS)} for o in (ours, theirs)
    )
    return {
        name for name in one.keys() | two.keys() if bits([one.get(name)]) != bits([two.get(name)])
    }


def fill(thing):
    """Give every number among the attributes of an object a value of its own."""
    for n, (name, value) in enumerate(sorted(vars(thing).items()), 1):
        if isinstance(value, np.ndarray):
            shape = np.shape(value) or (1,)
            setattr(
                thing, name, (100 * n + np.arange(value.size).reshape(shape)).astype(value.dtype)
            )
        elif isinstance(value, int | float) and not isinstance(value, bool):
            setattr(thing, name, type(value)(100 * n))


# An injector begins these anew with every dispatch, or has them from its construction.
TRANSIENT = {"_here", "_mark", "_per_round", "workers", "_past"}
COUNTED = ("_consumed", "_attempts", "_elapsed")


@pytest.mark.parametrize("wait", ["first_finisher", "drop_compute"])
def test_an_injector_packs_every_number_that_it_counts(wait):
    rule = planned.rule(wait, delays.deterministic(1.0), N, M)
    one, two = (
        inject.Injector(N, rule.trigger, 0, delay=delays.deterministic(0.01)) for _ in range(2)
    )
    kept = {name: vars(one)[name] for name in ("workers", "_per_round")}
    fill(one)
    vars(one).update(kept)
    assert changed(one, two) >= set(COUNTED)
    two.reset()
    two.unpack(one.pack())
    assert changed(one, two) <= TRANSIENT


def test_a_server_of_processes_packs_every_number_that_it_counts():
    one, two = (free.actors("all_reduce", "k_async", k=1) for _ in range(2))
    run = one.start(X0)
    constant = {"workers", "_batch_size", "_remembers", "_forgets"}
    before = {name: vars(one._server)[name] for name in constant}
    fill(one._server)
    vars(one._server).update(before)
    one._server.log._made = [Made(0.1 * n, [n % free.N], [n]) for n in range(5)]
    one._server.state = filled(run.state)
    one._server.kept = one._server.counted.copy()
    one.sent, one.deaths, one._elapsed = 1234, 56, 7.5
    run = one._snapshot(7.5)
    begun = two.start(X0)
    again, _ = two.resume(begun, one.pack(run), [])
    for name in run._fields:
        assert bits(getattr(again, name)) == bits(getattr(run, name)), name
    # Orders beside contributions that wait: what is under way is made anew.
    assert changed(one._server, two._server) <= {"_more"}
    assert changed(one, two) == set()


def test_a_gossip_run_packs_every_number_that_it_counts():
    one, two = (meeters.meetings("float32") for _ in range(2))
    run = one.start(X0)
    states = list(filled(list(run.states)))
    counted = Counted(11, 12, 13, 14, 15, 16.5)
    run = run._replace(states=states, seconds=2.5, update=31, samples=32, counted=counted)
    again, _ = two.resume(two.start(X0), one.pack(run), [])
    for name in run._fields:
        assert bits(getattr(again, name)) == bits(getattr(run, name)), name
    assert two.log.updates == 31 and two._past == counted
