"""Tasks on text: their gradients, draws and data, and the decoder-only transformer."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import program_costs, tasks
from experiments.tasks import text, text_models
from experiments.tasks.text import END

PYTHON = "corpus=python(files=40), evaluated=32"
SMALL = {
    "lstm": f"language_model(model=lstm(width=16, hidden=16), {PYTHON}, vocabulary=2000, window=6,"
    "candidates=64)",
    "transformer": f"language_model(model=transformer(width=16, layers=1), {PYTHON},"
    "vocabulary=2000, window=6, candidates=0)",
    "skip-gram": f"skip_gram({PYTHON}, vocabulary=2000, width=16, drawn=32)",
    "ncf": "ncf(interactions=identifiers(files=60), width=8, hidden=8)",
    "hashed": f"hashed_logistic({PYTHON}, window=16, buckets=4096, largest=4)",
}


class Small(NamedTuple):
    task: tasks.Task
    params: Any
    losses: Callable  # (params, examples, samples), compiled
    gradient: Callable  # of their mean


@functools.cache
def small(name):
    task = tasks.build(SMALL[name])
    params = jax.jit(task.init)(jax.random.key(0))
    if name == "skip-gram":  # starts from a table of zeros, whose gradient for the other is zero
        params["context"] = jax.random.normal(jax.random.key(1), params["context"].shape)

    def losses(params, examples, samples):
        return task.losses(params, examples, *([samples] if task.shared_draw else []))

    def mean(params, examples, samples):
        return losses(params, examples, samples).mean()

    return Small(task, params, jax.jit(losses), jax.jit(jax.grad(mean)))


def take(task, indices):
    return jax.tree.map(lambda a: jnp.asarray(a[indices]), task.train)


def used_rows(task, examples, path):
    """Return the rows of a table that an update on the examples, at 0 samples, may change."""
    drawn = np.zeros(0, np.int32)
    key = text_models.shared_key(0, 0.0)
    if task.name == "language_model":
        words = examples[:, :-1] if path[0] == "model" else examples[:, 1:]
        if path[0] == "output":
            drawn = text_models.candidates(key, 2000, 64).word
    elif task.name == "skip_gram":
        words = examples[:, 2] if path[0] == "centre" else np.delete(examples, 2, 1)
        if path[0] == "context":
            uniform = jax.random.uniform(key, (32,))
            tokens = text.limit(text.standard_library(40), 2000).train.tokens
            law = np.bincount(tokens, minlength=2000) ** 0.75
            drawn = np.searchsorted(np.float32(np.cumsum(law / law.sum())), uniform)
    elif task.name == "ncf":
        words = getattr(examples, path[0])
    else:
        words = np.asarray(examples.code) // 2
    return set(np.asarray(words).ravel().tolist()) | set(np.asarray(drawn).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_only_rows_of_the_batch_have_gradients(name):
    task, params, _, gradient = small(name)
    examples = take(task, np.arange(8) * len(task.labels) // 8)
    gradient = gradient(params, examples, 0.0)
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        if tasks.row_sparse(task, path):
            keys = jax.tree_util.keystr(path, simple=True, separator="/")
            used = used_rows(task, examples, keys.split("/"))
            touched = set(np.flatnonzero(np.any(np.asarray(leaf) != 0, axis=1)).tolist())
            assert touched <= used and len(touched) > len(used) / 2
            assert len(touched) < 0.5 * len(leaf)
            found[keys] = leaf.size
    assert set(found) == set(task.sparse)
    if name == "transformer":  # whose softmax is over all words
        assert np.all(np.any(np.asarray(gradient["output"]) != 0, axis=1))


# --- draws ---


@pytest.mark.slow
def test_draws_are_shared_by_workers_and_change_between_updates():
    task, params, losses, _ = small("skip-gram")
    examples = take(task, np.arange(8))
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), examples)
    both = jax.jit(jax.vmap(task.losses, in_axes=(None, 0, 0), axis_name="workers"))
    ours, theirs = both(params, stacked, jnp.full(2, 64.0))
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(ours, losses(params, examples, 64.0), rtol=1e-5)
    assert np.all(ours != losses(params, examples, 128.0))
    means = tasks.evaluate(task, params)
    assert means == tasks.evaluate(task, params)  # evaluation does not draw


@pytest.mark.slow
def test_candidates_follow_the_log_uniform_law():
    vocabulary, draws, keys = 50, 20, jax.random.split(jax.random.key(3), 4000)
    word, again = jax.vmap(lambda key: text_models.candidates(key, vocabulary, draws))(keys)
    assert word.min() == 0 and word.max() == vocabulary - 1
    share = np.bincount(word.ravel(), minlength=vocabulary) / word.size
    law = np.log1p(1 / np.arange(1, vocabulary + 1)) / np.log(vocabulary + 1)
    np.testing.assert_allclose(law.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(share, law, atol=4 * np.sqrt(law.max() / word.size))
    # Each word counts once in a draw; how often it is there is what the correction says.
    once = np.bincount(word[~again], minlength=vocabulary) / len(keys)
    expected = np.exp(text_models.log_expected_count(np.arange(vocabulary), vocabulary, draws))
    np.testing.assert_allclose(once, expected, atol=4 * np.sqrt(0.25 / len(keys)))


def test_sampled_softmax_worked_out_by_hand():
    # Scores 0, log 2, log 3 of three words; the draws 0, 0, 1 make the set {0, 1}.
    table = np.log(np.float32([[1], [2], [3]]))
    drawn = text_models.Candidates(np.array([0, 0, 1]), np.array([False, True, False]))
    there = 1 - (1 - np.log([2, 3 / 2, 4 / 3]) / np.log(4)) ** 3
    odds = np.array([1, 2, 3]) / there
    softmax = jax.jit(text_models.sampled_softmax)
    got = softmax(np.ones((2, 1), np.float32), table, np.array([2, 0]), drawn)
    # The target 2 against both; the target 0, drawn by accident, against 1 alone.
    np.testing.assert_allclose(
        got, [np.log(odds.sum() / odds[2]), np.log((odds[0] + odds[1]) / odds[0])], rtol=1e-5
    )


@pytest.mark.slow
def test_the_mean_over_noise_is_what_evaluation_reports():
    task, params, *_ = small("skip-gram")
    examples = take(task, np.arange(6))
    params = {"centre": 10 * params["centre"], "context": 0.5 * params["context"]}
    draws = jax.lax.map(lambda s: task.losses(params, examples, s), jnp.arange(3000.0))
    error = draws.std(0) / np.sqrt(len(draws))
    assert np.all(error > 0)
    assert np.all(abs(draws.mean(0) - task.eval_losses(params, examples)) < 4.5 * error)


# --- the data of single tasks ---


def test_factorisation_holds_out_the_last_item_and_ranks_it_among_99_others():
    task, *_ = small("ncf")
    user, item, _ = text.identifiers(files=60)
    taken = {who: item[user == who].tolist() for who in np.unique(user)}
    for who, ranked in zip(*task.test, strict=True):
        assert ranked[0] == taken[who][-1] and len(ranked) == 100
        assert not set(ranked[1:].tolist()) & set(taken[who])
    held_in = {who: set(items[:-1]) for who, items in taken.items()}
    assert len(task.train.user) == len(user) - len(taken)
    for who, items in list(zip(*task.train, strict=True))[::97]:
        assert items[0] in held_in[who] and not set(items[1:].tolist()) & held_in[who]


# --- evaluation ---


def test_evaluation_is_spread_over_at_most_so_many_examples():
    examples = np.arange(10, dtype=np.float32)[:, None]
    task = tasks.Task(
        "ten", examples, examples[:3], np.zeros(10, int), lambda key: jnp.ones(()),
        losses=lambda p, e: 1 / (e[:, 0] - e[:, 0]), eval_losses=lambda p, e: p * e[:, 0],
        metrics=lambda p, means: {"twice": 2 * means["test_loss"] + float(p)}, evaluated=5,
    )  # fmt: skip
    assert tasks.evaluate(task, jnp.ones(()), batch=2) == {
        "train_loss": (0 + 2 + 4 + 6 + 8) / 5, "test_loss": 1.0, "test_accuracy": None,
        "twice": 3.0,
    }  # fmt: skip


# --- the decoder-only transformer ---

WORDS = "corpus=python(files=40), vocabulary=64, length=12"
MODEL = "gpt(layers=1, width=16, heads=2)"
GPT = f"next_token(model={MODEL}, {WORDS})"


@functools.cache
def gpt(spec=GPT):
    task = tasks.build(spec)
    return task, task.init(jax.random.key(0))


def first(task, count=5):
    return jax.tree.map(lambda a: jnp.asarray(a[:count]), task.train)


@functools.cache
def slope(spec=GPT):
    """(losses, gradient of their mean) of the first five sequences."""
    task, _ = gpt(spec)
    chosen = first(task)

    def mean(params):
        losses = task.losses(params, chosen)
        return losses.mean(), losses

    gradient, losses = jax.jit(jax.grad(mean, has_aux=True))(gpt()[1])
    return losses, gradient


def distance(a, b):
    """Return the largest difference of two trees, over the largest number of the second."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(b))
    return max(float(jnp.abs(x - y).max()) for x, y in pairs) / largest


