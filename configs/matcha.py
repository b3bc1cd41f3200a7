"""MATCHA."""

from ml_collections import ConfigDict

from comms import topology
from configs import arguments


def get_config(arg: str | None = None) -> ConfigDict:
    a = arguments.parse(arg, graph=0, budget=0.5, communication=0.1)
    c = ConfigDict()
    c.name = "matcha/.5"
    c.baseline = "vanilla"
    c.seed = 0
    c.task = "digits(model=mlp)"
    c.split = "dirichlet(alpha=0.1)"
    c.runtime = "simulate"
    c.devices = 1
    c.rounds_per_dispatch = 4
    c.workers = len(topology.matcha_graph(a["graph"]))
    c.batch_size = 16
    c.mini_batches = 1
    c.algorithm = f"matcha(budget={a['budget']})"
    c.graph = f"matcha(k={a['graph']})"
    c.optimizer = ConfigDict({"name": "sgd", "learning_rate": 0.4})
    c.wait = "neighbour_barrier"
    c.delay = "jitter(mean=0.1, sigma=0.1)"
    c.draw = "mini_batch"
    c.communication = f"link(seconds={a['communication']})"
    c.seconds = 2000.0
    c.updates = 4000
    c.evaluate_every = 1.0
    c.target_loss = 0.1
    c.stop_at_target = True
    return c
