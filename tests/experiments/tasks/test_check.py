"""Tasks that cannot be trained: one sentence, before anything is compiled."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce
from configs import nonblocking
from experiments import prepare, sweep, tasks
from experiments.tasks import Task
from tests.refusals import sentence

X = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
Y = X.sum(axis=1)


def weights(key):
    return {"w": jnp.zeros(3)}


def squares(params, examples):
    x, y = examples
    return (x @ params["w"] - y) ** 2


def task(**changes):
    plain = Task("odd", (X, Y), (X, Y), np.int32(Y > 0), init=weights, losses=squares)
    return plain._replace(**changes)


def brought(monkeypatch, name, factory):
    """Return the name of a part with this factory in a module of its own."""
    module = types.ModuleType(f"odd_{id(factory)}")
    setattr(module, name, factory)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:{name}"


def prepared(monkeypatch, made, **changes):
    changes["task"] = brought(monkeypatch, "task", lambda: made)
    return prepare.prepare(sweep.override(nonblocking.get_config(), changes))


def beside(leaf):
    return lambda key: {"w": jnp.zeros(3), "more": leaf}


ODD = [
    ({"init": beside(jnp.int32(0))}, "parameter 'more' is int32, and parameters are real floats"),
    ({"init": lambda key: {"w": X[0], "a/b": X[0], "a": {"b": X[0]}}}, "are called 'a/b'"),
    ({"init": lambda key: {}["w"]}, "the model cannot be built (KeyError: 'w')"),
    (
        {"losses": lambda p, e: squares(p, e).mean()},
        "losses of 7 examples must be float32 [7], one number an example, got float32 []; leave "
        "out the mean or sum over examples",
    ),
    ({"losses": lambda p, e: squares({"w": p["v"]}, e)}, "losses cannot be traced (KeyError: 'v')"),
    ({"shared_draw": True}, "but they take no third argument"),
    ({"losses": lambda p, e, count: squares(p, e), "shared_draw": True}, "; give eval_losses, a"),
    ({"evaluated": 0}, "evaluated must be a positive whole number of examples, or None for all"),
    ({"labels": np.zeros(9, int)}, "there are 9 labels for 64 training samples"),
    ({"train": (X[:9], Y)}, "train must have samples, as many in all its arrays"),
]


@pytest.mark.parametrize(("changes", "words"), ODD)
def test_a_task_that_cannot_be_trained_is_one_sentence(monkeypatch, changes, words):
    with pytest.raises(ValueError) as caught:
        prepared(monkeypatch, task(**changes))
    assert str(caught.value).startswith("task 'odd_") and words in str(caught.value)


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        (np.arange(64) < 8, r"worker 0 gets bool \[64\], where .* return np.flatnonzero\(mask\)"),
        ([0.0, 1.0], r"gets float64 \[2\], where whole numbers \[n\] are due"),
        (3, r"gets int64 \[\], where"),
        ([0, 64], "gets indices from 0 to 64, and samples are numbered from 0 to 63; correct"),
        ([-1, 5], "gets indices from -1 to 5, and"),
        (None, "the number of arrays that it gives is 1, and of workers 8; let it return one per"),
    ],
)
def test_a_split_without_indices_for_every_worker_is_one_sentence(monkeypatch, shard, words):
    split = brought(monkeypatch, "split", lambda workers: [shard] * (8 if shard is not None else 1))
    with sentence(words):
        prepared(monkeypatch, task(), split=split, workers=8)


PLAIN = all_reduce(optax.sgd(0.1))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"messages": None}, r"its messages\(params, workers, row\) is missing; return a tuple of"),
        ({"messages": lambda params, workers, row: [5]}, r"row\) gives \[5\]; return"),
        ({"exchange": None}, "its exchange is NoneType; give an optax transform"),
        ({"server": lambda grads: grads}, "its server is function; give an optax transform"),
    ],
)
def test_a_method_without_a_part_that_it_needs_is_one_sentence(monkeypatch, parts, words):
    method = brought(monkeypatch, "method", lambda: PLAIN._replace(**parts))
    with sentence(words):
        prepared(monkeypatch, task(), algorithm=method)


def test_an_accuracy_that_is_none_ends_the_first_evaluation():
    made = task(correct=lambda p, e: 100.0 * (squares(p, e) < 1))
    with sentence("correct of the task 'odd' must be 1 or 0 for every sample, and its mean is "):
        tasks.evaluate(made, weights(None))


def test_workers_that_are_processes_are_not_started_for_it(monkeypatch):
    with pytest.raises(ValueError, match="losses of 7 examples must be"):
        prepared(monkeypatch, task(losses=lambda p, e: squares(p, e).mean()), runtime="actors")


def test_usual_trees_are_trained(monkeypatch):
    def init(key):
        half, empty = jnp.zeros(3, jnp.bfloat16), jnp.zeros((0, 3))
        return {"w": half, "none": None, "one": jnp.zeros(()), "empty": empty,
                "fp16": jnp.zeros(2, jnp.float16), "plain": 0.0}  # fmt: skip

    def losses(p, examples):
        x, y = examples
        return (x @ p["w"] + p["one"] + p["fp16"].sum() + p["plain"] - y) ** 2

    made = task(init=init, losses=losses, correct=lambda p, e: losses(p, e) < 1)
    shapes = prepared(monkeypatch, made).shapes
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {
        jnp.dtype(name) for name in ("bfloat16", "float16", "float32")
    }
