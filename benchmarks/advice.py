"""Quality of an advice: its ranking without training against the outcome of training.

Durations are drawn from laws, or taken from traces, and recorded on a mesh and by free processes;
every rule is trained at its predicted best parameter, at several rates. Prints, for each source of
durations, Spearman's correlation of predicted and trained seconds to target, and how much longer
the advised rule took than the best one, or that the advice was not sure. Points go to
docs/results/benchmarks/advice.json, in which other sources stay; arms that are finished in the
workdir are not trained again.

    python -m benchmarks.advice --workdir=runs/advice_benchmark
    python -m benchmarks.advice --sources=job \
        --traces="job=trace(path='job.csv', duration=batch_time_norm, mean=1.0)"
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from absl import app, flags
from scipy import stats

from benchmarks import points
from experiments.advice import durations, play
from experiments.config_files import override, read

_WORKDIR = flags.DEFINE_string("workdir", "runs/advice_benchmark", "Where runs are kept.")
_TRACES = flags.DEFINE_multi_string("traces", [], "More delays: name=part.")
_SOURCES = flags.DEFINE_list("sources", [], "Only these, by name; all if empty.")
_WORKERS = flags.DEFINE_integer("workers", 8, "Of the simulator.")
CONFIG = Path(__file__).parent.parent / "configs" / "slow_and_stale.py"
GENERATED = {
    "one_slow": "persistent(law=jitter(mean=1.0, sigma=0.1), factors={0: 4.0})",
    "heavy_tail": "pareto(minimum=0.5, shape=2.0)",
    "spells": "markov(law=jitter(mean=1.0, sigma=0.1), factor=5, mean_normal=40, mean_slow=10)",
}
CHANGES = {
    "mini_batches": 4,
    "wait": "barrier",
    "target_loss": 0.8,
    "seconds": 800.0,
    "optimizer.learning_rate": 2.0,  # of the barrier
}
RECORDED = {"mesh": "barrier", "actors": "k_sync(k=4)"}  # the same, on runtimes with real clocks
RUN = [
    "--config=configs/slow_and_stale.py:seconds=8", "--config.workers=4",
    "--config.mini_batches=4", "--config.optimizer.learning_rate=2.0", "--config.target_loss=0.8",
    "--config.delay=persistent(law=jitter(mean=0.02, sigma=0.3), factors={0: 3.0})",
]  # fmt: skip
RECORD = points.FOLDER / "advice.json"
KEY = ("source",)  # of a point


def main(_) -> None:
    root = Path(_WORKDIR.value)
    named = GENERATED | dict(text.split("=", 1) for text in _TRACES.value)
    chosen = _SOURCES.value or [*named, *RECORDED]
    for name in chosen:
        if name in RECORDED:
            source = durations.read(str(recorded(name, root / f"run_{name}")), None, [])
        else:
            changes = CHANGES | {"workers": _WORKERS.value, "delay": GENERATED["one_slow"]}
            config = override(read(str(CONFIG)).config, changes)
            source = durations.read(named[name], config, [])
        point = compare(name, source, root / name)
        points.put(RECORD, "python -m benchmarks.advice", KEY, [point])


def recorded(runtime: str, run: Path) -> Path:
    """Return the workdir of a run on a runtime, which is run if it has not been."""
    if not (run / "summary.json").exists():
        arguments = [f"--config.runtime={runtime}", f"--config.wait={RECORDED[runtime]}"]
        command = [sys.executable, "launch.py", *RUN, *arguments, f"--workdir={run}"]
        print(shlex.join(command), flush=True)
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        subprocess.run(command, check=True, env=environment, timeout=600)
    return run


def compare(name: str, source: durations.Source, workdir: Path) -> dict:
    """Weigh all rules, train each of them, and print how well the two agree; the point of it."""
    began, computed = time.monotonic(), time.process_time()
    advice = play.weigh(source)
    weighed, weighed_cpu = time.monotonic() - began, time.process_time() - computed
    workdir.mkdir(parents=True, exist_ok=True)
    after = play.train(advice, workdir, advice.order)
    results = after.results
    order = [one for one in advice.order if one.name in results]
    unit = advice.reference.predicted(advice.ratio)
    predicted = [one.predicted(advice.ratio) / unit for one in order]
    seconds = [results[one.name].mean for one in order]
    late = max(second for second in seconds if np.isfinite(second)) * 2
    ranked = np.where(np.isfinite(seconds), seconds, late)  # those that never arrive are last
    agreement = stats.spearmanr(predicted, ranked).statistic
    fastest = int(np.argmin(ranked))
    print(
        f"\n{name}: {source.measured.workers} workers, {len(advice.found)} contenders of ", end=""
    )
    print(f"{len(order)} rules played in {weighed:.1f} s ({weighed_cpu:.1f} s of CPU), ", end="")
    print(f"noise {advice.ratio:.3g}")
    print(f"  Spearman {agreement:.3f}")
    print(f"  advised without training: {advice.verdict.reason}")
    print(f"  it took {ranked[0] / ranked[fastest]:.3f} times as long as {order[fastest].name}")
    print(f"  advised with training: {after.verdict.reason}")
    for one, guess, second in sorted(
        zip(order, predicted, seconds, strict=True), key=lambda r: r[2]
    ):
        result = results[one.name]
        edge = "*" if result.edge else ""
        print(
            f"    {second:9.2f} s  predicted {guess:5.2f}  rate {result.rate:g}{edge}  {one.name}"
        )
    return {
        "source": name,
        "workers": source.measured.workers,
        "rules": len(order),
        "contenders": len(advice.found),
        "spearman": float(agreement),
        "advised": order[0].name,
        "longer": float(ranked[0] / ranked[fastest] - 1),
        "best": order[fastest].name,
        "sure": after.verdict.sure,
        "verdict": after.verdict.reason,
        "seconds_to_weigh": weighed,
    }


if __name__ == "__main__":
    app.run(main)
