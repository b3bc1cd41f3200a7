"""Rows of every paper against their records, and the comparisons that rows alone cannot say."""

import functools

import numpy as np

from experiments import papers, publish
from experiments.papers import s2_reducer
from experiments.stats import FAILS, HOLDS, arms

PAPERS = publish.papers()
EVERY = [claim for paper in PAPERS for claim in paper.CLAIMS]
ROWS = [(claim, claim.record) for claim in EVERY if publish.is_published(claim.record)]
SWEEPS = {sweep.name: sweep for paper in PAPERS for sweep in paper.SWEEPS}
record = functools.cache(publish.record)


def sparse(loss=0.5, fewer="82.0", ms="20.0"):
    """Return arms of S2 Reducer and the tables of their record."""
    names = (s2_reducer.AS_PUBLISHED, s2_reducer.DENSE, s2_reducer.REORDERED, "omnireduce")
    found = []
    for name, level in zip(names, (loss, 0.5, 0.501, 0.5), strict=True):
        values = [level + 1e-5 * seed for seed in range(3)]
        found.append({"name": name, "seeds": [0, 1, 2], "samples": 1.0,
                      "train_loss": float(np.mean(values)), "train_loss_by_seed": values})
    tables = [
        {"title": s2_reducer.TABLES, "columns": ["arm", "fewer bytes [%]"],
         "rows": [[s2_reducer.AS_PUBLISHED, fewer]]},
        {"title": "a step at 1 Gbit/s", "columns": ["arm", "ms", "deviation [ms]"],
         "rows": [[name, ms if name == "omnireduce" else "10.0", "0.1"] for name in names]},
    ]  # fmt: skip
    return found, {"numbers": tables}


def test_sketches_are_judged_by_bytes_losses_and_steps():
    assert s2_reducer.fewer_bytes(*sparse()).verdict == HOLDS
    assert s2_reducer.fewer_bytes(*sparse(fewer="80.9")).verdict == FAILS
    assert s2_reducer.fewer_bytes(*sparse(loss=0.6)).verdict == FAILS
    assert s2_reducer.faster(*sparse()).verdict == HOLDS
    assert s2_reducer.faster(*sparse(ms="17.0")).verdict == FAILS


def test_a_sweep_is_judged_as_the_record_that_its_command_makes():
    judged, on_ring = papers.Judged("matcha", "matcha"), arms(record("matcha_graph_5"))

    def labels(*flags):
        return [claim for claim, _ in judged._replace(flags=frozenset(flags))(on_ring)]

    on_five = labels("--config=configs/matcha.py:graph=5")
    assert on_five and all(label.startswith("a ring: ") for label in on_five)
    assert labels("--config=configs/matcha.py")[0].startswith("graph 0: half the communication")
    (other, *_) = labels("--config=configs/matcha.py:graph=5", "--config.workers=8")
    assert other.endswith("; here --config.workers=8 --config=configs/matcha.py:graph=5")
    other = frozenset(["--config=configs/x.py:task=lstm"])
    for paper, base in (("s2_reducer", "s2_ncf"), ("nonblocking", "nonblocking_slow4")):
        found = papers.Judged(paper, base, other)(on_ring)
        assert all("; here --config=configs/x.py:task=lstm" in claim for claim, _ in found)