# --- positions ---


def test_a_product_depends_on_the_distance_alone():
    rng = np.random.default_rng(0)
    query, key = (np.tile(rng.standard_normal((1, 1, 1, 8), "f4"), (1, 9, 1, 1)) for _ in range(2))
    products = np.einsum("bthd,bshd->ts", text_models.rotated(query), text_models.rotated(key))
    for offset in range(-8, 9):
        diagonal = np.diagonal(products, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    np.testing.assert_allclose(np.diagonal(products), (query * key)[0, 0].sum(), rtol=1e-5)


# --- what a word sees ---


@pytest.mark.slow
def test_a_word_sees_what_stands_before_and_nothing_after():
    module = text_models.gpt(64, layers=2, width=16, heads=2)
    params = jax.jit(module.init)(jax.random.key(0), np.zeros((1, 8), np.int32))
    params = jax.tree.map(lambda a: 5 * a, params)  # so that attention matters
    words = np.arange(10, 18, dtype=np.int32)[None]
    changed = words.copy()
    changed[0, 5] = 40
    before, after = (jax.jit(module.apply)(params, seen) for seen in (words, changed))
    np.testing.assert_allclose(before[0, :5], after[0, :5], atol=1e-6)
    assert (np.abs(before[0, 5:] - after[0, 5:]).max(-1) > 1e-3).all()


# --- the task ---


@pytest.mark.slow
def test_a_loss_is_that_of_its_documents_alone():
    """A sequence of two documents: the mean over the targets of both, each by itself."""
    task, params = gpt()
    losses = jax.jit(task.losses)
    lengths = (5, 6)
    words = np.random.default_rng(0).integers(2, 64, sum(lengths) + 2).astype(np.int32)
    words[[lengths[0], -1]] = END
    starts = np.array([0, lengths[0] + 1, len(words)])
    part = text.Documents(("a/0", "a/1"), words, starts)
    together = text.pack(part, 12).tokens
    assert together.shape == (1, 13)
    alone = []
    for begin, end in itertools.pairwise(starts):
        row = np.full((1, 13), END, np.int32)
        row[0, : end - begin] = words[begin:end]
        loss = losses(params, text.Sequences(jnp.asarray(row)))
        alone.append(float(loss[0]) * (end - begin - 1))
    whole = losses(params, text.Sequences(jnp.asarray(together)))
    np.testing.assert_allclose(whole[0], sum(alone) / sum(lengths), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["micro_batch=2", "remat"])
def test_less_memory_gives_the_same_gradient(change):
    """Of five sequences: in parts that divide them or do not, or with blocks computed again."""
    leaner = GPT.replace("heads=2", "heads=2, remat=true")
    if change != "remat":
        leaner = f"{GPT[:-1]}, {change})"
    (losses, gradient), (whole, exact) = slope(leaner), slope()
    np.testing.assert_allclose(losses, whole, rtol=1e-5)
    assert distance(gradient, exact) < 1e-5


@pytest.mark.slow
def test_bfloat16_computes_in_it_and_gives_float32_gradients():
    spec = f"{GPT[:-1]}, compute=bfloat16)"
    short, params = gpt(spec)
    chosen, (losses, rounded) = first(short), slope(spec)
    assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {jnp.dtype("float32")}
    assert losses.dtype == jnp.float32
    assert 1e-4 < distance(rounded, slope()[1]) < 0.05
    program = jax.make_jaxpr(jax.grad(lambda p: short.losses(p, chosen).mean()))(params)
    flops = program_costs.of_jaxpr(program.jaxpr).flops
    assert flops["bfloat16"] > 0.9 * flops.total()
