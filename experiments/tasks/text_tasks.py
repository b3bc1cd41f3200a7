"""Tasks on text: next words, embeddings, matrix factorisation and hashed words.

Every factory has a key in TASKS. `Task.sparse` names tables with row-sparse gradients, as in S2
Reducer (arXiv 2110.02140). No loss depends on the split of examples among workers or mini-batches:
all examples of an update share its random draws.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.registry import Kind
from experiments.tasks import Task, models, sources, take, text, text_models
from experiments.tasks.data import at_least

LANGUAGE_MODEL = Kind(
    "model", text_models.LANGUAGE_MODELS, models.GIVES, ("vocabulary", "window", "rngs")
)
EVALUATED_AT_ONCE = 8  # windows; each word has a score for every word of the vocabulary in memory

# --- language models ---


def language_model(
    model: str | Mapping = "lstm", corpus: str | Mapping = "python", vocabulary: int = 20_000,
    window: int = 20, candidates: int = 512, evaluated: int = 256, seed: int = 0,
) -> Task:  # fmt: skip
    """Predict the next word, by a softmax over the vocabulary; reports `test_perplexity`.

    An example is `window` words and the word after them. Its loss is the mean of `window`
    cross-entropies. Evaluation always takes the full softmax.

    model, corpus: keys of LANGUAGE_MODELS and of text.CORPORA and their parameters.
    candidates: draws of the sampled softmax, shared by all workers of an update, so that the output
        table's gradient is row-sparse, too; 0: train with the full softmax.
    """
    at_least("language_model", 1, window=window, evaluated=evaluated)
    at_least("language_model", 0, candidates=candidates)
    module = models.build(LANGUAGE_MODEL, model, vocabulary=vocabulary, window=window)
    words = text.limit(text.CORPUS.build(corpus), vocabulary)
    train, document = text.windows(words.train, window + 1, window)
    test, _ = text.windows(words.test, window + 1, window)
    initial = jax.jit(functools.partial(models.init, module))

    def init(key):
        body, output = jax.random.split(key)
        params = initial(body, train[:1, :-1])
        width = jax.eval_shape(module.apply, {"params": params}, train[:1, :-1]).shape[-1]
        table = jax.random.normal(output, (vocabulary, width)) / math.sqrt(width)
        return {"model": params, "output": table}

    def mean_over_words(params, examples, cross_entropy):
        states = module.apply({"params": params["model"]}, examples[:, :-1])
        targets = examples[:, 1:]
        flat = states.reshape(-1, states.shape[-1]), params["output"], targets.reshape(-1)
        return cross_entropy(*flat).reshape(targets.shape).mean(1)

    def full(params, examples):
        return mean_over_words(params, examples, text_models.full_softmax)

    def sampled(params, examples, count):
        drawn = text_models.candidates(text_models.shared_key(seed, count), vocabulary, candidates)
        cross_entropy = functools.partial(text_models.sampled_softmax, drawn=drawn)
        return mean_over_words(params, examples, cross_entropy)

    return Task(
        "language_model", train, test, text.groups(words.train.names)[0][document], init,
        losses=sampled if candidates else full, shared_draw=candidates > 0,
        eval_losses=models.in_micro_batches(full, EVALUATED_AT_ONCE), metrics=_perplexity,
        sparse=("model/embedding/embedding", *(["output"] if candidates else [])),
        evaluated=evaluated,
    )  # fmt: skip


def _perplexity(params, means) -> dict[str, float]:
    return {"test_perplexity": float(np.exp(means["test_loss"]))}


def next_token(
    model: str | Mapping = "gpt", corpus: str | Mapping = "python", vocabulary: int = 8192,
    length: int = 256, compute: str = "float32", micro_batch: int | None = None,
    evaluated: int = 256, packing: bool = True, quadratic: float = 0.0,
) -> Task:  # fmt: skip
    """Predict the next word of packed documents; reports `test_perplexity`, exp of the test loss.

    An example is `length` words and the word after each, see `text.pack`. Its loss is the mean
    cross-entropy over its targets; a word after the end of a document is no target. The embedding
    table also gives the scores (O. Press, L. Wolf, arXiv 1608.05859).

    model, corpus: keys of LANGUAGE_MODELS and of text.CORPORA and their parameters; a model has
        states as wide as its nn.Embed called `embedding`.
    compute: float32, or bfloat16 beside float32 masters. micro_batch: sequences of a mini-batch
        whose activations are in memory at a time; None: all. evaluated: sequences of either part.
    packing: False: every sequence has one document, or a piece of one. A sequence of s times the
        mean number of targets then has the cost (1 - quadratic) s + quadratic s^2.
    """
    if not 0 <= quadratic <= 1:
        raise ValueError(f"next tokens: quadratic is a share, 0 to 1, got {quadratic}; try 0.2")
    words = text.limit(text.CORPUS.build(corpus), vocabulary)
    sequences = text.pack if packing else text.pad
    train, test = (sequences(part, length) for part in (words.train, words.test))
    task = _task(
        "next_token", text.Sequences(train.tokens), text.Sequences(test.tokens),
        text.groups(words.train.names)[0][train.document], model, vocabulary, length, compute,
        micro_batch, evaluated,
    )  # fmt: skip
    if packing:
        return task
    targets = (train.tokens[:, :-1] != text.END).sum(1)
    share = targets / targets.mean()
    return task._replace(cost=(1 - quadratic) * share + quadratic * share**2)


def packed_text(
    folder: str, model: str | Mapping = "gpt", reading: str | Mapping = "memory",
    compute: str = "float32", micro_batch: int | None = None, evaluated: int = 256,
    length: int = 1024, vocabulary: int | None = None, end: int | None = None,
) -> Task:  # fmt: skip
    """Predict next words as `next_token` does, in sequences written by `experiments.pack_text`.

    The folder gives the length of a sequence and the vocabulary. `length`, `vocabulary` and `end`
    are for nanoGPT's `.bin` files, see `text.token_files`. reading: a key of `sources.READINGS`
    and its parameters. All others: see `next_token`.
    """
    packed = text.token_files(folder, length, vocabulary, end)
    window = packed.train.example.tokens.shape[0] - 1
    train, test, _ = sources.read(reading, packed.train, packed.test)
    labels = sources.Unlabelled(
        len(packed.train), "split: sequences of packed text have no labels; use split=iid"
    )
    return _task(
        "packed_text", train, test, labels, model, packed.classes, window, compute, micro_batch,
        evaluated,
    )  # fmt: skip


def _task(
    name: str, train: Any, test: Any, labels: Any, model: str | Mapping, vocabulary: int,
    window: int, compute: str, micro_batch: int | None, evaluated: int,
) -> Task:  # fmt: skip
    """Return the task of a model with an embedding on `text.Sequences`, streamed or not."""
    at_least("next tokens", 1, evaluated=evaluated)
    module = models.build(LANGUAGE_MODEL, model, vocabulary=vocabulary, window=window)
    dtype, initial = models.compute_type(compute), jax.jit(functools.partial(models.init, module))

    def init(key):
        params = initial(key, take(train, slice(1)).tokens[:, :-1])
        if "embedding" not in params:
            raise ValueError(
                f"{name}: the model has no nn.Embed called 'embedding', whose table gives the "
                "scores; name it so"
            )
        return params

    def all_at_once(params, examples):
        params = models.cast(params, dtype)
        states = module.apply({"params": params}, examples.tokens[:, :-1])
        scores = states @ params["embedding"]["embedding"].T
        return mean_over_targets(scores.astype(jnp.float32), examples.tokens)

    fewer = min(EVALUATED_AT_ONCE, micro_batch or EVALUATED_AT_ONCE)
    return Task(
        name, train, test, labels, init, models.in_micro_batches(all_at_once, micro_batch),
        eval_losses=models.in_micro_batches(all_at_once, fewer), metrics=_perplexity,
        evaluated=evaluated,
    )  # fmt: skip


def mean_over_targets(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return mean cross-entropies [b] of scores [b, t, vocabulary] for tokens [b, t + 1].

    A token after END begins another document or is padding: it is no target.
    """
    counts = tokens[:, :-1] != text.END
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:])
    return jnp.sum(losses, 1, where=counts) / jnp.maximum(counts.sum(1), 1)


