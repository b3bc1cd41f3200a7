"""Measured inputs of MG-WFBP's planner: ready times of gradients and seconds of all-reduces.

    profile = profiling.measure(task, batch_size=64, devices=jax.devices())
    profiling.save("profile.json", profile)

A plan can then be made anywhere: `--config.profile=profile.json`. Everything is a wall-clock time
of the devices at hand; a backward pass is timed on one of them, alone.
"""

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from comms.collectives import AXIS
from comms.cost import AlphaBeta, Table, fit, payload_bytes, table
from comms.trees import named_leaves, path_text
from experiments import distributed, files, formats, registry, stopwatch, tasks
from experiments.tasks import Task, sampling
from runtimes.base import NO_OVERLAP
from stragglers.rule import most_mini_batches

THREADS = "threads"
SIZES = tuple(2**power for power in range(12, 27))  # bytes: 4 KiB to 64 MiB


class Profile(NamedTuple):
    """Inputs of a plan; `layers` alone are enough for plans that look at no times.

    error: last ready time over the time of the whole backward pass, timed separately, minus 1.
    contention: seconds of computing beside all-reduces, as in `ready`, over seconds without them.
    """

    layers: list[list[str]]  # paths of each layer's parameters, in backward order
    ready: np.ndarray | None = None  # [layers] s from the start of the backward pass
    sizes: np.ndarray | None = None  # [n] bytes
    seconds: np.ndarray | None = None  # [n] of an all-reduce
    error: float | None = None
    forward: float | None = None  # s of the forward pass; None: unknown
    contention: float | None = None

    @property
    def cost(self) -> Table:
        """The measured cost of an all-reduce."""
        return table(self.sizes, self.seconds)

    @property
    def fit(self) -> tuple[AlphaBeta, float]:
        """The affine model of that cost, and its R^2."""
        return fit(self.sizes, self.seconds)


def save(path: str | os.PathLike, profile: Profile) -> None:
    """Write a profile as JSON, for `load`."""
    files.write(path, json.dumps(profile._asdict(), default=np.ndarray.tolist) + "\n")


def load(path: str | os.PathLike) -> Profile:
    """Return the profile in a file of `save`; ValueError if it holds none."""
    if str(path).lower().endswith(".csv"):
        raise ValueError(
            f"profile {str(path)!r}: layers of a CSV file are for configs/mg_wfbp.py:scale,trace="
            "FILE; a profile is JSON, with the names of parameters, see docs/extend.md"
        )
    stored = formats.read(path, formats.PROFILE)
    if stored["ready"] is None:
        return Profile(stored["layers"])
    formats.checked(stored, path, formats.MEASURED_PROFILE)
    times = (np.array(stored[name], float) for name in _TIMES)
    known = (stored.get(name) for name in ("error", "forward", "contention"))
    profile = Profile(stored["layers"], *times, *known)
    if len(profile.layers) != len(profile.ready):
        raise ValueError(
            f"profile {str(path)!r} has {len(profile.ready)} ready times for "
            f"{len(profile.layers)} layers; measure it anew"
        )
    try:
        with np.errstate(over="raise", invalid="raise"):  # of numbers that no times can be
            profile.fit  # noqa: B018
    except (ArithmeticError, ValueError, TypeError, IndexError) as error:
        raise formats.damaged(path, error, formats.PROFILE) from error
    return profile


_TIMES = ("ready", "sizes", "seconds")


def measure(
    task: Task,
    batch_size: int,
    devices: Sequence | None = None,
    steps: int = 100,
    overlap: str = NO_OVERLAP,
) -> Profile:
    """Time the gradient of `batch_size` examples, and all-reduces up to the model's size.

    overlap: with "threads", as in training, the gradient is timed in stages, each a program of its
    own, beside all-reduces, and all-reduces are timed while another thread computes.
    All of several processes call this function and get the measurement of process 0: workers that
    plan different buckets would wait for each other for ever.
    """
    devices = jax.devices() if devices is None else devices
    if overlap == THREADS:
        backward, beside = measure_stages(task, batch_size, devices), _computing(task, batch_size)
    else:
        backward = measure_backward(task, batch_size, steps)
        beside = contextlib.nullcontext()
    measured = [*backward.ready.tolist(), *backward[-3:]]
    *ready, error, forward, contention = distributed.agreed(measured)
    with beside:
        sizes, seconds = measure_all_reduce(devices, sizes_of(task))
    return Profile(backward.layers, np.array(ready), sizes, seconds, error, forward, contention)


def measures(config) -> bool:
    """Return whether `config.profile` asks for a measurement, see `for_config`."""
    return str(config.get("profile")).partition(":")[0] == "measure"


