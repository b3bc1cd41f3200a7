"""AdaSync (Dutta, Wang, Joshi, arXiv 2003.10579): a number of gradients that grows in training."""

from matplotlib.figure import Figure

from experiments.papers.base import Panel, Records, Sweep, draw
from experiments.stats import END, Claim

TITLE = "AdaSync"
SWEEPS = (Sweep("adasync", "--config=configs/adasync.py --sweep --seeds=15 --together", 0.6),)
WAYS = {
    "adasync": "AdaSync",
    "adasync_sqrt": "AdaSync, rate by the root of K",
    "adasync_linear": "AdaSync, rate by K",
}
FIXED = tuple(f"fixed/K={k}" for k in (1, 2, 4, 8))
CLAIMS = (
    Claim("AdaSync takes at most 1.1x the time of the best fixed K to the target",
          "arXiv 2003.10579, abstract", "adasync", "adasync", FIXED, bound=1.1, tuned=True),
    Claim("AdaSync ends at most as high as the best fixed K", "", "adasync", "adasync", FIXED, END,
          tuned=True, equal=("seconds",)),
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw the seconds to the target, and how low training ends after the same time."""
    groups = {name: name.replace("fixed/", "fixed ") for name in FIXED} | WAYS
    panels = [
        Panel("first at the target", "adasync", groups),
        Panel("after the same time", "adasync", groups, END, "training loss at the end", log=True),
    ]
    return draw(panels, records)
