"""Next-token prediction: what language models of all sizes are trained on."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.tasks import lean, packing, text
from experiments.tasks.base import Task
from experiments.tasks.sparse_tasks import CORPUS, EVALUATED_AT_ONCE, LANGUAGE_MODEL


class Sequences(NamedTuple):
    tokens: np.ndarray  # [n, length + 1] int32; a document ends with END, and so does padding


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
    if evaluated < 1:
        raise ValueError(f"next_token: evaluated must be at least 1, got {evaluated}; raise it")
    dtype = lean.compute_type(compute)
    module = LANGUAGE_MODEL.build(model, vocabulary=vocabulary, window=length)
    words = text.limit(CORPUS.build(corpus), vocabulary)
    train, test = (packing.pack(part, length) for part in (words.train, words.test))

    def init(key):
        params = jax.jit(module.init)(key, train.tokens[:1, :-1])["params"]
        if "embedding" not in params:
            raise ValueError(
                "next_token: the model has no nn.Embed called 'embedding', whose table gives the "
                "scores; name it so"
            )
        return params

    def all_at_once(params, examples):
        params = lean.cast(params, dtype)
        states = module.apply({"params": params}, examples.tokens[:, :-1])
        scores = states @ params["embedding"]["embedding"].T
        return mean_over_targets(scores.astype(jnp.float32), examples.tokens)

    return Task(
        "next_token",
        Sequences(train.tokens),
        Sequences(test.tokens),
        text.groups(words.train.names)[0][train.document],
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


TASKS = {"next_token": next_token}