def check(config) -> None:
    """Raise ValueError where a profile is to be measured and cannot be, or not be saved."""
    if not measures(config):
        return
    path = config.profile.partition(":")[2]
    if len(jax.devices()) < config.workers:
        raise ValueError(
            f"profile: measuring all-reduce takes {config.workers} devices and there are "
            f"{len(jax.devices())}; set config.runtime=mesh, or config.profile to a saved one"
        )
    if path and not Path(path).parent.is_dir():
        raise ValueError(
            f"profile: {config.profile!r} would save into a directory that does not exist; "
            "make it first"
        )
    if path and Path(path).is_dir():
        raise ValueError(f"profile: {config.profile!r} names a directory; name a file in it")


def for_config(config, task: Task, measured: bool = True, kept: Path | None = None) -> Profile:
    """Return the profile that `config.profile` names, for the mini-batches of a round.

    "none" gives the order of the layers alone. "measure" measures, once in a process for arms that
    would measure the same; "measure:PATH" also saves the profile at PATH. Any other text is the
    path of a saved profile. measured: if False, a measurement is replaced by times without meaning.
    kept: file of an earlier measurement, which replaces a new one if it exists.
    """
    source = config.get("profile")
    batch_size = config.batch_size * most_mini_batches(config.mini_batches)  # of one gradient
    if source in (None, "none"):
        return Profile(backward_order(task, batch_size))
    if not measures(config):
        return load(source)
    if not measured:
        layers = backward_order(task, batch_size)
        return Profile(layers, np.zeros(len(layers)), np.arange(2.0), np.zeros(2))
    check(config)
    overlap = config.get("overlap", NO_OVERLAP)
    key = (registry.text(config.task), batch_size, config.workers, overlap)
    if kept is not None and distributed.agreed(kept.exists()):
        found = load(kept)
        _MEASURED.setdefault(key, found)  # arms that begin now are compared with this one
        return found
    if key not in _MEASURED:
        _MEASURED[key] = measure(task, batch_size, jax.devices()[: config.workers], overlap=overlap)
    path = source.partition(":")[2]
    if path and jax.process_index() == 0:
        save(path, _MEASURED[key])
    return _MEASURED[key]


_MEASURED: dict[tuple, Profile] = {}


# --- all-reduce ---


def measure_all_reduce(
    devices: Sequence | None = None, sizes: Sequence[int] = SIZES
) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes [n] and seconds [n] of a `psum` of float32 over devices, by default all.

    All sizes run in turns, several all-reduces in a row each, so that starting a program hardly
    counts. `comms.cost.fit` and `comms.cost.table` make a cost of the result. Of several processes
    all must call this; what process 0 has measured is returned in all of them.
    """
    devices = jax.devices() if devices is None else devices
    mesh = jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)
    stacked = NamedSharding(mesh, P(AXIS))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(AXIS), check_vma=False)
    def in_a_row(x, count):
        return jax.lax.fori_loop(0, count, lambda _, x: jax.lax.psum(x, AXIS) / len(devices), x)

    programs, counts = {}, {}
    for size in sizes:
        elements = max(1, size // 4)
        counts[size] = int(np.clip(2**22 // size, 1, 32))
        x = jax.jit(jnp.zeros, static_argnums=0, out_shardings=stacked)(len(devices) * elements)
        programs[size] = lambda x=x, count=counts[size]: in_a_row(x, count)
    taken = stopwatch.seconds(programs, 20, warm_ups=5)
    seconds = distributed.agreed([taken[size] / counts[size] for size in sizes])
    return np.array(sizes, float), np.array(seconds)


def sizes_of(task: Task) -> tuple[int, ...]:
    """Return the sizes [bytes] to measure, up to the first above the model and a token."""
    payload = payload_bytes(jax.eval_shape(task.init, jax.random.key(0)))
    return SIZES[: 2 + sum(size <= payload for size in SIZES[1:])]


# --- backward pass ---


def backward_order(task: Task, batch_size: int) -> list[list[str]]:
    """Return parameter paths, layer by layer, in the order in which gradients are computed.

    A layer is a module with parameters of its own. The order is that of the traced gradient:
    names say little, as flax sorts "layers_10" before "layers_2".
    """
    params = jax.eval_shape(task.init, jax.random.key(0))
    jaxpr = jax.make_jaxpr(jax.grad(_mean_loss(task)))(params, _examples(task, batch_size)).jaxpr
    leaves = jax.tree_util.tree_leaves_with_path(params)
    layers: dict[tuple, list] = {}
    for (path, _), gradient in zip(leaves, jaxpr.outvars, strict=True):
        layers.setdefault(path[:-1], []).append((_computed(jaxpr, gradient), path_text(path)))
    in_order = sorted((sorted(layer) for layer in layers.values()), key=lambda layer: layer[-1])
    return [[name for _, name in layer] for layer in in_order]


def _computed(jaxpr, variable) -> tuple[int, ...]:
    """Return where a program computes a variable: an equation's number, then places in its body."""
    for index, eqn in enumerate(jaxpr.eqns):
        for place, out in enumerate(eqn.outvars):
            if out is variable:
                inner = getattr(eqn.params.get("jaxpr"), "jaxpr", eqn.params.get("jaxpr"))
                if inner is None or len(inner.outvars) != len(eqn.outvars):
                    return (index,)
                return (index, *_computed(inner, inner.outvars[place]))
    return ()  # a constant, or an input of the program


