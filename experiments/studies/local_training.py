"""Local steps and what they send: what methods like DiLoCo make of the same steps as all-reduce."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from comms import cost
from comms.messages import exchange_transfers
from experiments import premises, prepare, quantities
from experiments.numbers import Numbers
from experiments.parts import part
from stragglers import delays
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

FRAGMENTS = 3
LOSS = "final_train_loss"  # a mean over the last tenth of the evaluations
FOUR_BITS = part("quantise", bits=4)


class Group(NamedTuple):
    """A method with a number of local steps, and the grid on which it is searched."""

    changes: Callable[..., dict]  # outer rate, if there is one -> entries of the config
    rates: Sequence[float]  # of the local optimizer
    outer: Sequence[float] = ()  # of the optimizer that is applied to what is exchanged


def _nesterov(rate: float):
    """The outer optimizer of DiLoCo, whose paper gives it the rate 0.7 (2311.08105, Sec. 3.1)."""
    return part("momentum", decay=0.9, nesterov=True, learning_rate=rate)


def _diloco(count: int, outer: float) -> dict:
    return {"algorithm": part("local_sgd", server=_nesterov(outer)), "mini_batches": count}


def _fedadam(count: int, outer: float) -> dict:
    server = part("adam", learning_rate=outer)
    return {"algorithm": part("local_sgd", server=server), "mini_batches": count}


def _streaming(count: int, outer: float, **algorithm) -> dict:
    streaming = part(
        "streaming_diloco", fragments=FRAGMENTS, overlap=1, server=_nesterov(outer), **algorithm
    )
    return {"algorithm": streaming, "mini_batches": count // FRAGMENTS}


def _local(count: int, name: str) -> dict:
    return {"algorithm": part(name), "mini_batches": count}


_MUON = {"optimizer.name": "muon"}
ADAM_RATES, MUON_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008), (0.0025, 0.005, 0.01, 0.02, 0.04)
HIGH, OUTER = (0.008, 0.016, 0.032), (0.4, 0.7, 1.0)  # around DiLoCo's best
GROUPS = {  # by method/H
    "all_reduce": Group(dict, ADAM_RATES),
    "local_sgd/H=30": Group(partial(_local, 30, "local_sgd"), ADAM_RATES),
    "diloco/H=30": Group(partial(_diloco, 30), (*HIGH, 0.064), OUTER),
    "diloco/H=100": Group(partial(_diloco, 100), ADAM_RATES[:3], OUTER),
    "diloco/H=500": Group(partial(_diloco, 500), ADAM_RATES, (0.7,)),
    "fedadam/H=30": Group(partial(_fedadam, 30), ADAM_RATES[1:4], (0.003, 0.01, 0.03)),
    "streaming/H=30": Group(partial(_streaming, 30), HIGH, (0.7, 1.0, 1.4)),
    "streaming_4_bits/H=30": Group(partial(_streaming, 30, exchange=FOUR_BITS), HIGH, OUTER),
    "sparse_loco/H=30": Group(partial(_local, 30, "sparse_loco"), ADAM_RATES),
    "noloco/H=30": Group(partial(_local, 30, "noloco"), (*ADAM_RATES, 0.016, 0.032)),
    "all_reduce_muon": Group(partial(dict, _MUON), MUON_RATES),
    "muloco/H=30": Group(
        lambda outer: _diloco(30, outer) | _MUON, MUON_RATES[1:4], (0.2, 0.4, 0.7)
    ),
}
CLOSE = (  # ours, theirs, the share by which ours may end above theirs, what is said of them
    ("diloco/H=30", "all_reduce", 0.01, "as good as all-reduce (arXiv 2311.08105)"),
    ("diloco/H=100", "all_reduce", 0.01, "as good as all-reduce (arXiv 2311.08105)"),
    ("diloco/H=500", "all_reduce", 0.01, "(not claimed at this size) as good as all-reduce"),
    ("diloco/H=30", "local_sgd/H=30", 0.0, "outer momentum helps (arXiv 2311.08105)"),
    ("diloco/H=30", "fedadam/H=30", 0.0, "Nesterov is the better outer optimizer (the same)"),
    ("muloco/H=30", "all_reduce_muon", 0.01, "Muon bears local steps"),
    ("muloco/H=30", "diloco/H=30", 0.0, "Muon inside ends lower"),
    ("streaming/H=30", "diloco/H=30", 0.01, "a fragment at a time (arXiv 2501.18512)"),
    ("streaming_4_bits/H=30", "streaming/H=30", 0.01, "4 bits are enough (arXiv 2501.18512)"),
    ("sparse_loco/H=30", "diloco/H=30", 0.01, "few entries of 2 bits (arXiv 2508.15706)"),
    ("noloco/H=30", "diloco/H=30", 0.01, "no all-reduce at all (arXiv 2506.10911)"),
)
LINKS = {"10 Gbit/s": 10.0, "1 Gbit/s": 1.0, "100 Mbit/s": 0.1}
LATENCY = 1e-3  # s of a message


def arms() -> Iterator[tuple[str, dict]]:
    """(method/H/outer/rate, entries of its config); outer where there is an outer optimizer."""
    for group, (changes, rates, several) in GROUPS.items():
        outer = {f"/outer={rate:g}": changes(rate) for rate in several} or {"": changes()}
        for name, changed in outer.items():
            for rate in rates:
                yield f"{group}{name}/rate={rate:g}", changed | {"optimizer.learning_rate": rate}


def claims(arms) -> Iterator[tuple[str, str]]:
    """What is claimed of every method, beside this sweep at the best rate of each."""
    for ours, theirs, share, claim in CLOSE:
        words = f"within {100 * share:g} % of" if share else "below"
        yield (
            f"{claim}: {ours} ends {words} {theirs}",
            premises.text(ends_near, arms, ours, theirs, share),
        )


def ends_near(arms, ours: str, theirs: str, share: float) -> premises.Answer:
    """Final losses after the same samples, each at a best rate that lies inside of its grid."""
    pair = [premises.tuned(arms, name, LOSS) for name in (ours, theirs)]
    premises.equal("samples", *pair)
    return premises.at_most(*pair, LOSS, 1 + share)


def numbers(arms) -> Iterator[Numbers]:
    """Of every method that was run, at the rate that ends lowest: its bytes, and its seconds."""
    rows = []
    for group in GROUPS:
        with contextlib.suppress(premises.CannotTell):
            arm = premises.best(premises.group(arms, group), LOSS)
            rows.append((group, *_sent(arm)))
    columns = (
        "method/local steps",
        "outer rate",
        "rate",
        "loss",
        "MB per worker",
        "MB at a time",
        *LINKS,
    )
    yield Numbers("at the rate that ends lowest; seconds over links of three rates", columns, rows)


def _sent(arm: dict) -> tuple[str, ...]:
    """Rates, loss, bytes of the whole run and of an update, then the run's seconds by link."""
    config, updates = arm["config"], round(arm["updates"])
    prepared = prepare.prepare(config)
    delay = delays.deterministic(config.delay.value)
    seconds = []
    for gigabits in LINKS.values():
        network = cost.uniform_network(LATENCY, gigabits * 1e9 / 8, workers=config.workers)
        transfers = exchange_transfers(prepared.algorithm, prepared.shapes, config.workers, network)
        setting = Setting(
            delay, config.workers, config.mini_batches, config.seed, communication=transfers
        )
        clock = whole(RULES["barrier"](setting), updates).time[-1]
        seconds.append(f"{clock:.3g}")
    sent = arm["bytes_per_worker"]
    outer = premises.settings(arm["name"]).get("outer")
    return (
        "" if outer is None else f"{outer:g}",
        f"{config.optimizer.learning_rate:g}",
        quantities.shown(arm, LOSS),
        f"{sent / 1e6:.4g}",
        f"{sent / updates / 1e6:.4g}",
        *seconds,
    )
