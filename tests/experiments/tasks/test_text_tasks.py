import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import tasks
from experiments.tasks import sampling, text, text_models
from tests.marks import slow_but

PYTHON = "corpus=python(files=40), evaluated=32"
SMALL = {
    "lstm": f"language_model(model=lstm(width=16, hidden=16), {PYTHON}, vocabulary=2000, window=6,"
    "candidates=64)",
    "transformer": f"language_model(model=transformer(width=16, layers=1), {PYTHON},"
    "vocabulary=2000, window=6, candidates=64)",
    "full softmax": f"language_model(model=lstm(width=16, hidden=16), {PYTHON}, vocabulary=2000,"
    "window=6, candidates=0)",
    "skip-gram": f"skip_gram({PYTHON}, vocabulary=2000, width=16, drawn=32)",
    "ncf": "ncf(interactions=identifiers(files=60), width=8, hidden=8)",
    "hashed": f"hashed_logistic({PYTHON}, window=16, buckets=4096, largest=4)",
}
SHARED = ("lstm", "transformer", "skip-gram")


def build(spec):
    return tasks.build(spec)


class Small(NamedTuple):
    task: tasks.Task
    params: Any
    losses: Callable  # (params, examples, samples), compiled
    gradient: Callable  # of their mean


@functools.cache
def small(name):
    task = build(SMALL[name])
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
    """The rows of a table that an update on the examples, at 0 samples, may change."""
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


@pytest.mark.parametrize("name", slow_but(("skip-gram",), SMALL))
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
    if name == "full softmax":
        assert np.all(np.any(np.asarray(gradient["output"]) != 0, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_training_lowers_the_loss(name):
    task, _, _, gradient = small(name)
    params = jax.jit(task.init)(jax.random.key(0))
    optimizer = optax.adam(2e-2)
    state = optimizer.init(params)

    @jax.jit
    def apply(params, state, gradient):
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    before = tasks.evaluate(task, params)
    sampler = sampling.Sampler([np.arange(len(task.labels))], batch_size=8, seed=0)
    for update, indices in enumerate(np.asarray(sampler.indices(0, np.arange(100)))):
        slope = gradient(params, take(task, indices), 8.0 * update)
        params, state = apply(params, state, slope)
    after = tasks.evaluate(task, params)
    assert after["train_loss"] < 0.95 * before["train_loss"]
    if task.name == "language_model":
        assert after["test_perplexity"] == pytest.approx(np.exp(after["test_loss"]))
        assert after["test_perplexity"] < 1000 < before["test_perplexity"]
    if task.name == "ncf":
        assert before["test_hit_rate_10"] < after["test_hit_rate_10"] <= 1
    assert (after["test_accuracy"] is None) == (task.name != "hashed_logistic")


# --- draws ---


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_draws_are_shared_by_workers_and_change_between_updates(name):
    task, params, losses, _ = small(name)
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


def softmax_problem(vocabulary=8, n=5, d=3):
    keys = jax.random.split(jax.random.key(0), 3)
    return (
        jax.random.normal(keys[0], (n, d)),
        jax.random.normal(keys[1], (vocabulary, d)),
        jax.random.randint(keys[2], (n,), 0, vocabulary),
    )


@pytest.mark.slow
def test_sampled_softmax_is_the_full_one_once_every_word_is_drawn():
    problem = softmax_problem()
    drawn = text_models.candidates(jax.random.key(1), 8, 2000)
    assert len(set(drawn.word.tolist())) == 8
    np.testing.assert_allclose(
        text_models.sampled_softmax(*problem, drawn), text_models.full_softmax(*problem), rtol=1e-5
    )


def test_sampled_softmax_worked_out_by_hand():
    # Scores 0, log 2, log 3 of three words; the draws 0, 0, 1 make the set {0, 1}.
    table = jnp.log(jnp.array([[1.0], [2.0], [3.0]]))
    drawn = text_models.Candidates(jnp.array([0, 0, 1]), jnp.array([False, True, False]))
    there = 1 - (1 - np.log([2, 3 / 2, 4 / 3]) / np.log(4)) ** 3
    odds = np.array([1, 2, 3]) / there
    got = text_models.sampled_softmax(jnp.ones((2, 1)), table, jnp.array([2, 0]), drawn)
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


def test_windows_of_a_package_lie_in_its_files():
    task, *_ = small("hashed")
    corpus = text.standard_library(40)
    sizes = np.diff(corpus.train.starts)
    assert len(task.labels) <= sum(sizes // 16) and len(task.labels) > 0.9 * sum(sizes // 16)
    assert task.train.code.max() < 2 * 4096 and set(task.labels) == set(range(5))


# --- evaluation ---


def test_evaluation_is_spread_over_at_most_so_many_examples():
    examples = np.arange(10, dtype=np.float32)[:, None]
    task = tasks.Task(
        "ten",
        examples,
        examples[:3],
        np.zeros(10, int),
        lambda key: jnp.ones(()),
        losses=lambda p, e: 1 / (e[:, 0] - e[:, 0]),
        eval_losses=lambda p, e: p * e[:, 0],
        metrics=lambda p, means: {"twice": 2 * means["test_loss"] + float(p)},
        evaluated=5,
    )
    assert tasks.evaluate(task, jnp.ones(()), batch=2) == {
        "train_loss": (0 + 2 + 4 + 6 + 8) / 5,
        "test_loss": 1.0,
        "test_accuracy": None,
        "twice": 3.0,
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "language_model(model=gru)",
            "model: unknown name 'gru'; known names: gpt, lstm, transformer",
        ),
        ("language_model(corpus=bible)", "corpus: unknown name 'bible'; .*lm1b, python, wiki40b"),
        ("language_model(corpus=python(files=40))", "vocabulary must be .* got 20000"),
        ("language_model(window=0)", "language_model: window must be at least 1, got 0"),
        ("language_model(candidates=-1)", "candidates must be at least 0, got -1"),
        ("skip_gram(drawn=0)", "skip_gram: drawn must be at least 1, got 0"),
        ("skip_gram(threshold=0)", "skip_gram: threshold must be positive, got 0"),
        ("ncf(interactions=netflix)", "interactions: unknown name 'netflix'.*movielens"),
        ("ncf(negatives=0)", "ncf: negatives must be at least 1, got 0"),
        ("hashed_logistic(largest=0)", "hashed_logistic: largest must be at least 1, got 0"),
    ],
)
def test_bad_specs_say_what_is_known(spec, message):
    with pytest.raises(ValueError, match=message):
        build(spec)


def test_a_user_who_took_everything_is_refused(monkeypatch):
    everything = text.Interactions(np.int32([0, 0, 1, 1]), np.int32([0, 1, 0, 1]), np.zeros(2, int))
    monkeypatch.setitem(text.INTERACTIONS, "identifiers", lambda: everything)
    with pytest.raises(ValueError, match="a user took all 2 items"):
        build("ncf")
