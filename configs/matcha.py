"""MATCHA against periodic and vanilla D-PSGD (Wang et al., arXiv 1905.09435).

Workers on one of the paper's six base graphs train an MLP on scikit-learn's digits. One active
matching takes one unit of time, so that a budget of .5 halves the communication of vanilla D-PSGD,
in which all links talk in every round. All arms see the same samples and delays, and the claims
take the best learning rate of every method's grid.

    --config=configs/matcha.py:graph=4,communication=0.02
"""

from comms import topology
from configs import arguments, base
from experiments import papers
from experiments.registry import part

RATES = (0.2, 0.4, 0.57, 0.8, 1.13)  # factors of sqrt(2) around the best
# Higher rates can reach the target on the ring, and with half of the communication or more.
RING, MUCH = (1.6, 2.26), (1.6,)
COMMON = 0.8  # best rate of most methods on graph 0, for a single arm


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: MATCHA.

    Arguments: graph (0 to 5), communication (seconds of one model over one link) and, of this arm
    alone, budget (share of vanilla's communication, above 0 and up to 1).
    """
    a = arguments.parse(arg, graph=0, budget=0.5, communication=0.1)

    return base.arm(
        name=f"matcha/budget={a['budget']:g}",
        baseline=f"vanilla/rate={COMMON}",
        # Few classes per worker: with an iid split local models hardly differ, and a method that
        # never communicates would seem as good as any.
        split=part("dirichlet", alpha=0.1),
        workers=len(topology.matcha_graph(a["graph"])),  # 8 for graphs 0 and 5, 16 for the others
        batch_size=64,
        algorithm=part("matcha", budget=a["budget"]),  # matcha | periodic | dpsgd
        graph=part("matcha", k=a["graph"]),
        # No momentum, as in the paper's analysis.
        optimizer=part("sgd", learning_rate=COMMON),
        wait=part("neighbour_barrier"),  # for the neighbours of the round's active links only
        delay=part("jitter", mean=0.1, sigma=0.1),
        communication=part("link", seconds=a["communication"]),  # of every active matching
        seconds=600.0,
        updates=4000,
        target_loss=0.1,  # training loss of the average model, at an accuracy of about 98 %
        stop_at_target=True,
    )


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield vanilla D-PSGD with the best weights, MATCHA and periodic D-PSGD at several budgets."""
    vanilla = part("dpsgd", mixing_matrix="best_constant", order="adapt_then_combine")
    methods = [("vanilla", vanilla, 1.0)]
    for method, budgets in (
        ("matcha", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)),
        ("periodic", (0.1, 0.2, 0.5)),
    ):
        for budget in budgets:
            methods.append((f"{method}/budget={budget:g}", part(method, budget=budget), budget))
    for name, algorithm, budget in methods:
        more = RING if config.graph.get("k") == 5 else MUCH if budget >= 0.5 else ()
        yield from base.at_rates(name, {"algorithm": algorithm}, RATES + more)


claims = papers.Judged("matcha", "matcha")
numbers = papers.at_best("seconds_to_target")
