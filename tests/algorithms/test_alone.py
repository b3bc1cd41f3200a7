"""Inputs of a worker's part of an exchange, read in its program without running it."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.extend.core import Literal

from algorithms import (
    all_reduce,
    compensated_rate,
    inverse_staleness,
    local_sgd,
    one_bit_adam,
    powersgd,
    qsgd,
    random_k,
    s2_reducer,
    sketched_sgd,
    sparse_all_gather,
    top_k,
)
from algorithms.base import AXIS
from algorithms.reducers import bf16, chain, error_feedback, int8, natural, sign
from algorithms.reducers import top_k as largest
from runtimes.gossip import partition

N = 2
SGD = optax.sgd(0.1)
PARAMS = {
    "matrix": jax.ShapeDtypeStruct((32, 8), jnp.float32),
    "table": {"embedding": jax.ShapeDtypeStruct((64, 4), jnp.float32)},
}
SERVER = ("samples", "staleness", "current")  # what only the update knows
OTHERS = "others"  # what the other workers send, or the place among them


def by(*reducers):
    return all_reduce(SGD, exchange=chain(*reducers))


def remembering(*reducers):
    return all_reduce(SGD, exchange=error_feedback(*reducers))


# What an exchange sends and keeps beyond what its worker knows alone.
FOLLOWS = {
    "top_k": (lambda: by(largest()), set()),
    "sign": (lambda: by(sign()), set()),
    "top_k, natural": (lambda: by(largest(), natural()), set()),
    "top_k, bf16, memory": (lambda: remembering(largest(), bf16()), set()),
    "local_sgd, sign, memory": (lambda: local_sgd(SGD, exchange=error_feedback(sign())), set()),
    "qsgd": (lambda: qsgd(SGD), set()),
    "momentum": (lambda: top_k(SGD, momentum=0.9), set()),
    "all_reduce": (lambda: all_reduce(SGD), set()),
    "sketched_sgd": (lambda: sketched_sgd(SGD), set()),
    # All workers draw the same entries.
    "random_k": (lambda: random_k(SGD), {"samples"}),
    # A count of updates chooses what is sent; the keys of both kinds go to all that it may choose.
    "warm-up": (lambda: top_k(SGD, warmup_updates=4), {OTHERS, "samples"}),
    # Sums travel too.
    "bf16": (lambda: by(bf16()), {OTHERS}),
    "int8": (lambda: by(int8()), {OTHERS}),
    "powersgd": (lambda: powersgd(SGD), {OTHERS}),
    "one_bit_adam": (lambda: one_bit_adam(SGD, N), {OTHERS, "samples"}),
    # The workers agree on rows first; a sketch has a hash that all draw.
    "s2_reducer": (lambda: s2_reducer(SGD), {OTHERS, "samples"}),
    "s2_reducer, exact": (lambda: s2_reducer(SGD, exact=True), {OTHERS}),
    "sparse_all_gather": (lambda: sparse_all_gather(SGD), {OTHERS}),
    "inverse_staleness": (lambda: inverse_staleness(SGD), {"staleness"}),
    "compensated_rate": (lambda: compensated_rate(SGD, 0.1), {"current"}),
}


def follows(method) -> set[str]:
    """Of the above, what the operands of its collectives and its new state follow from."""
    own = ("weight", "batches", "worker", "version", "first")
    scalars = {name: jnp.int32(1) for name in (*own, *SERVER)}
    scalars |= {"weight": jnp.float32(1), "samples": jnp.float32(0), "current": PARAMS}
    state = jax.eval_shape(method.exchange.init, PARAMS)

    def exchange(given, contribution, state, params):
        return method.exchange.update(contribution, state, params, nominal=1, **given)[::-1]

    traced, shapes = jax.make_jaxpr(exchange, axis_env=[(AXIS, N)], return_shape=True)(
        scalars, PARAMS, state, PARAMS
    )
    program = traced.jaxpr
    names = [name for name, value in sorted(scalars.items()) for _ in jax.tree.leaves(value)]
    named = dict(zip(program.invars, names, strict=False))
    kept = program.outvars[: len(jax.tree.leaves(shapes[0]))]
    talking = [e for e in program.eqns if partition.speaks(e, AXIS)]
    sent = [var for e in talking for var in e.invars]
    wanted = [var for var in (*kept, *sent) if not isinstance(var, Literal)]
    equations = partition.needed(wanted, [], program.eqns)
    read = {*wanted, *(var for e in equations for var in partition.inputs(e))}
    found = {named[var] for var in read if var in named} & set(SERVER)
    if any(partition.speaks(e, AXIS) for e in equations):
        found.add(OTHERS)
    return found


@pytest.mark.few(6)
@pytest.mark.parametrize("name", FOLLOWS)
def test_what_a_worker_sends_and_keeps_follows_from_what_it_knows(name):
    build, expected = FOLLOWS[name]
    assert follows(build()) == expected
