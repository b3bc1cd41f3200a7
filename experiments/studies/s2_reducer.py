"""What S2 Reducer claims on tasks with embedding tables (arXiv 2110.02140)."""

from collections.abc import Callable, Iterator
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
# Exact methods for sparse gradients that the paper's speed-up is over, and its own codec.
RIVALS = ("sparse_all_gather", "sparcml", "omnireduce", "parallax")
OURS = ("s2/sketch", "s2/median", "s2/exact")
DENSE, REORDERED = "dense", "dense/reordered"
SAVED, FASTER = 0.81, 1.8  # the paper's
SEEDS = 3  # without which the noise level of a loss is not known
LINKS = (1, 10)  # Gbit/s
COMPARED = (4, 8, 32)  # workers for which all-reduce and all-gather are compared


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's claims beside what was measured and what the cost model says."""
    for name in ("s2/sketch", "s2/median"):
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
        yield (
            f"1.8x faster than the state of the art (arXiv 2110.02140); at {gigabits} Gbit/s, "
            "links modelled, codecs measured here",
            premises.text(faster_than_rivals, arms, gigabits),
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


def faster_than_rivals(arms, gigabits: int) -> premises.Answer:
    """Steps of ours against every exact sparse rival: over how many it is 1.8x faster."""
    steps = _steps(arms, gigabits)
    rivals = [name for name in RIVALS if name in steps]
    ours = [name for name in OURS if name in steps]
    if not rivals or not ours:
        raise premises.CannotTell("no rival, or no sketch, among the arms")
    first = min(ours, key=lambda name: steps[name].seconds)
    gains = {rival: steps[rival].seconds / steps[first].seconds for rival in rivals}
    beaten = [rival for rival, gain in gains.items() if gain >= FASTER]
    shown = ", ".join(f"{gain:.2f}x {rival}" for rival, gain in gains.items())
    if len(beaten) == len(rivals):
        return premises.Answer(premises.HOLDS, f"{first}: {shown}")
    if beaten:
        return premises.Answer(premises.WHERE, f"over {', '.join(beaten)} alone: {first}: {shown}")
    return premises.Answer(premises.FAILS, f"{first}: {shown}")


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
            ("arm", "ms", "over dense", "exchange"),
            [
                (
                    name,
                    f"{1e3 * step.seconds:.2f}",
                    f"{steps[DENSE].seconds / step.seconds:.2f}x",
                    step.verdict,
                )
                for name, step in steps.items()
            ],
        )
    gathered = _against_all_gather(_prepared(dense).task, dense["config"].batch_size)
    yield Numbers(
        "MB of the touched rows",
        ("workers", "through the union", "gathered"),
        [(f"{n}", f"{1e-6 * union:.3f}", f"{1e-6 * own:.3f}") for n, union, own in gathered.rows],
    )


class Step(NamedTuple):
    """An update on a modelled network."""

    seconds: float
    verdict: str  # what compression does for the exchange


def _steps(arms, gigabits: int) -> dict[str, Step]:
    """Step of every arm; the fastest gradient counts for all.

    What a fallback sends beyond the plan takes its time on the link, in as many messages.
    """
    named = premises.named(arms, DENSE, *(arm["name"] for arm in arms if arm["name"] != DENSE))
    sent = {arm["name"]: arm for arm in named}
    prepared = {name: _prepared(arm) for name, arm in sent.items()}
    workers = named[0]["config"].workers
    taken = _taken(named)
    compute = min(gradient for gradient, _ in taken.values()) + taken[DENSE][1]
    network = codec_times.link(gigabits, workers)
    steps = {}
    for name, arm in prepared.items():
        codec = taken[name][1] - taken[DENSE][1]
        gained = codec_times.gain(arm, prepared[DENSE], codec, workers, network)
        again = _sent_again(sent[name]) / (gigabits * codec_times.GIGABIT)
        gained = gained._replace(compressed=gained.compressed + again)
        words = "" if name == DENSE else compression_cost.verdict(gained)
        steps[name] = Step(compute + gained.compressed, words)
    return steps


def _prepared(arm) -> prepare.Prepared:
    """The parts of an arm, decided once per arm."""
    return _once(arm, "prepared", lambda: deciding.prepared(arm["config"])[0])


def _taken(arms) -> dict[str, tuple[float, float]]:
    """Seconds of a gradient, and of an exchange and a step, measured once per arm."""
    return {
        arm["name"]: _once(
            arm, "seconds", lambda arm=arm: codec_times.step_seconds(_prepared(arm), arm["config"])
        )
        for arm in arms
    }


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
    drawn = (jnp.float32(0),) if task.shared_draw else ()
    gradient = jax.jit(jax.grad(lambda p, examples: task.losses(p, examples, *drawn).mean()))
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