# --- skip-gram ---


def skip_gram(
    corpus: str | Mapping = "python", vocabulary: int = 20_000, width: int = 64, context: int = 2,
    negatives: int = 5, drawn: int = 64, threshold: float = 1e-4, evaluated: int = 1024,
    seed: int = 0,
) -> Task:  # fmt: skip
    """Learn word embeddings that tell a word's neighbours from noise (arXiv 1310.4546 Eq. 4).

    An example is a word and `context` neighbours on either side. Its loss is the mean over the
    neighbours, with `negatives` noise words each. The noise term is estimated without bias from
    `drawn` noise words that an update's examples share; noise equal to the neighbour does not
    count. Evaluation takes the expectation over noise; its law is word frequency to the power 3/4.

    threshold: of the subsampling of frequent words in Sec. 2.3 of the paper.
    """
    at_least("skip_gram", 1, width=width, context=context, negatives=negatives, drawn=drawn)
    at_least("skip_gram", 1, evaluated=evaluated)
    if not threshold > 0:
        raise ValueError(f"skip_gram: threshold must be positive, got {threshold}; try 1e-4")
    words = text.limit(text.CORPUS.build(corpus), vocabulary)
    counts = np.bincount(words.train.tokens, minlength=vocabulary)
    rng = np.random.default_rng(seed)
    thin = [_thin_out(part, counts, threshold, rng) for part in (words.train, words.test)]
    (train, document), (test, _) = (text.windows(part, 2 * context + 1, 1) for part in thin)
    law = counts**0.75 / np.sum(counts**0.75)
    cumulated = np.float32(np.cumsum(law))

    def init(key):
        centre = jax.random.uniform(key, (vocabulary, width), minval=-0.5, maxval=0.5) / width
        return {"centre": centre, "context": jnp.zeros((vocabulary, width))}

    def loss(params, examples, score, noise):
        near = jnp.delete(examples, context, axis=1, assume_unique_indices=True)
        states = params["centre"][examples[:, context]]
        return score(states, params["context"], near, noise, negatives)

    def losses(params, examples, count):
        key = text_models.shared_key(seed, count)
        noise = text_models.noise_words(key, jnp.asarray(cumulated), drawn)
        return loss(params, examples, text_models.negative_sampling, noise)

    def expected(params, examples):
        return loss(
            params, examples, text_models.expected_negative_sampling, jnp.asarray(np.float32(law))
        )

    return Task(
        "skip_gram", train, test, text.groups(words.train.names)[0][document], init, losses,
        shared_draw=True, eval_losses=models.in_micro_batches(expected, EVALUATED_AT_ONCE),
        sparse=("centre", "context"), evaluated=evaluated,
    )  # fmt: skip


