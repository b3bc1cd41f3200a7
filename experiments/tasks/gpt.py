"""A decoder-only transformer as language models are built today, in flax.linen.

Blocks are normalised before each sublayer by RMSNorm (B. Zhang, R. Sennrich, arXiv 1910.07467),
queries and keys are turned by their positions (RoPE, J. Su et al., arXiv 2104.09864), and the inner
layer is gated (SwiGLU, N. Shazeer, arXiv 2002.05202). There are no biases.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from experiments.tasks import text

BASE = 10_000.0  # of the angles, arXiv 2104.09864 Sec. 3.2.2
DEVIATION = 0.02  # of initial weights, as in GPT-2
MULTIPLE = 32  # widths of inner layers


class Block(nn.Module):
    """Attention to what stands before in the same document, then a gated inner layer."""

    heads: int
    hidden: int
    layers: int  # of the whole model, whose depth the last weights of a sublayer make up for

    @nn.compact
    def __call__(self, x, segment):
        """x: [b, t, width]; segment: [b, t] int32, the document that a word belongs to."""
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
    """Words [b, t] -> states [b, t, width]; a word sees its own document, which ends with END."""

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
    vocabulary: int,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    hidden: int | None = None,
    remat: bool = False,
) -> nn.Module:
    """A decoder-only transformer: rotary positions, RMSNorm, SwiGLU, no biases.

    width: of the states, a multiple of twice the heads. hidden: of the inner layers; None: two
        thirds of four times the width (arXiv 2002.05202 Sec. 3), up to a multiple of 32.
    remat: a block's activations are computed again in the backward pass instead of kept.
    """
    for name, value in (("layers", layers), ("width", width), ("heads", heads)):
        if value < 1:
            raise ValueError(f"gpt: {name} must be at least 1, got {value}; raise {name}")
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
    """[b, t, heads, d] turned by position: pairs (i, i + d/2) by t * BASE**(-2 i / d) radians.

    The product of a query and a key then depends on how far apart they stand, not on where
    (arXiv 2104.09864 Eq. 16).
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
