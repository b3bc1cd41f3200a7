"""The ranking of waiting rules by their predicted time to the target, over measured durations.

Rules are compared at equal samples per update: each rule gets the mini-batches, seconds or k with
which its updates have about as many samples as under the config's own rule. The best rule with
smaller updates is reported apart.

The prediction uses a rule's schedule over the durations, and the noise of a mini-batch's gradient
at the end of a run, or else at the initial parameters. Let an update have B mini-batches, whose
gradients are tau updates old. With u updates per second,

    seconds to target ~ (s(tau) + ratio E[1 / B]) / u

s(tau), about 1 + 1.3 tau, is the factor by which staleness lowers the largest stable learning rate
(`stragglers.theory.stability_limit`); in Birch SGD (arXiv 2505.09218) it is the tree distance in
updates. The second term is the noise, which falls with the mini-batches of an update (arXiv
1606.04838, Theorem 4.8). Both terms have an unknown common factor: smoothness times the decrease of
the loss, over the squared gradient at the target. Predicted seconds are therefore relative to
another rule's. The prediction leaves out a method's momentum, codec and local steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from scipy import stats

from experiments import executors, formats, initial, prepare, records, registry, sweep, tasks
from experiments.advice import durations
from experiments.advice.durations import Measured, Source
from experiments.advice.observatory import WORTH, loss, rounds_of, slowest
from experiments.config_files import override
from stragglers.rule import most_mini_batches
from stragglers.schedule import Diagnostics, Schedule, concatenate, diagnose
from stragglers.theory import stability_limit

ROUNDS = 100  # rounds of the slowest worker in the played time
MOST_UPDATES, SEGMENT = 20_000, 64  # updates that a rule plays at most, and updates of one step
REPEATS = 5  # plays of a rule, of which the first has the measured durations
MOST_RESAMPLED, MOST_TRAINED = 8, 6  # candidates that are resampled and trained at most
EQUAL, ATTEMPTS = 0.1, 4  # relative difference of equal batches, and attempts to make them equal
RATIOS = (0.25, 1.0, 4.0)  # factors of the noise ratio
LEAST_RATIO, MOST_RATIO = 1e-2, 1e4  # limits of the noise ratio
SURE = 0.9  # share of the cases in which the first rule has to be faster than another
MARGIN = 0.03  # relative difference by which the first rule has to be faster
MINI_BATCHES, MOST_MINI_BATCHES = 64, 1024  # mini-batches of the noise ratio, at first and at most
# Factors of a central rate: the reference's, divided by a rule's relative number of updates.
# While the best rate is the first or the last, half or twice the rate follows, up to FURTHER times.
COARSE, FURTHER = (0.5, 1.0, 2.0), 4
# The durations of each seed. The first seed finds the rates, the other seeds judge them.
DURATIONS = ("durations.csv", "durations_1.csv", "durations_2.csv", "durations_3.csv")
ARMS = "trained"  # the folder of the runs
EVALUATIONS = 120  # evaluations within the budget of a training
PATIENCE = 3.0  # budget of every training, relative to the reference's time to the target
# Parameters that take values of a grid even if a rule has a default for them.
OPTIONAL = frozenset(("gamma", "c", "calibration", "local_steps", "share", "in_flight"))


class Candidate(NamedTuple):
    """A rule with values of its parameters, played over the measured durations."""

    arm: ConfigDict
    prepared: prepare.Prepared  # with the mini-batches of the config
    schedule: Schedule
    updates: float  # per s
    samples: float  # per s
    batch: float  # mean number of mini-batches of the updates that have any
    found: Diagnostics
    # [repeats, 2] s: s(tau) / u and E[1 / B] / u, where u counts updates with a mini-batch. The
    # first row is over the measured durations, the others are over resampled durations.
    costs: np.ndarray

    @property
    def name(self) -> str:
        """The rule with its parameters, and its mini-batches if they differ from the config's."""
        text, count = registry.text(self.arm.wait), self.arm.mini_batches
        return text if count == self.prepared.config.mini_batches else f"{text} of {count} each"

    def cases(self, ratio: float) -> np.ndarray:
        """Return predicted seconds by repeat and ratio, up to a factor common to all rules."""
        return (self.costs[:, :1] + ratio * np.array(RATIOS) * self.costs[:, 1:]).ravel()

    def predicted(self, ratio: float) -> float:
        """Return the predicted seconds over the measured durations, geometric mean over RATIOS."""
        return float(stats.gmean(self.cases(ratio)[: len(RATIOS)]))


