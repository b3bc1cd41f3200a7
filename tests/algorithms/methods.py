"""Every method in settings that suit it, for the battery that all must pass."""

import numpy as np
import optax
import pytest

from algorithms import (
    all_reduce,
    compensated_rate,
    dc_asgd,
    delay_adaptive,
    dpsgd,
    ef_sign,
    hinge_staleness,
    int8_all_reduce,
    inverse_staleness,
    local_sgd,
    matcha,
    mg_wfbp,
    natural_compression,
    omnireduce,
    one_bit_adam,
    parallax,
    periodic,
    polynomial_staleness,
    powersgd,
    qsgd,
    random_k,
    reducers,
    s2_reducer,
    sgp,
    sketched_sgd,
    sparcml,
    sparse_all_gather,
    swarm,
    top_k,
)
from algorithms.base import scale_by_samples
from algorithms.links import Links, in_turn
from algorithms.reducers import bf16, chain, error_feedback, fp16, int8, natural, quantise
from comms import topology
from experiments.profiling import Profile

N = 8  # workers


def momentum(rate=0.05):
    return optax.chain(optax.trace(0.9), scale_by_samples(rate))


# So slow a start-up that the two parameters are best sent together.
PROFILE = Profile([["b"], ["w"]], np.array([1.0, 2.0]), np.array([0, 9]), np.array([5.0, 6.0]))

# One peer at a time, 1, 2 and 4 places away (arXiv 2110.13363).
ONE_PEER = Links(
    (np.arange(N) - 2 ** np.arange(3)[:, None]) % N,
    in_turn(3),
    directed=True,
    weights=np.full((3, N), 0.5),
)

