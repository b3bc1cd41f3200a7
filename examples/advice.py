"""Advice on a trace of your own: which waiting rule suits a cluster whose steps you have logged.

    python examples/advice.py [steps.csv]

The file has a row per step and worker, with the seconds of computing alone. Without one, four
workers are made up, one of which is slow for a while. `python launch.py --advise=steps.csv
--config=...` asks the same and writes a page.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from gossax.configs import nonblocking
from gossax.experiments.advice import durations, play
from gossax.stragglers import processes


def made_up(path: Path) -> str:
    """Write the steps of four workers into a file; return its path."""
    seconds = np.random.default_rng(0).gamma(20, 0.005, (200, 4))
    seconds[50:150, 3] *= 2.5
    rows = [f"{worker},{step},{took:.4f}" for (step, worker), took in np.ndenumerate(seconds)]
    path.write_text("\n".join(["worker,step,seconds", *rows]))
    return str(path)


with tempfile.TemporaryDirectory() as folder:
    path = sys.argv[1] if len(sys.argv) > 1 else made_up(Path(folder) / "steps.csv")
    trace = processes.trace(path)
    print(trace.read)
    config = nonblocking.get_config(f"workers={len(trace.names)}")  # of your training
    config.wait = "barrier"
    advice = play.weigh(durations.read(path, config, []))

print(advice.verdict.reason)
own = advice.reference
for rule in advice.verdict.order[:5]:
    gain = own.predicted(advice.ratio) / rule.predicted(advice.ratio)
    print(f"{gain:5.2f} times as fast as {own.name}: {rule.name}")
