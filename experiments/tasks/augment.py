"""Augmentation: what training does to an example at random, as its address says.

The draw of an example is a function of the seed, the worker, the counter of the mini-batch and the
place in it. So a run sees the same images whether they are streamed or in memory, and whether it
was resumed. Evaluation does not augment.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from comms.hashing import lowbias32
from experiments.registry import Kind


class Augmentation(NamedTuple):
    """train: (examples [b], draws [b] uint32) -> examples; plain: what evaluation sees instead."""

    train: Callable[[Any, jax.Array], Any]
    plain: Callable[[Any], Any]


def crop_and_flip(padding: int = 4, size: int | None = None, flip: bool = True) -> Augmentation:
    """A random square of the image, padded by zeros, mirrored every second time (arXiv 1512.03385).

    padding: pixels on every side, 4 for CIFAR. size: of the square, None: that of the images;
    evaluation takes the one in the middle. flip: whether to mirror.
    """
    if padding < 0 or (size is not None and size < 1):
        raise ValueError(
            f"crop_and_flip: padding must be at least 0 and size at least 1, got {padding} and "
            f"{size}; for CIFAR try padding=4, for ImageNet padding=0 and size=224"
        )

    def sides(image) -> tuple[int, int]:
        height, width = image.shape[-3:-1]
        if size is not None and size > min(height, width):
            raise ValueError(
                f"crop_and_flip: size={size} is more than images of {height}x{width} pixels have; "
                "lower size"
            )
        return (height, width) if size is None else (size, size)

    def one(image, draw):
        height, width = sides(image)
        wide = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        top = _below(draw, 1, wide.shape[0] - height + 1)
        left = _below(draw, 2, wide.shape[1] - width + 1)
        cut = jax.lax.dynamic_slice(wide, (top, left, 0), (height, width, image.shape[2]))
        return jnp.where(_below(draw, 3, 2) == 1, cut[:, ::-1], cut) if flip else cut

    def train(examples, draws):
        return examples._replace(image=jax.vmap(one)(examples.image, draws))

    def plain(examples):
        height, width = sides(examples.image)
        top, left = (examples.image.shape[1] - height) // 2, (examples.image.shape[2] - width) // 2
        middle = examples.image[:, top : top + height, left : left + width]
        return examples._replace(image=middle)

    return Augmentation(train, plain)


AUGMENTATIONS = {"crop_and_flip": crop_and_flip}
AUGMENT = Kind("augment", AUGMENTATIONS, Augmentation)


def _below(draw, number: int, bound: int) -> jax.Array:
    """A whole number in [0, bound), bound at most 2^16, from a draw; another for every `number`."""
    return ((lowbias32(draw ^ jnp.uint32(number)) >> 16) * bound >> 16).astype(jnp.int32)