def measure_backward(task: Task, batch_size: int, steps: int = 100) -> Profile:
    """Return a profile without all-reduces: ready times of gradients, by cutting the backward pass.

    The gradient of only the last layers needs only the beginning of the backward pass. The time of
    the forward pass is subtracted. Programs run in turns, `steps` each. Isotonic regression removes
    noise by which an earlier layer would be ready first. The compiler fuses each cut program in its
    own way, so single layers are less certain than the whole. Compiles a program per layer.
    """
    layers = backward_order(task, batch_size)
    params = jax.jit(task.init)(jax.random.key(0))
    examples = jax.device_put(_examples(task, batch_size))
    loss = _mean_loss(task)
    programs = {"forward": jax.jit(loss), "whole": jax.jit(jax.value_and_grad(loss))}
    for last in range(1, len(layers) + 1):
        chosen = {path for layer in layers[:last] for path in layer}
        programs[last] = jax.jit(_cut(loss, chosen))
    runs = {name: functools.partial(f, params, examples) for name, f in programs.items()}
    taken = stopwatch.seconds(runs, steps)
    forward = taken["forward"]
    after = [taken[last] - forward for last in range(1, len(layers) + 1)]
    ready = np.maximum(scipy.optimize.isotonic_regression(after).x, 0.0)
    error = float(ready[-1] / max(taken["whole"] - forward, 1e-9) - 1)
    return Profile(layers, ready, None, None, error, forward)


def measure_stages(task: Task, batch_size: int, devices: Sequence) -> Profile:
    """Return a profile without all-reduces, of training in threads with a bucket per layer.

    Stages, a program each, are timed as `runtimes.overlapped` runs them: first while nothing is
    exchanged, then beside the all-reduces of all layers. All of several processes call this
    function. devices: the first devices of all.
    """
    from algorithms.mg_wfbp import mg_wfbp
    from runtimes.mesh import Mesh

    layers, rounds = backward_order(task, batch_size), 10
    method = mg_wfbp(optax.sgd(0.0), buckets="wfbp", profile=Profile(layers))
    runtime = Mesh(
        method, tasks.first_draw(task), task.train,
        sampling.Sampler([np.arange(tasks.count(task.train))] * len(devices), batch_size, seed=0),
        workers=len(devices), mini_batches=1, rounds_per_dispatch=rounds, overlap=THREADS,
    )  # fmt: skip
    params = jax.jit(task.init)(jax.random.key(0))
    run, _ = runtime.advance(runtime.start(params), np.inf, 2)
    made = method.buckets.buffers_of(params)
    last = {buffer.bucket: i for i, buffer in enumerate(made)}  # the stage that ends a layer
    known = {}
    for runtime.exchanges in (False, True):
        runtime.timeline = []
        run, _ = runtime.advance(run, np.inf, rounds)
        taken: dict[str, list[float]] = {}
        for span in runtime.timeline:
            taken.setdefault(span.name, []).append(span.end - span.start)
        each = [np.median(taken[f"stage {i}"]) for i in range(len(made))]
        known[runtime.exchanges] = np.cumsum(each)[[last[i] for i in range(len(layers))]]
    runtime.close()
    loss, examples = jax.jit(_mean_loss(task)), jax.device_put(_examples(task, batch_size))
    forward = stopwatch.seconds({"forward": lambda: loss(params, examples)}, rounds)["forward"]
    ready = np.maximum(known[True] - forward, 0)
    contention = float(known[True][-1] / known[False][-1])
    return Profile(layers, ready, forward=forward, contention=contention)


@contextlib.contextmanager
def _computing(task: Task, batch_size: int) -> Iterator[None]:
    """Compute gradients in a thread of its own for as long as the block takes."""
    params, examples = task.init(jax.random.key(0)), jax.device_put(_examples(task, batch_size))
    gradient = jax.jit(jax.grad(_mean_loss(task))).lower(params, examples).compile()
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            jax.block_until_ready(gradient(params, examples))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _mean_loss(task: Task) -> Callable:
    """Return (params, examples) -> mean loss; any random draw is the first one of worker 0."""
    losses = tasks.first_draw(task)
    return lambda params, examples: losses(params, examples).mean()


def _examples(task: Task, batch_size: int):
    places = np.arange(batch_size) % tasks.count(task.train)
    return jax.tree.map(np.asarray, tasks.take(task.train, places))


def _cut(loss: Callable, chosen: set[str]) -> Callable:
    """Return the gradient of a loss with respect to the parameters at the chosen paths."""

    def gradient(params, examples):
        structure = jax.tree.structure(params)
        leaves = dict(named_leaves(params))

        def of_chosen(some):
            return loss(jax.tree.unflatten(structure, list((leaves | some).values())), examples)

        return jax.grad(of_chosen)({path: leaves[path] for path in chosen})

    return gradient