METHODS = {
    "all_reduce": lambda: all_reduce(momentum()),
    "all_reduce/adam": lambda: all_reduce(optax.adam(0.05)),
    "all_reduce/ring": lambda: all_reduce(momentum(), collective="ring"),
    "all_reduce/equal": lambda: all_reduce(momentum(), weighting="equal"),
    "dpsgd": lambda: dpsgd(momentum(), topology.ring(N)),
    "dpsgd/adapt_then_combine": lambda: dpsgd(
        optax.adam(0.05), topology.star(N), order="adapt_then_combine"
    ),
    "dpsgd/confidence": lambda: dpsgd(momentum(), topology.ring(N), weighting="confidence"),
    "dpsgd/local_sum": lambda: dpsgd(
        momentum(), topology.ring(N), weighting="local_sum", mixing_matrix="best_constant"
    ),
    "dpsgd/links": lambda: dpsgd(momentum(), topology.exponential(N), links=ONE_PEER),
    "matcha": lambda: matcha(momentum(), topology.matcha_graph(0), budget=0.4),
    "matcha/confidence": lambda: matcha(
        optax.adam(0.05), topology.hypercube(N), budget=1.0, weighting="confidence", seed=3
    ),
    "periodic": lambda: periodic(
        momentum(), topology.ring(N), budget=0.5, order="combine_while_adapting"
    ),
    "local_sgd": lambda: local_sgd(momentum()),
    "local_sgd/ring": lambda: local_sgd(
        optax.adam(0.05), collective="ring", weighting="proportional", server_momentum=0.5
    ),
    "mg_wfbp": lambda: mg_wfbp(momentum(), profile=PROFILE),
    "mg_wfbp/ring": lambda: mg_wfbp(
        optax.adam(0.05), buckets="wfbp", profile=PROFILE, collective="ring"
    ),
    "all_reduce/chain": lambda: all_reduce(
        momentum(), exchange=error_feedback(reducers.random_k(0.5), int8(bucket=2))
    ),
    "all_reduce/bf16": lambda: all_reduce(momentum(), exchange=bf16()),
    "all_reduce/fp16": lambda: all_reduce(momentum(), exchange=error_feedback(fp16())),
    "local_sgd/bf16": lambda: local_sgd(
        momentum(), exchange=error_feedback(reducers.top_k(0.4), bf16())
    ),
    "local_sgd/top_k": lambda: local_sgd(momentum(), exchange=error_feedback(reducers.top_k(0.4))),
    "local_sgd/chain": lambda: local_sgd(
        momentum(0.01), exchange=chain(reducers.random_k(0.8), quantise(bits=8))
    ),
    "local_sgd/lists": lambda: local_sgd(
        momentum(0.01), exchange=error_feedback(reducers.top_k(0.6), natural())
    ),
    "local_sgd/adam server": lambda: local_sgd(
        momentum(), server=optax.chain(optax.scale_by_adam(), scale_by_samples(0.05))
    ),
    "sgp": lambda: sgp(momentum(), N),
    "sgp/overlap": lambda: sgp(momentum(), N, overlap=2),
    "swarm": lambda: swarm(momentum(0.01), topology.hypercube(N), lockstep=True),
    "swarm/8 bits": lambda: swarm(momentum(0.01), topology.ring(N), bits=8, lockstep=True),
    "swarm/unbiased": lambda: swarm(
        momentum(0.01), topology.ring(N), bits=6, rounding="unbiased", lockstep=True
    ),
    "swarm/blocking": lambda: swarm(momentum(0.01), topology.ring(N), blocking=True, lockstep=True),
    "s2_reducer": lambda: s2_reducer(momentum(), sparse=("w",), budget=8),
    "s2_reducer/overloaded": lambda: s2_reducer(
        momentum(), sparse=("w",), ratio=0.6, fallback="dense"
    ),
    "s2_reducer/elements": lambda: s2_reducer(
        momentum(), sparse=("w",), budget=8, rows=4, granularity="element"
    ),
    "s2_reducer/estimated": lambda: s2_reducer(
        momentum(0.02), sparse=("w",), rows=1, budget=5, peel=False
    ),
    "s2_reducer/exact": lambda: s2_reducer(
        optax.adam(0.05), sparse=("w",), exact=True, ratio=1.0, buckets="wfbp"
    ),
    "s2_reducer/too small": lambda: s2_reducer(momentum(), sparse=("w",), exact=True, budget=2),
    "s2_reducer/memory": lambda: s2_reducer(
        momentum(), sparse=("w",), budget=5, peel=False, error_feedback=True, warmup_updates=5
    ),
    "sparse_all_gather": lambda: sparse_all_gather(momentum(), sparse=("w",), ratio=1.0),
    "sparse_all_gather/too small": lambda: sparse_all_gather(
        momentum(), sparse=("w",), budget=1, weighting="equal"
    ),
    "sparcml": lambda: sparcml(momentum(), sparse=("w",), ratio=1.0),
    "sparcml/too small": lambda: sparcml(momentum(), sparse=("w",), budget=1),
    "omnireduce": lambda: omnireduce(momentum(), sparse=("w",), block=2, ratio=1.0),
    "omnireduce/too small": lambda: omnireduce(momentum(), sparse=("w",), ratio=0.01),
    "parallax": lambda: parallax(momentum(), sparse=("w",), ratio=1.0),
    "parallax/too small": lambda: parallax(
        momentum(), sparse=("w",), budget=1, union_ratio=0.5, weighting="equal"
    ),
    "top_k": lambda: top_k(momentum(), ratio=0.4),
    "top_k/momentum": lambda: top_k(
        scale_by_samples(0.05), ratio=0.2, momentum=0.9, warmup_updates=20
    ),
    "random_k": lambda: random_k(momentum(0.01), ratio=0.4),
    "random_k/unbiased": lambda: random_k(scale_by_samples(0.05), ratio=0.4, error_feedback=False),
    "sketched_sgd": lambda: sketched_sgd(scale_by_samples(0.02), ratio=1.0, k_ratio=0.5),
    "sketched_sgd/momentum": lambda: sketched_sgd(
        scale_by_samples(0.01), ratio=1.0, k_ratio=0.5, momentum=0.5
    ),
    "powersgd": lambda: powersgd(momentum(), warmup_updates=10),
    "one_bit_adam": lambda: one_bit_adam(scale_by_samples(0.02), N, warmup_updates=20),
    "one_bit_adam/equal": lambda: one_bit_adam(
        scale_by_samples(0.02), N, warmup_updates=30, weighting="equal"
    ),
    "qsgd": lambda: qsgd(momentum()),
    "natural_compression": lambda: natural_compression(momentum()),
    "ef_sign": lambda: ef_sign(scale_by_samples(0.05)),
    "int8_all_reduce": lambda: int8_all_reduce(momentum()),
    # In lock-step nothing is stale, and these are all-reduce SGD.
    "compensated_rate": lambda: compensated_rate(momentum(), threshold=0.1),
    "dc_asgd": lambda: dc_asgd(momentum()),
    "delay_adaptive": lambda: delay_adaptive(momentum(), workers=N),
    "hinge_staleness": lambda: hinge_staleness(momentum()),
    "inverse_staleness": lambda: inverse_staleness(momentum()),
    "polynomial_staleness": lambda: polynomial_staleness(momentum()),
}
# A gradient on the edge of two short values may be rounded either way: what that is worth at most.
EDGES = {"all_reduce/bf16": 2e-3, "all_reduce/fp16": 2e-4, "local_sgd/bf16": 2e-3}
# Variants, "method/what is different", and close relatives of others take minutes together.
RELATIVES = {
    "delay_adaptive", "ef_sign", "hinge_staleness", "int8_all_reduce", "inverse_staleness",
    "natural_compression", "periodic", "polynomial_staleness", "random_k",
}  # fmt: skip
ROWS = [
    pytest.param(name, marks=[pytest.mark.slow] if "/" in name or name in RELATIVES else [])
    for name in METHODS
]
