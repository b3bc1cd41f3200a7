"""Tasks: a loss to minimise, its training and test examples, and the evaluation of models.

Configs name a task by its key in `TASKS`; the module of the task is imported on first use.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from comms.registry import Registry
from comms.trees import check_floats, named_leaves, path_text
from experiments import registry
from experiments.registry import Kind
from experiments.tasks import sources
from runtimes import phases, worker
from runtimes.data_feed import Streamed

TRIED = 7  # examples of a mini-batch that is only traced


class Task(NamedTuple):
    """An empirical risk and its data, NumPy arrays that a runtime moves to its devices.

    train, test: pytrees of arrays with leading axis [samples], or `runtimes.data_feed.Streamed`.
    `examples` below are such pytrees with leading axis [b].
    labels: one per training sample, for splits that go by label.
    losses: (params, examples) -> float32 [b], the loss of every example, l2 term included.
    correct: (params, examples) -> float32 [b], 1 for a right prediction; None: no predictions.
    shared_draw: `losses` draws at random by a third argument, uint32 []: the number of samples that
        all workers had seen before the update, plus the local steps since. With an argument
        `worker`, int32 [], the draws of workers can differ.
    eval_losses: (params, examples) -> losses that `evaluate` reports in place of `losses`.
    metrics: (params, means that `evaluate` has computed) -> further numbers to report.
    sparse: paths, "a/b/c", of row-sparse gradients, which are zero outside the mini-batch's rows.
    cost: [samples] relative time of every training sample; long texts, for example, take longer.
        None: all alike. A config may let durations depend on it (`sample_cost`). Evaluations report
        the mean losses of the most and of the least costly tenth.
    augment: (examples, draws uint32 [b]) -> examples, the random changes of training examples, see
        `experiments.tasks.dense_tasks`. `losses` and `correct` take changed and unchanged examples.
    evaluated: number of training and of test examples for `evaluate`, evenly spread; None: all.
    plain: the task without weights of training samples, see `weighted`; None: there are none.
    """

    name: str
    train: Any
    test: Any
    labels: np.ndarray  # [samples] int
    init: Callable[[jax.Array], Any]  # key -> params
    losses: Callable[..., jax.Array]
    correct: Callable[[Any, Any], jax.Array] | None = None
    shared_draw: bool = False
    eval_losses: Callable[[Any, Any], jax.Array] | None = None
    metrics: Callable[[Any, dict[str, float | None]], dict[str, float]] | None = None
    sparse: tuple[str, ...] = ()
    evaluated: int | None = None
    augment: Callable[[Any, jax.Array], Any] | None = None
    cost: np.ndarray | None = None
    plain: "Task | None" = None


TASKS = Registry(
    {
        "cifar10": "experiments.tasks.dense_tasks:cifar10",
        "cifar100": "experiments.tasks.dense_tasks:cifar100",
        "digits": "experiments.tasks.dense_tasks:digits",
        "fashion_mnist": "experiments.tasks.dense_tasks:fashion_mnist",
        "gaussians": "experiments.tasks.dense_tasks:gaussians",
        "hashed_logistic": "experiments.tasks.text_tasks:hashed_logistic",
        "imagenet2012": "experiments.tasks.dense_tasks:imagenet2012",
        "images": "experiments.tasks.dense_tasks:labelled_images",
        "language_model": "experiments.tasks.text_tasks:language_model",
        "mnist": "experiments.tasks.dense_tasks:mnist",
        "ncf": "experiments.tasks.text_tasks:ncf",
        "next_token": "experiments.tasks.text_tasks:next_token",
        "packed_text": "experiments.tasks.text_tasks:packed_text",
        "points": "experiments.tasks.point_files:points",
        "skip_gram": "experiments.tasks.text_tasks:skip_gram",
        "synthetic_logistic": "experiments.tasks.dense_tasks:synthetic_logistic",
        "synthetic_quadratic": "experiments.tasks.dense_tasks:synthetic_quadratic",
        "uneven_lengths": "experiments.tasks.dense_tasks:uneven_lengths",
    }
)
TASK = Kind("task", TASKS, Task)
build = TASK.build  # of {"name": a key of TASKS, its parameters}, or of a call as a text


def streams(spec: str | Mapping) -> bool:
    """Return whether a task streams its examples during the run; spec: as for `build`."""
    reading = registry.spec(spec).get("reading")
    return reading is not None and sources.READING.build(reading) is not None


# --- checks of tasks ---


def check(task: Task, params: Any) -> None:
    """Raise ValueError unless a task can be trained; nothing is computed.

    params: shapes of the parameters. Functions of the task are traced for `TRIED` examples.
    """
    _check_parameters(params)
    for name in ("train", "test"):
        if not _length(getattr(task, name)):
            raise ValueError(f"{name} must have samples, as many in all its arrays; correct it")
        for leaf in jax.tree.leaves(_example_shapes(getattr(task, name))):
            if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_):
                raise ValueError(f"{name} holds {leaf.dtype}, where numbers are due; encode it")
    samples = count(task.train)
    labels = len(task.labels) if hasattr(task.labels, "__len__") else 0
    if labels != samples:
        raise ValueError(
            f"there are {labels} labels for {samples} training samples; give one a sample"
        )
    if task.cost is not None:
        costs = np.asarray(task.cost, np.float64)
        if costs.shape != (samples,) or not ((costs > 0) & (costs < np.inf)).all():
            raise ValueError(
                f"cost must be a positive number for each of {samples} training samples, "
                f"got shape {costs.shape}; correct it"
            )
    if task.shared_draw and not worker.draws(task.losses):
        raise ValueError(
            "shared_draw says that losses draw at random, but they take no third argument; give "
            "them one, or leave shared_draw out"
        )
    if task.shared_draw and task.eval_losses is None:
        raise ValueError(
            "shared_draw says that losses draw at random, and evaluations need losses that do not; "
            "give eval_losses, a function of the parameters and the examples alone"
        )
    if task.evaluated is not None and not registry.is_count(task.evaluated):
        raise ValueError(
            f"evaluated must be a positive whole number of examples, or None for all, got "
            f"{task.evaluated!r}; correct it"
        )
    losses = first_draw(task)

    def summed(params, examples, draws):
        if task.augment is not None:
            examples = task.augment(examples, draws)
        found = losses(params, examples)
        return jnp.asarray(found, jnp.float32).sum(), found

    drawn = jax.ShapeDtypeStruct((TRIED,), jnp.uint32)
    slope = jax.grad(summed, has_aux=True)
    _, found = _traced("losses", slope, params, _example_shapes(task.train), drawn)
    _check_values("losses", found, jnp.floating)
    reported = "losses" if task.eval_losses is None else "eval_losses"
    for name, function, kinds in (
        (reported, task.eval_losses or losses, (jnp.floating,)),
        ("correct", task.correct, (jnp.number, jnp.bool_)),
    ):
        if function is not None:
            found = _traced(name, function, params, _example_shapes(task.test))
            _check_values(name, found, *kinds)


def _check_parameters(params: Any) -> None:
    check_floats(params)
    leaves = named_leaves(params)
    names = [name for name, _ in leaves]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two parameters are called {name!r}; name one of them otherwise")
    if not any(leaf.size for _, leaf in leaves):
        raise ValueError("init gives no parameters, so that there is nothing to train; give some")


def _traced(name: str, function: Callable, *arguments: Any) -> Any:
    """Return the shapes of what a function of the task returns; ValueError if it raises."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # code of a task can raise anything
        raise ValueError(
            f"{name} cannot be traced ({type(error).__name__}: {registry.brief(str(error))}); "
            f"correct {name}"
        ) from error


