"""Goodput of 8 to 1,000 learners that fail (Decoupled DiLoCo, arXiv 2604.21428).

Nothing is trained. Decoupled DiLoCo stands beside asynchronous DiLoCo, DiLoCo and elastic
all-reduce. All are compared by the share of the learners' time in mini-batches that count, as the
number of learners and the time between failures vary. The rates of failure are assumptions, not the
paper's.

    --config=configs/goodput.py:repair=600,stop=30
    --config=configs/goodput.py:real,every=14,kills=2
"""

from ml_collections import ConfigDict

from configs import arguments, base
from experiments import papers
from experiments.registry import part


def get_config(arg: str | None = None) -> ConfigDict:
    """Return four methods.

    Arguments: between (s of work from a learner's failure to the next), repair (s for which it is
    then away), stop (s of a stop of elastic all-reduce).
    """
    a = arguments.parse(arg, between=86_400.0, repair=3600.0, stop=60.0)

    c = ConfigDict()
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


# --- real processes that are killed ---


def _real(arg: str | None = None) -> ConfigDict:
    """Return two methods.

    Arguments: workers, every (s between two kills), kills (in a run), undisturbed (s before the
    first kill), seeds.
    """
    a = arguments.parse(arg, workers=4, every=7.0, kills=3, undisturbed=8.0, seeds=5)
    config = base.arm(
        name="goodput_real",
        task=part("digits", model="logistic", l2=0.01),
        runtime="actors",
        workers=a["workers"],
        batch_size=8,
        mini_batches=4,  # local steps of a contribution
        optimizer=part("sgd", learning_rate=0.02),
        delay=part("deterministic", value=0.05),  # s of a mini-batch; computing adds little
    )
    config.every = a["every"]
    config.kills = a["kills"]
    config.undisturbed = a["undisturbed"]
    config.seeds = a["seeds"]  # of samples, of initial parameters and of who is killed
    nesterov = "server=momentum(learning_rate=0.7, decay=0.9, nesterov=true)"
    config.methods = (
        ("Decoupled DiLoCo", "decoupled_diloco", "quorum_async(k=1, gamma=0.5)"),
        ("DiLoCo", f"local_sgd({nesterov})", f"k_sync(k={a['workers']})"),
    )
    return config


VARIANTS = {
    "real": base.Variant(
        "Goodput of learners that are killed, real processes (Decoupled DiLoCo, arXiv "
        "2604.21428).\n\n"
        "Four processes train logistic regression on scikit-learn's digits, in about 7 minutes. "
        "In Decoupled DiLoCo nobody waits, by the rule of the simulation; in DiLoCo everybody "
        "waits for the process that takes the place of the killed one.",
        _real,
        analyse=papers.analyse("failures", "kill"),
    )
}
