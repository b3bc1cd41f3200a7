"""Layer traces of flax models from their shapes alone, and some models of well-known sizes.

Nothing is run: the time of a layer is the FLOPs of its matrix products and convolutions over a
stated speed of the device. Layers that memory limits, such as normalisation and activations, are
free here; so a speed should be one that was reached in training, not the device's peak.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.extend.core import Literal

from comms.iteration import LayerTrace, googlenet, read
from experiments.program_costs import FLOPS_PER_ELEMENT
from experiments.tasks import models

# --- traces ---


def from_model(
    model: nn.Module, shape: Sequence[int], flops_per_second: float, dtype=jnp.float32
) -> LayerTrace:
    """Return the trace of a flax model for inputs of `shape`, its mini-batch included, and `dtype`.

    A layer is a module with parameters of its own. Layers are in the order of their first use. The
    FLOPs of operations without parameters, or of a second use of shared ones, belong to the newest
    layer at that point, whose gradient has to wait for them. Backward takes twice the FLOPs of
    forward: the gradients of a product's two factors. Raises ValueError for a speed that is not
    positive, and for loops of unknown length.
    """
    if not flops_per_second > 0:
        raise ValueError(
            f"layer trace: needs flops_per_second > 0, got {flops_per_second}; set the device's"
        )
    example = jax.ShapeDtypeStruct(tuple(shape), dtype)
    others = dict(jax.eval_shape(model.init, jax.random.key(0), example))
    params = others.pop("params", {})
    leaves = jax.tree_util.tree_leaves_with_path(params)
    modules = [jax.tree_util.keystr(path[:-1]) for path, _ in leaves]

    def apply(params, others, x):
        return model.apply({"params": params, **others}, x)

    program = jax.make_jaxpr(apply)(params, others, example).jaxpr
    flops: dict[str, float] = {}
    _count(program, [*modules, *[None] * (len(program.invars) - len(modules))], flops, 1)
    unused = sorted(set(modules) - set(flops))
    if unused:
        raise ValueError(f"layer trace: the model does not use its {unused[0]}; leave it out")
    sizes = dict.fromkeys(flops, 0)
    for module, (_, leaf) in zip(modules, leaves, strict=True):
        sizes[module] += leaf.size * leaf.dtype.itemsize
    forward = np.array(list(flops.values())) / flops_per_second
    return LayerTrace(
        type(model).__name__, np.array(list(sizes.values()), float), forward, 2 * forward
    )


_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where primitives keep what they call
_LOOPS = ("while", "cond")  # run an unknown part of their body


def _count(jaxpr, origins: Sequence[str | None], flops: dict[str, float], times: int):
    """Add the FLOPs of a program, run `times` times, to `flops`, by layer in order of first use.

    origins: per input the layer whose parameter it is, or None. Returns the same of the outputs.
    """
    known = dict(zip(jaxpr.invars, origins, strict=True))

    def origin(atom):
        return None if isinstance(atom, Literal) else known.get(atom)

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        given = [origin(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in _CALLS if key in eqn.params), None)
        inner = getattr(inner, "jaxpr", inner)  # closed or not
        if name in _LOOPS:
            raise ValueError(f"layer trace: cannot count the FLOPs of {name}; use scan, or unroll")
        if inner is not None and len(inner.invars) == len(given):
            length = eqn.params["length"] if name == "scan" else 1
            results = _count(inner, given, flops, times * length)
        else:
            layers = dict.fromkeys(layer for layer in given if layer is not None)
            # A parameter that is only reshaped or cast is still that parameter, not yet used.
            variables = (atom for atom in eqn.invars if not isinstance(atom, Literal))
            alone = len(layers) == 1 and None not in map(origin, variables)
            results = [layers.popitem()[0] if alone else None] * len(eqn.outvars)
            for layer in layers:
                flops.setdefault(layer, 0.0)
            if name in FLOPS_PER_ELEMENT and flops:
                size = times * eqn.outvars[0].aval.size
                flops[next(reversed(flops))] += FLOPS_PER_ELEMENT[name](eqn) * size
        known |= dict(zip(eqn.outvars, results, strict=True))
    return [origin(atom) for atom in jaxpr.outvars]


# --- models ---


class DenseNet(nn.Module):
    """DenseNet (arXiv 1608.06993) with GroupNorm: [b, 224, 224, 3] -> [b, classes].

    The default is DenseNet-201 of 20.0 M parameters. blocks=(6, 12, 36, 24) and growth=48 make
    DenseNet-161 of 28.7 M parameters.
    """

    blocks: Sequence[int] = (6, 12, 48, 32)  # of each stage
    growth: int = 32  # channels that a block adds
    classes: int = 1000

    @nn.compact
    def __call__(self, x):
        x = nn.relu(models.norm()(models.conv(2 * self.growth, 2, kernel=7)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate(self.blocks):
            if stage:
                x = models.conv(x.shape[-1] // 2, kernel=1)(nn.relu(models.norm()(x)))
                x = nn.avg_pool(x, (2, 2), (2, 2))
            for _ in range(blocks):
                y = models.conv(4 * self.growth, kernel=1)(nn.relu(models.norm()(x)))
                y = models.conv(self.growth)(nn.relu(models.norm()(y)))
                x = jnp.concatenate([x, y], -1)
        return nn.Dense(self.classes)(nn.relu(models.norm()(x)).mean((1, 2)))


def vgg16() -> nn.Module:
    """Return VGG-16 (arXiv 1409.1556, D), 138 M parameters: [b, 224, 224, 3] -> [b, 1000]."""
    halve = functools.partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))
    layers = []
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv(width, (3, 3)), nn.relu]
        layers.append(halve)
    layers.append(lambda x: x.reshape(len(x), -1))
    for width in (4096, 4096):
        layers += [nn.Dense(width), nn.relu]
    return nn.Sequential([*layers, nn.Dense(1000)])


class Transformer(nn.Module):
    """BERT-Base's encoder and tied output (arXiv 1810.04805): tokens [b, s] -> [b, s, vocabulary].

    It has 108.9 M parameters. Segment embeddings, pooler and the output's transform are left out.
    """

    vocabulary: int = 30_522
    positions: int = 512
    layers: int = 12
    width: int = 768

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(self.vocabulary, self.width)
        places = nn.Embed(self.positions, self.width)(jnp.arange(tokens.shape[1]))
        x = nn.LayerNorm()(embed(tokens) + places[None])
        for _ in range(self.layers):
            x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(self.width // 64)(x))
            y = nn.gelu(nn.Dense(4 * self.width)(x))
            x = nn.LayerNorm()(x + nn.Dense(self.width)(y))
        return embed.attend(x)


IMAGES = (224, 224, 3)
TOKENS = 64  # of a sentence
# The model, the shape of an example, and its dtype.
MODELS = {
    "resnet50": (models.resnet50(1000), IMAGES, jnp.float32),
    "resnet152": (models.resnet50(1000, blocks=(3, 8, 36, 3)), IMAGES, jnp.float32),
    "densenet161": (DenseNet((6, 12, 36, 24), 48), IMAGES, jnp.float32),
    "densenet201": (DenseNet(), IMAGES, jnp.float32),
    "vgg16": (vgg16(), IMAGES, jnp.float32),
    "transformer": (Transformer(), (TOKENS,), jnp.int32),
}
NAMES = ("googlenet", *MODELS)


def is_file(name: str) -> bool:
    """Return whether the name of a trace is the path of a file."""
    return isinstance(name, str) and name.lower().endswith(".csv")


def build(name: str, batch: int, flops_per_second: float) -> LayerTrace:
    """Return the measured trace of `googlenet`, or the trace of a CSV file or of one of `MODELS`.

    name: googlenet, a model, or a path that ends with .csv, see `comms.iteration.read`. Raises
    ValueError for an unknown name.
    """
    if name == "googlenet":
        return googlenet()
    if is_file(name):
        return read(name)._replace(name=name)
    if name not in MODELS:
        raise ValueError(
            f"layer trace {name!r} is unknown; choose one of {', '.join(NAMES)}, or a CSV file"
        )
    model, shape, dtype = MODELS[name]
    return from_model(model, (batch, *shape), flops_per_second, dtype)._replace(name=name)
