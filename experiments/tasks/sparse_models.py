"""Models with embedding tables, whose gradients are zero in the rows of words not in the batch.

Language models in flax.linen map words [b, w] to states [b, w, width]; the softmax over the
vocabulary, sampled or full, is apart from them and takes an output table [vocabulary, width].
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from comms import hashing
from experiments.tasks.gpt import gpt


class LSTM(nn.Module):
    """One layer of long short-term memory between an embedding and a projection."""

    vocabulary: int
    width: int
    hidden: int

    @nn.compact
    def __call__(self, words):
        x = nn.Embed(self.vocabulary, self.width, name="embedding")(words)
        x = nn.RNN(nn.OptimizedLSTMCell(self.hidden), name="lstm")(x)
        return nn.Dense(self.width, name="projection")(x)


class Transformer(nn.Module):
    """Decoder blocks (arXiv 1706.03762), normalised before each sublayer, learned positions."""

    vocabulary: int
    window: int
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, words):
        x = nn.Embed(self.vocabulary, self.width, name="embedding")(words)
        places = jnp.arange(words.shape[1])[None]
        x = x + nn.Embed(self.window, self.width, name="positions")(places)
        mask = nn.make_causal_mask(words)
        for _ in range(self.layers):
            x = x + nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x), mask=mask)
            y = nn.Dense(4 * self.width)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width)(nn.gelu(y))
        return nn.LayerNorm()(x)


def lstm(vocabulary: int, width: int = 64, hidden: int = 128) -> nn.Module:
    """width: of the embedding and of the output table; hidden: of the LSTM's state."""
    return LSTM(vocabulary, width, hidden)


def transformer(
    vocabulary: int, window: int, width: int = 64, layers: int = 2, heads: int = 2
) -> nn.Module:
    """width: everywhere but in the blocks' inner layers, which are four times as wide."""
    return Transformer(vocabulary, window, width, layers, heads)


LANGUAGE_MODELS = {"lstm": lstm, "transformer": transformer, "gpt": gpt}


class NeuMF(nn.Module):
    """Neural matrix factorisation (arXiv 1708.05031 Sec. 3.4, Eq. 12): (user, item) -> logits.

    A product of embeddings and a perceptron on other embeddings, fused by a last layer; a row of
    a table holds both embeddings of its user or item, `width` numbers each.
    """

    users: int
    items: int
    width: int
    hidden: int

    @nn.compact
    def __call__(self, user, item):
        """user, item: [...] of one shape."""
        rows = (
            nn.Embed(self.users, 2 * self.width, name="user")(user),
            nn.Embed(self.items, 2 * self.width, name="item")(item),
        )
        (user_factor, user_input), (item_factor, item_input) = (jnp.split(r, 2, -1) for r in rows)
        x = jnp.concatenate([user_input, item_input], -1)
        x = nn.relu(nn.Dense(self.hidden)(x))
        x = nn.relu(nn.Dense(self.width)(x))
        fused = jnp.concatenate([user_factor * item_factor, x], -1)
        return nn.Dense(1, name="fusion")(fused)[..., 0]


# --- draws that all workers share ---


def shared_key(seed: int, count) -> jax.Array:
    """The key after this many samples, uint32: equal on all workers, new in every local step."""
    return jax.random.fold_in(jax.random.key(seed), hashing.address(count))


class Candidates(NamedTuple):
    """Words drawn with replacement, as the set that they form."""

    word: jax.Array  # [draws] int32, ascending
    again: jax.Array  # [draws] bool, True where an earlier place holds the same word


def candidates(key, vocabulary: int, draws: int) -> Candidates:
    """Draw from the log-uniform law, P(word) = log((word + 2) / (word + 1)) / log(vocabulary + 1).

    It is close to Zipf's law where words are numbered by falling frequency.
    """
    place = jnp.exp(jax.random.uniform(key, (draws,)) * jnp.log(vocabulary + 1.0))
    word = jnp.sort(jnp.clip(place.astype(jnp.int32) - 1, 0, vocabulary - 1))
    return Candidates(word, jnp.concatenate([jnp.zeros(1, bool), word[1:] == word[:-1]]))


def log_expected_count(word, vocabulary: int, draws: int) -> jax.Array:
    """log of the probability that `word` is in the set that `candidates` draws."""
    word = word.astype(jnp.float32)
    probability = jnp.log1p(1 / (word + 1)) / jnp.log(vocabulary + 1.0)
    return jnp.log(-jnp.expm1(draws * jnp.log1p(-probability)))


def sampled_softmax(states, table, targets, drawn: Candidates) -> jax.Array:
    """Cross-entropy [n] among the target and the candidates, instead of the whole vocabulary.

    A logit is lowered by the log of its word's expected count, and a candidate that is the target
    itself is left out (arXiv 1412.2007 Sec. 3). With every word drawn this is the full softmax.

    states: [n, d]; table: [vocabulary, d]; targets: [n].
    """
    vocabulary, draws = len(table), len(drawn.word)
    true = jnp.sum(states * table[targets], -1) - log_expected_count(targets, vocabulary, draws)
    others = states @ table[drawn.word].T
    others -= log_expected_count(drawn.word, vocabulary, draws)[None]
    left_out = drawn.again[None] | (drawn.word[None] == targets[:, None])
    logits = jnp.concatenate([true[:, None], jnp.where(left_out, -jnp.inf, others)], 1)
    return jax.nn.logsumexp(logits, 1) - true


def full_softmax(states, table, targets) -> jax.Array:
    """Cross-entropy [n] among the whole vocabulary; shapes as in `sampled_softmax`."""
    true = jnp.sum(states * table[targets], -1)
    return jax.nn.logsumexp(states @ table.T, 1) - true


def noise_words(key, cumulated, draws: int) -> jax.Array:
    """[draws] int32 words from the law whose cumulated probabilities are [vocabulary] float32."""
    uniform = jax.random.uniform(key, (draws,))
    # Rounding may leave the last sum below 1.
    return jnp.minimum(jnp.searchsorted(cumulated, uniform), len(cumulated) - 1)


def negative_sampling(states, table, near, noise, negatives: int) -> jax.Array:
    """Loss [b] of telling each neighbour from `negatives` noise words, mean over neighbours.

    arXiv 1310.4546 Eq. 4, its expectation estimated from the noise words that are given; one that
    is the neighbour itself does not count.

    states: [b, d]; table: [vocabulary, d]; near: [b, c] neighbours; noise: [m] words.
    """
    right = jax.nn.softplus(-jnp.einsum("bd,bcd->bc", states, table[near]))
    wrong = jax.nn.softplus(states @ table[noise].T)  # [b, m]
    wrong = jnp.sum(wrong[:, None], -1, where=near[:, :, None] != noise[None, None])
    return (right + wrong * (negatives / len(noise))).mean(1)


def expected_negative_sampling(states, table, near, law, negatives: int) -> jax.Array:
    """The expectation of `negative_sampling` over noise from `law`, [vocabulary] probabilities."""
    scores = jnp.einsum("bd,bcd->bc", states, table[near])
    wrong = jax.nn.softplus(states @ table.T) @ law
    wrong = wrong[:, None] - law[near] * jax.nn.softplus(scores)
    return (jax.nn.softplus(-scores) + negatives * wrong).mean(1)
