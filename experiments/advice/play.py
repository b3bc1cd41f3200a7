"""Waiting rules played over measured durations, ranked by their predicted time to the target.

Without training the prediction uses the schedule that a rule makes of the durations, and the noise
of a mini-batch's gradient at the initial parameters. With u updates per second of B mini-batches
whose gradients are tau updates old,

    seconds to target ~ (s(tau) + ratio E[1 / B]) / u

s(tau), about 1 + 1.3 tau, says how many times smaller the largest stable learning rate is for stale
gradients (`stragglers.theory.k_protocols.stability_limit`); in Birch SGD (arXiv 2505.09218) it is
the tree distance in updates. The second term is the noise, in which updates of few mini-batches
weigh more (arXiv 1606.04838, Theorem 4.8). Their common factor, smoothness times what is to be
descended over the squared gradient that is wanted, is unknown without training, so that seconds are
relative to another rule's. A method's momentum, codec and local steps are not in it, nor how the
noise grows during training: the spread has the ratio at several sizes.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments import executors, formats, prepare, records, registry, sweep, tasks
from experiments.advice import durations
from experiments.advice.durations import Measured, Source
from experiments.config_files import override
from experiments.tasks import sampling
from stragglers.rule import most_mini_batches
from stragglers.schedule import Diagnostics, Schedule, concatenate, diagnose
from stragglers.theory.k_protocols import stability_limit

ROUNDS = 100  # that the slowest worker takes in the time that is played
MOST_UPDATES, SEGMENT = 20_000, 64  # of a rule, and of a step of it
REPEATS = 5  # resampled durations, over which predictions are spread
MOST_RESAMPLED, MOST_TRAINED = 10, 8  # candidates
RATIOS = (0.25, 1.0, 4.0)  # times the ratio of noise at the initial parameters
LEAST_RATIO, MOST_RATIO = 1e-2, 1e6  # that is believed
SURE = 0.9  # share of the cases in which the first is first
MARGIN = 0.03  # by which the first has to be faster
MINI_BATCHES = 64  # whose gradients say how noisy they are
# Rates of training, of the one at which predicted noise and staleness cost as much as the config's,
# then of the best of these.
COARSE, FINE = (0.35, 0.7, 1.4, 2.8), (0.7, 1.0, 1.4)
DURATIONS, ARMS = ("durations.csv", "durations_1.csv"), "trained"  # of each seed; of the runs
EVALUATIONS = 60  # within the budget of a training
PATIENCE = 1.5  # times the reference's time to target, which the others have
CHECKPOINT_SECONDS = 600.0  # a run is short, and there are many
# Parameters that take values of a grid though a rule has a default for them.
OPTIONAL = frozenset(("gamma", "c", "calibration", "local_steps", "share", "in_flight"))


class Candidate(NamedTuple):
    """A rule with a value of its parameter, played over the durations as they are."""

    arm: ConfigDict
    prepared: prepare.Prepared
    schedule: Schedule
    updates: float  # per s
    samples: float  # per s
    found: Diagnostics
    # [repeats, 2] s, over the durations, then over resampled ones: per update as far as it counts,
    # s(tau) / u, and per mini-batch as far as it averages out, E[1 / B] / u
    costs: np.ndarray

    @property
    def name(self) -> str:
        """The rule with its parameters, as on the command line."""
        return registry.text(self.arm.wait)

    def cases(self, ratio: float) -> np.ndarray:
        """Return predicted seconds [repeats x RATIOS], up to a factor that all rules share."""
        return (self.costs[:, :1] + ratio * np.array(RATIOS) * self.costs[:, 1:]).ravel()

    def predicted(self, ratio: float) -> float:
        """Return the seconds to target over the durations, the geometric mean over RATIOS."""
        return float(np.exp(np.log(self.cases(ratio)[: len(RATIOS)]).mean()))


class Trained(NamedTuple):
    """The outcome of training a candidate, at its best rate."""

    rate: float
    seconds: tuple[float, ...]  # to target, of every seed; inf: never
    edge: bool = False  # the best rate is the first or the last that was tried

    @property
    def mean(self) -> float:
        """Mean over the seeds, in seconds."""
        return float(np.mean(self.seconds))

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds, in seconds; nan where one has not arrived."""
        return float(np.std(self.seconds, ddof=1)) if np.isfinite(self.mean) else float("nan")


