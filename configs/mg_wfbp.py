"""MG-WFBP's buckets on a mesh: other messages, the same training (arXiv 1811.11141, 1912.09268).

One worker per device trains a CNN on scikit-learn's digits, with gradients all-reduced at once,
layer by layer, or in planned buckets. On virtual devices of one CPU buckets gain no time; the
variant `scale` simulates their gain on a network. It also reads a CSV file with the columns
bytes,backward_us and a line per layer, in forward order.

    --config=configs/mg_wfbp.py --config.buckets=greedy --config.profile=profile.json
    --config=configs/mg_wfbp.py:scale,trace=resnet50,collective=double_binary_tree
    --config=configs/mg_wfbp.py:scale,trace=mine.csv
"""

from configs import arguments, base
from experiments import papers
from experiments.registry import part


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: MG-WFBP with optimal buckets. Argument: workers, one per device."""
    a = arguments.parse(arg, workers=8)

    return base.arm(
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
        # optimal | greedy | asc | wfbp | single | fixed:SIZE, as in fixed:25MB |
        # byte_scheduler[:SIZE]
        buckets="optimal",
        # Times for the plan: measure | measure:PATH, which saves them | PATH, saved ones | none,
        # for buckets without times (wfbp, single, fixed). Save them before --jobs, whose arms would
        # else measure beside each other.
        profile="measure",
    )


def sweep() -> base.Arms:
    """Yield plain all-reduce, then five kinds of buckets."""
    yield "pmean", {"algorithm": part("all_reduce")}
    for buckets in ("wfbp", "single", "fixed:32kB", "greedy", "optimal"):
        yield buckets.replace(":", "_"), {"buckets": buckets}


claims = papers.Judged("mg_wfbp", "mg_wfbp")


# --- simulated on 4 to 2048 workers ---


def _scale(arg: str | None = None) -> base.ConfigDict:
    """Return the config of four traces.

    Arguments: trace, to take only one; collective; at_workers, the number in the printed table.
    """
    a = arguments.parse(arg, trace="all", collective="ring", at_workers=64)
    every = ("googlenet", "resnet50", "vgg16", "transformer")

    c = base.ConfigDict()
    c.name = "mg_wfbp_scale"
    c.traces = every if a["trace"] == "all" else (a["trace"],)
    c.schedules = ("wfbp", "single", "fixed", "greedy", "asc", "optimal", "dear", "byte_scheduler")
    c.workers = tuple(2**power for power in range(2, 12))
    c.at_workers = a["at_workers"]  # of the printed table; one of workers
    c.collective = a["collective"]  # a name of COLLECTIVES in experiments/papers/mg_wfbp.py

    # A worker, except in googlenet's trace, which was measured on a K80 with 64 images.
    c.batch = 64  # images of 224x224, or sentences of 64 tokens
    # At this speed ResNet-50 trains 253 images/s, as in HKBU-HPML/ddl-benchmarks.
    c.flops_per_second = 6.2e12

    # Measured all-reduces: workers, alpha (s), beta (s per byte). They give the links of a ring,
    # which are the same for any number of workers and for the other collectives.
    c.networks = base.ConfigDict({
        # HKBU-HPML/MG-WFBP, distributed_optimizer.py
        "ethernet_10": {"workers": 16, "alpha": 9.0810e-4, "beta": 7.3957e-10},
        "infiniband_56": {"workers": 16, "alpha": 2.3584e-4, "beta": 4.0595e-10},
        # shyhuai/kfac_pytorch, kfac/utils.py, per 4 bytes there
        "infiniband_100": {"workers": 64, "alpha": 9.29e-4, "beta": 1.4335e-9 / 4},
    })  # fmt: skip
    return c


VARIANTS = {
    "scale": base.Variant(
        "Schedules of all-reduce on 4 to 2048 workers, simulated (MG-WFBP, arXiv 1811.11141, "
        "1912.09268).\n\n"
        "Nothing is trained. For every layer trace and network: the scaling efficiency of merged, "
        "unmerged and reordered communication.",
        _scale,
        analyse=papers.analyse("mg_wfbp", "scale"),
    ),
}
