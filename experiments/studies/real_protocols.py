"""The four protocols with real processes: seconds per update and staleness against theory.

Theory is that of `stragglers.theory.k_protocols` (arXiv 1803.01113). A simulated arm has the same
delays as the real one, so that what is left between them is no luck of the draw.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import differences, premises, waiting
from experiments.numbers import Numbers
from experiments.reports.figure import COLOURS, save
from experiments.studies import axes as look
from experiments.studies import twins
from stragglers.theory import k_protocols

PROTOCOLS = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
K = (1, 2, 4)
END = "final_train_loss"
WITHIN = 0.05  # of the simulation: more time of a real update, and distance of its end
STALE_WITHIN = 0.1  # of theory
FEWEST = 30  # updates of an arm whose mean is compared


def claims(arms: Sequence[dict]) -> Iterator[tuple[str, str]]:
    """Seconds per update, the loss at the end, staleness, and what asynchrony gains."""
    yield (
        f"a real update takes at most {1 + WITHIN:g}x the seconds of the same delays simulated "
        "(arXiv 1803.01113, Section 3)",
        premises.text(follows_the_simulation, arms),
    )
    yield (
        f"the training loss of processes ends within {WITHIN:.0%} of the same delays simulated",
        premises.text(ends_as_low, arms),
    )
    yield (
        "staleness is P / K - 1 for K-async and (P - 1) / K for K-batch-async, within "
        f"{STALE_WITHIN:.0%}",
        premises.text(is_as_stale, arms),
    )
    yield (
        "an update of Async-SGD is P H_P times as quick as a synchronous one, for exponential "
        f"delays, within {STALE_WITHIN:.0%}",
        premises.text(is_as_quick, arms),
    )


def follows_the_simulation(arms: Sequence[dict]) -> premises.Answer:
    """Seconds per update, each beside its twin of the same delays, seed by seed."""
    over = {
        place: _per_update_by_seed(real) / _per_update_by_seed(twin) - 1
        for place, real, twin in _pairs(arms)
    }
    return _of_all(over, -math.inf, WITHIN)


def ends_as_low(arms: Sequence[dict]) -> premises.Answer:
    """Training loss at the end, each beside its twin of the same delays, seed by seed."""
    off = {
        place: _by_seed(real, END) / _by_seed(twin, END) - 1 for place, real, twin in _pairs(arms)
    }
    return _of_all(off, -WITHIN, WITHIN)


def is_as_stale(arms: Sequence[dict]) -> premises.Answer:
    """Mean staleness in updates, real against theory; 0 is 0."""
    off = {}
    for place, real, _ in _pairs(arms):
        expected = k_protocols.mean_staleness(*_protocol(place), real["workers"])
        found = _by_seed(real, "staleness_mean")
        off[place] = found / expected - 1 if expected else found
    return _of_all(off, -STALE_WITHIN, STALE_WITHIN)


def is_as_quick(arms: Sequence[dict]) -> premises.Answer:
    """Seconds per update of waiting for all over Async-SGD's, real against theory."""
    real = {place: arm for place, arm, _ in _pairs(arms)}
    off = {}
    for law in dict.fromkeys(place.split("/")[0] for place in real):
        sync, free = (f"{law}/{protocol}" for protocol in ("k_sync/K=4", "k_async/K=1"))
        if sync not in real or free not in real:
            continue
        gain = _per_update_by_seed(real[sync]) / _per_update_by_seed(real[free])
        off[law] = gain / k_protocols.sync_over_async(_law(real[sync]), real[sync]["workers"]) - 1
    return _of_all(off, -STALE_WITHIN, STALE_WITHIN)


def _pairs(arms: Sequence[dict]) -> Iterator[tuple[str, dict, dict]]:
    """(place, real arm, simulated arm), all of which have made enough updates for a mean."""
    real, simulated = (twins.of_kind(arms, kind) for kind in ("real", "simulated"))
    if not real:
        raise premises.CannotTell("there is no real arm")
    for place, arm in real.items():
        if place not in simulated:
            raise premises.CannotTell(f"there is no arm simulated/{place}")
        for one in (arm, simulated[place]):
            if one["updates"] < FEWEST:
                raise premises.CannotTell(
                    f"{one['name']} made {one['updates']:,.0f} updates, a mean needs {FEWEST}"
                )
        yield place, arm, simulated[place]


def _of_all(off: Mapping[str, np.ndarray], least: float, most: float) -> premises.Answer:
    """One answer of all places, by the interval of the relative distance at each of them.

    off: by place, a distance for each seed, which should lie between `least` and `most`. A place
    whose interval lies across a bound is undecided.
    """
    if not off:
        raise premises.CannotTell("no pair of arms to compare")
    few = min(off, key=lambda place: len(off[place]))
    if len(off[few]) < 2:
        raise premises.CannotTell(f"{few} has one seed, a deviation needs 2")
    found = {place: differences.paired(values) for place, values in off.items()}
    inside = sum(least <= one.low and one.high <= most for one in found.values())
    outside = sum(one.low > most or one.high < least for one in found.values())
    verdict = premises.of_all(inside, len(off))
    if verdict == premises.FAILS and not outside:
        verdict = premises.UNKNOWN
    worst = max(found, key=lambda place: max(found[place].mean - most, least - found[place].mean))
    spread = 100 * off[worst].std(ddof=1)
    measured = (
        f"{inside} of {len(off)} places, {outside} beyond, {len(off) - inside - outside} in the "
        f"noise; worst {worst} {found[worst].mean:+.1%} ± {spread:.2g} points"
    )
    return premises.Answer(verdict, measured, len(off[few]))