def _check_values(name: str, values: Any, *kinds: type) -> None:
    """Raise ValueError unless values have the shape [TRIED] and a dtype of these kinds."""
    shape, dtype = getattr(values, "shape", None), getattr(values, "dtype", None)
    if shape != (TRIED,) or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        found = type(values).__name__ if dtype is None else f"{dtype} {list(shape)}"
        way = "correct what it returns" if shape else "leave out the mean or sum over examples"
        raise ValueError(
            f"{name} of {TRIED} examples must be float32 [{TRIED}], one number an example, got "
            f"{found}; {way}"
        )


def _length(examples: Any) -> int:
    """Return the number of samples; 0 if arrays differ in their number of samples."""
    if isinstance(examples, Streamed):
        return len(examples)
    lengths = {leaf.shape[0] if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(examples)}
    return lengths.pop() if len(lengths) == 1 else 0


def _example_shapes(examples: Any) -> Any:
    """Return the shapes of `TRIED` examples of a streamed source, or of arrays."""
    def shapes(array, first):
        kind = jax.dtypes.canonicalize_dtype(array.dtype)
        return jax.ShapeDtypeStruct((TRIED, *array.shape[first:]), kind)

    if isinstance(examples, Streamed):
        return jax.tree.map(lambda one: shapes(one, 0), examples.source.example)
    return jax.tree.map(lambda array: shapes(array, 1), examples)


# --- examples and evaluations ---


def row_sparse(task: Task, path: tuple) -> bool:
    """Return whether the parameter at this key path (jax.tree_util) has a row-sparse gradient."""
    return path_text(path) in task.sparse


def first_draw(task: Task) -> Callable[[Any, Any], jax.Array]:
    """Return losses (params, examples) -> [b] that always use worker 0's first random draw."""
    if not task.shared_draw:
        return task.losses
    return worker.drawn(task.losses, {"count": jnp.uint32(0), "worker": jnp.int32(0)})


class Weighted(NamedTuple):
    """Training examples, each with a weight of its loss."""

    examples: Any
    weight: Any  # [samples] float32


def weighted(task: Task, weight: np.ndarray) -> Task:
    """Return a task that multiplies each training sample's loss by its weight, float [samples].

    `evaluate` reports the losses without weights.
    """

    @functools.wraps(task.losses)
    def losses(params, examples, *drawn, **own):
        return examples.weight * task.losses(params, examples.examples, *drawn, **own)

    def augment(examples, draws):
        return examples._replace(examples=task.augment(examples.examples, draws))

    return task._replace(
        train=Weighted(task.train, np.float32(weight)),
        losses=losses,
        augment=None if task.augment is None else augment,
        plain=task,
    )


