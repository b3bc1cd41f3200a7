"""S2 Reducer (Ge et al., arXiv 2110.02140): row-sparse gradients summed as sketches.

The tables of a sweep have what its claims need: bytes for the row-sparse parameters, and the time
of a step on a modelled link, with codecs measured on this computer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from comms import messages
from comms.messages import Row
from experiments import codec_times, prepare, stats, tasks
from experiments.papers.base import HEADLINE, Panel, drawn, swept
from experiments.stats import BYTES, Answer, Arm, Claim, Inconclusive

TITLE = "S2 Reducer"
SWEEPS = (
    swept("s2_ncf", "s2_reducer.py:task=ncf", 0.6, seeds=5, last="", tier=HEADLINE),
    swept("s2_hashed_logistic", "s2_reducer.py:task=hashed_logistic", 0.3, seeds=5, last="",
          tier=HEADLINE),
    swept("s2_ncf_rates", "s2_reducer.py:rates,task=ncf", 0.7, seeds=5, last="", tier=HEADLINE),
    swept("s2_transformer", "s2_reducer.py:task=transformer", 0.9, seeds=10, last=""),
    swept("s2_lstm", "s2_reducer.py:task=lstm", 0.3, last=""),
)  # fmt: skip
AS_PUBLISHED = "s2/median"  # decodes as the paper does
DENSE, REORDERED, SIXTEEN = "dense", "dense/reordered", "bf16"
ROUNDS = 5  # in each of which the codecs of all arms are measured
LOSS_SHARE = 1e-3  # share of dense training's loss; a smaller excess counts as none
TABLES = "bytes for the tables, and what was lost"
GIGABITS = 1  # per second, of the modelled link
STEP = f"a step at {GIGABITS} Gbit/s"


def fewer_bytes(arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge the claim of 81 % fewer bytes for the row-sparse tables at the same loss.

    A loss counts as the same if it exceeds dense training's by at most the larger of a thousandth
    and the noise level. The noise level is the root mean square of the differences by seed between
    dense training and dense training that sums in another order.
    """
    ours, dense, again = stats.named(arms, AS_PUBLISHED, DENSE, REORDERED)
    stats.equal("samples", ours, dense)
    stats.finite("train_loss", ours, dense, again)
    if len(again.get("seeds", ())) < 3:
        raise Inconclusive("fewer than 3 seeds leave the noise level of a loss unknown")
    pairs = zip(again["train_loss_by_seed"], dense["train_loss_by_seed"], strict=True)
    level = float(np.sqrt(np.mean([(one - other) ** 2 for one, other in pairs])))
    margin = max(level, LOSS_SHARE * abs(dense["train_loss"]))
    lost = stats.compare(ours, dense, "train_loss", margin=margin)
    (fewer,) = _column(arms, record, TABLES, "fewer bytes [%]", AS_PUBLISHED)
    share = ours.get("fallback_share")
    fell_back = f", {share:.0%} of updates fell back" if share else ""
    lost = lost._replace(measured=f"{fewer:.1f} % fewer{fell_back}; loss {lost.measured}")
    return lost if fewer >= 81 else lost._replace(verdict=stats.FAILS, reason="")


def faster(arms: Sequence[Arm], record: Mapping[str, Any]) -> Answer:
    """Judge the claim of a step 1.8 times as fast as OmniReduce's, the slowest exact method."""
    names = AS_PUBLISHED, "omnireduce"
    means, spreads = (_column(arms, record, STEP, heading, *names)
                      for heading in ("ms", "deviation [ms]"))  # fmt: skip
    pair = [
        {"name": name, "ms": mean, "ms_std": spread, "seeds": range(ROUNDS)}
        for name, mean, spread in zip(names, means, spreads, strict=True)
    ]
    return stats.compare(*pair, "ms", 1 / 1.8)


def _column(
    arms: Sequence[Arm], record: Mapping[str, Any], title: str, heading: str, *names: str
) -> list[float]:
    """Return the named arms' column of a table, of the record or of a sweep that has just ended."""
    tables = record["numbers"] if "numbers" in record else [t._asdict() for t in numbers(arms)]
    for table in tables:
        if table["title"] == title:
            place = list(table["columns"]).index(heading)
            values = {row[0]: float(row[place]) for row in table["rows"]}
            return [values[name] for name in names]
    raise Inconclusive(f"there is no table of {title}")


