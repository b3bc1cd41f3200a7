"""What S2 Reducer claims on tasks with embedding tables (arXiv 2110.02140)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms import compression_cost, messages
from comms.messages import Payload, Row
from experiments import codec_times, deciding, premises, prepare, tasks
from experiments.numbers import Numbers

QUALITY = {
    "test_perplexity": "test perplexity",
    "test_hit_rate_10": "test hit rate at 10",
    "test_accuracy": "test accuracy",
}
# Exact methods for sparse gradients that the paper's speed-up is over.
RIVALS = ("sparse_all_gather", "sparcml", "omnireduce", "parallax")
AS_PUBLISHED = "s2/median"  # decodes as the paper does
OURS = ("s2/sketch", "s2/exact")  # our own: reads a sketch without loss; sends none
DENSE, REORDERED = "dense", "dense/reordered"
SAVED, FASTER = 0.81, 1.8  # the paper's
FELL_BACK = 0.5  # of the updates: more, and what is judged is not the sketch
SEEDS = 3  # without which the noise level of a loss is not known
LINKS = (1, 10)  # Gbit/s
ROUNDS = 5  # in each of which the codecs of all arms are measured
COMPARED = (4, 8, 32)  # workers for which all-reduce and all-gather are compared


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's claims beside what was measured and what the cost model says."""
    for name in (AS_PUBLISHED, "s2/sketch"):
        yield (
            f"{name}: {100 * SAVED:.0f} % less sparse communication at the same loss "
            "(arXiv 2110.02140)",
            premises.text(saves_bytes, arms, name),
        )
    yield (
        "the exact variant loses nothing beyond the noise level of dense training",
        premises.text(loses_nothing, arms, "s2/exact"),
    )
    for gigabits in LINKS:
        for ours in ((AS_PUBLISHED,), OURS):
            yield (
                f"{' or '.join(ours)}: {FASTER:g}x faster than the state of the art (arXiv "
                f"2110.02140); at {gigabits} Gbit/s, links modelled, codecs measured here",
                premises.text(faster_than_rivals, arms, ours, gigabits),
            )
    yield "all-reduce scales where all-gather does not", premises.text(scales, arms)


def saves_bytes(arms, name: str) -> premises.Answer:
    """Bytes for the row-sparse tables, fallbacks included, and the final training loss."""
    ours, dense = premises.named(arms, name, DENSE)
    premises.equal("samples", ours, dense)
    lost = same_loss(arms, ours, dense)
    saved = 1 - _sent_for_tables(ours) / _sent_for_tables(dense)
    words = f"{100 * saved:.1f} % fewer bytes for the tables, {_fell_back(ours)}"
    verdict = premises.HOLDS if saved >= SAVED else premises.FAILS
    return premises.both(premises.Answer(verdict, words), lost)


def loses_nothing(arms, name: str) -> premises.Answer:
    """The final training loss beside dense training's."""
    ours, dense = premises.named(arms, name, DENSE)
    premises.equal("samples", ours, dense)
    return same_loss(arms, ours, dense)


def same_loss(arms, ours: dict, dense: dict) -> premises.Answer:
    """Whether ours ends above dense training by no more than another order of summing does.

    That order is in the arm `dense/reordered`; see `experiments.premises.loss_margin`.
    """
    (again,) = premises.named(arms, REORDERED)
    premises.finite("train_loss", ours, dense, again)
    premises.repeated(ours, dense, again, least=SEEDS)
    level, margin = premises.loss_margin(again, dense, "train_loss")
    found = premises.at_most(ours, dense, "train_loss", margin=margin)
    words = f"noise level {level:.2g}, up to {margin:.2g} counts as none"
    return found._replace(measured=f"{found.measured}, {words}")


def faster_than_rivals(arms, ours: Sequence[str], gigabits: int) -> premises.Answer:
    """Steps of the fastest of ours against every exact sparse rival."""
    steps = _steps(arms, gigabits)
    rivals = [name for name in RIVALS if name in steps]
    if not rivals:
        raise premises.CannotTell("no rival among the arms")
    return faster([step._asdict() for step in steps.values()], as_planned(arms, ours), rivals)


def as_planned(arms, names: Sequence[str]) -> list[str]:
    """The methods of these names that sent what they are meant to, and not mostly rows instead."""
    shares = {arm["name"]: arm.get("fallback_share") or 0 for arm in premises.named(arms, *names)}
    found = [name for name, share in shares.items() if share <= FELL_BACK]
    if not found:
        most = ", ".join(f"{name} in {share:.0%}" for name, share in shares.items())
        raise premises.CannotTell(f"updates fell back, so that no sketch was sent: {most}")
    return found