class Trained(NamedTuple):
    """The result of training a candidate, at its best learning rate."""

    rate: float
    seconds: tuple[float, ...]  # to the target, for every seed; inf: never
    edge: bool = False  # whether the best rate is the lowest or the highest that was tried

    @property
    def mean(self) -> float:
        """The mean over the seeds [s]."""
        return float(np.mean(self.seconds))

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds [s]; nan if a seed has not reached the target."""
        return float(np.std(self.seconds, ddof=1)) if np.isfinite(self.mean) else float("nan")

    def __str__(self) -> str:
        if np.isfinite(self.mean):
            return f"{self.mean:.4g} ± {self.spread:.2g}"
        arrived = np.isfinite(self.seconds).sum()
        return f"{arrived} of {len(self.seconds)} seeds" if arrived else "never"


class Verdict(NamedTuple):
    """The order of the rules, each at its best parameter, and a conclusion."""

    order: list[Candidate]  # the best one first
    reason: str  # a sentence
    close: list[Candidate]  # the advised rule, then rules that may be as fast

    @property
    def sure(self) -> bool:
        """False if another rule may be as fast, or if no trained rule has reached the target."""
        return not self.reason.startswith("not sure")


class Advice(NamedTuple):
    """The parts of an advice."""

    source: Source
    config: ConfigDict  # the config with which candidates are trained
    ratio: float  # see `noise_ratio`
    order: list[Candidate]  # every rule at its predicted best with an equal batch, sorted
    smaller: Candidate | None  # the best rule with smaller updates
    reference: Candidate  # the config's own rule
    refused: list[tuple[str, str]]  # rule, reason
    verdict: Verdict
    results: Mapping[str, Trained] = {}  # of the trained candidates, by name


def weigh(source: Source, named: Sequence[registry.Part] = ()) -> Advice:
    """Return the advice without training; named: rules to weigh beside the registry's rules."""
    measured = source.measured
    config = durations.as_simulated(source.config, measured.exchange)
    if config.target_loss is None:
        raise ValueError(
            "the advice is about seconds to a target, and config.target_loss is None; set "
            "--config.target_loss=..."
        )
    # Rules are built for durations of any length, as measured durations replace the config's delay.
    any_length = registry.part("exponential", scale=1.0)
    config = override(config, {"seconds": durations.budget(source), "delay": any_length})
    own, grids = registry.spec(config.wait), grids_of(measured, config.workers, config.mini_batches)
    arms, refused = to_play(config, [own, *named], grids)
    found, ruled_out = played(arms, measured)
    refused += ruled_out
    reference = next((one for one in found if registry.spec(one.arm.wait) == own), None)
    if reference is None:
        why = dict(reversed(refused)).get(registry.text(own), "it was cut off")
        raise ValueError(f"config.wait={registry.text(own)} cannot be played ({why}); set another")
    ratio = noise_ratio(config, reference.prepared, source.parameters)
    equal, best = at_equal_batch(found, reference, measured), {}
    for one in sorted(equal, key=lambda one: one.predicted(ratio)):
        best.setdefault(one.arm.wait.name, one)
    names = [one.arm.wait.name for one in found if one.arm.wait.name not in best]
    refused += [(name, f"no parameters give it updates of {reference.batch:.3g} mini-batches")
                for name in dict.fromkeys(names)]  # fmt: skip
    order = list(best.values())
    if reference.name not in [one.name for one in order]:
        order.insert(0, reference)
    batch = reference.batch
    order[:MOST_RESAMPLED] = [resampled(one, measured, batch) for one in order[:MOST_RESAMPLED]]
    reference = resampled(reference, measured, batch)
    shorter, count = [], config.mini_batches
    while np.max(count) > 1:
        count = times(count, 0.5)
        shorter.append((override(reference.arm, {"mini_batches": count}), reference.prepared))
    fewer = [one for one in (*found, *played(shorter, measured)[0])
             if one.batch * (1 + EQUAL) < reference.batch]  # fmt: skip
    smaller = min(fewer, key=lambda one: one.predicted(ratio), default=None)
    cases = {one.name: one.cases(ratio) for one in order}
    decided = verdict(order, reference, cases, "is predicted to be")
    return Advice(source, config, ratio, decided.order, smaller, reference, refused, decided)


def straggler(measured: Measured, mini_batches: int | Sequence[int]) -> dict[str, Any]:
    """Return the slowest worker and the parts of the loss at a barrier, see `observatory.loss`."""
    rounds = _rounds(measured, most_mini_batches(mini_batches))
    return slowest(measured, rounds)[0] | loss(rounds)


