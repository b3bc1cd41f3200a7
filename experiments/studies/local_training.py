"""Local steps and what they send: what methods like DiLoCo make of the same steps as all-reduce."""

import contextlib
from collections.abc import Iterator

from comms import cost
from comms.messages import exchange_transfers
from experiments import premises, prepare
from experiments.numbers import Numbers
from experiments.parts import part
from stragglers import delays
from stragglers.rule import Setting, whole
from stragglers.rules import RULES

FRAGMENTS = 3
LOSS = "final_train_loss"  # a mean over the last tenth of the evaluations
# The best of DiLoCo's outer rates and momenta (arXiv 2311.08105, Sec. 3.1).
OUTER = part("momentum", decay=0.9, nesterov=True, learning_rate=0.7)
FOUR_BITS = part("quantise", bits=4)


def _local(count: int, **algorithm) -> dict:
    return {"algorithm": part("local_sgd", **algorithm), "mini_batches": count}


def _streaming(count: int, **algorithm) -> dict:
    streaming = part("streaming_diloco", fragments=FRAGMENTS, overlap=1, **algorithm)
    return {"algorithm": streaming, "mini_batches": count // FRAGMENTS}


_MUON = {"optimizer.name": "muon"}
ADAM_RATES, MUON_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008), (0.0025, 0.005, 0.01, 0.02, 0.04)
GROUPS = {  # method/H -> (what it changes, rates of its local optimizer)
    "all_reduce": ({}, ADAM_RATES),
    "all_reduce_muon": (_MUON, MUON_RATES),
    "local_sgd/H=30": (_local(30), ADAM_RATES),
    "diloco/H=30": (_local(30, server=OUTER), ADAM_RATES),
    "diloco/H=100": (_local(100, server=OUTER), ADAM_RATES),
    "diloco/H=500": (_local(500, server=OUTER), ADAM_RATES),
    "muloco/H=30": (_local(30, server=OUTER) | _MUON, MUON_RATES),
    "fedadam/H=30": (_local(30, server=part("adam", learning_rate=0.003)), ADAM_RATES),
    "streaming/H=30": (_streaming(30), ADAM_RATES),
    "streaming_4_bits/H=30": (_streaming(30, exchange=FOUR_BITS), ADAM_RATES),
    "sparse_loco/H=30": ({"algorithm": part("sparse_loco"), "mini_batches": 30}, ADAM_RATES),
    "noloco/H=30": ({"algorithm": part("noloco"), "mini_batches": 30}, ADAM_RATES),
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
    """(method/H/rate, entries of its config)."""
    for group, (changes, rates) in GROUPS.items():
        for rate in rates:
            yield f"{group}/rate={rate:g}", changes | {"optimizer.learning_rate": rate}


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
    columns = ("method/local steps", "rate", "loss", "MB per worker", "MB at a time", *LINKS)
    yield Numbers("at the rate that ends lowest; seconds over links of three rates", columns, rows)


def _sent(arm: dict) -> tuple[str, ...]:
    """Rate, loss, bytes of the whole run and of an update, then the run's seconds by link."""
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
    return (
        f"{config.optimizer.learning_rate:g}",
        premises.shown(arm, LOSS),
        f"{sent / 1e6:.4g}",
        f"{sent / updates / 1e6:.4g}",
        *seconds,
    )
