"""Models with embedding tables, whose gradients are zero in the rows of words not in the batch.

Language models in flax.linen map words [b, w] to states [b, w, width]. A separate softmax over the
vocabulary, sampled or full, takes these states and an output table [vocabulary, width].
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from comms import hashing
from experiments.tasks import text
from experiments.tasks.data import at_least

BASE = 10_000.0  # of the angles of rotary positions, arXiv 2104.09864 Sec. 3.2.2
DEVIATION = 0.02  # of initial weights, as in GPT-2
MULTIPLE = 32  # divides the default widths of inner layers


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
    """Decoder blocks (arXiv 1706.03762) with learned positions, normalised before each sublayer."""

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
    """Return an LSTM; width: of embedding and output table; hidden: width of the LSTM's state."""
    return LSTM(vocabulary, width, hidden)


def transformer(
    vocabulary: int, window: int, width: int = 64, layers: int = 2, heads: int = 2
) -> nn.Module:
    """Return a decoder of this width; the inner layers of its blocks are four times as wide."""
    return Transformer(vocabulary, window, width, layers, heads)


class Block(nn.Module):
    """Causal attention within a document, then a gated inner layer, both without biases.

    RMSNorm (B. Zhang, R. Sennrich, arXiv 1910.07467) normalises the input of both. Positions rotate
    queries and keys (RoPE, J. Su et al., arXiv 2104.09864). The inner layer is a SwiGLU (N.
    Shazeer, arXiv 2002.05202).
    """

    heads: int
    hidden: int
    layers: int  # of the whole model; more layers make initial output weights of sublayers smaller

    @nn.compact
    def __call__(self, x, segment):
        """Map x [b, t, width] to the same shape; segment: [b, t] int32, the document of a word."""
        width = x.shape[-1]
        head = width // self.heads
        first = functools.partial(_dense, deviation=DEVIATION)
        last = functools.partial(_dense, deviation=DEVIATION / math.sqrt(2 * self.layers))

        y = nn.RMSNorm(name="before_attention")(x)
        query, key, value = (
            first((self.heads, head), name=name)(y) for name in ("query", "key", "value")
        )
        same = segment[:, None, :, None] == segment[:, None, None, :]  # [b, 1, t, t]
        y = jax.nn.dot_product_attention(
            rotated(query), rotated(key), value, mask=same, is_causal=True
        )
        x = x + last(width, axis=(-2, -1), name="attention")(y)

        y = nn.RMSNorm(name="before_inner")(x)
        y = nn.silu(first(self.hidden, name="gate")(y)) * first(self.hidden, name="inner")(y)
        return x + last(width, name="outer")(y)


class GPT(nn.Module):
    """Decoder of words [b, t] to states [b, t, width]; a word sees only its own document so far."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    hidden: int
    remat: bool

    @nn.compact
    def __call__(self, words):
        ends = jnp.int32(words == text.END)
        segment = jnp.cumsum(ends, axis=1) - ends
        initial = nn.initializers.normal(DEVIATION)
        x = nn.Embed(self.vocabulary, self.width, embedding_init=initial, name="embedding")(words)
        block = nn.remat(Block) if self.remat else Block
        for number in range(self.layers):
            x = block(self.heads, self.hidden, self.layers, name=f"block_{number}")(x, segment)
        return nn.RMSNorm(name="last")(x)


def gpt(
    vocabulary: int, layers: int = 4, width: int = 128, heads: int = 4, hidden: int | None = None,
    remat: bool = False,
) -> nn.Module:  # fmt: skip
    """Return a decoder-only transformer: rotary positions, RMSNorm, SwiGLU, no biases.

    width: of the states, a multiple of twice the heads. hidden: width of the inner layers; None:
        8/3 of `width` (arXiv 2002.05202 Sec. 3), rounded up to a multiple of 32.
    remat: compute a block's activations again in the backward pass instead of keeping them.
    """
    at_least("gpt", 1, layers=layers, width=width, heads=heads)
    if width % (2 * heads):
        raise ValueError(
            f"gpt: width must be a multiple of twice the heads, as positions turn pairs of a "
            f"head's numbers, got width={width} and heads={heads}; try width="
            f"{2 * heads * max(1, round(width / (2 * heads)))}"
        )
    if hidden is None:
        hidden = MULTIPLE * math.ceil(8 * width / 3 / MULTIPLE)
    return GPT(vocabulary, layers, width, heads, hidden, remat)


def rotated(x: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + d/2) of x [b, t, heads, d] by t * BASE**(-2 i / d) radians.

    The product of a query and a key then depends on their distance, not on their positions (arXiv
    2104.09864 Eq. 16).
    """
    half = x.shape[-1] // 2
    speed = BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)  # radians per position
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * speed[None]  # [t, d / 2]
    cosine, sine = (f(angle).astype(x.dtype)[None, :, None] for f in (jnp.cos, jnp.sin))
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def _dense(features, deviation: float, **given) -> nn.Module:
    initial = nn.initializers.normal(deviation)
    return nn.DenseGeneral(features, use_bias=False, kernel_init=initial, **given)


