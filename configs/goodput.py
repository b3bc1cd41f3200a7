"""Goodput of 8 to 1,000 learners that fail (Decoupled DiLoCo, arXiv 2604.21428).

Nothing is trained. Decoupled DiLoCo stands beside asynchronous DiLoCo, DiLoCo and elastic
all-reduce. All are compared by the share of the learners' time spent on mini-batches that count, as
the number of learners and the time between failures vary. The rates of failure are assumptions, not
the paper's.

    --config=configs/goodput.py:repair=600,stop=30
"""

from configs import arguments, base
from experiments import papers


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return the config of four methods.

    Arguments: between (s of work between two failures of a learner), repair (s that a learner is
    away after a failure), stop (s for which elastic all-reduce stops).
    """
    a = arguments.parse(arg, between=86_400.0, repair=3600.0, stop=60.0)

    c = base.ConfigDict()
    c.name = "goodput"
    c.seed = 0  # of the failures
    c.step = 10.0  # seconds of a mini-batch
    c.between = a["between"]
    c.repair = a["repair"]
    c.stop = a["stop"]  # to form a group without a learner, and again with it
    c.learner_seconds = 3e7  # simulated for every point, sum over all learners

    c.workers = (8, 16, 32, 64, 128, 256, 512, 1000)
    c.betweens = (21_600.0, 43_200.0, 86_400.0, 172_800.0, 345_600.0)  # s
    c.at_workers = 256  # learners while the time between failures varies

    # Waiting rules, with the mini-batches between two pushes, of a fragment or of the model.
    c.rules = (
        ("Decoupled DiLoCo", 4, "quorum_async(k=1, gamma=0.5)"),
        ("asynchronous DiLoCo", 24, "k_async(k=1)"),
        ("DiLoCo", 24, "barrier"),
    )
    return c


analyse = papers.analyse("failures")
