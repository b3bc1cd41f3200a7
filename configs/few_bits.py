"""All-reduces of few bits, each at its best rate, after the same updates.

Eight workers train an MLP on points of ten overlapping classes. A sum of codes is sent in two
phases: each value is rounded once by its worker and once as part of the sum. Fewer bits are
compared with 16 (S. Agarwal et al., arXiv 2407.01378); `feedback` adds the rounding error to the
next gradient. Muon in bfloat16 is the baseline of EF21-Muon, which sends a tenth of all entries to
a server and back.

    --config=configs/few_bits.py --sweep --seeds=5 --together
    --config=configs/few_bits.py:divided --sweep --seeds=5

`divided`: a single worker whose model lies on four devices of a mesh (fully sharded data
parallelism). They gather parameters and sum gradients in one codec, rounded to the nearest.
"""

from configs import arguments, base
from experiments import papers, stats
from experiments.registry import part

UPDATES, WORKERS, BATCH = 400, 8, 16
RATES = (0.2, 0.28, 0.4, 0.57, 0.8)  # factors of sqrt(2) around the best
CODECS = {
    "float32": None,
    "bf16": part("bf16"),
    "fp8_e4m3": part("fp8"),
    "fp8_e5m2": part("fp8", format="e5m2"),
    "int8": part("int8"),
    "int4": part("int4"),
    "mxfp4": part("mxfp4"),
    "int4_feedback": part("error_feedback", part("int4")),
    "mxfp4_feedback": part("error_feedback", part("mxfp4")),
}


def _muon(beta: float) -> dict:
    schedule = part("cosine", samples=UPDATES * WORKERS * BATCH)
    return {"optimizer": part("muon", beta=beta, nesterov=False, schedule=schedule)}


def _both_ways() -> dict:
    tenth = part("top_k", ratio=0.1)
    algorithm = part("ef21_sgdm", eta=0.1, exchange=tenth, broadcast=tenth)
    return {"algorithm": algorithm, "wait": part("k_sync", k=WORKERS)}


OTHERS = {  # group -> its changes, its rates
    # A control: one bit, and what is lost is not added again.
    "sign": (
        {"algorithm": part("all_reduce", exchange=part("sign"))},
        (0.025, 0.035, 0.05, 0.07, 0.1, 0.14, 0.2),
    ),
    "muon": (_muon(0.9), (0.02, 0.028, 0.04, 0.057, 0.08)),  # sums in bf16
    "ef21_muon": (_both_ways() | _muon(0.0), (0.02, 0.028, 0.04, 0.057, 0.08)),
    "ef21_sgdm": (_both_ways() | {"optimizer.decay": 0.0}, (0.8, 1.13, 1.6, 2.26, 3.2)),
}  # fmt: skip


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: bfloat16 in all-reduce or, with the argument `divided`, in one worker."""
    divided = arguments.parse(arg, divided=False)["divided"]
    usual = {
        "name": "bf16/rate=0.2",  # codec/rate
        "task": part("gaussians", model="mlp", separation=2.5),
        "algorithm": part("all_reduce", exchange=CODECS["bf16"]),
        "wait": part("barrier"),
        "delay": part("deterministic", value=0.1),
        "workers": WORKERS,
        "batch_size": BATCH,
        "mini_batches": 1,
        "optimizer": part(
            "momentum",
            learning_rate=0.2,
            schedule=part("cosine", samples=UPDATES * WORKERS * BATCH),
        ),
        "updates": UPDATES,
        "seconds": 0.1 * (UPDATES + 0.5),
        "evaluate_every": 4.0,
    }
    return base.arm(**usual | (_divided() if divided else {}))


def _divided() -> dict:
    """Return the entries of one worker of four devices, with the samples of eight workers."""
    return {
        "workers": 1,
        "devices_per_worker": 4,
        "batch_size": WORKERS * BATCH,
        "runtime": "mesh",
        "algorithm": part("all_reduce"),
        "delay": part("none"),
        "rounds_per_dispatch": 50,
        "seconds": 24 * 3600.0,
        "evaluate_every": 24 * 3600.0,
        **_in_slice(CODECS["bf16"]),
    }


def _in_slice(codec: base.ConfigDict | None) -> dict:
    """Return the changes with which a slice's devices send in a codec; None: in float32."""
    codecs = {} if codec is None else {"parameters": codec, "gradients": codec}
    return {"sharding": part("fsdp", **codecs)}


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield every codec at its rates, then other methods if each worker has one device."""
    if config.devices_per_worker > 1:
        for name, codec in CODECS.items():
            if not name.endswith("feedback"):
                yield from base.at_rates(name, _in_slice(codec), RATES)
        return
    for name, codec in CODECS.items():
        exchange = {} if codec is None else {"exchange": codec}
        yield from base.at_rates(name, {"algorithm": part("all_reduce", **exchange)}, RATES)
    for name, (changes, rates) in OTHERS.items():
        yield from base.at_rates(name, changes, rates)


claims = papers.Judged("frontier", "few_bits")
numbers = stats.at_best(stats.END, "bytes_per_worker", "test_accuracy")
