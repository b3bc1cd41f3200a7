"""Local steps on a small GPT: DiLoCo and its kin against all-reduce, each at its best local rate.

All arms take the same number of steps per worker, in time that does not count what is sent: the
claims work out how long that takes over links of several rates. The sweep goes over the rate of the
local optimizer and that of the outer one; SparseLoCo, NoLoCo and DiLoCo with H = 500 have the outer
numbers of their papers.

    --config=configs/local_training.py:size=10M,steps=3000 --sweep --seeds=3

H counts local steps between two exchanges of an entry of the model. Streaming DiLoCo cuts the model
into three fragments, one of which is due every H / 3 steps.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import arguments, language_model
from experiments.parts import part
from experiments.studies import local_training as study

LEAST = study.FRAGMENTS * 10  # the fewest local steps of any arm


def get_config(arg: str | None = None) -> ConfigDict:
    """One arm: all-reduce.

    Arguments: size, a key of `configs.language_model.SIZES`; workers; steps of a worker, a multiple
    of 30 (of 1500 for all arms to end at the same one); tiny, the smallest size.
    """
    a = arguments.parse(arg, size="10M", workers=8, steps=3000, tiny=False)
    if a["steps"] < LEAST or a["steps"] % LEAST:
        raise ValueError(
            f"steps must be a multiple of {LEAST}, the fewest local steps of an arm, got "
            f"{a['steps']}; set steps"
        )
    like = f"size={a['size']},workers={a['workers']},tiny={a['tiny']}"
    config = language_model.get_config(like)
    each = language_model.EACH
    rate = language_model.SIZES["tiny" if a["tiny"] else a["size"]].rate
    config.name, config.baseline = f"all_reduce/rate={rate:g}", None  # method/H/outer/rate
    config.seconds, config.evaluate_every = (a["steps"] + 0.5) * each, a["steps"] * each / 12
    config.optimizer = part(
        "adamw",
        learning_rate=rate,
        weight_decay=0.1,
        schedule=part("cosine", samples=a["workers"] * config.batch_size * a["steps"], floor=0.1),
    )
    config.graph = part("complete")  # whom a pair may meet; only gossip looks at it
    return config


def sweep() -> Iterator[tuple[str, dict]]:
    """Every method at every rate of its grid."""
    yield from study.arms()


claims = study.claims
numbers = study.numbers