def count(examples: Any) -> int:
    """Return the number of samples."""
    if isinstance(examples, Streamed):
        return len(examples)
    return jax.tree.leaves(examples)[0].shape[0]


def take(examples: Any, indices: np.ndarray | slice) -> Any:
    """Return the samples at `indices`, as a pytree of arrays."""
    if not isinstance(examples, Streamed):
        return jax.tree.map(lambda a: a[indices], examples)
    if isinstance(indices, slice):
        indices = np.arange(*indices.indices(len(examples)))
    with phases.within(phases.INPUT):
        return examples.source.read(indices)


def tested(task: Task) -> int | None:
    """Return the number of test examples behind an accuracy; None: nothing is predicted."""
    if task.correct is None:
        return None
    samples = count(task.test)
    return samples if task.evaluated is None else min(samples, task.evaluated)


def in_pieces(task: Task, examples: Any, batch: int = 2048) -> Iterator[tuple[Any, int]]:
    """Yield (examples, their number) for `evaluate`, at most `batch` examples at a time."""
    samples, spread = count(examples), None
    if task.evaluated is not None and task.evaluated < samples:
        spread = np.arange(task.evaluated) * samples // task.evaluated
        samples = task.evaluated
    for start in range(0, samples, batch):
        piece = slice(start, min(start + batch, samples))
        yield take(examples, piece if spread is None else spread[piece]), piece.stop - start


def evaluate(task: Task, params, batch: int = 2048) -> dict[str, float | None]:
    """Return mean `train_loss` and `test_loss`, `test_accuracy` in 0..1 or None, and metrics.

    The accuracy is None without predictions; ValueError if it is not in 0..1. A task with `cost`
    adds `train_loss_long` and `train_loss_short`. At most `batch` examples are on the device at a
    time, unless the task's arrays are there already.
    """
    task = task.plain or task
    losses = task.losses if task.eval_losses is None else task.eval_losses
    begun = [
        [(_totals(losses, task.correct, params, piece), size)
         for piece, size in in_pieces(task, examples, batch)]
        for examples in (task.train, task.test)
    ]  # fmt: skip
    sums = [np.sum(np.asarray([total for total, _ in part], np.float64), axis=0) for part in begun]
    train, test = (
        total / sum(size for _, size in part) for total, part in zip(sums, begun, strict=True)
    )
    if task.correct is not None and abs(test[1] - 0.5) > 0.51:  # roundings aside
        raise ValueError(
            f"correct of the task {task.name!r} must be 1 or 0 for every sample, and its mean is "
            f"{test[1]:.6g}; return 1 for a right prediction and 0 for a wrong one"
        )
    means = {"train_loss": float(train[0]), "test_loss": float(test[0]),
             "test_accuracy": None if task.correct is None else float(test[1])}  # fmt: skip
    if task.cost is not None:
        means |= _by_length(task, losses, params, batch)
    return means if task.metrics is None else {**means, **task.metrics(params, means)}


def _by_length(task: Task, losses: Callable, params: Any, batch: int) -> dict[str, float]:
    """Return the mean losses of the most and of the least costly tenth of training samples."""
    count = len(task.cost)  # samples of equal cost are in random order
    order = np.lexsort((np.random.default_rng(0).permutation(count), task.cost))
    tenth = max(1, count // 10)
    size = tenth if task.evaluated is None else min(tenth, task.evaluated)
    even = np.arange(size) * tenth // size
    found = {}
    for name, members in (("long", order[-tenth:]), ("short", order[:tenth])):
        chosen = np.sort(members[even])
        parts = [chosen[begin : begin + batch] for begin in range(0, size, batch)]
        sums = [_totals(losses, None, params, take(task.train, part))[0] for part in parts]
        found[f"train_loss_{name}"] = float(np.sum(np.asarray(sums, np.float64)) / size)
    return found


def worker_accuracy(task: Task, models) -> dict[str, float]:
    """Return the test accuracy of the worst and of the best worker's model.

    models: parameters with a leading axis of workers. The result is {} without predictions.
    """
    if task.correct is None:
        return {}

    found, samples = 0.0, 0
    for piece, size in in_pieces(task, task.test):
        hits = np.asarray(_hits(task.correct, models, piece), np.float64)
        found, samples = found + hits, samples + size
    return {
        "test_accuracy_worst_worker": float(found.min() / samples),
        "test_accuracy_best_worker": float(found.max() / samples),
    }


@functools.partial(jax.jit, static_argnums=0)
def _hits(correct, models, examples):
    return jax.lax.map(lambda params: _sum(correct(params, examples)), models)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _totals(losses, correct, params, examples):
    hits = jnp.zeros(()) if correct is None else _sum(correct(params, examples))
    return jnp.stack([_sum(losses(params, examples)), hits])


def _sum(values: jax.Array) -> jax.Array:
    """Return the sum of values; floats shorter than float32 are summed in float32."""
    short = jnp.issubdtype(values.dtype, jnp.floating) and values.dtype.itemsize < 4
    return (values.astype(jnp.float32) if short else values).sum()
