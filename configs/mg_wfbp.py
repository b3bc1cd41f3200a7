"""MG-WFBP's buckets on a mesh: other messages, the same training (arXiv 1811.11141, 1912.09268).

One worker per device trains a CNN on scikit-learn's digits, with gradients all-reduced at once,
layer by layer, or in planned buckets. On virtual devices of one CPU nothing is gained in time; what
the buckets would gain on a network is worked out by the variant `scale`, of which a CSV file has
the columns bytes,backward_us, a line per layer, in forward order.

    --config=configs/mg_wfbp.py --config.buckets=greedy --config.profile=profile.json
    --config=configs/mg_wfbp.py:scale,trace=resnet50,collective=double_binary_tree
    --config=configs/mg_wfbp.py:scale,trace=mine.csv
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from comms import cost
from configs import arguments, base
from experiments import papers
from experiments.registry import part


def get_config(arg: str | None = None) -> ConfigDict:
    """Return one arm: the best buckets. Argument: workers, one per device."""
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
    # Times for the plan: measure | measure:PATH, which saves them | PATH, saved ones | none, for
    # buckets without times (wfbp, single, fixed). Save them before --jobs, whose arms would else
    # measure beside each other.
    c.profile = "measure"
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """Yield plain all-reduce, and every kind of buckets."""
    yield "pmean", {"algorithm": part("all_reduce")}
    for buckets in ("wfbp", "single", "fixed:32kB", "greedy", "optimal"):
        yield buckets.replace(":", "_"), {"buckets": buckets}


claims = papers.claims("mg_wfbp", "mg_wfbp")


# --- simulated on 4 to 2048 workers ---


def _scale(arg: str | None = None) -> ConfigDict:
    """Return four traces. Arguments: trace (one alone), collective, at_workers (of the table)."""
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
    # ResNet-50 trains 253 images/s then, as in HKBU-HPML/ddl-benchmarks.
    c.flops_per_second = 6.2e12

    # Measured all-reduces: workers, alpha (s), beta (s per byte). What the links of a ring must
    # have had, they have for any number of workers, and in the other collectives.
    c.networks = ConfigDict({
        # HKBU-HPML/MG-WFBP, distributed_optimizer.py
        "ethernet_10": {"workers": 16, "alpha": 9.0810e-4, "beta": 7.3957e-10},
        "infiniband_56": {"workers": 16, "alpha": 2.3584e-4, "beta": 4.0595e-10},
        # shyhuai/kfac_pytorch, kfac/utils.py, per 4 bytes there
        "infiniband_100": {"workers": 64, "alpha": 9.29e-4, "beta": 1.4335e-9 / 4},
    })  # fmt: skip
    return c


# --- what was published ---

# Runs that stand here twice, because their number of workers is not known, count once.
SECOND_READINGS = ("K80_10GbE_16_GoogLeNet", "K80_10GbE_16_ResNet-50")


def _paper(arg: str | None = None) -> ConfigDict:
    """Return all published runs; takes no arguments."""
    arguments.parse(arg)
    c = ConfigDict()
    c.name = "mg_wfbp_paper"
    c.published = ConfigDict()
    for setting, trace, compute, workers, all_reduce, throughput in _runs():
        c.published[setting] = ConfigDict(
            {
                "trace": trace,
                "compute": compute,  # s of an iteration of one worker
                "workers": workers,
                "counted": setting not in SECOND_READINGS,  # among the errors
                "alpha": all_reduce.alpha,  # s of an all-reduce
                "beta": all_reduce.beta,  # s per byte of one
                # samples per second, or iterations; greedy: MG-WFBP, single: all at the end
                "throughput": {k: float(v) for k, v in throughput.items()},
            }
        )
    return c


def _runs():
    """Yield (setting, trace, compute, workers, cost, throughput) of every published run."""
    # 8 nodes with a K80, INFOCOM 2019; hclhkbu/B-Caffe, scripts/gmwfbp.py. It leaves open whether
    # a board counts as one worker or, with its two GPUs, as two; the errors count the first.
    for workers in (8, 16):
        tail = f"{workers:02d}"
        yield (f"K80_10GbE_{tail}_GoogLeNet", "googlenet", 64 / 163.36, workers, _bcaffe(workers),
               {"wfbp": 1006.4, "greedy": 1210.88, "single": 889.28})  # fmt: skip
        yield (f"K80_10GbE_{tail}_ResNet-50", "resnet50", 32 / 76.85, workers, _bcaffe(workers),
               {"wfbp": 465.6, "greedy": 566.6008, "single": 406.4})  # fmt: skip

    # V100, the journal version: seconds of an iteration in the authors' plotting script. That does
    # not say how many workers there were; 16 are assumed.
    for name, trace, compute, ethernet, infiniband in (
        ("DenseNet-161", "densenet161", 0.47765481,
         (0.83238836, 0.68258459, 0.62801349), (0.60190312, 0.59681452, 0.52739012)),
        ("DenseNet-201", "densenet201", 0.360877356,
         (0.7636, 0.51283, 0.4566), (0.51237601, 0.43778853, 0.40594274)),
        ("ResNet-152", "resnet152", 0.883118444,
         (1.23343939, 1.36014632, 1.12611349), (1.08207491, 1.14349857, 1.08926123)),
    ):  # fmt: skip
        for network, all_reduce, seconds in (
            ("10GbE", _ETHERNET[16], ethernet),
            ("56GbIB", _MGWFBP_INFINIBAND_16, infiniband),
        ):
            rates = (1 / each for each in seconds)
            throughput = dict(zip(("wfbp", "single", "greedy"), rates, strict=True))
            yield f"V100_{network}_{name}", trace, compute, 16, all_reduce, throughput

    # HKBU-HPML/ddl-benchmarks: samples per second of WFBP-A2A, BSP-A2A, MG-WFBP, ByteScheduler-A2A.
    names = ("wfbp", "single", "greedy", "byte_scheduler")
    for name, trace, compute, measured in (
        ("ResNet-50", "resnet50", 64 / 253.1, {
            ("10GbE", 16): (3146.78, 2485.12, 3784.98, 2701.52),
            ("10GbE", 32): (5113.18, 4920.82, 6883.6, 4754.26),
            ("100GbIB", 16): (3946.06, 3602.9, 3987.4, 2529.14),
            ("100GbIB", 32): (7326.56, 7126.52, 7876.46, 4766.38),
        }),
        ("BERT-Base", "transformer", 64 / 212.8, {
            ("10GbE", 16): (1069.48, 984.88, 1153.18, 1177.4),
            ("10GbE", 32): (2013.38, 1926.64, 1925.78, 2259.84),
            ("100GbIB", 16): (2217.22, 2112.96, 2515.3, 2379.575),
            ("100GbIB", 32): (4098.68, 4184.38, 4940.08, 4521.26),
        }),
    ):  # fmt: skip
        for (network, workers), rates in measured.items():
            all_reduce = {"10GbE": _ETHERNET, "100GbIB": _INFINIBAND}[network][workers]
            throughput = dict(zip(names, rates, strict=True))
            yield (f"ddl_{network}_{workers}_{name}", trace, compute, workers, all_reduce,
                   throughput)  # fmt: skip


# All-reduces as measured, and from 32 workers on scaled by hand, by the authors: workers -> cost;
# HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py.
_ETHERNET = {16: cost.AlphaBeta(9.0810e-4, 7.3957e-10), 32: cost.AlphaBeta(4.0429e-3, 8.6433e-10)}
_INFINIBAND = {16: cost.AlphaBeta(7.0751e-4, 4.0595e-10), 32: cost.AlphaBeta(4.0632e-4, 4.9070e-10)}
# HKBU-HPML/MG-WFBP, distributed_optimizer.py: 56 Gbit/s.
_MGWFBP_INFINIBAND_16 = cost.AlphaBeta(2.3584e-4, 4.0595e-10)


def _bcaffe(workers: int) -> cost.AlphaBeta:
    """Return the all-reduce of B-Caffe's simulation: a ring that pays for n steps, not n - 1."""
    ring = cost.ring(workers, 0.0, beta=1.2 / (9.0 * 2**30 / 8), gamma=160 / (16e9 * 4))
    return ring._replace(alpha=2 * workers * 45.25e-6)


VARIANTS = {
    "scale": base.Variant(
        "Schedules of all-reduce on 4 to 2048 workers, simulated (MG-WFBP, arXiv 1811.11141, "
        "1912.09268).\n\n"
        "Nothing is trained. For every layer trace and network: the scaling efficiency of merged, "
        "unmerged and reordered communication.",
        _scale,
        analyse=papers.analyse("mg_wfbp", "scale"),
    ),
    "paper": base.Variant(
        "What MG-WFBP gained in its authors' runs, beside the model (arXiv 1811.11141, "
        "1912.09268).\n\n"
        "Nothing is trained. Layer times come from `experiments.model_traces`, scaled to the "
        "measured compute time of one worker; the cost of an all-reduce is the authors' own "
        "measurement or formula.",
        _paper,
        analyse=papers.analyse("mg_wfbp", "published"),
    ),
}
