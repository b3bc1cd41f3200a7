"""Stragglers in links: methods with a link that is always slow, slow spells, and a slow worker.

Eight workers train a logistic regression on scikit-learn's digits, with few classes each, until the
mean model has a loss of .15. Sending a model over a link takes a third of a mini-batch's time; a
slow link takes ten times as long. Every method takes its best learning rate in each condition:

    usual    no straggler
    link     the link between workers 0 and 1, and worker 0's to a server, is always slow
    spells   each link is slow for 10 s after 90 s, on average
    both     the slow link, and worker 4 takes four times as long for a mini-batch
"""

from configs import arguments, base
from experiments import papers, stats
from experiments.registry import part

LINK = 0.1  # s of a model over a link
JITTER = part("jitter", mean=0.3, sigma=0.1)  # s of a mini-batch
SLOW_WORKER = part("persistent", law=JITTER, factors={4: 4.0})
SLOW_LINK = part("listed", changes=[[0.0, "0-1", 10.0], [0.0, "0-0", 10.0]])
SPELLS = part("markov", factor=10.0, mean_normal=90.0, mean_slow=10.0)
CONDITIONS = {  # spells of links, delay
    "usual": (None, JITTER),
    "link": (SLOW_LINK, JITTER),
    "spells": (SPELLS, JITTER),
    "both": (SLOW_LINK, SLOW_WORKER),
}
RATES = (3.2, 4.5, 6.4, 9.0, 12.8)  # factors of sqrt(2) around the best
HYPERCUBE, COMPLETE = part("hypercube"), part("complete")
OUTER = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7)  # as in arXiv 2311.08105
# Method -> (its changes, its learning rates).
METHODS = {
    "all_reduce": ({"algorithm": part("all_reduce"), "wait": part("barrier")}, RATES),
    "dpsgd/ring": ({}, RATES),
    "dpsgd/hypercube": ({"graph": HYPERCUBE}, RATES),
    "dpsgd/complete": ({"graph": COMPLETE}, RATES),
    "matcha/hypercube": ({"algorithm": part("matcha", budget=0.5), "graph": HYPERCUBE}, RATES),
    "swarm/nonblocking": (
        {"algorithm": part("swarm"), "wait": part("random_pairs"), "mini_batches": 2,
         "graph": COMPLETE}, (2.26, *RATES[:4]),
    ),
    "swarm/blocking": (
        {"algorithm": part("swarm", blocking=True), "graph": COMPLETE, "mini_batches": 2,
         "wait": part("random_pairs", blocking=True)}, (2.26, *RATES[:4]),
    ),
    "diloco": (
        {"algorithm": part("local_sgd", server=OUTER), "wait": part("barrier"),
         "mini_batches": 8}, (0.8, 1.13, 1.6, 2.26, 3.2),
    ),
    "k_async": (
        {"algorithm": part("all_reduce"), "wait": part("k_async", k=2)},
        (0.8, 1.13, 1.6, 2.26, 3.2, 4.5),
    ),
}  # fmt: skip


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: D-PSGD on a ring over links with spells. It takes no arguments."""
    arguments.parse(arg)
    return base.arm(
        name="spells/dpsgd/ring/rate=6.4",  # condition/method/rate
        task=part("digits", model="logistic"),
        split=part("dirichlet", alpha=0.3),
        workers=8,
        batch_size=16,
        algorithm=part("dpsgd", order="adapt_then_combine"),
        optimizer=part("sgd", learning_rate=6.4),
        wait=part("neighbour_barrier"),
        delay=JITTER,
        communication=part("link", seconds=LINK, spells=SPELLS),
        seconds=900.0,
        evaluate_every=2.0,
        target_loss=0.15,
        stop_at_target=True,
    )


def sweep() -> base.Arms:
    """Yield every method in every condition at every rate of its grid."""
    for condition, (spells, delay) in CONDITIONS.items():
        own = {"delay": delay, "communication": part("link", seconds=LINK, spells=spells)}
        for method, (changes, rates) in METHODS.items():
            yield from base.at_rates(f"{condition}/{method}", own | changes, rates)


claims = papers.Judged("slow_links", "slow_links")
numbers = stats.at_best(stats.SECONDS)
