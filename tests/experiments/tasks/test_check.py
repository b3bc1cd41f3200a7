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
from experiments.tasks import Task, data, text
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
        ({"exchange": optax.stateless(lambda grads, params: grads)},
         r"its exchange takes no extra arguments, such as `weight`; give an optax.Gradient"),
    ],
)  # fmt: skip
def test_a_method_without_a_part_that_it_needs_is_one_sentence(monkeypatch, parts, words):
    method = brought(monkeypatch, "method", lambda: PLAIN._replace(**parts))
    with sentence(words):
        prepared(monkeypatch, task(), algorithm=method)


def test_an_accuracy_that_is_none_ends_the_first_evaluation():
    made = task(correct=lambda p, e: 100.0 * (squares(p, e) < 1))
    with sentence("correct of the task 'odd' must be 1 or 0 for every sample, and its mean is "):
        tasks.evaluate(made, weights(None))


@pytest.mark.parametrize("kind", [jnp.float16, jnp.bfloat16])
def test_losses_of_short_floats_are_added_in_float32(kind):
    """Of 1,500 samples, of which 1,295 are right: more than float16 holds, or bfloat16 counts."""
    x, right = np.full((1500, 3), 44.375, np.float32), np.arange(1500) < 1295
    made = task(
        train=(x, right), test=(x, right), losses=lambda p, e: e[0][:, 0].astype(kind),
        correct=lambda p, e: e[1].astype(kind),
    )  # fmt: skip
    found = tasks.evaluate(made, weights(None))
    assert found["train_loss"] == jnp.asarray(44.375, kind)
    assert found["test_accuracy"] == pytest.approx(1295 / 1500)


def test_the_longest_tenth_is_spread_over_samples_that_cost_alike():
    """All losses are places in the data: neither ties nor `evaluated` prefer the last ones."""
    count = 4000
    place = np.arange(count, dtype=np.float32)
    made = task(train=(place, place), test=(place[:9], place[:9]), labels=np.zeros(count, int))
    made = made._replace(losses=lambda p, e: e[0], cost=np.ones(count), evaluated=200)
    found = tasks.evaluate(made, weights(None))
    assert all(abs(found[f"train_loss_{end}"] / 2000 - 1) < 0.15 for end in ("long", "short"))
    made = made._replace(cost=place)
    assert tasks.evaluate(made, weights(None))["train_loss_long"] == pytest.approx(3799, abs=2)


def test_workers_that_are_processes_are_not_started_for_it(monkeypatch):
    with pytest.raises(ValueError, match="losses of 7 examples must be"):
        prepared(monkeypatch, task(losses=lambda p, e: squares(p, e).mean()), runtime="actors")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("images(source=noise(classes=0), model=logistic)", "classes must be finite"),
        ("digits(test_fraction=0.999, model=logistic)", "=0.999 leaves no image to train on"),
        ("next_token(corpus=python(files=-5))", "python: files must be finite"),
    ],
)
def test_parameters_that_leave_no_samples_are_one_sentence(written, words):
    with pytest.raises(ValueError, match=words):
        tasks.build(written)


def test_images_of_ones_own_have_as_many_classes_as_their_labels(monkeypatch):
    image, label = np.zeros((6, 8, 8, 1), np.float32), np.int32([0, 1, 2, 0, 1, 2])
    image[:, 0, 0, 0] = label
    part = data.Images(image, label)
    source = brought(monkeypatch, "source", lambda: data.Dataset(part, part))
    made = tasks.build({"name": "images", "source": source, "model": "logistic"})
    (bias,) = (leaf for leaf in jax.tree.leaves(made.init(jax.random.key(0))) if leaf.ndim == 1)
    assert bias.shape == (3,)


def test_interactions_that_are_not_sorted_by_user_are_one_sentence(monkeypatch):
    user, item = np.int32([0, 1, 0, 1, 2]), np.int32([0, 1, 2, 3, 4])
    for group in (np.zeros(3, int), np.zeros(2, int)):
        order = np.argsort(user) if len(group) == 2 else slice(None)
        pairs = text.Interactions(user[order], item[order], group)
        own = brought(monkeypatch, "inter", lambda pairs=pairs: pairs)
        with sentence(r"have users that do not ascend, or \d groups for 3 users; sort by user"):
            tasks.build({"name": "ncf", "interactions": own})


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
