"""Gains of waiting rules with delays as in seven public jobs: mini-batches a second.

Nothing is trained. Fifteen rules are simulated with the same durations. A rule's gain is the number
of its finished mini-batches a second, divided by a barrier's; updates are not counted.

    --config=configs/public_jobs.py:mini_batches=8
"""

from collections.abc import Iterator
from typing import Any

from configs import arguments, base
from experiments import registry

JOBS = (
    *(f"alibaba_job_{number}" for number in (1, 2, 3, 4)),
    *(f"bytedance_{job}" for job in ("ar", "se", "st")),
)


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return all jobs. Argument: mini_batches of a worker in a barrier's round."""
    a = arguments.parse(arg, mini_batches=8)
    c = base.ConfigDict()
    c.name = "public_jobs"
    c.jobs = JOBS  # delays, as configs write them
    c.mini_batches = a["mini_batches"]
    return c


def analyse(config: base.ConfigDict) -> Any:
    """Return the gain of every rule in every job; ValueError for a job that cannot be used."""
    from experiments import analysis
    from experiments.advice import observatory
    from experiments.papers import nonblocking

    registry.check(config, [("a positive whole number", registry.is_count, ("mini_batches",))])
    seen = [
        observatory.observed(observatory.read(job, config.mini_batches), config.mini_batches)
        for job in config.jobs
    ]
    points = [point for record in seen for point in _points(record)]
    table = observatory.as_numbers(seen)._replace(title="mini-batches a second, over a barrier's")
    return analysis.Analysis({"points": points}, [table], claims=nonblocking.CLAIMS)


def _points(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each rule's gain and staleness; the durations determine its parameters."""
    from experiments.advice import observatory

    for call, gain in record["gains"].items():
        name, _, own = call.partition("(")
        yield {
            "job": record["source"], "rule": f"{name}, cut" if "cut" in own else name,
            "gain": gain["mean"], "gain_deviation": gain["spread"],
            "runs": observatory.REPEATS, "staleness": gain["staleness"],
        }  # fmt: skip
