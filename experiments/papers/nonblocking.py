"""Non-blocking SGD (He & Dube, arXiv 2211.00889): rounds end when the first worker is done.

Beside its claims stands its run-time analysis, in theory and simulated; that trains nothing.
"""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments import analysis, prepare, registry, stats, tables
from experiments.papers.base import Curves, Lines, Sweep, draw, drawn, is_positive, swept
from experiments.stats import END, Answer, Claim
from stragglers import delays, processes, theory

TITLE = "Non-blocking SGD"
ABSTRACT = "arXiv 2211.00889, abstract"
MIXERS = ("all_reduce", "dpsgd", "matcha")
SWEEPS = (
    Sweep("demo", "--config=configs/demo.py --sweep", 0.02),
    swept("demo_rounds", "demo.py:lengths", 0.2),
    *(
        swept(f"nonblocking_{delay}", f"nonblocking.py:delay={delay}", 0.07)
        for delay in
        ("jitter", "slow2", "slow4", "shifted_exponential", "pause", "pareto", "markov")
    ),
    swept("nonblocking_dirichlet",
          "nonblocking.py:delay=slow4 --config.split='dirichlet(alpha=0.1)'", 0.05),
    swept("nonblocking_tuned", "nonblocking.py:tuned,communication=0.25", 0.4),
    swept("nonblocking_tuned_images", "nonblocking.py:tuned_images", 1.5),
    swept("nonblocking_tuned_text", "nonblocking.py:tuned_text", 0.9),
    swept("nonblocking_weightings", "nonblocking.py:weightings", 0.3, seeds=10),
    Sweep("nonblocking_analysis", "--config=configs/nonblocking.py:analysis", 0.02),
)  # fmt: skip


def follows_theory(table: str, most: float) -> stats.Judge:
    """Return the judge of an analysis whose simulations are within a relative error of theory."""

    def judged(_, record) -> Answer:
        errors = [abs(point["error"]) for point in record["summary"][table]]
        good = sum(error <= most for error in errors)
        measured = f"{good} of {len(errors)} points within {most:.0%}, worst {max(errors):.1%}"
        return Answer(stats.of_all(good, len(errors)), measured)

    return judged


CLAIMS = (
    *(
        Claim(f"one worker 4x slower, both sides tuned: less time than blocking {mixer}", ABSTRACT,
              "nonblocking_tuned", f"{mixer}/nonblocking", f"{mixer}/blocking", tuned=True)
        for mixer in MIXERS[:2]
    ),
    Claim("dpsgd, one worker 4x slower: less time to the same loss than blocking rounds", ABSTRACT,
          "nonblocking_slow4", "dpsgd/nonblocking", "dpsgd/blocking",
          condition="at equal samples per round, one rate for all"),
    Claim("dpsgd, the same: less time than blocking rounds of one mini-batch", "",
          "nonblocking_slow4", "dpsgd/nonblocking", "dpsgd/small_batch"),
    *(
        Claim(f"all_reduce, mini-batches of {samples}, each side at its best: less time", "",
              "demo_rounds", *(f"{side}/samples={samples}/exchange=4"
                               for side in ("nonblocking", "blocking")),
              tuned=True, edges={"M": 1.0})
        for samples in (16, 4)
    ),
    *(
        Claim(f"dpsgd, {words}, each side at its best: less time", ABSTRACT,
              f"nonblocking_tuned_{task}", "dpsgd/nonblocking", "dpsgd/blocking", tuned=True,
              edges={"M": 1.0})
        for task, words in (("images", "ResNet-18"), ("text", "a small GPT"))
    ),
    Claim("dpsgd, uneven data: ends below blocking rounds after the same time", ABSTRACT,
          "nonblocking_weightings", "dpsgd/equal", "dpsgd/blocking", END, tuned=True,
          equal=("seconds",)),
    Claim("the run-time model is within 5 % of the gain in simulated rounds",
          "arXiv 2211.00889, run-time analysis", "nonblocking_analysis",
          judge=follows_theory("by_workers", 0.05)),
)  # fmt: skip


figure = drawn(
    *(
        Curves(f"{samples} samples, an exchange of {exchange}", "demo_rounds", {
            f"{side}/samples={samples}/exchange={exchange}": words
            for side, words in (("blocking", "blocking"), ("nonblocking", "non-blocking"))
        })
        for samples, exchange in ((16, 4), (4, 4), (4, 16))
    ),
    columns=3,
)  # fmt: skip


