"""ResNet-50 on data of ImageNet's shape: 1,000 classes of images of 224x224.

SGD with momentum 0.9 and weight decay 1e-4; the rate is 0.1 for every 256 images of an update,
warms up over five epochs and falls to a tenth after 30, 60 and 80 of 90 (P. Goyal et al., arXiv
1706.02677 Sec. 5.1). GroupNorm stands in for BatchNorm.

    --config=configs/imagenet.py:compute=bfloat16,micro_batch=8 --dry_run
    --config=configs/imagenet.py:runtime=mesh --sweep

ImageNet does not fit into memory, so the images are noise unless `data` names a source.
"""

from configs import arguments, base
from experiments.registry import part

IMAGES = 1_281_167  # of an epoch
EPOCHS, WARM, STEPS = 90, 5, (30, 60, 80)


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: all-reduce.

    Arguments: workers; batch, the images of a worker's mini-batch; data, a source of images, noise
    by default; compute, float32 or bfloat16; micro_batch, images whose activations are in memory at
    a time, 0 for all; remat, to compute a block's activations again instead of keeping them;
    runtime, simulate or mesh; tiny, a model and images that a test can train.
    """
    a = arguments.parse(
        arg, workers=8, batch=32, data="noise", compute="float32", micro_batch=0, remat=False,
        runtime="simulate", tiny=False,
    )  # fmt: skip
    source = part(a["data"])
    if a["data"] == "noise":
        source = part("noise", samples=1024, size=224, classes=1000)
    model = part("resnet50", remat=a["remat"])
    if a["tiny"]:
        source = part("noise", samples=32, size=16)
        model = part("resnet50", width=16, blocks=[1, 1, 1, 1], remat=a["remat"])
    batch = 2 if a["tiny"] else a["batch"]

    return base.arm(
        name="all_reduce",
        baseline="all_reduce",
        task=part(
            "images",
            source=source,
            model=model,
            compute=a["compute"],
            micro_batch=a["micro_batch"] or None,
        ),
        runtime=a["runtime"],
        workers=a["workers"],
        batch_size=batch,
        algorithm=part("all_reduce"),
        graph=part("complete"),  # of Swarm's nodes
        optimizer=[
            part("add_decayed_weights", weight_decay=1e-4),
            part(
                "momentum",
                decay=0.9,
                learning_rate=0.1 * a["workers"] * a["batch"] / 256,
                schedule=part("step", boundaries=[epoch * IMAGES for epoch in STEPS]),
                warmup_samples=WARM * IMAGES,
            ),
        ],
        wait=part("barrier"),
        delay=base.nominal(a["runtime"], 1.0),
        seconds=1e9,  # long enough for every arm
        updates=-(-EPOCHS * IMAGES // (a["workers"] * batch)),
        evaluate_every=1000.0,
    )


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield all-reduce, local SGD, D-PSGD on a ring, and SwarmSGD in 8 bits, at equal images.

    An update has eight mini-batches of every worker in local SGD, two of one worker in SwarmSGD.
    """
    yield "all_reduce", {}
    local = {"algorithm": part("local_sgd"), "mini_batches": 8, "updates": -(-config.updates // 8)}
    yield "local_sgd/H=8", local
    ring = {"graph": part("ring"), "wait": part("neighbour_barrier")}
    yield "dpsgd/ring", ring | {"algorithm": part("dpsgd")}
    yield (
        "swarm/H=2/8 bits",
        {"algorithm": part("swarm", bits=8), "mini_batches": 2,
         "wait": part("random_pairs", width=1),
         "updates": -(-config.updates * config.workers // 2)},
    )