def _rounds(measured: Measured, most: int) -> np.ndarray:
    """Return the seconds of at least two rounds of `most` mini-batches, [workers, rounds]."""
    shorter = max(1, min(most, min(map(len, measured.seconds)) // 2))
    return rounds_of(measured, shorter) * (most / shorter)


def times(mini_batches: int | Sequence[int], factor: float) -> int | list[int]:
    """Return mini-batches (a number or one per worker) times a factor, rounded and at least 1."""
    return np.maximum(1, np.rint(np.multiply(mini_batches, factor))).astype(int).tolist()


def at_equal_batch(
    found: Iterable[Candidate], own: Candidate, measured: Measured
) -> Iterator[Candidate]:
    """Yield candidates whose updates have as many mini-batches as under `own`, see EQUAL.

    If a candidate has another batch, its mini-batches, seconds or k are changed until the batch is
    equal. The search starts at the config's mini-batches per round, and at twice as many.
    """
    tried: dict[tuple, Candidate | None] = {}

    def scaled(one: Candidate, name: str, factor: float) -> Candidate | None:
        """Return the candidate with a parameter times a factor; None if that is impossible."""
        is_entry = name == "mini_batches"
        value = (one.arm if is_entry else one.arm.wait)[name]
        value = float(f"{value * factor:.3g}") if isinstance(value, float) else times(value, factor)
        arm = override(one.arm, {name if is_entry else f"wait.{name}": value})
        key = registry.text(arm.wait), str(arm.mini_batches)
        if key not in tried:
            tried[key] = next(iter(played([(arm, one.prepared)], measured)[0]), None)
        return tried[key]

    def off(one: Candidate) -> float:
        return abs(np.log(one.batch / own.batch))

    seen = set()
    for first in found:
        for one in filter(None, (first, scaled(first, "mini_batches", 2))):
            for name in ("mini_batches", "seconds", "k"):
                is_far = off(one) > np.log1p(EQUAL) and name in (*one.arm.wait, "mini_batches")
                for _ in range(ATTEMPTS if is_far else 0):
                    other = scaled(one, name, own.batch / one.batch)
                    if other is None or not off(other) < off(one):
                        break
                    one = other
            if off(one) <= np.log1p(EQUAL) and one.name not in seen:
                seen.add(one.name)
                yield one._replace(costs=_at(own.batch, one))


def _at(batch: float, one: Candidate) -> np.ndarray:
    """Return the costs with updates of `batch` mini-batches, at the same samples per second."""
    return one.costs * (batch / one.batch, 1.0)


def grids_of(
    measured: Measured, workers: int, mini_batches: int | Sequence[int]
) -> dict[str, list]:
    """Return {name of a parameter: its values}, in proportion to the measured rounds.

    The values belong to a name and not to a rule, so that a user's own rule has values, too.
    Values that a rule refuses are left out later.
    """
    most = most_mini_batches(mini_batches)
    seconds = np.quantile(_rounds(measured, most), [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]).tolist()
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
    """Return a rule with its given parameters, if they suffice, and with all values of its grids.

    Raises ValueError if neither the part nor a grid has a required parameter of the rule.
    """
    spec = registry.spec(wait)
    known = prepare.RULE.opened(spec["name"])[1]
    required = {name for name, one in known.items() if name not in prepare.RULE.offered
                and one.default is one.empty and one.kind is one.KEYWORD_ONLY}  # fmt: skip
    names = [name for name in known if name in grids and (name in required or name in OPTIONAL)]
    missing = required - spec.keys()
    if unknown := ", ".join(sorted(missing - {*names})):
        raise ValueError(f"wait {spec['name']!r}: nothing says which {unknown} to weigh; give it")
    chosen = product(*(grids[name] for name in names)) if names else ()
    full = [spec | dict(zip(names, values, strict=True)) for values in chosen]
    return full if missing else [spec, *full]


def to_play(
    config: ConfigDict, named: Sequence[registry.Part], grids: Mapping[str, list]
) -> tuple[list[tuple[ConfigDict, prepare.Prepared]], list[tuple[str, str]]]:
    """Return the arms to play, one per rule and value, and (rule, reason) of impossible rules.

    config: the config of an arm in the simulator. named: rules to weigh beside the registry's.
    """
    given = [registry.spec(wait) for wait in named]
    known = {spec["name"] for spec in given}
    arms, refused, task = [], [], None
    for spec in [*given, *({"name": name} for name in prepare.RULE.factories if name not in known)]:
        found, reasons = [], []
        try:
            waits = variants(spec, grids)
        except ValueError as error:
            waits, reasons = [], [f"{error}"]
        for wait in waits:
            try:
                arm = override(config, {"wait": wait})
                prepared = found[0][1] if found else prepare.prepare(arm, task, settled=True)
                task = prepared.task
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

    The play ends after ROUNDS rounds of the slowest worker, the budget, or MOST_UPDATES updates.
    """
    slowest = max(float(values.mean()) for values in measured.seconds)
    rounds = ROUNDS * most_mini_batches(prepared.config.mini_batches)
    seconds = min(rounds * slowest, arm.seconds)
    rule = prepare.rule(arm, prepared, measured.process(repeat))
    state, pieces, until, updates = rule.init(), [], 0.0, 0
    while until < seconds and updates < MOST_UPDATES:
        state, piece = rule.extend(state, SEGMENT)
        if not piece.updates:
            raise ValueError("it repeats a schedule with durations of its own, and that ends")
        pieces.append(piece)
        until, updates = piece.time[-1], updates + piece.updates
    schedule = concatenate(pieces)
    landed = np.searchsorted(schedule.time, seconds, side="right")
    schedule = schedule.slice(0, max(int(landed), 1))
    lasted, batches = float(schedule.time[-1]), schedule.batches.sum(axis=1)
    used = batches[batches > 0]  # an update without mini-batches only takes time
    if not used.size:
        raise ValueError("no update has a mini-batch")
    found = diagnose(schedule, rule.workers)
    slower = stability_limit(0) / stability_limit(found.staleness)
    costs = np.array([[slower, np.mean(1 / used)]]) * lasted / used.size
    updates, samples = schedule.updates / lasted, int(batches.sum()) * arm.batch_size / lasted
    return Candidate(arm, prepared, schedule, updates, samples, float(used.mean()), found, costs)


def resampled(one: Candidate, measured: Measured, batch: float) -> Candidate:
    """Return the candidate with costs over resampled durations, too, in updates of `batch`."""
    again = [play(one.arm, one.prepared, measured, repeat) for repeat in range(1, REPEATS)]
    return one._replace(costs=np.concatenate([one.costs[:1], *(_at(batch, o) for o in again)]))


def played(
    arms: Sequence[tuple[ConfigDict, prepare.Prepared]], measured: Measured
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the played arms, and (rule, reason) of arms that are impossible on these durations.

    Of arms of one rule with equal costs, only the first is kept.
    """
    found, refused = {}, []
    for arm, prepared in arms:
        try:
            one = play(arm, prepared, measured)
            found.setdefault((arm.wait.name, *one.costs[0].round(9)), one)
        except ValueError as error:  # as of a deadline before the end of every mini-batch
            refused.append((registry.text(arm.wait), f"{error}"))
    return list(found.values()), refused


def noise_ratio(
    config: ConfigDict, prepared: prepare.Prepared, parameters: Path | None = None
) -> float:
    """Return the variance of a mini-batch's gradient, divided by the squared mean gradient.

    parameters: a file of parameters, as at the end of a run; None: the initial parameters, where
    gradients have little noise. The variance and the squared mean have unbiased estimates, from
    MINI_BATCHES mini-batches of all workers, or up to MOST_MINI_BATCHES until the mean stands out.
    With the returned number of mini-batches, noise equals signal (noise scale, arXiv 1812.06162).
    """
    task = prepared.task
    params, losses = task.init(jax.random.key(config.seed)), tasks.first_draw(task)
    if parameters is not None:
        params = jax.tree.map(jnp.asarray, initial.read(f"{parameters}", prepared.shapes))

    def squared(tree) -> jax.Array:
        return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree))

    @jax.jit
    def added(total, squares, examples):
        gradient = jax.grad(lambda p: losses(p, examples).mean())(params)
        return jax.tree.map(jnp.add, total, gradient), squares + squared(gradient)

    total, squares, number = jax.tree.map(jnp.zeros_like, params), jnp.float32(0), 0
    variance, signal, until = 1.0, 0.0, MINI_BATCHES
    while signal * number < variance and number < MOST_MINI_BATCHES:
        for drawn in range(number, until):
            counter, worker = divmod(drawn, config.workers)
            indices = np.asarray(prepared.sampler.indices(np.int32(worker), counter))
            examples = jax.tree.map(jnp.asarray, tasks.take(task.train, indices))
            total, squares = added(total, squares, examples)
        number, until = until, 2 * until
        each, together = float(squares) / number, float(squared(total)) / number**2
        variance = (each - together) * number / (number - 1)
        signal = max(together - variance / number, 0.0)
    return float(np.clip(variance / signal, LEAST_RATIO, MOST_RATIO)) if signal else MOST_RATIO


