"""What S2 Reducer claims on tasks with embedding tables (arXiv 2110.02140)."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from comms import compression_cost, messages
from comms.messages import Payload, Row
from experiments import codec_times, deciding, prepare, tasks

QUALITY = {
    "test_perplexity": "test perplexity",
    "test_hit_rate_10": "test hit rate at 10",
    "test_accuracy": "test accuracy",
}
# Exact methods for sparse gradients that the paper's speed-up is over, and its own codec.
RIVALS = ("sparse_all_gather", "sparcml", "omnireduce", "parallax")
OURS = ("s2/sketch", "s2/median", "s2/exact")
COMPARED = (4, 8, 32)  # workers for which all-reduce and all-gather are compared


def claims(arms) -> Iterator[tuple[str, str]]:
    """The paper's claims beside what was measured and what the cost model says."""
    by_name = {arm["name"]: arm for arm in arms}
    prepared = {arm["name"]: deciding.prepared(arm["config"])[0] for arm in arms}
    workers = arms[0]["config"].workers
    dense = by_name["dense"]
    before = _table_bytes(prepared["dense"], workers)

    lines = []
    for name, arm in by_name.items():
        again = (arm.get("fallback_bytes") or 0) / max(1, arm["updates"])
        saved = 1 - (_table_bytes(prepared[name], workers) + again) / before
        lines.append(
            f"{name}: {100 * saved:.1f} % fewer bytes for the tables, {_worse(arm, dense)}"
            f"{_quality(arm)}, {100 * (arm.get('fallback_share') or 0):.1f} % of updates fell back"
        )
    yield "81 % less sparse communication at the same accuracy (arXiv 2110.02140)", "\n".join(lines)

    ours, theirs = by_name["s2/exact"]["train_loss"], dense["train_loss"]
    answer = "equal bit for bit" if ours == theirs else "not the same"
    clock = arms[0]["clock"]
    if clock == "virtual":  # where dense training takes one gradient of all workers' samples
        answer += " (not expected bit for bit of simulated workers)"
    worse = _worse(by_name["s2/exact"], dense)
    yield "the exact variant loses nothing", f"{answer}; {worse} ({clock} clock)"

    seconds = {
        name: codec_times.step_seconds(arm, by_name[name]["config"])
        for name, arm in prepared.items()
    }
    compute = min(gradient for gradient, _ in seconds.values()) + seconds["dense"][1]
    for gigabits in (1, 10):
        lines, steps = [], {}
        for name, arm in prepared.items():
            network = codec_times.link(gigabits, workers)
            codec = seconds[name][1] - seconds["dense"][1]
            gained = codec_times.gain(arm, prepared["dense"], codec, workers, network)
            took = steps[name] = compute + gained.compressed
            step = (compute + gained.dense) / took
            verdict = "" if name == "dense" else f"; exchange {compression_cost.verdict(gained)}"
            lines.append(f"{name}: {1e3 * took:.1f} ms a step, {step:.2f}x{verdict}")
        yield f"a step at {gigabits} Gbit/s, against dense", "\n".join(lines)
        yield (
            f"1.8x faster than the state of the art (arXiv 2110.02140); at {gigabits} Gbit/s",
            _against_rivals(steps),
        )

    answer = _against_all_gather(prepared["dense"].task, arms[0]["config"].batch_size)
    yield "all-reduce scales where all-gather does not", answer


def _against_rivals(steps: dict[str, float]) -> str:
    """How many times faster our steps are than the rivals', given the seconds of all of them."""
    rivals = [name for name in RIVALS if name in steps]
    if not rivals:
        return "no rival among the arms"
    best = min(rivals, key=steps.get)
    lines = []
    for name in filter(steps.get, OURS):
        factors = ", ".join(f"{steps[rival] / steps[name]:.2f}x {rival}" for rival in rivals)
        lines.append(f"{name}: {factors}; {steps[best] / steps[name]:.2f}x the best, {best}")
    return "\n".join(lines)


def _worse(arm, dense) -> str:
    """How far the final training loss is above that of dense training."""
    ours, theirs = arm["train_loss"], dense["train_loss"]
    if ours is None or theirs is None:
        return "diverged"
    return f"loss {100 * (ours / theirs - 1):+.2f} %"


def _quality(arm) -> str:
    """What else the task is judged by, if anything."""
    answer = {words: arm.get(name) for name, words in QUALITY.items()}
    return "".join(f", {words} {value:.4g}" for words, value in answer.items() if value is not None)


def _table_bytes(arm: prepare.Prepared, workers: int) -> float:
    """Bytes that a worker sends in an update for the row-sparse parameters alone."""
    tables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if tasks.row_sparse(arm.task, path) else None, arm.shapes
    )
    payloads = arm.algorithm.messages(tables, workers, Row(arm.algorithm.settled))
    return float(sum(messages.collective_bytes(payload, workers) for payload in payloads))


def _against_all_gather(task: tasks.Task, batch: int) -> str:
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
    lines, pays = [], None
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
            lines.append(
                f"{workers} workers: {1e-6 * exact:.3f} MB through the union, "
                f"{1e-6 * gathered:.3f} MB gathered"
            )
    answer = f"pays from {pays} workers on" if pays else f"does not pay for up to {most} workers"
    return "\n".join([*lines, f"the all-reduce {answer}"])