class Verdict(NamedTuple):
    """The order of the rules, each at its best parameter, and a conclusion."""

    order: list[Candidate]  # the best one first
    reason: str  # a sentence
    close: list[Candidate]  # the ones that may as well be first, the first among them

    @property
    def sure(self) -> bool:
        """False where others may as well be first, or nothing is known."""
        return not self.reason.startswith("not sure")


class Advice(NamedTuple):
    """All that an advice is made of."""

    source: Source
    config: ConfigDict  # that candidates are trained with
    ratio: float  # of noise
    found: list[Candidate]  # every rule at every value of its parameter
    order: list[Candidate]  # every rule at its best, as predicted; the first are resampled
    reference: Candidate  # the config's own rule
    refused: list[tuple[str, str]]  # rule, reason
    verdict: Verdict
    changes: list[tuple[str, str]]  # another cluster or task, the first rule then
    seconds: Mapping[str, float]  # that playing and training took on the wall
    results: Mapping[str, Trained] = {}  # of those that were trained, by name


def weigh(source: Source, named: Sequence[registry.Part] = ()) -> Advice:
    """Return the advice without training; named: rules to weigh beside the registry's."""
    began = time.monotonic()
    config, measured = durations.as_simulated(source.config), source.measured
    if config.target_loss is None:
        raise ValueError(
            "the advice is about seconds to a target, and config.target_loss is None; set "
            "--config.target_loss=..."
        )
    config = override(config, {"seconds": durations.budget(source)})
    own, grids = registry.spec(config.wait), grids_of(measured, config.workers, config.mini_batches)
    arms, refused = to_play(config, [own, *named], grids)
    found, ruled_out = played(arms, measured)
    refused += ruled_out
    reference = next((one for one in found if registry.spec(one.arm.wait) == own), None)
    if reference is None:
        why = dict(reversed(refused)).get(registry.text(own), "it was cut off")
        raise ValueError(f"config.wait={registry.text(own)} cannot be played ({why}); set another")
    ratio, best = noise_ratio(config, reference.prepared), {}
    for one in ranked(found, ratio, reference):
        best.setdefault(one.arm.wait.name, one)
    order = list(best.values())
    order[:MOST_RESAMPLED] = [resampled(one, measured) for one in order[:MOST_RESAMPLED]]
    reference = resampled(reference, measured)
    if reference.name not in [one.name for one in order]:
        order = ranked([*order, reference], ratio, reference)
    verdict = predicted_verdict(order, ratio, reference)
    changes = _changes(order, measured, ratio, reference.name)
    took = {"played": time.monotonic() - began}
    return Advice(source, config, ratio, found, order, reference, refused, verdict, changes, took)


