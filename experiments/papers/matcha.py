"""MATCHA (Wang et al., arXiv 1905.09435): random matchings instead of all links in every round."""

from experiments.papers.base import HEADLINE, Panel, drawn, swept
from experiments.stats import SECONDS, Claim

TITLE = "MATCHA"
VANILLA, HALF, PERIODIC = "vanilla", "matcha/budget=0.5", "periodic/budget=0.5"
BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # shares of D-PSGD's communication
SWEEPS = (
    swept("matcha", "matcha.py:graph=0", 0.15, seeds=5, tier=HEADLINE),
    *(swept(f"matcha_graph_{n}", f"matcha.py:graph={n}", 0.35, seeds=5) for n in range(1, 5)),
    swept("matcha_graph_5", "matcha.py:graph=5", 0.35, seeds=5),
)
RECORDS = {"matcha": "graph 0", **{f"matcha_graph_{n}": f"graph {n}" for n in range(1, 5)},
           "matcha_graph_5": "a ring"}  # fmt: skip
PAPER = "arXiv 1905.09435"
CLAIMS = (
    *(
        Claim(f"{words}: half the communication takes {less}", PAPER, record, HALF, theirs,
              quantity, bound=bound, tuned=True, headline=words == "graph 0")
        for less, theirs, quantity, bound in (
            ("less time than D-PSGD", VANILLA, SECONDS, 1.0),
            ("less time than periodic D-PSGD with as much", PERIODIC, SECONDS, 1.0),
            ("at most 1.1x the updates of D-PSGD", VANILLA, "updates_to_target", 1.1),
        )
        for record, words in RECORDS.items()
    ),
    Claim("graph 0, a matching takes as long as a mini-batch: at its best budget a fifth of the "
          "time of D-PSGD", f"{PAPER}, abstract: up to", "matcha", "matcha", VANILLA, bound=0.2,
          tuned=True, edges={"budget": 1.0}, headline=True),
)  # fmt: skip
GROUPS = {VANILLA: "D-PSGD, all links", PERIODIC: "periodic D-PSGD, half",
          **{f"matcha/budget={share:g}": f"MATCHA, {share:.0%}" for share in BUDGETS}}  # fmt: skip
figure = drawn(
    Panel("8 workers, graph 0", "matcha", GROUPS),
    Panel("8 workers, a ring", "matcha_graph_5", GROUPS),
)
