"""Blocking against non-blocking SGD with one slow worker (He & Dube, arXiv 2211.00889).

Eight workers train on scikit-learn's digits. One of them is always four times slower, as a
throttled or shared device would be; all have 10 % jitter; a round's communication costs half a
nominal round. All arms see the same delays and the same samples per worker and mini-batch.

    --config=configs/nonblocking.py:workers=16,slow=2
"""

from ml_collections import ConfigDict

from configs import arguments


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: Ring All-Reduce, non-blocking.

    Arguments: workers, slow (factor of the slow worker; 1: none), mini_batches (per round),
    jitter (standard deviation of the log of a mini-batch's time), communication (in nominal
    rounds).
    """
    a = arguments.parse(arg, workers=8, slow=4.0, mini_batches=8, jitter=0.1, communication=0.5)
    nominal_round = 0.2  # seconds for 8 mini-batches at nominal speed

    c = ConfigDict()
    c.name = "all_reduce/nonblocking"  # method/variant
    c.baseline = "all_reduce/blocking"  # the arm that this one is compared with
    c.seed = 0  # initial parameters, samples and delays

    # Parts are written like calls, so that one flag replaces one: --config.graph='star'
    c.task = "digits(model=mlp)"
    c.split = "iid"  # iid | dirichlet(alpha=...)

    c.runtime = "simulate"  # simulate (virtual time) | mesh (one worker per device, real time)
    c.devices = 1  # simulate: devices that the worker axis is sharded over
    c.rounds_per_dispatch = 4  # mesh: rounds between two looks of the host at the clock
    c.workers = a["workers"]
    c.batch_size = 16  # samples in a mini-batch
    c.mini_batches = a["mini_batches"]  # mini-batches in a full round

    c.algorithm = "all_reduce(collective=ring)"
    c.graph = "ring"  # whom gossip talks to; all-reduce ignores it
    # The best of 0.05, 0.1, ... 1.6 for every arm of the sweep.
    c.optimizer = ConfigDict({"name": "momentum", "decay": 0.9, "learning_rate": 0.4})

    c.wait = "first_finisher"  # who waits for whom: barrier | neighbour_barrier | deadline(...)
    # Seconds of a mini-batch; worker 0 takes `slow` times as long.
    jitter = f"jitter(mean={nominal_round / 8}, sigma={a['jitter']})"
    c.delay = f"persistent(law={jitter}, factors={{0: {a['slow']}}})"
    c.draw = "mini_batch"  # a new delay per mini_batch | per round
    c.communication = a["communication"] * nominal_round  # seconds per round

    c.seconds = 60.0  # budget on the run's clock
    c.updates = 1_000_000  # budget in updates, whichever comes first
    c.evaluate_every = 0.3  # seconds on the run's clock
    c.target_loss = 0.36788  # log(train loss) = -1
    c.stop_at_target = False  # end an arm as soon as it is there
    return c


def sweep():
    """Both mixers: equal samples per round, blocking and not; and small batches, blocking."""
    ring = {"algorithm": "all_reduce(collective=ring)"}
    gossip = {"algorithm": "dpsgd", "baseline": "dpsgd/blocking"}
    yield "all_reduce/blocking", ring | {"wait": "barrier"}
    yield "all_reduce/nonblocking", ring | {"wait": "first_finisher"}
    yield "all_reduce/small_batch", ring | {"wait": "barrier", "mini_batches": 1}
    yield "dpsgd/blocking", gossip | {"wait": "neighbour_barrier"}
    yield "dpsgd/nonblocking", gossip | {"wait": "first_finisher"}
