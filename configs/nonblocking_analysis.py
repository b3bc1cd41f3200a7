"""The run-time analysis of Non-blocking SGD (He & Dube, arXiv 2211.00889) against simulation.

Nothing is trained. For every delay: the expected throughput gain of non-blocking over blocking
rounds, as the number of workers and the cost of communication vary, beside simulated rounds.

    --config=configs/nonblocking_analysis.py:mini_batches=16
"""

from ml_collections import ConfigDict

from configs import arguments
from experiments.papers import nonblocking as paper


def get_config(arg: str | None = None) -> ConfigDict:
    """All delays. Arguments: mini_batches (per round), workers and communication (s), at which
    the other one varies."""
    a = arguments.parse(arg, mini_batches=8, workers=8, communication=0.5)
    each = 1.0 / a["mini_batches"]  # seconds of a mini-batch, such that a nominal round takes 1 s

    c = ConfigDict()
    c.name = "nonblocking_analysis"
    c.seed = 0  # of the simulated delays
    c.mini_batches = a["mini_batches"]  # mini-batches in a full round
    c.draw = "round"  # a new duration per round | per mini_batch
    c.in_flight = "finish"  # at the signal, mini-batches that have begun: finish | cut
    c.rounds = 1200  # simulated, for every point
    c.rounds_in_time = 400  # the same for delays with a memory, which are slow to simulate

    c.workers = (2, 4, 8, 16, 32, 64)
    c.at_communication = a["communication"]  # seconds per round while the workers vary
    c.communication = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)  # seconds per round
    c.at_workers = a["workers"]  # workers while the communication varies

    # Seconds of a mini-batch; the first five have means of 1/M, the rest when nothing is slow.
    c.delays = ConfigDict()
    c.delays.exponential = f"exponential(scale={each})"
    c.delays.shifted_exponential = f"shifted_exponential(shift={each / 2}, scale={each / 2})"
    c.delays.pareto = f"pareto(minimum={each * 2 / 3}, shape=3)"
    c.delays.log_normal = f"jitter(mean={each}, sigma=0.3)"
    c.delays.slow_rounds = f"bernoulli_slowdown(value={each}, factor=5, probability=0.1)"
    c.delays.slow_worker = f"persistent(law=deterministic(value={each}), factors={{0: 4.0}})"
    # 5x slower for a tenth of the time, in spells of a second on average.
    c.delays.slow_spells = (
        f"markov(law=deterministic(value={each}), factor=5, mean_normal=9, mean_slow=1)"
    )
    return c


analyse = paper.analyse