def _thin_out(part: text.Documents, counts, threshold: float, rng) -> text.Documents:
    frequency = np.maximum(counts, 1) / counts.sum()
    keep = rng.random(len(part.tokens)) < np.sqrt(threshold / frequency)[part.tokens]
    starts = np.concatenate([[0], np.cumsum(keep)])[part.starts]
    return part._replace(tokens=part.tokens[keep], starts=starts)


# --- matrix factorisation ---


class Choices(NamedTuple):
    user: np.ndarray  # [n] int32
    item: np.ndarray  # [n, 1 + negatives] int32: an item that the user took, then others


def ncf(
    interactions: str | Mapping = "identifiers", width: int = 16, hidden: int = 32,
    negatives: int = 4, evaluated: int = 4096, seed: int = 0,
) -> Task:  # fmt: skip
    """Factorise user-item interactions by NeuMF (arXiv 1708.05031); reports `test_hit_rate_10`.

    The test is leave-one-out (Sec. 4.1 there): a user's last item is ranked among 99 that the user
    never took. A hit is a rank of 10 or better; ties count against the model. An example is a user,
    a taken item and `negatives` others; its loss is their mean log loss (Eq. 7).

    interactions: a key of text.INTERACTIONS and its parameters.
    """
    at_least("ncf", 1, width=width, hidden=hidden, negatives=negatives, evaluated=evaluated)
    user, item, group = text.INTERACTION.build(interactions)
    if (np.diff(user, prepend=0) < 0).any() or len(group) != user[-1] + 1:
        raise ValueError(
            f"ncf: interactions={interactions} have users that do not ascend, or {len(group)} "
            f"groups for {int(user.max()) + 1} users; sort by user, then by time, and give each a "
            "group"
        )
    users, items = len(group), int(item.max()) + 1
    last = np.append(user[1:] != user[:-1], True)
    rng = np.random.default_rng(seed)
    others = _never_taken(user[~last], item[~last], user[~last], items, negatives, rng)
    train = Choices(user[~last], np.column_stack([item[~last], others]))
    others = _never_taken(user, item, user[last], items, 99, rng)
    test = Choices(user[last], np.column_stack([item[last], others]))
    module = text_models.NeuMF(users, items, width, hidden)
    initial = jax.jit(module.init)

    def init(key):
        return initial(key, train.user[:1], train.item[:1, 0])["params"]

    def logits(params, examples):
        user = jnp.broadcast_to(examples.user[:, None], examples.item.shape)
        return module.apply({"params": params}, user, examples.item)

    def losses(params, examples):
        scores = logits(params, examples)
        taken, other = jax.nn.softplus(-scores[:, 0]), jax.nn.softplus(scores[:, 1:]).mean(1)
        return (taken + negatives * other) / (1 + negatives)

    @jax.jit
    def hit_rate(params):
        scores = logits(params, jax.tree.map(jnp.asarray, test))
        return jnp.mean((scores[:, 1:] >= scores[:, :1]).sum(1) < 10)

    return Task(
        "ncf", train, test, group[train.user], init, losses,
        metrics=lambda params, means: {"test_hit_rate_10": float(hit_rate(params))},
        sparse=("user/embedding", "item/embedding"), evaluated=evaluated,
    )  # fmt: skip


