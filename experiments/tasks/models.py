"""Models of tasks: image classifiers, modules of linen or nnx, and losses in less memory.

A classifier in flax.linen maps images [b, height, width, channels] to logits [b, classes]. uint8
images are scaled to 0..1 inside; float images are taken as they are. Normalisation is by groups of
channels (GroupNorm, arXiv 1803.08494), never over the batch: a batch's statistics would differ
between workers and depend on the participants of an update.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import errors, nnx
from flax import linen as nn

from experiments.registry import Kind

CHANNELS_PER_GROUP = 16


def logistic(classes: int) -> nn.Module:
    """Return multinomial logistic regression on the pixels."""
    return mlp(classes, hidden=())


def mlp(classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Return dense layers with ReLU, of widths `hidden`, before a dense layer of logits."""
    layers = [scaled, _flatten]
    for width in hidden:
        layers += [nn.Dense(width), nn.relu]
    return nn.Sequential([*layers, nn.Dense(classes)])


def cnn(classes: int, channels: Sequence[int] = (32, 64)) -> nn.Module:
    """Return 3x3 convolutions with GroupNorm and ReLU, each followed by max-pooling by two."""
    layers = [scaled]
    for width in channels:
        _check_width("cnn", width)
        layers += [conv(width), norm(), nn.relu, _halve]
    return nn.Sequential([*layers, _mean, nn.Dense(classes)])


def resnet18(classes: int, width: int = 64, products: bool = False) -> nn.Module:
    """Return ResNet-18 (arXiv 1512.03385) for 32x32 images: 3x3 stem without pooling, GroupNorm.

    width: channels of the first stage; each later stage has twice as many. products: compute
        convolutions by `product_of_patches`, as in published runs. This is slower than ordinary
        convolutions, now that these are fast in a loop (`runtimes.equations.channels_last`).
    """
    _check_width("resnet18", width)
    blocks = [
        Block(width * 2**stage, strides=2 if stage > 0 and first else 1, products=products)
        for stage in range(4)
        for first in (True, False)
    ]
    stem = [scaled, conv(width, products=products), norm(), nn.relu]
    return nn.Sequential([*stem, *blocks, _mean, nn.Dense(classes)])


def resnet50(
    classes: int, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), remat: bool = False
) -> nn.Module:
    """Return ResNet-50 (arXiv 1512.03385, Table 1) for images of 224x224, with GroupNorm.

    The middle convolution of a stage's first block halves the resolution, as in ResNet v1.5.

    width: channels of the stem and inside the first stage; each later stage has twice as many.
    blocks: number of blocks in each stage. remat: compute a block's activations again in the
        backward pass instead of keeping them.
    """
    _check_width("resnet50", width)
    block = nn.remat(Bottleneck) if remat else Bottleneck
    stages = [
        block(width * 2**stage, strides=2 if stage > 0 and number == 0 else 1)
        for stage, count in enumerate(blocks)
        for number in range(count)
    ]
    stem = [scaled, conv(width, 2, kernel=7), norm(), nn.relu, _halve_by_three]
    return nn.Sequential([*stem, *stages, _mean, nn.Dense(classes)])


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (arXiv 1512.03385, Fig. 2)."""

    channels: int
    strides: int
    products: bool = False  # see `resnet18`

    @nn.compact
    def __call__(self, x):
        y = nn.relu(norm()(conv(self.channels, self.strides, products=self.products)(x)))
        y = norm()(conv(self.channels, products=self.products)(y))
        if x.shape != y.shape:
            x = norm()(conv(self.channels, self.strides, 1, products=self.products)(x))
        return nn.relu(x + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut (arXiv 1512.03385, Fig. 5 right)."""

    channels: int  # inside; four times as many come out
    strides: int

    @nn.compact
    def __call__(self, x):
        y = nn.relu(norm()(conv(self.channels, kernel=1)(x)))
        y = nn.relu(norm()(conv(self.channels, self.strides)(y)))
        y = norm()(conv(4 * self.channels, kernel=1)(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.channels, self.strides, kernel=1)(x))
        return nn.relu(x + y)


MODELS = {"logistic": logistic, "mlp": mlp, "cnn": cnn, "resnet18": resnet18, "resnet50": resnet50}


def scaled(image: jax.Array) -> jax.Array:
    """Return images as floats; integers are divided by 255."""
    if jnp.issubdtype(image.dtype, jnp.integer):
        return image.astype(jnp.float32) / 255
    return image


