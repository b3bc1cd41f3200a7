"""Image classifiers in flax.linen: images [b, height, width, channels] -> logits [b, classes].

uint8 images are scaled to 0..1 inside; float images are taken as they are. Normalisation is by
groups of channels (GroupNorm, arXiv 1803.08494), never over the batch: a batch's statistics would
differ between workers and depend on who takes part in an update.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

CHANNELS_PER_GROUP = 16


def logistic(classes: int) -> nn.Module:
    """Multinomial logistic regression on the pixels."""
    return mlp(classes, hidden=())


def mlp(classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Dense layers with ReLU; `hidden` are their widths."""
    layers = [scaled, _flatten]
    for width in hidden:
        layers += [nn.Dense(width), nn.relu]
    return nn.Sequential([*layers, nn.Dense(classes)])


def cnn(classes: int, channels: Sequence[int] = (32, 64)) -> nn.Module:
    """3x3 convolutions with GroupNorm and ReLU, the resolution halved after each."""
    layers = [scaled]
    for width in channels:
        _check_width("cnn", width)
        layers += [_conv(width), _norm(), nn.relu, _halve]
    return nn.Sequential([*layers, _mean, nn.Dense(classes)])


def resnet18(classes: int, width: int = 64, products: bool = False) -> nn.Module:
    """ResNet-18 (arXiv 1512.03385) for 32x32 images: a 3x3 stem without pooling, GroupNorm.

    width: channels of the first stage; each later stage has twice as many. products: convolutions
        are computed as `product_of_patches` does, which is faster in the simulator on a CPU.
    """
    _check_width("resnet18", width)
    blocks = [
        Block(width * 2**stage, strides=2 if stage > 0 and first else 1, products=products)
        for stage in range(4)
        for first in (True, False)
    ]
    stem = [scaled, _conv(width, products=products), _norm(), nn.relu]
    return nn.Sequential([*stem, *blocks, _mean, nn.Dense(classes)])


def resnet50(
    classes: int, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), remat: bool = False
) -> nn.Module:
    """ResNet-50 (arXiv 1512.03385, Table 1) for images of 224x224, with GroupNorm.

    The middle convolution of a block halves the resolution, as is usual today (ResNet v1.5).

    width: channels of the stem and inside the first stage; each later stage has twice as many.
    blocks: of the stages. remat: a block's activations are computed again in the backward pass
        instead of kept.
    """
    _check_width("resnet50", width)
    block = nn.remat(Bottleneck) if remat else Bottleneck
    stages = [
        block(width * 2**stage, strides=2 if stage > 0 and number == 0 else 1)
        for stage, count in enumerate(blocks)
        for number in range(count)
    ]
    stem = [scaled, _conv(width, 2, kernel=7), _norm(), nn.relu, _halve_by_three]
    return nn.Sequential([*stem, *stages, _mean, nn.Dense(classes)])


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (arXiv 1512.03385, Fig. 2)."""

    channels: int
    strides: int
    products: bool = False  # see `resnet18`

    @nn.compact
    def __call__(self, x):
        y = nn.relu(_norm()(_conv(self.channels, self.strides, products=self.products)(x)))
        y = _norm()(_conv(self.channels, products=self.products)(y))
        if x.shape != y.shape:
            x = _norm()(_conv(self.channels, self.strides, 1, products=self.products)(x))
        return nn.relu(x + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut (arXiv 1512.03385, Fig. 5 right)."""

    channels: int  # inside; four times as many come out
    strides: int

    @nn.compact
    def __call__(self, x):
        y = nn.relu(_norm()(_conv(self.channels, kernel=1)(x)))
        y = nn.relu(_norm()(_conv(self.channels, self.strides)(y)))
        y = _norm()(_conv(4 * self.channels, kernel=1)(y))
        if x.shape != y.shape:
            x = _norm()(_conv(4 * self.channels, self.strides, kernel=1)(x))
        return nn.relu(x + y)


MODELS = {"logistic": logistic, "mlp": mlp, "cnn": cnn, "resnet18": resnet18, "resnet50": resnet50}


def scaled(image: jax.Array) -> jax.Array:
    """Images as floats; uint8 comes to 0..1."""
    if jnp.issubdtype(image.dtype, jnp.integer):
        return image.astype(jnp.float32) / 255
    return image


def product_of_patches(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str, **_
) -> jax.Array:
    """A convolution as one product of matrices: what a kernel sees times the kernel.

    images: [b, height, width, in]; kernel: [k, k, in, out]. XLA on a CPU computes the gradient of
    an ordinary convolution slowly inside of a compiled loop, as the simulator's updates are. It
    does not mind a product of matrices there.
    """
    size = kernel.shape[:2]
    before_and_after = jax.lax.padtype_to_pads(images.shape[1:3], size, strides, padding)
    padded = jnp.pad(images, ((0, 0), *before_and_after, (0, 0)))
    ends = [side - k + 1 for side, k in zip(padded.shape[1:3], size, strict=True)]
    seen = [
        padded[:, row : row + ends[0] : strides[0], column : column + ends[1] : strides[1]]
        for row in range(size[0])
        for column in range(size[1])
    ]
    return jnp.concatenate(seen, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def _conv(channels: int, strides: int = 1, kernel: int = 3, products: bool = False) -> nn.Module:
    computed = product_of_patches if products else None  # None: the ordinary one
    return nn.Conv(
        channels, (kernel, kernel), strides, use_bias=False, conv_general_dilated=computed
    )


def _norm() -> nn.Module:
    return nn.GroupNorm(num_groups=None, group_size=CHANNELS_PER_GROUP)


def _flatten(x):
    return x.reshape(x.shape[0], -1)


def _halve(x):
    return nn.max_pool(x, (2, 2), strides=(2, 2), padding="SAME")


def _halve_by_three(x):
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")


def _mean(x):
    return x.mean((1, 2))


def _check_width(model: str, channels: int):
    if channels < 1 or channels % CHANNELS_PER_GROUP:
        raise ValueError(
            f"{model}: GroupNorm needs a multiple of {CHANNELS_PER_GROUP} channels, "
            f"got {channels}; try {CHANNELS_PER_GROUP * max(1, channels // CHANNELS_PER_GROUP)}"
        )
