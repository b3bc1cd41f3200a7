"""Every method in settings that suit it, for the battery that all must pass."""

import types

import numpy as np
import optax

from algorithms import ALGORITHMS
from algorithms import reducers as by
from algorithms.base import scale_by_samples
from comms import cost, topology

N = 8  # workers
use = types.SimpleNamespace(**ALGORITHMS)


def momentum(rate=0.05):
    return optax.chain(optax.trace(0.9), scale_by_samples(rate))


# Of a measured profile; so slow a start-up that the two parameters are best sent together.
PROFILE = types.SimpleNamespace(
    layers=[["b"], ["w"]],
    ready=np.array([1.0, 2.0]),
    cost=cost.table(np.array([0, 9]), np.array([5.0, 6.0])),
    forward=None,
)

# The battery asks these all that it asks: a mean, a centre, graphs, pushes, local steps, pairs, a
# memory, two phases. The formula of a method has a test of its own.
BATTERY = {
    "all_reduce": lambda: use.all_reduce(momentum()),
    "easgd": lambda: use.easgd(momentum(0.01), N),
    "matcha": lambda: use.matcha(momentum(), topology.matcha_graph(0), budget=0.4),
    "sgp/overlap": lambda: use.sgp(momentum(), N, overlap=2),
    "local_sgd": lambda: use.local_sgd(momentum()),
    "swarm/8 bits": lambda: use.swarm(momentum(0.01), topology.ring(N), bits=8, lockstep=True),
    "top_k": lambda: use.top_k(momentum(), ratio=0.4),
    "one_bit_adam": lambda: use.one_bit_adam(scale_by_samples(0.02), N, warmup_updates=20),
}
METHODS = BATTERY | {
    "all_reduce/ring": lambda: use.all_reduce(momentum(), collective="ring"),
    "all_reduce/straggl_ar": lambda: use.all_reduce(momentum(), collective="straggl_ar"),
    "all_reduce/halving": lambda: use.all_reduce(momentum(), collective="halving_doubling"),
    "dpsgd": lambda: use.dpsgd(momentum(), topology.ring(N)),
    "dpsgd/confidence": lambda: use.dpsgd(momentum(), topology.ring(N), weighting="confidence"),
    "choco_sgd": lambda: use.choco_sgd(
        momentum(0.01), topology.ring(N), exchange=by.top_k(0.4), gamma=0.3
    ),
    "noloco": lambda: use.noloco(momentum(0.01), topology.hypercube(N)),
    "gasloc": lambda: use.gasloc(momentum(0.004), topology.ring(N)),
    "gasloc/pairs": lambda: use.gasloc(
        momentum(0.004), topology.hypercube(N), gamma=0.5, pairs=True
    ),
    "gradient_tracking": lambda: use.gradient_tracking(scale_by_samples(0.02), topology.ring(N)),
    "exact_diffusion": lambda: use.exact_diffusion(scale_by_samples(0.02), topology.ring(N)),
    "qg_dsgdm": lambda: use.qg_dsgdm(scale_by_samples(0.02), topology.ring(N)),
    "decentlam": lambda: use.decentlam(scale_by_samples(0.02), topology.ring(N)),
    "periodic": lambda: use.periodic(
        momentum(), topology.ring(N), budget=0.5, order="combine_while_adapting"
    ),
    "mg_wfbp/ring": lambda: use.mg_wfbp(
        optax.adam(0.05), buckets="wfbp", profile=PROFILE, collective="ring"
    ),
    "local_sgd/lists": lambda: use.local_sgd(
        momentum(0.01), exchange=by.error_feedback(by.top_k(0.6), by.natural())
    ),
    "edit": lambda: use.edit(momentum(0.01), warmup=3, clip=0.5),
    "dsgd_ac": lambda: use.dsgd_ac(momentum(), topology.ring(N), samples=600),
    "streaming_diloco": lambda: use.streaming_diloco(momentum(0.01), fragments=3, overlap=2),
    "loscar_sgd": lambda: use.loscar_sgd(momentum(0.01), N, ratio=0.4, every=3),
    "decoupled_diloco": lambda: use.decoupled_diloco(momentum(0.01), fragments=3),
    "sparse_loco": lambda: use.sparse_loco(momentum(0.01), chunk=4, k=2, bits=4),
    "demo": lambda: use.demo(scale_by_samples(0.001), chunk=4, k=2, decay=0.9),
    "async_diloco": lambda: use.async_diloco(momentum(0.01), N, period=3),
    "sgp": lambda: use.sgp(momentum(), N),
    "swarm": lambda: use.swarm(momentum(0.01), topology.hypercube(N), lockstep=True),
    "s2_reducer/too small": lambda: use.s2_reducer(momentum(), sparse=("w",), exact=True, budget=2),
    "sparse_all_gather": lambda: use.sparse_all_gather(momentum(), sparse=("w",), ratio=1.0),
    "sparcml/too small": lambda: use.sparcml(momentum(), sparse=("w",), budget=1),
    "omnireduce/too small": lambda: use.omnireduce(momentum(), sparse=("w",), ratio=0.01),
    "parallax/too small": lambda: use.parallax(
        momentum(), sparse=("w",), budget=1, union_ratio=0.5, weighting="equal"
    ),
    "random_k": lambda: use.random_k(momentum(0.01), ratio=0.4),
    "sketched_sgd": lambda: use.sketched_sgd(scale_by_samples(0.02), ratio=1.0, k_ratio=0.5),
    "powersgd": lambda: use.powersgd(momentum(), warmup_updates=10),
    "qsgd": lambda: use.qsgd(momentum()),
    "natural_compression": lambda: use.natural_compression(momentum()),
    "ef21": lambda: use.ef21(momentum(0.01), N, exchange=by.top_k(0.4)),
    "ef21_sgdm": lambda: use.ef21_sgdm(scale_by_samples(0.02), N, exchange=by.top_k(0.4)),
    "ef21/broadcast": lambda: use.ef21(
        momentum(0.01), N, exchange=by.top_k(0.4), broadcast=by.top_k(0.6)
    ),
    "ef_sign": lambda: use.ef_sign(scale_by_samples(0.05)),
    "int8_all_reduce": lambda: use.int8_all_reduce(momentum()),
    "all_reduce/ring of int8": lambda: use.all_reduce(momentum(), exchange=by.ring(by.int8())),
    "coordinate_median": lambda: use.coordinate_median(momentum(0.02)),
    "trimmed_mean": lambda: use.trimmed_mean(momentum(0.02)),
    "krum": lambda: use.krum(scale_by_samples(0.02), keep=2),
    "centred_clipping": lambda: use.centred_clipping(momentum(0.02), radius=1.0, iterations=2),
    "ringleader": lambda: use.ringleader(momentum(0.002), N),
    # In lock-step nothing is stale, and these are all-reduce SGD.
    "compensated_rate": lambda: use.compensated_rate(momentum(), threshold=0.1),
    "dc_asgd": lambda: use.dc_asgd(momentum()),
    "delay_adaptive": lambda: use.delay_adaptive(momentum(), workers=N),
    "hinge_staleness": lambda: use.hinge_staleness(momentum()),
    "inverse_staleness": lambda: use.inverse_staleness(momentum()),
    "polynomial_staleness": lambda: use.polynomial_staleness(momentum()),
}
