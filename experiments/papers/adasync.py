"""AdaSync (Dutta, Wang, Joshi, arXiv 2003.10579): more gradients per update as training goes on."""

from experiments.papers.base import Panel, drawn, swept
from experiments.stats import END, Claim

TITLE = "AdaSync"
SWEEPS = (swept("adasync", "adasync.py", 0.4, seeds=15),)
FIXED = tuple(f"fixed/K={k}" for k in (1, 2, 4, 8))
CLAIMS = (
    Claim("AdaSync takes at most 1.1x the time of the best fixed K to the target",
          "arXiv 2003.10579, abstract", "adasync", "adasync", FIXED, bound=1.1, tuned=True),
    Claim("AdaSync ends at most as high as the best fixed K", "", "adasync", "adasync", FIXED, END,
          tuned=True, equal=("seconds",)),
)  # fmt: skip
GROUPS = {name: name.replace("fixed/", "fixed ") for name in FIXED} | {
    "adasync": "AdaSync",
    "adasync_sqrt": "AdaSync, rate by the root of K",
    "adasync_linear": "AdaSync, rate by K",
}
figure = drawn(
    Panel("first at the target", "adasync", GROUPS),
    Panel("after the same time", "adasync", GROUPS, END, log=True),
)