def product_of_patches(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str, **_
) -> jax.Array:
    """Return a convolution as one product of matrices: image patches times the kernel.

    images: [b, height, width, in]; kernel: [k, k, in, out].
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


def conv(channels: int, strides: int = 1, kernel: int = 3, products: bool = False) -> nn.Module:
    computed = product_of_patches if products else None  # None: the ordinary one
    return nn.Conv(
        channels, (kernel, kernel), strides, use_bias=False, conv_general_dilated=computed
    )


def norm() -> nn.Module:
    return nn.GroupNorm(num_groups=None, group_size=CHANNELS_PER_GROUP)


def _flatten(x):
    return x.reshape(x.shape[0], -1)


_halve, _halve_by_three = (
    functools.partial(nn.max_pool, window_shape=(side, side), strides=(2, 2), padding="SAME")
    for side in (2, 3)
)


def _mean(x):
    return x.mean((1, 2))


def _check_width(model: str, channels: int):
    if channels < 1 or channels % CHANNELS_PER_GROUP:
        raise ValueError(
            f"{model}: GroupNorm needs a multiple of {CHANNELS_PER_GROUP} channels, "
            f"got {channels}; try {CHANNELS_PER_GROUP * max(1, channels // CHANNELS_PER_GROUP)}"
        )


# --- modules of linen or nnx ---

# Workers exchange parameters, and a model is called with its examples alone, in training as in
# evaluation. A model that keeps other state, or draws at random when called, is `Refused`.


GIVES = (nn.Module, nnx.Module)  # what a factory of models may return
RANDOM = (
    "the model has random layers, as Dropout, and gets no keys for them; leave them out, see "
    "docs/extend.md"
)


class Refused(ValueError):
    """Error of a model with state beside its parameters, or with random layers."""


class Split(NamedTuple):
    """An nnx module with linen's interface, in which variables are arguments of `apply`."""

    make: Callable[[jax.Array], nnx.Module]  # from a key
    graph: nnx.GraphDef
    constants: nnx.State  # arrays that are not variables
    others: tuple[str, ...]  # types of variables other than parameters

    def init(self, key: jax.Array, inputs: jax.Array) -> dict[str, Any]:
        """Return the variables by collection; only the collection of parameters has values."""
        params = nnx.to_pure_dict(nnx.state(self.make(key), nnx.Param))
        return {"params": params, **dict.fromkeys(self.others)}

    def apply(self, variables: Mapping[str, Any], inputs: jax.Array) -> jax.Array:
        return nnx.merge(self.graph, variables["params"], self.constants)(inputs)


Model = nn.Module | Split


def build(kind: Kind, part: str | Mapping, **available: Any) -> Model:
    """Return the module that `part` describes.

    If a factory of nnx modules has a parameter `rngs`, `init` calls it with its key. Without
    `rngs`, a module starts from the weights that its factory gave it.
    """

    drawn = kind.wants(part, "rngs")

    def make(key: jax.Array | int) -> Any:
        return kind.build(part, **available, **({"rngs": nnx.Rngs(key)} if drawn else {}))

    built = make(0)
    if not isinstance(built, nnx.Module):
        return built
    graph, _, variables, constants = nnx.split(built, nnx.Param, nnx.Variable, ...)
    others = {type(variable).__name__ for _, variable in nnx.to_flat_state(variables)}
    return Split(make if drawn else lambda key: built, graph, constants, tuple(sorted(others)))


def init(module: Model, key: jax.Array, inputs: jax.Array) -> Any:
    """Return the parameters of a module; Refused if it has other state or random layers."""
    with nn.intercept_methods(_refuse_dropout):
        variables = module.init(key, inputs)
    others = variables.keys() - {"params"}
    if any(name.startswith("Rng") for name in others):
        raise Refused(RANDOM)
    if others:
        raise Refused(
            f"the model keeps {', '.join(sorted(others))} beside its parameters, as BatchNorm "
            "does, and workers exchange parameters alone; use GroupNorm or LayerNorm, see "
            "docs/extend.md"
        )
    try:
        jax.eval_shape(module.apply, variables, inputs)
    except errors.InvalidRngError as error:
        raise Refused(RANDOM) from error
    return variables.get("params", {})


def _refuse_dropout(call: Callable, args: tuple, given: dict, context: Any) -> Any:
    """Raise Refused for a Dropout layer of linen, even if this call leaves the layer inactive."""
    if isinstance(context.module, nn.Dropout) and context.module.rate:
        raise Refused(RANDOM)
    return call(*args, **given)


# --- losses in short floats, or of a few examples at a time ---

# Parameters, gradients and optimizers stay in float32. The gradients of the parts of a mini-batch
# add up to the gradient of the whole, up to rounding.


