"""Expected and simulated seconds per update of the four protocols (Dutta et al., arXiv 1803.01113).

Nothing is trained. A mini-batch has one of three delay distributions, all with a mean of one
second. The result is the wait of a server with more and more workers, for a share of them or for a
few.

    --config=configs/runtime_analysis.py:share=0.25,k=1
"""

from ml_collections import ConfigDict

from configs import arguments
from experiments.papers import slow_and_stale as paper


def get_config(arg: str | None = None) -> ConfigDict:
    """Return all distributions. Arguments: share (of the workers) and k, numbers to wait for."""
    a = arguments.parse(arg, share=0.5, k=4)

    c = ConfigDict()
    c.name = "runtime_analysis"
    c.seed = 0  # of the simulated delays
    c.workers = (8, 16, 32, 64, 128, 256, 512, 1024)
    c.share = a["share"]  # above 0 and up to 1
    c.k = a["k"]  # mini-batches, at most the fewest workers
    c.pushes = 10_000  # simulated for every point, in 500 updates at least

    # Seconds of a mini-batch, with a mean of 1; theory knows iid distributions only.
    c.delays = ConfigDict()
    c.delays.exponential = "exponential(scale=1)"
    c.delays.shifted_exponential = "shifted_exponential(shift=0.5, scale=0.5)"
    c.delays.pareto = f"pareto(minimum={2 / 3}, shape=3)"
    return c


analyse = paper.analyse