# --- the run-time analysis: nothing is trained ---


def _is_cost(value) -> bool:
    return value == 0 or is_positive(value)


ENTRIES = (
    ("positive whole numbers", registry.several(registry.is_count), ("workers",)),
    ("seconds, 0 or more", registry.several(_is_cost), ("communication",)),
    ("a positive whole number", registry.is_count,
     ("at_workers", "mini_batches", "rounds", "rounds_in_time")),
    ("seconds, 0 or more", _is_cost, ("at_communication",)),
    registry.SEED,
    ("delays by name", lambda v: hasattr(v, "items") and len(v), ("delays",)),
)  # fmt: skip


def analyse(config: ConfigDict) -> analysis.Analysis:
    """Return gains in theory and simulated, with the same draws for all rules.

    config: `delays` {name: part}; `workers` and `communication` (s per round), which vary one at
    a time, and `at_workers` and `at_communication` for where the other one stays; `mini_batches`,
    `draw` and `in_flight` as in `stragglers.rules.rounds`; `rounds` of a simulation,
    `rounds_in_time` of it where durations have a memory; `seed`. Raise ValueError, before the
    first long simulation, for a config that makes no sense.
    """
    registry.check(config, ENTRIES)
    brief = ConfigDict(config)
    brief.update(rounds=1, rounds_in_time=1)
    for name in config.delays:
        _gain(brief, name, max(*config.workers, config.at_workers), 0.0)
    summary = {
        "by_workers": [_gain(config, name, workers, config.at_communication)
                       for name in config.delays for workers in config.workers],
        "by_communication": [_gain(config, name, config.at_workers, seconds)
                             for name in config.delays for seconds in config.communication],
    }  # fmt: skip
    shown, panels = [], []
    for field, label in (("workers", "workers"), ("communication", "communication per round [s]")):
        points = summary[f"by_{field}"]
        shown.append(tables.pivot(
            f"throughput gain by {field}, in brackets the simulation's error; * estimated from "
            "another simulation",
            points,
            lambda gain: gain["delay"].replace("_", " ") + "*" * (gain["source"] == "estimate"),
            lambda gain, field=field: f"{gain[field]:g}",
            lambda gain: f"{gain['expected']:.2f}x ({round(100 * gain['error'], 1) + 0.0:+.1f}%)",
        ))  # fmt: skip
        labels = label, "throughput: non-blocking / blocking"
        panels.append(Lines("", points, field, "simulated", "delay", labels, ("expected",) * 2))
    return analysis.Analysis(summary, shown, draw(panels), CLAIMS)


def _gain(config: ConfigDict, name: str, workers: int, communication: float) -> dict[str, Any]:
    """Return samples per second of non-blocking over blocking rounds, expected and simulated."""
    delay = prepare.build_delay(config.delays[name])
    place = (workers, config.mini_batches, communication)
    in_time = processes.as_process(delay).uses_time
    # A slow spell ends within a round only where durations are drawn within it.
    simulation = {"rounds": config.rounds_in_time if in_time else config.rounds,
                  "draw": "mini_batch" if in_time else config.draw,
                  "in_flight": config.in_flight}  # fmt: skip
    part = registry.spec(config.delays[name])
    law = prepare.build_delay(part["law"]) if "factors" in part else None
    source = "closed form"
    if isinstance(delay, delays.Law):
        expected = theory.throughput_gain(
            delay, *place, draw=config.draw, in_flight=config.in_flight
        )
    elif isinstance(law, delays.Law) and len(law.atoms) == 1:  # speeds that never change
        seconds = delay.seeded(config.seed).duration(np.arange(workers), 0.0)
        expected = theory.speeds_gain(
            seconds, config.mini_batches, communication, in_flight=config.in_flight
        )
    else:
        source = "estimate"
        expected = theory.estimate_gain(delay, *place, seed=config.seed + 1, **simulation)
    simulated = theory.estimate_gain(delay, *place, seed=config.seed, **simulation)
    return {
        "delay": name, "workers": workers, "communication": communication,  # s per round
        "source": source,  # of what is expected: "closed form" or "estimate"
        "expected": expected, "simulated": simulated, "error": simulated / expected - 1,
    }  # fmt: skip
