"""Goodput of learners that are killed, real processes (Decoupled DiLoCo, arXiv 2604.21428).

Four processes train logistic regression on scikit-learn's digits. Decoupled DiLoCo, in which nobody
waits, stands beside DiLoCo, in which everybody waits for the process that takes the place of the
killed one. Its rule is that of `configs/goodput.py`: a quorum of one learner, and a grace of half
the time that this one needs to be back. It takes about 7 minutes.

    --config=configs/goodput_real.py:every=14,kills=2
"""

from ml_collections import ConfigDict

from configs import arguments, base
from experiments.papers import failures as paper
from experiments.parts import part


def get_config(arg: str | None = None) -> ConfigDict:
    """Two methods. Arguments: workers, every (s between two kills), kills (in a run), undisturbed
    (s before the first kill), seeds."""
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
        (paper.OURS, "decoupled_diloco", "quorum_async(k=1, gamma=0.5)"),
        (paper.BARRIER, f"local_sgd({nesterov})", f"k_sync(k={a['workers']})"),
    )
    return config


analyse = paper.kill
