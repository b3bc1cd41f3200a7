"""A sweep of every waiting rule under three delays, for `benchmarks.same_behaviour`.

Eight workers take mini-batches of two samples of a synthetic problem: only schedules matter.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

DELAYS = {
    "exponential": "exponential(scale=1)",
    "ties": "bernoulli_slowdown(value=1, factor=2, probability=0.25)",  # many ends at one time
    "markov": "markov(law=exponential(scale=1), factor=5, mean_normal=9, mean_slow=3)",
}
GOSSIP = {"algorithm": "dpsgd", "mini_batches": 3}
SERVER = {"mini_batches": 1}
PAIRS = {"algorithm": "swarm", "mini_batches": 3}
RULES = {
    "barrier": {"mini_batches": 3}, "neighbour_barrier": GOSSIP, "first_finisher": GOSSIP,
    "first_finisher(leftovers=drop, in_flight=cut)": GOSSIP | {"algorithm": "matcha(budget=0.5)"},
    "deadline(seconds=1.5)": GOSSIP | {"draw": "round"}, "quorum(k=9)": {"mini_batches": 3},
    "quorum_grace(k=5, gamma=0.5)": {"mini_batches": 3},
    "adaptive_deadline(c=2)": {"mini_batches": 3},
    "equal_work(cost=1.5)": {"mini_batches": 3},
    "drop_compute(calibration=20)": {"mini_batches": 3},
    "anytime(seconds=2.5)": {"mini_batches": 3}, "mindflayer(seconds=1.5)": {"mini_batches": 3},
    "ata(tasks=16, alpha=0.01)": {"mini_batches": 3}, "ringmaster(limit=1, grows=true)": SERVER,
    "k_sync(k=3)": SERVER, "k_batch_sync(k=3)": SERVER,
    "k_async(k=3)": SERVER, "k_async(k=2, grace=0.5)": SERVER, "k_batch_async(k=3)": SERVER,
    "quorum_async(k=2)": SERVER, "ringmaster(limit=4)": SERVER,
    "ringmaster(limit=4, interrupt=true, k=2)": SERVER, "rennala(k=3)": SERVER,
    "adasync(protocol=k_async, interval=5)": SERVER, "random_pairs": PAIRS,
    "random_pairs(local_steps=2, steps=geometric)": PAIRS,
    "random_pairs(blocking=true)": PAIRS | {"algorithm": "swarm(blocking=true)"},
    "bipartite_pairs": PAIRS,
}  # fmt: skip


def get_config() -> ConfigDict:
    """Return all-reduce with a barrier."""
    return ConfigDict({
        "name": "rule", "baseline": None, "seed": 0, "task": "synthetic_logistic", "split": "iid",
        "runtime": "simulate", "devices": 1, "rounds_per_dispatch": 4, "workers": 8,
        "batch_size": 2, "mini_batches": 3, "algorithm": "all_reduce", "graph": "hypercube",
        "optimizer": "sgd(learning_rate=0.05)", "wait": "barrier", "delay": "exponential(scale=1)",
        "draw": "mini_batch", "communication": 0.25, "seconds": 1e9, "updates": 200,
        "evaluate_every": 25.0, "target_loss": None, "stop_at_target": False,
    })  # fmt: skip


def sweep() -> Iterator[tuple[str, dict]]:
    """Yield every rule under every delay."""
    for wait, changes in RULES.items():
        for delay, law in DELAYS.items():
            yield f"{wait}/{delay}", {"wait": wait, "delay": law} | changes