def _never_taken(user, item, who, items: int, number: int, rng) -> np.ndarray:
    """Draw items [len(who), number] int32 uniformly, without the pairs in (user, item)."""
    if np.bincount(user).max() == items:
        raise ValueError(
            f"ncf: a user took all {items} items, so there is none to tell them from; "
            "read more interactions"
        )
    taken = user.astype(np.int64) * items + item
    drawn = rng.integers(items, size=(len(who), number))
    row = who.astype(np.int64)[:, None] * items
    while (wrong := np.isin(row + drawn, taken)).any():
        drawn[wrong] = rng.integers(items, size=wrong.sum())
    return drawn.astype(np.int32)


# --- logistic regression ---


class Hashed(NamedTuple):
    code: np.ndarray  # [n, window] int32, see `text.hashes`
    label: np.ndarray  # [n] int32


def hashed_logistic(
    corpus: str | Mapping = "python", window: int = 64, buckets: int = 65_536, largest: int = 16,
    evaluated: int = 4096,
) -> Task:  # fmt: skip
    """Predict the package of a file from `window` words, by logistic regression.

    The features are the hashed words (arXiv 0902.2206). The classes are the `largest` groups by
    number of files, and a last one for all others. Single modules form one group.
    """
    at_least("hashed_logistic", 1, window=window, largest=largest, evaluated=evaluated)
    words = text.CORPUS.build(corpus)
    label, classes = text.groups(words.train.names + words.test.names, largest)
    codes = text.hashes(words.words, buckets)

    def read(part, label):
        tokens, document = text.windows(part, window, window)
        whole = (1 + np.arange(len(tokens))) * window <= part.starts[document + 1]
        return Hashed(codes[tokens[whole]], label[document[whole]])

    files = len(words.train.names)
    train, test = read(words.train, label[:files]), read(words.test, label[files:])

    def logits(params, examples):
        sign = 1 - 2 * (examples.code & 1).astype(jnp.float32)
        rows = params["weights"][examples.code >> 1]  # [b, window, classes]
        return jnp.einsum("bw,bwc->bc", sign, rows) / math.sqrt(window) + params["bias"][None]

    def losses(params, examples):
        return optax.softmax_cross_entropy_with_integer_labels(
            logits(params, examples), examples.label
        )

    def correct(params, examples):
        return jnp.float32(logits(params, examples).argmax(-1) == examples.label)

    def init(key):
        return {"weights": jnp.zeros((buckets, len(classes))), "bias": jnp.zeros(len(classes))}

    return Task(
        "hashed_logistic", train, test, train.label, init, losses, correct, sparse=("weights",),
        evaluated=evaluated,
    )  # fmt: skip