def verdict(
    order: Sequence[Candidate], own: Candidate, cases: Mapping[str, np.ndarray], how: str
) -> Verdict:
    """Return the verdict on candidates of equal batch; cases: the seconds of each, by name.

    Another rule is advised if it is WORTH times as fast as the config's own rule, else the own rule
    stays. Candidates without cases come last, in their given order. how: the verb of the sentence.
    """
    means = {name: float(stats.gmean(values)) for name, values in cases.items()}
    order = sorted(order, key=lambda one: (one.name not in means, means.get(one.name, 0.0)))
    first = order[0]
    if not np.isfinite(means.get(first.name, np.inf)):
        reason = "not sure: nothing that was trained has come to the target within the budget"
        return Verdict(order, reason, [own])
    gain = means.get(own.name, np.inf) / means[first.name]
    if gain < WORTH:
        reason = (f"the fastest rule, {first.name}, {how} {gain:.2f} times as fast, and less than "
                  f"{WORTH:g} times is hardly worth it" if first.name != own.name
                  else f"no other rule {how} faster")  # fmt: skip
        return Verdict(order, f"keep {own.name}: at an equal batch {reason}", [own])
    slower = cases[first.name] * (1 + MARGIN)
    close = [one for one in order[1:] if np.isfinite(means.get(one.name, np.inf))
             and len(cases[one.name]) == slower.size > 1
             and np.mean(slower < cases[one.name]) < SURE]  # fmt: skip
    mine = "could not be trained"
    if own.name in cases:
        mine = f"with {np.isfinite(cases[own.name]).sum()} of {len(cases[first.name])}"
    reason = (f"{first.name} {how} {gain:.2f} times as fast as {own.name}, at an equal batch"
              if np.isfinite(gain)
              else f"{first.name} was at the target with every seed, and {own.name} {mine}")
    if close:
        reason = f"not sure: {reason}, and {close[0].name} is as fast within their spread"
    return Verdict(order, reason, [first, *close])