def faster(
    steps: Sequence[Mapping[str, Any]], ours: Sequence[str], rivals: Sequence[str]
) -> premises.Answer:
    """Over which rivals the fastest of ours is FASTER, as its rounds of measurement can tell.

    steps: of every arm its name, the mean `ms` of a step, their deviation `ms_std`, and `seeds`,
    its rounds.
    """
    first = min(premises.named(steps, *ours), key=lambda step: step["ms"])
    found = {
        rival["name"]: (rival["ms"] / first["ms"], premises.at_most(first, rival, "ms", 1 / FASTER))
        for rival in premises.named(steps, *rivals)
    }
    shown = ", ".join(f"{gain:.2f}x {rival}" for rival, (gain, _) in found.items())
    over = {
        verdict: [rival for rival, (_, one) in found.items() if one.verdict == verdict]
        for verdict in (premises.HOLDS, premises.UNKNOWN)
    }
    if len(over[premises.HOLDS]) == len(rivals):
        return premises.Answer(premises.HOLDS, f"{first['name']}: {shown}")
    if over[premises.HOLDS]:
        where = f"over {', '.join(over[premises.HOLDS])} alone"
        return premises.Answer(premises.WHERE, f"{where}: {first['name']}: {shown}")
    if over[premises.UNKNOWN]:
        noisy = f"over {', '.join(over[premises.UNKNOWN])} in the noise"
        return premises.Answer(premises.UNKNOWN, f"{noisy}: {first['name']}: {shown}")
    return premises.Answer(premises.FAILS, f"{first['name']}: {shown}")


def scales(arms) -> premises.Answer:
    """From how many workers on the union of rows costs less than gathering them."""
    (dense,) = premises.named(arms, DENSE)
    found = _against_all_gather(_prepared(dense).task, dense["config"].batch_size)
    if found.pays is None:
        return premises.Answer(premises.FAILS, f"not for up to {max(COMPARED)} workers")
    return premises.Answer(premises.WHERE, f"from {found.pays} workers on")


def numbers(arms) -> Iterator[Numbers]:
    """Bytes, losses and fallbacks of every arm; its step on two links; rows of a gradient."""
    (dense,) = (arm for arm in arms if arm["name"] == DENSE)
    yield Numbers(
        "bytes for the tables, and what was lost",
        ("arm", "fewer bytes [%]", "loss over dense [%]", "quality", "fell back [% of updates]"),
        [
            (
                arm["name"],
                f"{100 * (1 - _sent_for_tables(arm) / _sent_for_tables(dense)):.1f}",
                _worse(arm, dense),
                _quality(arm),
                f"{100 * (arm.get('fallback_share') or 0):.1f}",
            )
            for arm in arms
        ],
    )
    for gigabits in LINKS:
        steps = _steps(arms, gigabits)
        yield Numbers(
            f"a step at {gigabits} Gbit/s",
            ("arm", "ms", "deviation [ms]", "over dense", "exchange"),
            [
                (
                    step.name,
                    f"{step.ms:.2f}",
                    f"{step.ms_std:.3f}",
                    f"{steps[DENSE].ms / step.ms:.2f}x",
                    step.verdict,
                )
                for step in steps.values()
            ],
        )
    gathered = _against_all_gather(_prepared(dense).task, dense["config"].batch_size)
    yield Numbers(
        "MB of the touched rows",
        ("workers", "through the union", "gathered"),
        [(f"{n}", f"{1e-6 * union:.3f}", f"{1e-6 * own:.3f}") for n, union, own in gathered.rows],
    )


class Step(NamedTuple):
    """An update on a modelled network, in ROUNDS rounds of measurement."""

    name: str
    ms: float
    ms_std: float
    seeds: range
    verdict: str  # what compression does for the exchange


