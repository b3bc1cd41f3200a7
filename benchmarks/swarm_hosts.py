"""SwarmSGD in 8 bits beside float32, between processes on hosts whose links have a rate.

    python -m benchmarks.swarm_hosts --hosts=4 --rate=1gbit,100mbit                    # as root

Every host is a node of a Ray cluster with one process of `configs/swarm_real.py`, which trains an
MLP of 1.2 MB at its own speed and meets others over the links. G. Nadiradze et al., arXiv
1910.12308, measured about 10 % less time with 8 bits. Points go to
docs/results/benchmarks/swarm_hosts.json, in which other rates stay.
"""

import itertools
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from benchmarks import host_runs, namespaces, points, ray_nodes
from experiments import records

_TIMES = flags.DEFINE_integer("times", 3, "Seeds of each form, in turn.", lower_bound=1)
_CLOCK = flags.DEFINE_float("clock", 20.0, "Seconds of each run.")

RECORD = points.FOLDER / "swarm_hosts.json"
KEY = ("form", "nodes", "rate")  # of a point
FORMS = {"float32": "swarm", "8 bits": "swarm(bits=8)"}
COMMON = (
    "--config.task=digits(model=mlp(hidden=[512, 512]))",
    "--config.delay=none",
    "--config.target_loss=1.5",
    "--config.evaluate_every=1",
)


def measure(
    there: Sequence[namespaces.Host], form: str, seed: int, seconds: float, workdir: pathlib.Path
) -> dict:
    """The summary of a run."""
    with ray_nodes.cluster(there, secrets.token_hex(32)) as (address, environment):
        command = [
            *there[0].prefix, sys.executable, "launch.py",
            f"--config=configs/swarm_real.py:nodes={len(there)},seconds={seconds:g}",
            *COMMON, f"--config.algorithm={FORMS[form]}", f"--config.seed={seed}",
            f"--cluster={address}", f"--workdir={workdir}",
        ]  # fmt: skip
        subprocess.run(command, cwd=namespaces.ROOT, env=os.environ | environment, check=True)
    return records.read_json(workdir / records.SUMMARY)


def point(form: str, nodes: int, rate: str, summaries: Sequence[dict]) -> dict:
    """Means and deviations over runs; seconds to the loss where all of them reached it.

    `meeting` is in seconds from one meeting of any two nodes to the next, `bytes` what a node sends
    in that time.
    """
    each = [summary["seconds"] / summary["updates"] for summary in summaries]
    reached = [summary["seconds_to_target"] for summary in summaries]
    whole = None not in reached
    several = {"ddof": 1} if len(summaries) > 1 else {}
    return {
        "form": form,
        "nodes": nodes,
        "rate": rate,
        "runs": len(summaries),
        "meeting": float(np.mean(each)),
        "meeting_deviation": float(np.std(each, **several)),
        "loss": summaries[0]["target_loss"],
        "seconds": float(np.mean(reached)) if whole else None,
        "seconds_deviation": float(np.std(reached, **several)) if whole else None,
        "bytes": float(np.mean([one["bytes_per_worker"] / one["updates"] for one in summaries])),
    }


def main(_) -> None:
    reason = namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    path = RECORD if host_runs.OUTPUT.value is None else pathlib.Path(host_runs.OUTPUT.value)
    for count, rate in itertools.product(map(int, host_runs.HOSTS.value), host_runs.RATES.value):
        with tempfile.TemporaryDirectory() as folder:
            found = {form: [] for form in FORMS}
            for seed, form in itertools.product(range(_TIMES.value), FORMS):
                workdir = pathlib.Path(folder, form, str(seed))
                with namespaces.switch(count, rate) as there:
                    found[form].append(measure(there, form, seed, _CLOCK.value, workdir))
        rows = [point(form, count, rate, runs) for form, runs in found.items()]
        points.put(path, "python -m benchmarks.swarm_hosts", KEY, rows)
        for row in rows:
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    app.run(main)