def of_smaller(advice: Advice) -> str:
    """Return a sentence on the best rule with smaller updates."""
    one, own, found = advice.smaller, advice.reference, advice.results
    if one is None:
        return "no rule makes smaller updates"
    gain, how = own.predicted(advice.ratio) / one.predicted(advice.ratio), "is predicted to be"
    if {one.name, own.name} <= found.keys():
        if not np.isfinite(found[own.name].mean) or not np.isfinite(found[one.name].mean):
            return f"{one.name} was at the target: {found[one.name]}; {own.name}: {found[own.name]}"
        gain, how = found[own.name].mean / found[one.name].mean, "was"
    return (
        f"{one.name}, with {one.batch:.3g} mini-batches in an update instead of {own.batch:.3g} "
        f"and {one.samples / own.samples:.2f} times as many samples per second, {how} at the "
        f"target {gain:.2f} times as fast"
        + (", with noise that is least at the initial parameters"
           if not advice.source.parameters and how != "was" else "")
    )  # fmt: skip


def rate_of(config: ConfigDict) -> float:
    """Return the config's learning rate, around which others are tried; ValueError without one."""
    if "learning_rate" not in config.optimizer:
        raise ValueError(
            f"the advice trains at several learning rates, and config.optimizer="
            f"{registry.text(config.optimizer)} has none of its own; write one behind it, as in "
            "chain(..., learning_rate=0.1), or give --no_training"
        )
    return config.optimizer.learning_rate


