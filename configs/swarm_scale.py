"""Communication time from 8 to 256 nodes whose link serves one transfer at a time.

Nothing is trained. SwarmSGD (Nadiradze et al., arXiv 1910.12308) beside AD-PSGD, SGP, D-PSGD and
ring all-reduce: mean and 99 % quantile, per node and update, of the time from the end of the local
steps to the beginning of the next ones.

    --config=configs/swarm_scale.py:delay=slow4
"""

from ml_collections import ConfigDict

from configs import arguments
from experiments.papers import swarm as paper
from experiments.parts import part

JITTER = part("jitter", mean=0.2, sigma=0.1)
DELAYS = {
    "equal": JITTER,
    "slow4": part("persistent", law=JITTER, factors={0: 4.0}),
    "exponential": part("exponential", scale=0.2),
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Ten methods. Arguments: delay, a key of DELAYS; rounds, that every node makes."""
    a = arguments.parse(arg, delay="equal", rounds=100)
    if a["delay"] not in DELAYS:
        raise ValueError(f"unknown delay {a['delay']!r}; choose one of {', '.join(DELAYS)}")

    c = ConfigDict()
    c.name = "swarm_scale"
    c.seed = 0  # of the delays and partners
    c.workers = (8, 16, 32, 64, 128, 256)  # powers of two, for the hypercube
    c.rounds = a["rounds"]
    c.delay = DELAYS[a["delay"]]  # seconds of a mini-batch

    c.size = 11_689_512  # coordinates of ResNet-18
    c.alpha = 1e-4  # seconds to start a message
    c.beta = 8e-10  # seconds per byte: 10 Gbit/s

    # steps: mini-batches between two exchanges; bits: of a coordinate on the wire.
    c.methods = (
        ("swarm/H=1", "swarm(steps=1)"),
        ("swarm/H=2", "swarm(steps=2)"),
        ("swarm/H=4", "swarm(steps=4)"),
        ("swarm/H=2/8 bits", "swarm(steps=2, bits=8)"),
        ("ad_psgd", "ad_psgd(steps=1)"),
        ("sgp", "sgp(steps=1)"),
        ("dpsgd/ring", "dpsgd_ring(steps=1)"),
        ("dpsgd/hypercube", "dpsgd_hypercube(steps=1)"),
        ("dpsgd/complete", "dpsgd_complete(steps=1)"),
        ("all_reduce", "all_reduce(steps=1)"),
    )
    return c


analyse = paper.analyse
