"""Quality of advice: its ranking of rules at equal batch against the outcome of training.

Durations come from laws and from statistics of public jobs. A run with a barrier ends at the
target, where the noise of gradients is measured. Then every rule is weighed. RULES are trained at
the parameters with which the advice compares them and at the best of several rates, with three more
seeds; each seed has its own resampled durations.

A pair of rules counts if its mean difference over these seeds exceeds two standard errors, and is
right if it was predicted in the order of the trained seconds. Points go to
docs/results/benchmarks/advice.json; arms that are finished in the workdir are not trained again.

    python -m benchmarks.advice
    python -m benchmarks.advice --sources=spells,alibaba_job_4 --workdir=runs/advice_benchmark
"""

import itertools
from pathlib import Path

import numpy as np

from benchmarks import harness
from experiments import config_files, records, sweep, train
from experiments.advice import durations, play

SLOW = "jitter(mean=1.0, sigma=0.1)"
SOURCES = {
    "one_slow": f"persistent(law={SLOW}, factors={{0: 4.0}})",
    "heavy_tail": "pareto(minimum=0.5, shape=2.0)",
    "spells": f"markov(law={SLOW}, factor=5, mean_normal=40, mean_slow=10)",
    "exponential": "exponential(scale=1.0)",
    "alibaba_job_1": "alibaba_job_1(mean=1.0)",
    "alibaba_job_4": "alibaba_job_4(mean=1.0)",
    "bytedance_ar": "bytedance_ar(mean=1.0)",
    "bytedance_se": "bytedance_se(mean=1.0)",
}
CHANGES = {
    "mini_batches": 4, "wait": "barrier", "target_loss": 0.78, "seconds": 800.0,
    "optimizer.learning_rate": 2.0, "stop_at_target": True, "evaluate_every": 4.0,
}  # fmt: skip
RULES = {  # one of each kind
    "barrier", "first_finisher", "quorum", "deadline", "k_sync", "k_async", "k_batch_async",
}  # fmt: skip
RECORD = harness.Record(
    harness.FOLDER / "advice.json", "python -m benchmarks.advice", ("source",)
)


def compare(name: str, workdir: Path) -> dict:
    """Return a point: relative seconds, predicted and trained, of RULES and the advised rule."""
    base = config_files.read("configs/slow_and_stale.py").config
    config = config_files.override(base, CHANGES | {"delay": SOURCES[name]})
    train.run(config, workdir / "barrier", checkpoint_seconds=float("inf"))
    source = durations.read(SOURCES[name], config, [])
    source = source._replace(parameters=workdir / "barrier" / records.PARAMETERS)
    advice = play.weigh(source)
    advised = advice.verdict.close[0]
    known = {*RULES, advised.arm.wait.name}
    chosen = [one for one in advice.order if one.arm.wait.name in known]
    after = play.train(advice, workdir, chosen)
    unit, own = advice.reference.predicted(advice.ratio), after.results[advice.reference.name]
    rows = [
        {"rule": one.name, "predicted": one.predicted(advice.ratio) / unit,
         "trained": result.mean / own.mean, "spread": result.spread / own.mean,
         "rate": result.rate, "edge": result.edge, "batch": one.batch}
        for one in chosen if (result := after.results.get(one.name))
    ]  # fmt: skip
    predicted = {row["rule"]: row["predicted"] for row in rows if np.isfinite(row["trained"])}
    seconds = {rule: np.array(after.results[rule].seconds) for rule in predicted}
    order = sorted(seconds, key=lambda rule: seconds[rule].mean())
    ranking = [
        {key: float(f"{value:.4g}") if isinstance(value, float) else value
         for key, value in row.items()}
        for row in records.plain(rows)
    ]  # fmt: skip
    pairs = [(a, b) for a, b in itertools.combinations(order, 2) if _differ(seconds, a, b)]
    return {
        "source": name, "workers": source.measured.workers, "rules": len(order),
        "never": len(rows) - len(order),
        "edges": sum(row["edge"] for row in rows), "noise": advice.ratio,
        "pairs": len(pairs), "right": sum(predicted[a] < predicted[b] for a, b in pairs),
        "advised": advised.name, "best": order[0],
        "longer": float(seconds[advised.name].mean() / seconds[order[0]].mean()),
        "verdict": advice.verdict.reason, "trained_verdict": after.verdict.reason,
        "smaller": play.of_smaller(after), "ranking": ranking,
    }  # fmt: skip


def _differ(seconds: dict[str, np.ndarray], one: str, other: str) -> bool:
    """Return True if two rules' mean seconds differ by more than two standard errors."""
    difference = seconds[other] - seconds[one]
    error = difference.std(ddof=1) / difference.size**0.5
    return bool(abs(difference.mean()) > 2 * error)


def main() -> None:
    """Compare the sources that the command line names."""
    options = harness.options(
        __doc__, sources=([*SOURCES], "names"),
        workdir=(Path("runs/advice_benchmark"), "of the arms"),
    )  # fmt: skip
    sweep.keep_programs()
    for name in options.sources:
        RECORD.put([compare(name, options.workdir / name)])


if __name__ == "__main__":
    main()