def grids_of(
    measured: Measured, workers: int, mini_batches: int | Sequence[int]
) -> dict[str, list]:
    """Return the values of a parameter by its name, in proportion to the rounds that were measured.

    They belong to the name and not to a rule, so that a rule that is brought along has some, too.
    Values that a rule refuses are left out.
    """
    most = most_mini_batches(mini_batches)
    rounds = []
    for i in range(workers):  # who count alike, however many durations they have
        values = measured.seconds[i % measured.workers]
        windows = np.lib.stride_tricks.sliding_window_view(values, min(most, values.size))
        lasted = windows.sum(axis=1) * most / windows.shape[1]
        rounds.append(np.quantile(lasted, np.linspace(0, 1, 101)))
    seconds = np.quantile(np.concatenate(rounds), [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]).tolist()
    shares = np.array([1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0]) * workers
    counts = np.maximum(1, np.rint([*shares, *(shares * most)])).astype(int).tolist()
    return {
        "k": sorted({1, workers - 1, *counts}),
        "limit": sorted({1, *(max(1, round(share * workers)) for share in (0.5, 1, 2, 4))}),
        "seconds": sorted({float(f"{value:.3g}") for value in [seconds[0] / 2, *seconds]}),
        "gamma": [0.1, 0.5],
        "c": [0.0, 1.0, 3.0, 6.0],
        "calibration": [20, 50],
        "local_steps": sorted({1, max(1, most // 2), most}),
        "share": [0.25, 0.5, 0.75],
        "in_flight": ["finish", "cut"],
    }


def variants(wait: registry.Part, grids: Mapping[str, list]) -> list[dict[str, Any]]:
    """Return a rule as the part says, if that is all of it, and with all values of its grids.

    Raises ValueError for a rule with a parameter that neither the part nor a grid knows.
    """
    spec = registry.spec(wait)
    known = prepare.RULE.opened(spec["name"])[1]
    needed = {name for name, one in known.items()
              if one.default is one.empty and one.kind is one.KEYWORD_ONLY}  # fmt: skip
    required = needed - {*prepare.RULE.offered}
    names = [name for name in known if name in grids and (name in required or name in OPTIONAL)]
    missing = required - spec.keys()
    if missing - {*names}:
        needed = ", ".join(sorted(missing - {*names}))
        raise ValueError(f"wait {spec['name']!r}: nothing says which {needed} to weigh; give it")
    chosen = product(*(grids[name] for name in names)) if names else ()
    full = [spec | dict(zip(names, values, strict=True)) for values in chosen]
    return full if missing else [spec, *full]


def to_play(
    config: ConfigDict, named: Sequence[registry.Part], grids: Mapping[str, list]
) -> tuple[list[tuple[ConfigDict, prepare.Prepared]], list[tuple[str, str]]]:
    """Return the arms to play, one per rule and value, and the rules that cannot run with a reason.

    config: of an arm that the simulator runs; named: rules to weigh beside all of the registry.
    """
    given = [registry.spec(wait) for wait in named]
    known = {spec["name"] for spec in given}
    arms, refused = [], []
    for spec in [*given, *({"name": name} for name in prepare.RULE.factories if name not in known)]:
        found, reasons, waits = [], [], []
        try:
            waits = variants(spec, grids)
        except ValueError as error:
            reasons.append(f"{error}")
        for wait in waits:
            try:
                arm = override(config, {"wait": wait})
                prepared = found[0][1] if found else prepare.prepare(arm, settled=True)
                if prepare.rule(arm, prepared).observe is not None:
                    raise ValueError("it follows the training loss; train it to compare it")
                found.append((arm, prepared))
            except ValueError as error:
                reasons.append(f"{error}")
        if not found:
            refused.append((registry.text(spec), [*reasons, "its grid is empty"][0]))
        arms += found
    return arms, refused


def play(
    arm: ConfigDict, prepared: prepare.Prepared, measured: Measured, repeat: int = 0
) -> Candidate:
    """Play the rule of an arm over the durations, resampled unless `repeat` is 0.

    In this time the slowest worker takes ROUNDS rounds, or the budget is over.
    """
    slowest = max(float(values.mean()) for values in measured.seconds)
    seconds = min(ROUNDS * most_mini_batches(arm.mini_batches) * slowest, arm.seconds)
    rule = prepare.rule(arm, prepared, measured.process(repeat))
    state, pieces, until, updates = rule.init(), [], 0.0, 0
    while until < seconds and updates < MOST_UPDATES:
        state, piece = rule.extend(state, SEGMENT)
        pieces.append(piece)
        until, updates = piece.time[-1], updates + piece.updates
    schedule = concatenate(pieces)
    landed = np.searchsorted(schedule.time, seconds, side="right")
    schedule = schedule.slice(0, max(int(landed), 1))
    lasted, batches = float(schedule.time[-1]), schedule.batches.sum(axis=1)
    used = batches[batches > 0]  # an update without any mini-batch counts as time alone
    found, costs = diagnose(schedule, rule.workers), np.full((1, 2), np.inf)
    if used.size:
        slower = stability_limit(0) / stability_limit(found.staleness)
        costs = np.array([[slower, np.mean(1 / used)]]) * lasted / used.size
    samples = int(batches.sum()) * arm.batch_size / lasted
    return Candidate(arm, prepared, schedule, schedule.updates / lasted, samples, found, costs)


def resampled(one: Candidate, measured: Measured) -> Candidate:
    """Return the candidate with its costs over resampled durations, too."""
    again = [play(one.arm, one.prepared, measured, repeat).costs for repeat in range(1, REPEATS)]
    return one._replace(costs=np.concatenate([one.costs[:1], *again]))


def played(
    arms: Sequence[tuple[ConfigDict, prepare.Prepared]], measured: Measured
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the arms played over the durations, and those that these rule out, with a reason.

    Of equal schedules there is the first alone.
    """
    found, refused = {}, []
    for arm, prepared in arms:
        try:
            one = play(arm, prepared, measured)
            if not np.isfinite(one.costs).all():
                raise ValueError("no update has a mini-batch")
            found.setdefault((arm.wait.name, *one.costs[0].round(9)), one)
        except ValueError as error:  # as of a deadline before the end of every mini-batch
            refused.append((registry.text(arm.wait), f"{error}"))
    return list(found.values()), refused


def noise_ratio(config: ConfigDict, prepared: prepare.Prepared) -> float:
    """Return the variance of a mini-batch's gradient over its squared mean, at the start.

    Both are unbiased estimates from MINI_BATCHES mini-batches of all workers at the initial
    parameters. An update of as many mini-batches has as much noise as signal (the simple noise
    scale of 1812.06162, in mini-batches). It grows as training goes on.
    """
    task, n = prepared.task, MINI_BATCHES
    shards = prepare.SPLIT.build(
        config.split, labels=task.labels, workers=config.workers, seed=config.seed
    )
    sampler = sampling.Sampler(shards, config.batch_size, config.seed)
    params, losses = task.init(jax.random.key(config.seed)), tasks.first_draw(task)

    def squared(tree) -> jax.Array:
        return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree))

    @jax.jit
    def added(total, squares, examples):
        gradient = jax.grad(lambda p: losses(p, examples).mean())(params)
        return jax.tree.map(jnp.add, total, gradient), squares + squared(gradient)

    total, squares = jax.tree.map(jnp.zeros_like, params), jnp.float32(0)
    for number in range(n):
        counter, worker = divmod(number, config.workers)
        indices = np.asarray(sampler.indices(np.int32(worker), counter))
        examples = jax.tree.map(jnp.asarray, tasks.take(task.train, indices))
        total, squares = added(total, squares, examples)
    each, together = float(squares) / n, float(squared(total)) / n**2
    variance = (each - together) * n / (n - 1)
    signal = max(together - variance / n, 0.0)
    return float(np.clip(variance / signal, LEAST_RATIO, MOST_RATIO)) if signal else MOST_RATIO


def ranked(found: Sequence[Candidate], ratio: float, own: Candidate) -> list[Candidate]:
    """Return the candidates by their predicted seconds; last those that use fewer samples.

    These would win by smaller batches alone, and so does a smaller batch_size, for as long as
    gradients have little noise, which grows during training. own: the config's candidate.
    """
    return sorted(found, key=lambda one: (_uses_fewer(one, own), one.predicted(ratio)))


def _uses_fewer(one: Candidate, own: Candidate) -> bool:
    """Return whether a candidate uses fewer samples per second than `own`, by a margin."""
    return one.samples * (1 + MARGIN) < own.samples


def predicted_verdict(order: Sequence[Candidate], ratio: float, reference: Candidate) -> Verdict:
    """Return the verdict without training; the candidates that may be first were resampled."""
    first = order[0]
    slower = first.cases(ratio) * (1 + MARGIN)

    def is_close(one: Candidate) -> bool:
        resampled = len(one.costs) == len(first.costs) > 1 and not _uses_fewer(one, reference)
        return resampled and np.mean(slower < one.cases(ratio)) < SURE

    close = [one for one in order[1:] if is_close(one)]
    reason = f"{first.name}, which is yours, is predicted to be first"
    if close:
        reason = (
            f"not sure: {first.name} and {close[0].name} are within their spread, over resampled "
            "durations and over how noisy a gradient may be"
        )
    elif first.name != reference.name:
        reason = (
            f"{first.name} makes use of {first.samples / reference.samples:.2f} times as many "
            f"samples per second as {reference.name}, in {first.updates / reference.updates:.2f} "
            "times as many updates, and is predicted to be at the target "
            f"{reference.predicted(ratio) / first.predicted(ratio):.2f} times as fast"
        )
    return Verdict(list(order), reason, [first, *close])


def trained_verdict(
    order: Sequence[Candidate], results: Mapping[str, Trained], reference: Candidate
) -> Verdict:
    """Return the verdict of those that were trained, in the order of their seconds, then others."""
    means = {name: result.mean for name, result in results.items()}
    # Sorting is stable, and the rest keeps its order.
    order = sorted(order, key=lambda one: (one.name not in means, means.get(one.name, 0.0)))
    arrived = [one for one in order if np.isfinite(means.get(one.name, np.inf))]
    if not arrived:
        reason = "not sure: nothing that was trained has come to the target within the budget"
        return Verdict(order, reason, order)
    first, best = arrived[0], results[arrived[0].name]
    close = []
    for one in arrived[1:]:
        margin = max(np.hypot(best.spread, results[one.name].spread), MARGIN * best.mean)
        if not means[one.name] - best.mean > margin:
            close.append(one)
    reason = f"{first.name} is at the target after {best.mean:.4g} s"
    if close:
        reason = (
            f"not sure: {first.name} ({best.mean:.4g} s) and {close[0].name} "
            f"({means[close[0].name]:.4g} s) are within their spread over seeds"
        )
    elif reference.name in means and reference.name != first.name:
        reason += f" against {means[reference.name]:.4g} s with {reference.name}"
    return Verdict(order, reason, [first, *close])


def _changes(
    order: Sequence[Candidate], measured: Measured, ratio: float, own: str
) -> list[tuple[str, str]]:
    """Return pairs (condition, first rule then) for other clusters, links and tasks."""

    def first(again: Sequence[Candidate], ratio: float) -> str:
        reference = next((one for one in again if one.name == own), None)
        return ranked(again, ratio, reference)[0].name if reference else "yours could not be played"

    arms = [(one.arm, one.prepared) for one in order]
    medians = np.array([np.median(values) for values in measured.seconds])
    alike = zip(measured.seconds, np.median(medians) / medians, strict=True)
    even = measured._replace(seconds=tuple(values * times for values, times in alike))
    found = [("all workers were as fast as the middle one", first(played(arms, even)[0], ratio))]
    if order[0].arm.communication != 0:
        free = [override(arm, {"communication": 0.0}) for arm, _ in arms]
        again, _ = played([(arm, prepare.prepare(arm, settled=True)) for arm in free], measured)
        found.append(("an exchange took no time", first(again, ratio)))
    for words, times in (("a tenth as", 0.1), ("ten times as", 10.0)):
        found.append((f"a gradient was {words} noisy", first(order, ratio * times)))
    return found


def undominated(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that no other one beats in both costs."""
    costs = np.array([one.costs[0] for one in found])
    no_worse = (costs[:, None] <= costs).all(axis=2)  # [i, j]: i is no worse than j in either
    beaten = (no_worse & ~no_worse.T).any(axis=0)
    return [one for one, lost in zip(found, beaten, strict=True) if not lost]


def train(advice: Advice, workdir: Path, others: Sequence[Candidate] | None = None) -> Advice:
    """Return the advice after training the reference and others, by default those undominated.

    The first seed finds each one's rate among COARSE, then all seeds among FINE around it;
    resampled durations belong to a seed. Once the reference has arrived, the others have PATIENCE
    times as long. Arms that are finished are not trained again.
    """
    began, config, reference = time.monotonic(), advice.config, advice.reference
    for repeat, name in enumerate(DURATIONS):
        if not (workdir / name).exists():
            durations.write(advice.source.measured, workdir / name, repeat)

    def per_update(one: Candidate) -> float:
        return one.updates * (one.costs[0] @ (1, advice.ratio))  # s(tau) + ratio E[1 / B]

    centre = config.optimizer.learning_rate * per_update(reference)
    others = undominated(advice.order)[: MOST_TRAINED - 1] if others is None else others
    others = [one for one in others if one.name != reference.name]
    best = _best([(reference, config.optimizer.learning_rate)], COARSE, 1, config, workdir)
    if best:
        seconds = min(config.seconds, PATIENCE * best[reference.name].mean)
        config = override(config, {"seconds": seconds})
    best |= _best([(one, centre / per_update(one)) for one in others], COARSE, 1, config, workdir)
    centres = [(one, best[one.name].rate) for one in (reference, *others) if one.name in best]
    results = _best(centres, FINE, len(DURATIONS), config, workdir)
    return advice._replace(
        results=results,
        verdict=trained_verdict(advice.order, results, reference),
        seconds={**advice.seconds, "trained": time.monotonic() - began},
    )


def _best(
    centres: Sequence[tuple[Candidate, float]],
    factors: Sequence[float],
    seeds: int,
    config: ConfigDict,
    workdir: Path,
) -> dict[str, Trained]:
    """Train candidates at rates around a centre; return the best by name, but for what fails."""
    arms, places = [], {}
    for (one, centre), factor, repeat in product(centres, factors, range(seeds)):
        rate, seed = float(f"{centre * factor:.3g}"), config.seed + repeat
        changes = {
            "name": f"{one.name}/rate={rate:g}",
            "wait": one.arm.wait.to_dict(),
            "seed": seed,
            "baseline": None,
            "delay": registry.part("trace", path=f"{workdir / DURATIONS[repeat]}", scale=1.0),
            "optimizer.learning_rate": rate,
            "stop_at_target": True,
            "evaluate_every": config.seconds / EVALUATIONS,
        }
        path = f"{ARMS}/{one.name}/{config.seconds:.4g}s/rate={rate:g}/seed_{seed}"
        arms.append(executors.Arm(path, override(config, changes)))
        places.setdefault(one.name, {}).setdefault(rate, []).append(path)
    execute = functools.partial(executors.here, checkpoint_seconds=CHECKPOINT_SECONDS)
    failures = sweep.run(arms, f"{workdir}", False, True, execute) if arms else {}

    def to_target(path: str) -> float:
        seconds = records.read_summary(workdir / path, formats.WHOLE_SUMMARY)["seconds_to_target"]
        return np.inf if seconds is None else seconds

    best = {}
    for name, rates in places.items():
        whole = {r: paths for r, paths in rates.items() if not failures.keys() & set(paths)}
        seconds = {rate: tuple(map(to_target, paths)) for rate, paths in whole.items()}
        if seconds:
            rate = min(seconds, key=lambda rate: (np.mean(seconds[rate]), rate))
            best[name] = Trained(rate, seconds[rate], rate in (min(seconds), max(seconds)))
    return best
