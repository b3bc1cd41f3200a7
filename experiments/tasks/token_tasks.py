"""Next-token prediction: what language models of all sizes are trained on."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.tasks import lean, modules, packing, sources, text, token_files
from experiments.tasks.base import Task, take
from experiments.tasks.sparse_tasks import CORPUS, EVALUATED_AT_ONCE, LANGUAGE_MODEL


def next_token(
    model: str | Mapping = "gpt",
    corpus: str | Mapping = "python",
    vocabulary: int = 8192,
    length: int = 256,
    compute: str = "float32",
    micro_batch: int | None = None,
    evaluated: int = 256,
) -> Task:
    """Predict the next word of packed documents; reports `test_perplexity`, exp of the test loss.

    An example is `length` words and the one after each, see `packing.pack`; its loss is the mean
    cross-entropy over its targets, without those after the end of a document. The table of
    embeddings gives the scores too (O. Press, L. Wolf, arXiv 1608.05859).

    model, corpus: keys of LANGUAGE_MODELS and of text.CORPORA and their parameters; a model has
        states as wide as its nn.Embed called `embedding`.
    compute: float32, or bfloat16 beside float32 masters. micro_batch: sequences of a mini-batch
        whose activations are in memory at a time; None: all. evaluated: sequences of either part.
    """
    _check(evaluated, compute)
    module = modules.build(LANGUAGE_MODEL, model, vocabulary=vocabulary, window=length)
    words = text.limit(CORPUS.build(corpus), vocabulary)
    train, test = (packing.pack(part, length) for part in (words.train, words.test))
    return _task(
        "next_token",
        token_files.Sequences(train.tokens),
        token_files.Sequences(test.tokens),
        text.groups(words.train.names)[0][train.document],
        module,
        compute,
        micro_batch,
        evaluated,
    )


def packed_text(
    folder: str,
    model: str | Mapping = "gpt",
    reading: str | Mapping = "memory",
    compute: str = "float32",
    micro_batch: int | None = None,
    evaluated: int = 256,
) -> Task:
    """As `next_token`, on the sequences that `python -m experiments.pack_text` wrote to a folder.

    The length of a sequence and the vocabulary are what was packed. reading: a key of
    `sources.READINGS` and its parameters. All others: see `next_token`.
    """
    _check(evaluated, compute)
    reader = sources.READING.build(reading)
    packed = token_files.token_files(folder)
    length = packed.train.example.tokens.shape[0] - 1
    module = modules.build(LANGUAGE_MODEL, model, vocabulary=packed.classes, window=length)
    return _task(
        "packed_text",
        reader.of(packed.train),
        reader.of(packed.test),
        sources.Unlabelled(
            len(packed.train), "split: sequences of packed text have no labels; use split=iid"
        ),
        module,
        compute,
        micro_batch,
        evaluated,
    )


def _check(evaluated: int, compute: str) -> None:
    if evaluated < 1:
        raise ValueError(f"next tokens: evaluated must be at least 1, got {evaluated}; raise it")
    lean.compute_type(compute)


def _task(
    name: str,
    train: Any,
    test: Any,
    labels: Any,
    module: modules.Model,
    compute: str,
    micro_batch: int | None,
    evaluated: int,
) -> Task:
    """The task of a model with an embedding on `token_files.Sequences`, streamed or not."""
    dtype = lean.compute_type(compute)

    def init(key):
        example = take(train, slice(1)).tokens[:, :-1]
        params = jax.jit(functools.partial(modules.init, module))(key, example)
        if "embedding" not in params:
            raise ValueError(
                f"{name}: the model has no nn.Embed called 'embedding', whose table gives the "
                "scores; name it so"
            )
        return params

    def all_at_once(params, examples):
        params = lean.cast(params, dtype)
        states = module.apply({"params": params}, examples.tokens[:, :-1])
        scores = states @ params["embedding"]["embedding"].T
        return mean_over_targets(scores.astype(jnp.float32), examples.tokens)

    return Task(
        name,
        train,
        test,
        labels,
        init,
        losses=lean.in_micro_batches(all_at_once, micro_batch),
        eval_losses=lean.in_micro_batches(
            all_at_once, min(EVALUATED_AT_ONCE, micro_batch or EVALUATED_AT_ONCE)
        ),
        metrics=lambda params, means: {"test_perplexity": float(np.exp(means["test_loss"]))},
        evaluated=evaluated,
    )


def mean_over_targets(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    """[b] mean cross-entropies of scores [b, t, vocabulary] for tokens [b, t + 1].

    What follows an END begins another document, or is padding: it is no target.
    """
    counts = tokens[:, :-1] != text.END
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:])
    return jnp.sum(losses, 1, where=counts) / jnp.maximum(counts.sum(1), 1)
