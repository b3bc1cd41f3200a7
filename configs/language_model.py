"""A GPT on text: all-reduce, local SGD and DiLoCo, from half a million to a billion parameters.

Workers predict the next word in the sources of Python's own library, or in another corpus. All arms
have AdamW, a cosine schedule and the same number of steps per worker; exchanges take no simulated
time, and the claims judge the loss after these steps. On a mesh all arms have the same seconds.
DiLoCo is local AdamW whose mean progress is a gradient for Nesterov momentum (A. Douillard et al.,
arXiv 2311.08105).

    --config=configs/language_model.py:size=600k,steps=400 --sweep
    --config=configs/language_model.py:size=1B,compute=bfloat16,remat,micro_batch=1 --dry_run

There is no warm-up: the rate depends on the samples seen before an update, so that all steps of a
round share one rate, which would be 0 in the first round.
"""

from collections.abc import Iterator
from typing import NamedTuple

from configs import arguments, base
from experiments import stats
from experiments.registry import part


class Size(NamedTuple):
    """Sizes of a model and of its data, and its learning rate."""

    layers: int
    width: int
    heads: int
    vocabulary: int  # words
    length: int  # words of a sequence
    batch: int  # sequences of a worker's mini-batch
    rate: float  # of AdamW


SIZES = {
    "tiny": Size(2, 32, 2, 256, 16, 2, 0.01),
    "140k": Size(2, 64, 4, 512, 64, 2, 0.004),
    "600k": Size(4, 96, 4, 2048, 128, 2, 0.003),
    "1M": Size(4, 128, 4, 2048, 128, 4, 0.003),
    "10M": Size(10, 256, 8, 8192, 256, 8, 0.002),
    "30M": Size(8, 512, 8, 8192, 512, 8, 0.001),
    "100M": Size(13, 768, 12, 8192, 1024, 8, 0.0006),
    "300M": Size(24, 1024, 16, 8192, 1024, 8, 0.0003),
    "1B": Size(20, 2048, 16, 8192, 2048, 8, 0.0002),
}
LOCAL_STEPS = (10, 50)  # between two exchanges
# The best of DiLoCo's outer rates and momenta (arXiv 2311.08105, Sec. 3.1).
OUTER = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7)
EACH = 0.1  # s of a mini-batch, nominal; on a mesh devices have their own speed


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: all-reduce.

    Arguments: size, a key of SIZES; workers; steps of a worker, a multiple of all LOCAL_STEPS;
    corpus; batch, sequences of a worker's mini-batch, 0 for the size's own; compute, float32 or
    bfloat16; micro_batch, sequences whose activations are in memory at a time, 0 for all; remat, to
    compute a block's activations again instead of keeping them; runtime, simulate or mesh; tiny,
    the smallest size.
    """
    a = arguments.parse(
        arg, size="10M", workers=4, steps=1000, corpus="python", batch=0, compute="float32",
        micro_batch=0, remat=False, runtime="simulate", tiny=False,
    )  # fmt: skip
    size = SIZES["tiny"] if a["tiny"] else arguments.chosen(a, "size", SIZES)
    if a["steps"] < 1 or any(a["steps"] % count for count in LOCAL_STEPS):
        raise ValueError(
            f"steps must be a multiple of {max(LOCAL_STEPS)}, the most local steps of an arm, got "
            f"{a['steps']}; set steps"
        )
    batch = a["batch"] or size.batch
    model = part("gpt", layers=size.layers, width=size.width, heads=size.heads, remat=a["remat"])
    corpus = part("python", files=40) if a["tiny"] else part(a["corpus"])
    samples = a["workers"] * batch * a["steps"]

    return base.arm(
        name="all_reduce",
        baseline="all_reduce",
        task=part(
            "next_token", model=model, corpus=corpus, vocabulary=size.vocabulary,
            length=size.length, compute=a["compute"], micro_batch=a["micro_batch"] or None,
            evaluated=64,
        ),
        runtime=a["runtime"],
        workers=a["workers"],
        batch_size=batch,
        mini_batches=1,  # local steps between two exchanges
        algorithm=part("all_reduce"),
        optimizer=[
            part("clip_by_global_norm", max_norm=1.0),
            part(
                "adamw",
                learning_rate=size.rate,
                b2=0.95,
                weight_decay=0.1,
                mask="matrices",
                schedule=part("cosine", samples=samples, floor=0.1),
            ),
        ],
        wait=part("barrier"),
        delay=base.nominal(a["runtime"], EACH),
        seconds=(a["steps"] + 0.5) * EACH,  # equal steps for every arm, on a virtual clock
        evaluate_every=a["steps"] * EACH / 12,
    )


def sweep() -> base.Arms:
    """Yield all-reduce, then local SGD and DiLoCo at every number of local steps."""
    yield "all_reduce", {}
    for count in LOCAL_STEPS:
        yield f"local_sgd/H={count}", _local(count)
    for count in LOCAL_STEPS:
        yield f"diloco/H={count}", _local(count, server=OUTER)


def _local(count: int, **server) -> dict:
    return {"algorithm": part("local_sgd", **server), "mini_batches": count}


def claims(arms) -> Iterator[tuple[str, str]]:
    """Judge the claim that every arm's final loss is at most 0.1 nats above its baseline's."""
    for arm in arms:
        base = arm["config"].baseline
        if base and base != arm["name"]:
            claim = stats.Claim(
                f"{arm['name']}: at most 0.1 more loss than {base} after the same steps",
                "", "", arm["name"], base, stats.END, margin=0.1, equal=("samples",),
            )  # fmt: skip
            yield claim.claim, str(stats.judge(claim, arms))


numbers = stats.at_best(stats.END, "bytes_per_worker")
