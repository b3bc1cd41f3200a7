"""Tasks that cannot be trained: one sentence, before anything is compiled."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import nonblocking
from experiments import prepare, sweep
from experiments.tasks import Task

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


def prepared(monkeypatch, made, **changes):
    module = types.ModuleType(f"odd_{id(made)}")
    module.task = lambda: made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    changes["task"] = f"{module.__name__}:task"
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
    ({"labels": np.zeros(9, int)}, "there are 9 labels for 64 training samples"),
    ({"train": (X[:9], Y)}, "train must have samples, as many in all its arrays"),
]


@pytest.mark.parametrize(("changes", "words"), ODD)
def test_a_task_that_cannot_be_trained_is_one_sentence(monkeypatch, changes, words):
    with pytest.raises(ValueError) as caught:
        prepared(monkeypatch, task(**changes))
    assert str(caught.value).startswith("task 'odd_") and words in str(caught.value)


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
