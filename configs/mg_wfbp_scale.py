"""Schedules of all-reduce on 4 to 2048 workers, simulated (MG-WFBP, arXiv 1811.11141, 1912.09268).

Nothing is trained. For every layer trace and network: the scaling efficiency of merged, unmerged
and reordered communication.

    --config=configs/mg_wfbp_scale.py:trace=resnet50,collective=double_binary_tree
    --config=configs/mg_wfbp_scale.py:trace=mine.csv

The CSV file has the columns bytes,backward_us: a line per layer, in forward order.
"""

from ml_collections import ConfigDict

from configs import arguments
from experiments.papers import mg_wfbp as paper


def get_config(arg: str | None = None) -> ConfigDict:
    """Four traces. Arguments: trace (one of them alone), collective, at_workers (of the table)."""
    a = arguments.parse(arg, trace="all", collective="ring", at_workers=64)
    every = ("googlenet", "resnet50", "vgg16", "transformer")

    c = ConfigDict()
    c.name = "mg_wfbp_scale"
    c.traces = every if a["trace"] == "all" else (a["trace"],)
    c.schedules = ("wfbp", "single", "fixed", "greedy", "asc", "optimal", "dear", "byte_scheduler")
    c.workers = tuple(2**power for power in range(2, 12))
    c.at_workers = a["at_workers"]  # of the printed table; one of workers
    c.collective = a["collective"]  # a name of COLLECTIVES in experiments/papers/mg_wfbp.py

    # A worker, but for googlenet, whose times were measured on a K80 with 64 images.
    c.batch = 64  # images of 224x224, or sentences of 64 tokens
    c.flops_per_second = (
        6.2e12  # ResNet-50 trains 253 images/s then, as in HKBU-HPML/ddl-benchmarks
    )

    # Measured all-reduces: workers, alpha (s), beta (s per byte). What the links of a ring must
    # have had, they have for any number of workers, and in the other collectives.
    c.networks = ConfigDict()
    c.networks.ethernet_10 = ConfigDict(  # HKBU-HPML/MG-WFBP, distributed_optimizer.py
        {"workers": 16, "alpha": 9.0810e-4, "beta": 7.3957e-10}
    )
    c.networks.infiniband_56 = ConfigDict(  # the same file
        {"workers": 16, "alpha": 2.3584e-4, "beta": 4.0595e-10}
    )
    c.networks.infiniband_100 = (
        ConfigDict(  # shyhuai/kfac_pytorch, kfac/utils.py, per 4 bytes there
            {"workers": 64, "alpha": 9.29e-4, "beta": 1.4335e-9 / 4}
        )
    )
    return c


analyse = paper.scale