def train(advice: Advice, workdir: Path, others: Sequence[Candidate] | None = None) -> Advice:
    """Return the advice after training the reference and others, by default the best predicted.

    The first seed finds the two best rates of each arm. Later seeds choose between these rates and
    judge, as the best rate of one seed may be unstable for another seed. Each later seed has its
    own resampled durations. The budget is PATIENCE times the reference's time to the target.
    Finished arms are not trained again.
    """
    config, own = advice.config, advice.reference
    for repeat, name in enumerate(DURATIONS):
        if not (workdir / name).exists():
            durations.write(advice.source.measured, workdir / name, repeat)

    def per_update(one: Candidate) -> float:
        return one.updates * (one.costs[0] @ (1, advice.ratio))  # s(tau) + ratio E[1 / B]

    if others is None:
        others = [*advice.order[: MOST_TRAINED - 2], *([advice.smaller] if advice.smaller else [])]
    every = [own, *(one for one in others if one.name != own.name)]
    rate = rate_of(config)
    first = _tuned([(own, rate)], config, workdir).get(own.name, {rate: np.inf})
    rate, least = min(first.items(), key=lambda pair: pair[::-1])
    if np.isfinite(least):
        config = override(config, {"seconds": PATIENCE * least})
    found = _tuned([(one, rate * per_update(own) / per_update(one)) for one in every],
                   config, workdir)  # fmt: skip
    judged = [(one, rate) for one in every for rate in _in_order(found.get(one.name, {}))[:2]]
    results = _at_best(_seconds(judged, range(1, len(DURATIONS)), config, workdir), found)
    cases = {name: np.array(result.seconds) for name, result in results.items()}
    return advice._replace(results=results, verdict=verdict(advice.order, own, cases, "was"))


def _at_best(
    judged: Mapping[str, Mapping[float, Sequence[float]]], found: Mapping[str, Mapping]
) -> dict[str, Trained]:
    """Return each rule, by name, at the rate with most seeds at the target and the least mean.

    judged: seconds of each seed by name and rate; found: the first seed's seconds at all rates.
    """
    results = {}
    for name, by_rate in judged.items():
        edges = (min(found[name]), max(found[name]))
        made = [Trained(rate, tuple(each), rate in edges) for rate, each in by_rate.items()]
        results[name] = min(made, key=lambda one: (-np.isfinite(one.seconds).sum(), one.mean))
    return results


def _tuned(
    centres: Sequence[tuple[Candidate, float]], config: ConfigDict, workdir: Path
) -> dict[str, dict[float, float]]:
    """Return seconds to target by name and rate; rates are tried on both sides of the best one."""
    found: dict[str, dict[float, float]] = {}
    wanted = [(one, centre * factor) for one, centre in centres for factor in COARSE]
    for _ in range(1 + FURTHER):
        for name, by_rate in _seconds(wanted, (0,), config, workdir).items():
            found.setdefault(name, {}).update({rate: each[0] for rate, each in by_rate.items()})
        wanted = []
        for one, tried in [(one, found[one.name]) for one, _ in centres if one.name in found]:
            if (best := _in_order(tried)[0]) in (min(tried), max(tried)):
                wanted.append((one, best * (0.5 if best == min(tried) else 2.0)))
    return found


def _in_order(tried: Mapping[float, float]) -> list[float]:
    """Return rates in the order of their seconds; of equal ones, the smaller rate comes first."""
    return sorted(tried, key=lambda rate: (tried[rate], rate))


def _seconds(
    wanted: Iterable[tuple[Candidate, float]], repeats: Iterable[int], config: ConfigDict,
    workdir: Path,
) -> dict[str, dict[float, list[float]]]:
    """Train candidates at rates; return seconds to target of arms that did not fail, by seed."""
    arms, places = [], []
    for (one, rate), repeat in product(wanted, repeats):
        rate, seed = float(f"{rate:.3g}"), config.seed + repeat
        changes = {
            "name": f"{one.name}/rate={rate:g}", "baseline": None, "seed": seed,
            "wait": one.arm.wait.to_dict(), "mini_batches": one.arm.mini_batches,
            "delay": durations.part_of(workdir / DURATIONS[repeat]),
            "optimizer.learning_rate": rate, "stop_at_target": True,
            "evaluate_every": config.seconds / EVALUATIONS,
        }  # fmt: skip
        path = f"{ARMS}/{one.name}/{config.seconds:.4g}s/rate={rate:g}/seed_{seed}"
        arms.append(executors.Arm(path, override(config, changes)))
        places.append((one.name, rate, path))
    arms = sweep.to_the_end(arms)
    for arm in arms:  # an advice on another config may be there
        records.check(workdir / arm.path, arm.config)
    failures = sweep.run(arms, f"{workdir}", False, together=True) if arms else {}
    found: dict[str, dict[float, list[float]]] = {}
    for name, rate, path in places:
        if path not in failures:
            summary = records.read_summary(workdir / path, formats.WHOLE_SUMMARY)
            seconds = summary["seconds_to_target"]
            each = found.setdefault(name, {}).setdefault(rate, [])
            each.append(np.inf if seconds is None else seconds)
    return found
