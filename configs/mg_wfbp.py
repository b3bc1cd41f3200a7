"""MG-WFBP's buckets on a mesh: other messages, the same training (arXiv 1811.11141, 1912.09268).

One worker per device trains a CNN on scikit-learn's digits, with gradients all-reduced at once,
layer by layer, or in planned buckets. On virtual devices of one CPU nothing is gained in time; what
the buckets would gain on a network is in `configs/mg_wfbp_scale.py`.

    --config=configs/mg_wfbp.py --config.buckets=greedy --config.profile=profile.json
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, base
from experiments import papers
from experiments.parts import part


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: the best buckets. Argument: workers, one per device."""
    a = arguments.parse(arg, workers=8)

    c = base.arm(
        name="mg_wfbp",
        baseline="pmean",
        task=part("digits", model="cnn"),
        runtime="mesh",
        rounds_per_dispatch=10,
        workers=a["workers"],
        algorithm=part("mg_wfbp"),  # mg_wfbp(collective=ring)
        optimizer=part("momentum", decay=0.9, learning_rate=0.1),
        delay=part("none"),
        seconds=600.0,
        updates=200,
        target_loss=0.1,
    )
    c.buckets = "optimal"  # optimal | greedy | asc | wfbp | single | fixed:SIZE, as in fixed:25MB
    # Times that a plan is made from: measure | measure:PATH, which saves them | PATH, saved ones |
    # none, where the buckets need none (wfbp, single, fixed). Save one before --jobs, whose arms
    # would else measure beside each other.
    c.profile = "measure"
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """Plain all-reduce, and every kind of buckets."""
    yield "pmean", {"algorithm": part("all_reduce")}
    for buckets in ("wfbp", "single", "fixed:32kB", "greedy", "optimal"):
        yield buckets.replace(":", "_"), {"buckets": buckets}


claims = papers.claims("mg_wfbp", "mg_wfbp")
numbers = papers.numbers("mg_wfbp")
