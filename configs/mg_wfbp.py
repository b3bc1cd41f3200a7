"""MG-WFBP's buckets on a mesh: other messages, the same training (arXiv 1811.11141, 1912.09268).

One worker per device trains a CNN on scikit-learn's digits, with gradients all-reduced at once,
layer by layer, or in planned buckets. On virtual devices of one CPU nothing is gained in time; what
the buckets would gain on a network is in `configs/mg_wfbp_scale.py`.

    --config=configs/mg_wfbp.py --config.buckets=greedy --config.profile=profile.json
"""

from ml_collections import ConfigDict

from configs import arguments
from experiments.studies import mg_wfbp as study


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: the best buckets. Argument: workers, one per device."""
    a = arguments.parse(arg, workers=8)

    c = ConfigDict()
    c.name = "mg_wfbp"
    c.baseline = "pmean"  # the arm that this one is compared with
    c.seed = 0  # initial parameters and samples

    c.task = "digits(model=cnn)"
    c.split = "iid"

    c.runtime = "mesh"  # mesh (one worker per device, real time) | simulate (virtual time)
    c.devices = 1  # simulate: devices that the worker axis is sharded over
    c.rounds_per_dispatch = 10  # mesh: rounds between two looks of the host at the clock
    c.workers = a["workers"]
    c.batch_size = 16  # samples in a mini-batch
    c.mini_batches = 1  # mini-batches in a round

    c.algorithm = "mg_wfbp"  # mg_wfbp(collective=ring)
    c.buckets = "optimal"  # optimal | greedy | asc | wfbp | single | fixed:SIZE, as in fixed:25MB
    # Times that a plan is made from: measure | measure:PATH, which saves them | PATH, saved ones |
    # none, where the buckets need none (wfbp, single, fixed). Save one before --jobs, whose arms
    # would else measure beside each other.
    c.profile = "measure"
    c.graph = "ring"  # whom gossip talks to; all-reduce ignores it
    c.optimizer = ConfigDict({"name": "momentum", "decay": 0.9, "learning_rate": 0.1})

    c.wait = "barrier"
    c.delay = "none"  # none: the devices' own speed
    c.draw = "mini_batch"  # a new delay per mini_batch | per round
    c.communication = 0.0  # seconds of delay besides the real all-reduces

    c.seconds = 600.0  # budget on the run's clock
    c.updates = 200  # budget in updates, whichever comes first
    c.evaluate_every = 1.0  # seconds on the run's clock
    c.target_loss = 0.1
    c.stop_at_target = False  # end an arm as soon as it is there
    return c


def sweep():
    """Plain all-reduce, and every kind of buckets."""
    yield "pmean", {"algorithm": "all_reduce"}
    for buckets in ("wfbp", "single", "fixed:32kB", "greedy", "optimal"):
        yield buckets.replace(":", "_"), {"buckets": buckets}


claims = study.claims
