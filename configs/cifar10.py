"""ResNet-18 on CIFAR-10 by the papers' recipe: three mixers, blocking and not, and SwarmSGD.

SGD with rate 0.1, momentum 0.9 and weight decay 5e-4; the rate falls to a tenth after half and
after three quarters of the samples (K. He et al., arXiv 1512.03385 Sec. 4.2; X. Lian et al., arXiv
1705.09056; G. Nadiradze et al., arXiv 1910.12308). GroupNorm stands in for BatchNorm. One worker is
four times slower unless `delay` names another kind of straggler. Time is the simulator's: a nominal
round of 128 images per worker takes 0.2 s, and its exchange half of that.

    --config=configs/cifar10.py:workers=16,delay=pareto --sweep

The images come from TensorFlow Datasets, prepared beforehand, or noise of their shape:

    --config=configs/cifar10.py:data=noise
"""

from configs import arguments, base, nonblocking
from experiments.registry import part

IMAGES = 50_000  # of an epoch
NOMINAL = nonblocking.NOMINAL  # s of a round of 128 images per worker at nominal speed
MINI_BATCHES, BATCH = 8, 16  # of a round, of a mini-batch
STEPS = (0.5, 0.75)  # of all samples


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: Ring All-Reduce, non-blocking.

    Arguments: workers, 8 or 16; delay, a kind of `nonblocking.delays`; communication, in nominal
    rounds; epochs; data, a source of 32x32 images; compute, float32 or bfloat16; tiny, a model and
    noise that a test can train.
    """
    a = arguments.parse(
        arg, workers=8, delay="slow4", communication=0.5, epochs=200.0, data="cifar10",
        compute="float32", tiny=False,
    )  # fmt: skip
    delay, draw = arguments.chosen(a, "delay", nonblocking.delays(NOMINAL / MINI_BATCHES))
    samples = a["epochs"] * IMAGES
    rounds = samples / (a["workers"] * MINI_BATCHES * BATCH)
    source, model = part(a["data"]), part("resnet18")
    if a["tiny"]:
        source, model = part("noise", samples=64, size=8), part("resnet18", width=16)

    return base.arm(
        name="all_reduce/nonblocking",
        baseline="all_reduce/blocking",
        task=part("images", source=source, model=model, compute=a["compute"]),
        workers=a["workers"],
        batch_size=2 if a["tiny"] else BATCH,
        mini_batches=2 if a["tiny"] else MINI_BATCHES,
        algorithm=part("all_reduce", collective="ring"),
        graph=part("hypercube"),  # of D-PSGD and MATCHA
        optimizer=[
            part("add_decayed_weights", weight_decay=5e-4),
            part(
                "momentum",
                decay=0.9,
                learning_rate=0.1,
                schedule=part("step", boundaries=[share * samples for share in STEPS]),
            ),
        ],
        wait=part("first_finisher"),
        delay=delay,
        draw=draw,
        communication=a["communication"] * NOMINAL,
        # The time that a blocking method takes with equally fast workers.
        seconds=rounds * NOMINAL * (1 + a["communication"]),
        evaluate_every=max(1.0, rounds * NOMINAL / 100),
        target_loss=0.36788,  # log(train loss) = -1
    )


def sweep() -> base.Arms:
    """Yield three mixers, blocking and not, then three forms of SwarmSGD in pairs."""
    for mixer, (algorithm, wait_for_all) in nonblocking.MIXERS.items():
        common = {"algorithm": algorithm, "baseline": f"{mixer}/blocking"}
        yield f"{mixer}/blocking", common | {"wait": wait_for_all}
        yield f"{mixer}/nonblocking", common | {"wait": part("first_finisher")}
    # mini_batches: local steps between two meetings.
    pairs = {"baseline": "dpsgd/blocking", "graph": part("complete"), "mini_batches": 2}
    meets = {"algorithm": part("swarm"), "wait": part("random_pairs")}
    waits = {"algorithm": part("swarm", blocking=True), "wait": part("random_pairs", blocking=True)}
    yield "swarm/blocking", pairs | waits
    yield "swarm/nonblocking", pairs | meets
    yield "swarm/8 bits", pairs | meets | {"algorithm": part("swarm", bits=8)}
