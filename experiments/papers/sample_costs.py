"""Stragglers in the data: the long samples that waiting rules keep or drop, and remedies."""

from matplotlib.figure import Figure

from experiments import stats
from experiments.papers.base import Lines, Panel, Records, draw, swept
from experiments.stats import Claim

TITLE = "Stragglers in the data"
SWEEPS = (swept("sample_costs", "sample_costs.py", 0.02, seeds=5),)
LONG = "train_loss_long"
BARRIER, DROPPED, CARRIED = "barrier", "nonblocking/drop", "nonblocking/carry"
BALANCED, WEIGHTED = "nonblocking/balanced", "nonblocking/weighted"
CLAIMS = (
    Claim("a barrier ends below rounds that drop cut work, on the longest tenth", "",
          "sample_costs", BARRIER, DROPPED, LONG, equal=("seconds",)),
    Claim("non-blocking rounds that carry work on end at most .02 above it", "",
          "sample_costs", CARRIED, BARRIER, LONG, margin=0.02, equal=("seconds",)),
    Claim("non-blocking rounds over balanced samples do as well", "",
          "sample_costs", BALANCED, BARRIER, LONG, margin=0.02, equal=("seconds",)),
    Claim("dropping with weights 1 / P(kept) does as well", "",
          "sample_costs", WEIGHTED, BARRIER, LONG, margin=0.02, equal=("seconds",)),
    Claim("dropping takes at most 1.03x the samples of balanced rounds in the same time", "",
          "sample_costs", DROPPED, BALANCED, "samples", bound=1.03, equal=("seconds",)),
)  # fmt: skip
GROUPS = {
    BARRIER: "barrier",
    "barrier/balanced": "barrier, balanced",
    CARRIED: "non-blocking",
    "nonblocking/again": "non-blocking, cut work again",
    BALANCED: "non-blocking, balanced",
    "nonblocking/finish": "drops what has not begun",
    "tokens": "equal work, 8 of at most 16",
    DROPPED: "drops what is cut",
    WEIGHTED: "drops what is cut, weighted",
    "anytime/drop": "Anytime Minibatch",
    "drop_compute/drop": "DropCompute",
    "k_sync/drop": "K-sync, 14 of 16",
}
# An arm of each kind of rule, and the arm that keeps all samples, CARRIED.
CURVES = (
    CARRIED, "nonblocking/finish", "anytime/drop", "drop_compute/drop", "k_sync/drop", DROPPED,
)  # fmt: skip


def figure(records: Records) -> Figure:
    """Draw samples and losses of all arms, and the share of samples that is kept by their time."""
    found = {arm["name"]: arm for arm in stats.arms(records("sample_costs"))}
    points = [
        {"tenth": tenth, "kept": share, "arm": GROUPS[name]}
        for name in CURVES
        for tenth, share in enumerate(found[name]["kept_by_tenth"], 1)
    ]
    labels = "tenth of the samples, by their time", "kept"
    panels = (
        Panel("samples in the same time", "sample_costs", GROUPS, "samples", "samples"),
        Panel("the longest tenth", "sample_costs", GROUPS, LONG, "training loss at the end"),
        Lines("kept by the time of samples", points, "tenth", "kept", "arm", labels, share=True),
    )
    return draw(panels, records)
