"""What lies below a workdir: the arms that have finished, all seeds of each, and what has not."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from experiments import aggregates, formats, records


class Arm(NamedTuple):
    """What lies below a workdir of the finished seeds of an arm."""

    name: str
    places: list[Path]  # of its seeds
    config: dict  # with the seeds of all in place of one
    summary: dict  # of all seeds together
    summaries: list[dict]  # of each seed
    runs: list[list[dict]]  # metrics of each seed


class Unfinished(NamedTuple):
    """A run that has not come to its end."""

    place: str
    state: str


def gather(root: Path) -> tuple[list[Arm], list[Unfinished]]:
    """The finished arms, in the order of the sweep's summary, and the unfinished runs.

    Raises ValueError where there are neither, where a record cannot be read, and where runs of one
    name are not the seeds of one arm.
    """
    found = {path.parent for name in (records.METRICS, records.ERROR) for path in root.rglob(name)}
    if not found:
        raise ValueError(f"report: {root} holds no records of runs; give the --workdir of some")
    members: dict[str, list[tuple[Path, dict, dict]]] = {}
    unfinished = []
    for place in sorted(found):
        summary = records.read_summary(place, formats.WHOLE_SUMMARY)
        if summary is None:
            unfinished.append(Unfinished(str(place.relative_to(root)), _state(place)))
            continue
        config = records.read_config(place / records.CONFIG).to_dict()
        members.setdefault(summary["name"], []).append((place, config, summary))
    together = records.read_summary(root, formats.SWEEP) or {}
    order = [arm["name"] for arm in together.get("arms", ()) if arm["name"] in members]
    arms = []
    for name in dict.fromkeys([*order, *members]):
        seeds = sorted(members[name], key=lambda member: member[2]["seed"])
        places, configs, summaries = map(list, zip(*seeds, strict=True))
        _check(name, places, configs)
        config = configs[0] | {"seed": ", ".join(str(summary["seed"]) for summary in summaries)}
        runs = [records.read_metrics(place, whole=True) for place in places]
        arms.append(Arm(name, places, config, aggregates.aggregate(summaries), summaries, runs))
    return arms, unfinished


def _check(name: str, places: Sequence[Path], configs: Sequence[Mapping]) -> None:
    """Runs of one name may belong to several sweeps, whose mean makes no sense."""
    for (one, its), (other, theirs) in pairwise(zip(places, configs, strict=True)):
        if its.get("seed") == theirs.get("seed"):
            clash = "the same seed"
        elif its | {"seed": None} != theirs | {"seed": None}:
            clash = "other settings"
        else:
            continue
        raise ValueError(
            f"report: {one} and {other} are both runs of {name!r}, with {clash}; give the "
            "--workdir of a single sweep"
        )


def _state(place: Path) -> str:
    """How far an unfinished run has come, and what has gone wrong."""
    if (place / records.ERROR).exists():
        return f"failed: {records.read_error(place)}"
    metrics = records.read_metrics(place)
    if not metrics or not {"update", "seconds"} <= metrics[-1].keys():
        return "not finished, nothing evaluated yet"
    last = metrics[-1]
    return f"not finished: {last['update']:,} updates until {last['seconds']:.4g} s"