_SOURCE = "arXiv 2110.02140, abstract"
CLAIMS = (
    Claim("NCF, 1 Gbit/s: a step with the median sketch is 1.8x faster than OmniReduce's", _SOURCE,
          "s2_ncf", judge=faster, headline=True),
    Claim("NCF: a sketch sends less than SparCML", _SOURCE, "s2_ncf", AS_PUBLISHED, "sparcml",
          BYTES, equal=("samples",), headline=True),
    *(
        Claim(f"{words}, one rate: 81 % fewer bytes for sparse gradients at the same loss", _SOURCE,
              record, judge=fewer_bytes, headline=quoted)
        for record, words, quoted in (
            ("s2_ncf", "NCF", True), ("s2_hashed_logistic", "hashed features", True),
            ("s2_transformer", "transformer", False), ("s2_lstm", "LSTM", False),
        )
    ),
    Claim("a control that has to fail: NCF, Sketched-SGD ends at most 0.1 % above dense", "",
          "s2_ncf", "sketched_sgd", DENSE, "train_loss", 1.001),
    *(
        Claim(f"NCF, each at its best rate, at most 0.1 % above dense training: {words}",
              source, "s2_ncf_rates", ours, DENSE, "train_loss", 1.001, equal=("samples",),
              tuned=True, headline=bool(source))
        for words, ours, source in (("the median sketch", AS_PUBLISHED, _SOURCE),
                                    ("bf16", SIXTEEN, ""), ("another order", REORDERED, ""))
    ),
    Claim("NCF: the median sketch sends at most half the bytes of bf16", "", "s2_ncf_rates",
          AS_PUBLISHED, SIXTEEN, BYTES, 0.5, equal=("samples",), tuned=True,
          chosen_by="train_loss"),
)  # fmt: skip
GROUPS = {
    DENSE: "dense", AS_PUBLISHED: "S2 sketch, medians", "s2/sketch": "S2 sketch, peeled",
    "s2/exact": "union of rows, exact", "sparse_all_gather": "sparse all-gather",
    "sparcml": "SparCML", "omnireduce": "OmniReduce", "parallax": "Parallax",
}  # fmt: skip
figure = drawn(
    Panel("hashed features", "s2_hashed_logistic", GROUPS, BYTES, log=True),
    Panel("NCF", "s2_ncf", GROUPS, BYTES, log=True),
)
_MEASURED: dict[tuple[int, ...], tuple] = {}  # by the ids of configs, which it keeps


def numbers(arms: Sequence[Arm]) -> Iterator[stats.Numbers]:
    """Yield a table of bytes, losses and fallbacks, then a table of steps.

    Codecs are measured once for the configs of a sweep, whatever copies of its arms come later.
    """
    (dense,) = stats.named(arms, DENSE)
    configs = {arm["name"]: arm["config"] for arm in arms}
    key = tuple(map(id, configs.values()))
    if key not in _MEASURED:
        built = {name: prepare.prepare(own, settled=True) for name, own in configs.items()}
        both = {name: (built[name], own) for name, own in configs.items()}
        _MEASURED[key] = configs, built, codec_times.step_rounds(both, ROUNDS)
    _, prepared, rounds = _MEASURED[key]  # of (gradient, exchange and step) in seconds
    workers = dense["config"].workers
    # Bytes per update that fallbacks add to the plan; negative if fallbacks save some.
    again = {arm["name"]: (arm.get("fallback_bytes") or 0) / max(1, arm["updates"]) for arm in arms}
    sent = {name: _table_bytes(arm, workers) + again[name] for name, arm in prepared.items()}
    yield stats.Numbers(
        TABLES,
        ("arm", "fewer bytes [%]", "loss over dense [%]", "fell back [% of updates]"),
        [(arm["name"], f"{100 * (1 - sent[arm['name']] / sent[DENSE]):.1f}",
          "diverged" if None in (arm["train_loss"], dense["train_loss"])
          else f"{100 * (arm['train_loss'] / dense['train_loss'] - 1):+.2f}",
          f"{100 * (arm.get('fallback_share') or 0):.1f}") for arm in arms],
    )  # fmt: skip
    network = codec_times.link(GIGABITS, workers)
    # All arms get a round's fastest gradient, and at least dense training's exchange and step.
    taken = {name: np.array(own) for name, own in rounds.items()}  # [ROUNDS, 2]
    gradient, dense_step = np.min([of[:, 0] for of in taken.values()], axis=0), taken[DENSE][:, 1]
    seconds = {}
    for name, arm in prepared.items():
        exchange = messages.exchange_seconds(arm.algorithm, arm.shapes, workers, network)
        links = exchange(arm.algorithm.settled) + again[name] / (GIGABITS * codec_times.GIGABIT)
        seconds[name] = gradient + np.maximum(taken[name][:, 1], dense_step) + links
    yield stats.Numbers(
        STEP,
        ("arm", "ms", "deviation [ms]", "over dense"),
        [(name, f"{1e3 * step.mean():.2f}", f"{1e3 * step.std(ddof=1):.3f}",
          f"{seconds[DENSE].mean() / step.mean():.2f}x") for name, step in seconds.items()],
    )  # fmt: skip


def _table_bytes(arm: prepare.Prepared, workers: int) -> float:
    """Return bytes that a worker sends in an update for the row-sparse parameters alone."""
    tables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if tasks.row_sparse(arm.task, path) else None, arm.shapes
    )
    payloads = arm.algorithm.messages(tables, workers, Row(arm.algorithm.settled))
    return float(sum(messages.collective_bytes(payload, workers) for payload in payloads))
