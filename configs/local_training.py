"""Local steps on a small GPT: DiLoCo and its variants against all-reduce, at their best rates.

All arms take the same number of steps per worker; exchanges take no simulated time, and the claims
compare losses and bytes. The sweep goes over the rates of the local and of the outer optimizer;
SparseLoCo and NoLoCo have the outer settings of their papers.

    --config=configs/local_training.py:size=10M,steps=3000 --sweep --seeds=3

H is the number of local steps between two exchanges of a parameter. Streaming DiLoCo cuts the model
into three fragments, one of which is exchanged every H / 3 steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from configs import arguments, base, language_model
from experiments import papers, stats
from experiments.registry import part

FRAGMENTS = 3
FOUR_BITS = part("quantise", bits=4)
LEAST = FRAGMENTS * 10  # the fewest local steps H of an arm that has them


class Group(NamedTuple):
    """Method with a number of local steps, and the grid of its rates."""

    changes: Callable[..., dict]  # (outer rate, if any) -> entries of the config
    rates: Sequence[float]  # of the local optimizer
    outer: Sequence[float] = ()  # of the optimizer after the exchange


def _nesterov(rate: float):
    """Return the outer optimizer of DiLoCo; the paper's rate is 0.7 (2311.08105, Sec. 3.1)."""
    return part("momentum", decay=0.9, nesterov=True, learning_rate=rate)


def _local(count: int, name: str, **algorithm) -> dict:
    return {"algorithm": part(name, **algorithm), "mini_batches": count}


def _diloco(count: int, outer: float) -> dict:
    return _local(count, "local_sgd", server=_nesterov(outer))


def _streaming(count: int, outer: float, **algorithm) -> dict:
    own = {"fragments": FRAGMENTS, "overlap": 1, "server": _nesterov(outer), **algorithm}
    return _local(count // FRAGMENTS, "streaming_diloco", **own)


_MUON = {"optimizer.name": "muon"}
ADAM_RATES, MUON_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008), (0.0025, 0.005, 0.01, 0.02, 0.04)
HIGH, OUTER = (0.008, 0.016, 0.032), (0.4, 0.7, 1.0)  # around DiLoCo's best
GROUPS = {  # by method/H
    "all_reduce": Group(dict, ADAM_RATES),
    "local_sgd/H=30": Group(partial(_local, 30, "local_sgd"), ADAM_RATES),
    "diloco/H=30": Group(partial(_diloco, 30), (*HIGH, 0.064), (*OUTER, 1.4)),
    "diloco/H=100": Group(partial(_diloco, 100), ADAM_RATES[:3], OUTER),
    "diloco_16_bits/H=30": Group(
        lambda outer: _local(30, "local_sgd", server=_nesterov(outer), exchange=part("bf16")),
        HIGH[1:],
        (0.7, 1.0),
    ),
    "streaming/H=30": Group(partial(_streaming, 30), HIGH, (0.7, 1.0, 1.4)),
    "streaming_4_bits/H=30": Group(partial(_streaming, 30, exchange=FOUR_BITS), HIGH, OUTER),
    "sparse_loco/H=30": Group(partial(_local, 30, "sparse_loco"), ADAM_RATES),
    "noloco/H=30": Group(partial(_local, 30, "noloco"), (*ADAM_RATES, 0.016, 0.032)),
    "all_reduce_muon": Group(partial(dict, _MUON), MUON_RATES),
    "muloco/H=30": Group(
        lambda outer: _diloco(30, outer) | _MUON, MUON_RATES[1:4], (0.2, 0.4, 0.7)
    ),
}


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: all-reduce.

    Arguments: size, a key of `configs.language_model.SIZES`; workers; steps of a worker, a multiple
    of 30, and of 300 if all arms shall end at the same step; tiny, the smallest size.
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
    config.graph = part("complete")  # possible partners in gossip; other methods ignore it
    return config


def sweep() -> base.Arms:
    """Yield every method at every rate of its grid."""
    for group, (changes, rates, several) in GROUPS.items():
        outer = {f"/outer={rate:g}": changes(rate) for rate in several} or {"": changes()}
        for name, changed in outer.items():
            yield from base.at_rates(f"{group}{name}", changed, rates, "g")


claims = papers.Judged("local_steps", "local_training")
numbers = stats.at_best(stats.END, "bytes_per_worker")