COMPUTE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def compute_type(name: str) -> jnp.dtype:
    """Return the floating-point type that a model computes in; ValueError for an unknown name."""
    if name not in COMPUTE:
        raise ValueError(f"compute: unknown type {name!r}; known types: {', '.join(COMPUTE)}")
    return jnp.dtype(COMPUTE[name])


def cast(tree: Any, dtype: jnp.dtype) -> Any:
    """Return a tree with floats in another type; gradients come back in the original type.

    From float32 parameters, the master copy, this makes the working copy of mixed precision (P.
    Micikevicius et al., arXiv 1710.03740 Sec. 3.1). bfloat16 has the range of float32 and needs no
    scaled loss.
    """

    def one(array):
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(one, tree)


def in_micro_batches(function: Callable, size: int | None) -> Callable[[Any, Any], jax.Array]:
    """Return `function` (params, examples) -> [b], computed for `size` examples at a time.

    The gradient is a sum over micro-batches. Each backward pass recomputes the activations of its
    micro-batch, so that memory holds one micro-batch's. If only the gradient is used, the first
    forward pass is dead code, and nothing is computed twice. size: None: all examples at once.
    Raises ValueError for a size below 1.
    """
    if size is None:
        return function
    if size < 1:
        raise ValueError(f"micro_batch must be at least 1 example, got {size}; raise it")

    def piecewise(params, examples):
        count = jax.tree.leaves(examples)[0].shape[0]
        if count <= size:
            return function(params, examples)
        whole = count // size
        first = jax.tree.map(
            lambda a: a[: whole * size].reshape((whole, size, *a.shape[1:])), examples
        )
        # Inside a loop the recomputation cannot be merged with the first pass: it needs no barrier.
        once = jax.checkpoint(function, prevent_cse=False)
        values = jax.lax.map(lambda part: once(params, part), first).reshape(-1)
        if whole * size == count:
            return values
        rest = jax.tree.map(lambda a: a[whole * size :], examples)
        return jnp.concatenate([values, jax.checkpoint(function)(params, rest)])

    return piecewise


# --- models of images and points ---


class Functions(NamedTuple):
    """Functions of a model with labels; examples have `image` and `label`."""

    init: Callable  # key, examples -> parameters, compiled
    losses: Callable  # parameters, examples -> [b]
    hits: Callable  # parameters, examples -> [b], 1 where the largest output is the label's


def half_square(outputs: jax.Array, label: jax.Array) -> jax.Array:
    """Return half the squared errors [b] of outputs [b, 1]."""
    return 0.5 * (outputs[:, 0] - label) ** 2


def functions_of(
    model: Model, l2: float, plain: Callable | None = None, compute: str = "float32",
    micro_batch: int | None = None, outputs: int | None = None,
    fit: Callable = optax.softmax_cross_entropy_with_integer_labels,
) -> Functions:  # fmt: skip
    """Return the functions of a model, traced once and shared by arms with equal models.

    plain: change of examples for evaluation, see `dense_tasks.Augmentation`; outputs: their number,
    None: any; fit: (outputs [b, outputs], label) -> losses [b]; all others: see
    `dense_tasks.classification`.
    """
    settings = (model, l2, plain, compute_type(compute), micro_batch, outputs, fit)
    try:
        return _shared(*settings)
    except TypeError:  # a model that has no hash
        return _functions(*settings)


def _functions(
    model: Model, l2: float, plain: Callable | None, dtype: Any, micro_batch: int | None,
    outputs: int | None, fit: Callable,
) -> Functions:  # fmt: skip
    def seen(examples):
        # Augmented examples have the final size already, and `plain` leaves them unchanged.
        return scaled((examples if plain is None else plain(examples)).image)

    @jax.jit
    def first(key, examples):
        return init(model, key, seen(examples))

    def outputs_of(params, examples):
        images = cast(seen(examples), dtype)
        found = model.apply({"params": cast(params, dtype)}, images)
        due = len(images), found.shape[-1] if outputs is None else outputs
        if found.shape != due:
            raise ValueError(
                f"the model gets {images.shape} and returns {found.shape}, but {due} is due; let "
                "it begin with x.reshape(len(x), -1), and end with a layer of `classes`"
            )
        return found.astype(jnp.float32)

    def fitted(params, examples):
        return fit(outputs_of(params, examples), examples.label)

    def hits(params, examples):
        return jnp.float32(outputs_of(params, examples).argmax(-1) == examples.label)

    in_parts = in_micro_batches(fitted, micro_batch)

    def losses(params, examples):
        found = in_parts(params, examples)
        return found + 0.5 * l2 * optax.tree.norm(params, squared=True) if l2 else found

    return Functions(first, losses, in_micro_batches(hits, micro_batch))


_shared = functools.lru_cache(maxsize=16)(_functions)