LANGUAGE_MODELS = {"lstm": lstm, "transformer": transformer, "gpt": gpt}


class NeuMF(nn.Module):
    """Neural matrix factorisation (arXiv 1708.05031 Sec. 3.4, Eq. 12): (user, item) -> logits.

    A last layer fuses a product of embeddings with a perceptron on other embeddings. A row of a
    table holds both embeddings of its user or item, `width` numbers each.
    """

    users: int
    items: int
    width: int
    hidden: int

    @nn.compact
    def __call__(self, user, item):
        """Return logits [...] for user and item, integers of the same shape [...]."""
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
    """Return the random key for a count of samples, uint32; all workers get an equal key."""
    return jax.random.fold_in(jax.random.key(seed), hashing.address(count))


class Candidates(NamedTuple):
    """Words drawn with replacement, sorted, with repetitions marked."""

    word: jax.Array  # [draws] int32, ascending
    again: jax.Array  # [draws] bool, True where an earlier place holds the same word


def candidates(key, vocabulary: int, draws: int) -> Candidates:
    """Draw from the log-uniform law, P(word) = log((word + 2) / (word + 1)) / log(vocabulary + 1).

    The law is close to Zipf's if words are numbered by falling frequency.
    """
    place = jnp.exp(jax.random.uniform(key, (draws,)) * jnp.log(vocabulary + 1.0))
    word = jnp.sort(jnp.clip(place.astype(jnp.int32) - 1, 0, vocabulary - 1))
    return Candidates(word, jnp.concatenate([jnp.zeros(1, bool), word[1:] == word[:-1]]))


def log_expected_count(word, vocabulary: int, draws: int) -> jax.Array:
    """Return the log of the probability that `word` is in the set that `candidates` draws."""
    word = word.astype(jnp.float32)
    probability = jnp.log1p(1 / (word + 1)) / jnp.log(vocabulary + 1.0)
    return jnp.log(-jnp.expm1(draws * jnp.log1p(-probability)))


def sampled_softmax(states, table, targets, drawn: Candidates) -> jax.Array:
    """Return cross-entropies [n] over target and candidates, instead of the whole vocabulary.

    A logit is lowered by the log of its word's expected count. A candidate that is the target
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
    """Return cross-entropies [n] over the whole vocabulary; shapes as in `sampled_softmax`."""
    true = jnp.sum(states * table[targets], -1)
    return jax.nn.logsumexp(states @ table.T, 1) - true


def noise_words(key, cumulated, draws: int) -> jax.Array:
    """Draw words [draws] int32; cumulated: cumulative probabilities [vocabulary] float32."""
    uniform = jax.random.uniform(key, (draws,))
    # Rounding may leave the last sum below 1.
    return jnp.minimum(jnp.searchsorted(cumulated, uniform), len(cumulated) - 1)


def negative_sampling(states, table, near, noise, negatives: int) -> jax.Array:
    """Return the loss [b] of telling each neighbour from `negatives` noise words.

    The given noise words estimate the expectation in arXiv 1310.4546 Eq. 4. A noise word equal to
    the neighbour does not count. The loss is the mean over neighbours.

    states: [b, d]; table: [vocabulary, d]; near: [b, c] neighbours; noise: [m] words.
    """
    right = jax.nn.softplus(-jnp.einsum("bd,bcd->bc", states, table[near]))
    wrong = jax.nn.softplus(states @ table[noise].T)  # [b, m]
    wrong = jnp.sum(wrong[:, None], -1, where=near[:, :, None] != noise[None, None])
    return (right + wrong * (negatives / len(noise))).mean(1)


def expected_negative_sampling(states, table, near, law, negatives: int) -> jax.Array:
    """Return the expectation of `negative_sampling` over noise from `law`, [vocabulary]."""
    scores = jnp.einsum("bd,bcd->bc", states, table[near])
    wrong = jax.nn.softplus(states @ table.T) @ law
    wrong = wrong[:, None] - law[near] * jax.nn.softplus(scores)
    return (jax.nn.softplus(-scores) + negatives * wrong).mean(1)