def numbers(arms: Sequence[dict]) -> Iterator[Numbers]:
    """Seconds per update and staleness, each real, simulated and known."""
    real, simulated = (twins.of_kind(arms, kind) for kind in ("real", "simulated"))
    rows = []
    for place, arm in real.items():
        if place not in simulated:
            continue
        low, high = _theory(arm)
        known = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        pair = arm, simulated[place]
        expected = k_protocols.mean_staleness(*_protocol(place), arm["workers"])
        rows.append((place, *(f"{_per_update(one):.4g}" for one in pair), known,
                     *(f"{one['staleness_mean']:.3g}" for one in pair),
                     f"{expected:.3g}"))  # fmt: skip
    yield Numbers(
        "seconds per update, then staleness",
        ("law/protocol/K", "real [s]", "simulated [s]", "theory [s]", "staleness, real",
         "simulated", "theory"),
        rows,
    )  # fmt: skip


def figures(workdir: str | Path) -> None:
    """Write runtimes.png, seconds per update by K, and curves.png, error against wall-clock."""
    workdir = Path(workdir)
    real, simulated = twins.read(workdir)
    laws = list(dict.fromkeys(place.split("/")[0] for place in real))
    _draw_runtimes(real, simulated, laws, workdir / "runtimes.png")
    _draw_curves(workdir, real, simulated, laws, workdir / "curves.png")


def _draw_runtimes(real, simulated, laws: Sequence[str], path: Path) -> None:
    canvas = Figure(figsize=(10, 4), dpi=150, layout="constrained")
    panels = canvas.subplots(1, len(laws), squeeze=False, sharey=True)[0]
    for axes, law in zip(panels, laws, strict=True):
        for n, protocol in enumerate(PROTOCOLS):
            places = [f"{law}/{protocol}/K={k}" for k in K]
            known = [place for place in places if place in real]
            ks = [int(place.rpartition("=")[2]) for place in known]
            shifted = [k * 1.06 ** (n - 1.5) for k in ks]  # markers side by side
            bounds = [_theory(real[place]) for place in known]
            middle = [(low + min(high, 9 * low)) / 2 for low, high in bounds]
            spans = [[m - low for m, (low, _) in zip(middle, bounds, strict=True)]] * 2
            axes.errorbar(shifted, middle, spans, fmt="_", color=COLOURS[n], markersize=14)
            for found, marker, filled in ((simulated, "o", "none"), (real, "x", COLOURS[n])):
                axes.plot(
                    shifted,
                    [_per_update(found[place]) for place in known],
                    marker,
                    color=COLOURS[n],
                    markerfacecolor=filled,
                    markersize=6,
                )
        axes.set_title(law.replace("_", " "), fontsize=9)
        axes.set(xscale="log", yscale="log")
        look.logarithmic(axes)
        look.ticks(axes, K)
    canvas.supxlabel("contributions of an update K", fontsize=9)
    canvas.supylabel("seconds per update", fontsize=9)
    handles = [Line2D([], [], color=COLOURS[n], label=p) for n, p in enumerate(PROTOCOLS)]
    for marker, label in (("_", "theory or its bounds"), ("o", "simulated"), ("x", "processes")):
        handles.append(
            Line2D([], [], color="0.2", linestyle="", marker=marker, markerfacecolor="none",
                   label=label)
        )  # fmt: skip
    canvas.legend(handles=handles, loc="outside upper center", ncols=7, fontsize=8, frameon=False)
    save(canvas, path)


def _draw_curves(workdir: Path, real, simulated, laws: Sequence[str], path: Path) -> None:
    canvas = Figure(figsize=(10, 5.5), dpi=150, layout="constrained")
    panels = canvas.subplots(len(laws), len(PROTOCOLS), squeeze=False, sharex=True, sharey=True)
    for row, law in zip(panels, laws, strict=True):
        for axes, protocol in zip(row, PROTOCOLS, strict=True):
            for k, colour in zip(K, COLOURS, strict=False):
                place = f"{law}/{protocol}/K={k}"
                twins.draw(axes, workdir, place, colour, {"real": real, "simulated": simulated})
            axes.set_title(f"{protocol}, {law.replace('_', ' ')}", fontsize=8)
            axes.set_yscale("log")
            look.logarithmic(axes)
    canvas.supxlabel("seconds, of the wall or virtual", fontsize=9)
    canvas.supylabel("training loss", fontsize=9)
    handles = [
        Line2D([], [], color=colour, label=f"K={k}") for k, colour in zip(K, COLOURS, strict=False)
    ]
    handles += twins.handles()
    canvas.legend(handles=handles, loc="outside upper center", ncols=5, fontsize=8, frameon=False)
    save(canvas, path)


def _per_update(arm: dict) -> float:
    """Seconds of an update in the mean over the run."""
    return arm["seconds"] / max(1, arm["updates"])


def _per_update_by_seed(arm: dict) -> np.ndarray:
    return _by_seed(arm, "seconds") / np.maximum(1, _by_seed(arm, "updates"))


def _by_seed(arm: dict, field: str) -> np.ndarray:
    """A number for each seed."""
    premises.finite(field, arm)
    return np.asarray(arm.get(f"{field}_by_seed") or [arm[field]], float)


def _protocol(place: str) -> tuple[str, int]:
    """Its name and K, of a place as in "exponential/k_sync/K=2"."""
    _, protocol, k = place.split("/")
    return protocol, int(k.removeprefix("K="))


def _law(arm: dict):
    return waiting.build_delay(arm["config"].delay)


def _theory(arm: dict) -> tuple[float, float]:
    """Bounds of the expected seconds of an update, equal where it is known."""
    wait = arm["config"].wait
    return k_protocols.runtime_bounds(wait.name, _law(arm), wait.k, arm["workers"])