def _steps(arms, gigabits: int) -> dict[str, Step]:
    """Step of every arm; the fastest gradient of a round counts for all.

    What a fallback sends beyond the plan takes its time on the link, in as many messages.
    """
    named = premises.named(arms, DENSE, *(arm["name"] for arm in arms if arm["name"] != DENSE))
    sent = {arm["name"]: arm for arm in named}
    prepared = {name: _prepared(arm) for name, arm in sent.items()}
    taken = _taken(named)
    workers = named[0]["config"].workers
    network = codec_times.link(gigabits, workers)
    steps = {}
    for name, arm in prepared.items():
        again = _sent_again(sent[name]) / (gigabits * codec_times.GIGABIT)
        seconds, gains = [], []
        for n in range(ROUNDS):
            dense = taken[DENSE][n][1]
            compute = min(of_arm[n][0] for of_arm in taken.values()) + dense
            codec = taken[name][n][1] - dense
            gained = codec_times.gain(arm, prepared[DENSE], codec, workers, network)
            gains.append(gained._replace(compressed=gained.compressed + again))
            seconds.append(compute + gains[-1].compressed)
        middle = sorted(gains, key=lambda gained: gained.compressed)[ROUNDS // 2]
        words = "" if name == DENSE else compression_cost.verdict(middle)
        ms = 1e3 * np.array(seconds)
        steps[name] = Step(name, float(ms.mean()), float(ms.std(ddof=1)), range(ROUNDS), words)
    return steps


def _prepared(arm) -> prepare.Prepared:
    """The parts of an arm, decided once per arm."""
    return _once(arm, "prepared", lambda: deciding.prepared(arm["config"])[0])


def _taken(arms) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a gradient, and of an exchange and a step, by arm and round; measured once."""
    measured = {arm["name"]: (_prepared(arm), arm["config"]) for arm in arms}
    what = f"seconds of {', '.join(measured)}"
    return _once(arms[0], what, lambda: codec_times.step_rounds(measured, ROUNDS))


_FOUND: dict[tuple[int, str], tuple[dict, Any]] = {}  # beside the arm, which keeps its identity


def _once(arm: dict, what: str, find: Callable[[], Any]) -> Any:
    key = id(arm), what
    if key not in _FOUND or _FOUND[key][0] is not arm:
        _FOUND[key] = arm, find()
    return _FOUND[key][1]


def _sent_for_tables(arm) -> float:
    """Bytes of an update for the row-sparse parameters, and what a fallback has sent again."""
    return _table_bytes(_prepared(arm), arm["config"].workers) + _sent_again(arm)


def _sent_again(arm) -> float:
    """Bytes of an update that fallbacks sent beyond the plan; below 0 where they sent less."""
    return (arm.get("fallback_bytes") or 0) / max(1, arm["updates"])


def _fell_back(arm) -> str:
    return f"{100 * (arm.get('fallback_share') or 0):.1f} % of updates fell back"


def _worse(arm, dense) -> str:
    """How many percent the final training loss is above that of dense training."""
    ours, theirs = arm["train_loss"], dense["train_loss"]
    if ours is None or theirs is None:
        return "diverged"
    return f"{100 * (ours / theirs - 1):+.2f}"


def _quality(arm) -> str:
    """What else the task is judged by, if anything."""
    answer = {words: arm.get(name) for name, words in QUALITY.items()}
    return ", ".join(f"{words} {value:.4g}" for words, value in answer.items() if value is not None)


def _table_bytes(arm: prepare.Prepared, workers: int) -> float:
    """Bytes that a worker sends in an update for the row-sparse parameters alone."""
    tables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if tasks.row_sparse(arm.task, path) else None, arm.shapes
    )
    payloads = arm.algorithm.messages(tables, workers, Row(arm.algorithm.settled))
    return float(sum(messages.collective_bytes(payload, workers) for payload in payloads))


class Gathered(NamedTuple):
    """Bytes of the rows that workers touch."""

    rows: list[tuple[int, float, float]]  # workers, bytes through the union, bytes gathered
    pays: int | None  # workers from which on the union costs less


def _against_all_gather(task: tasks.Task, batch: int) -> Gathered:
    """Bytes with as many rows as one worker, and several, really touch, per COMPARED workers."""
    params = task.init(jax.random.key(0))
    losses = tasks.first_draw(task)
    gradient = jax.jit(jax.grad(lambda p, examples: losses(p, examples).mean()))
    rng = np.random.default_rng(0)
    most = max(COMPARED)
    order = rng.permutation(len(task.labels))[: most * batch].reshape(most, batch)
    touched = []  # of each worker, which rows of each table
    for taken in order:
        of_worker = gradient(params, jax.tree.map(lambda a, i=taken: jnp.asarray(a[i]), task.train))
        touched.append(
            [
                (np.asarray(leaf) != 0).reshape(len(leaf), -1).any(1)
                for path, leaf in jax.tree_util.tree_leaves_with_path(of_worker)
                if tasks.row_sparse(task, path)
            ]
        )
    widths = [
        leaf.size // len(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if tasks.row_sparse(task, path)
    ]
    compared, pays = [], None
    for workers in range(2, most + 1):
        exact = gathered = 0
        for table, width in enumerate(widths):
            rows = [of_worker[table] for of_worker in touched[:workers]]
            union = int(np.any(rows, axis=0).sum())
            bits = 4 * -(-len(rows[0]) // 32)
            exact += messages.collective_bytes(Payload((bits, 4 * width * union)), workers)
            own = max(int(row.sum()) for row in rows)
            payload = Payload(gathered=(own * (4 + 4 * width),))
            gathered += messages.collective_bytes(payload, workers)
        if exact < gathered and pays is None:
            pays = workers
        if workers in COMPARED:
            compared.append((workers, float(exact), float(gathered)))
    return Gathered(compared, pays)
