"""A worker of several devices does what a worker of one does."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms import all_reduce, local_sgd, matcha, reducers, top_k
from algorithms.base import AXIS
from comms import topology
from configs import base
from experiments import prepare
from runtimes import mesh, slices
from runtimes.data_feed import Streamed
from stragglers import delays, inject, processes
from tests import planned
from tests.algorithms import traced
from tests.marks import slow
from tests.refusals import refused
from tests.runtimes.toy import DATA, SAMPLES, X0, B, Counted, losses, optimizer, replayed

N, S, M = 4, 2, 4  # workers, devices of a worker, mini-batches


METHODS = {
    "all_reduce": lambda: all_reduce(optimizer(), collective="ring"),
    "matcha": lambda: matcha(optimizer(), topology.ring(N), weighting="confidence"),
    "local_sgd": lambda: local_sgd(optimizer()),
    "top_k": lambda: top_k(optimizer(), ratio=0.5),
}


def build(method, examples=DATA, **options):
    options = {"devices_per_worker": S, "rounds_per_dispatch": 4} | options
    return mesh.Mesh(method, losses, examples, SAMPLES, workers=N, mini_batches=M, **options)


def advanced(runtime, updates=12):
    """Return (the models, the schedule) of a run."""
    run, schedule = runtime.advance(runtime.start(X0), np.inf, updates)
    schedule.validate()
    return np.asarray(runtime.models(run)), schedule


def copies_differ(array):
    """Return whether two devices hold the same part of an array with different bits."""
    found = {}
    return any(
        found.setdefault(str(shard.index), bits) != bits
        for shard in array.addressable_shards
        for bits in [np.asarray(shard.data).tobytes()]
    )


# A mean, links of a graph and a memory; local steps are of the tests below.
@pytest.mark.parametrize("name", ["all_reduce", slow("matcha"), slow("top_k")])
def test_a_method_gives_what_one_device_per_worker_gives(name):
    """To float32 rounding, whole or divided; and all copies of a model are the same bits.

    Coded messages are as close as bfloat16 is.
    """
    single = build(METHODS[name](), devices_per_worker=1)
    alone, _ = single.advance(single.start(X0), np.inf, 12)
    short = slices.fsdp(reducers.bf16(), reducers.bf16())
    for sharding, near in ((slices.replicated(), 2e-5), (slices.fsdp(), 2e-5), (short, 5e-3)):
        runtime = build(METHODS[name](), sharding=sharding)
        run, schedule = runtime.advance(runtime.start(X0), np.inf, 12)
        assert run.samples == schedule.batches.sum() * B == 12 * N * M * B
        ours, theirs = run.model.params, alone.model.params
        assert len(ours.sharding.device_set) == S * N and not copies_differ(ours)
        assert {len(shard.data) for shard in ours.addressable_shards} == {1}
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near / 10)


def test_a_model_with_an_empty_array_goes_through_several_dispatches():
    def of_all(params, examples):
        return losses(params["all"], examples)

    own = {"workers": N, "mini_batches": M, "devices_per_worker": S, "rounds_per_dispatch": 4}
    runtime = mesh.Mesh(METHODS["all_reduce"](), of_all, DATA, SAMPLES, **own)
    run, _ = runtime.advance(runtime.start({"all": X0, "none": jnp.zeros(0)}), np.inf, 9)
    ours, theirs = runtime.models(run)["all"], advanced(build(METHODS["all_reduce"]()), 9)[0]
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_a_divided_model_of_bfloat16_is_refused_on_cpus():
    """XLA would end the process."""
    runtime = build(METHODS["all_reduce"](), sharding=slices.fsdp())
    with pytest.raises(ValueError, match=r"bfloat16 between .* config\.sharding='replicated'"):
        runtime.start(X0.astype(jnp.bfloat16))


def test_delayed_slices_are_replayed_to_the_same_parameters():
    """Workers take unequal numbers of mini-batches, and one device of each asks the host."""
    method = METHODS["local_sgd"]()
    uneven = processes.persistent(delays.deterministic(0.005), {0: 6.0})
    rule = planned.rule("first_finisher", uneven, N, M)
    injector = inject.Injector(N, rule.trigger, 0, delay=uneven)
    real, schedule = advanced(build(method, injector=injector))
    assert (schedule.batches.max(1) == M).all() and (schedule.batches < M).any()
    replay = replayed(method, schedule, M)
    np.testing.assert_allclose(replay, real, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_streamed_slices_are_slices_in_memory_bit_for_bit():
    """Also after a resume in the middle, with a memory; every device gets its own samples."""
    method = METHODS["top_k"]()
    straight, _ = advanced(build(method, sharding=slices.fsdp()), 10)
    ours, theirs = (build(method, Streamed(Counted()), sharding=slices.fsdp()) for _ in range(2))
    begun, _ = ours.advance(ours.start(X0), np.inf, 6)
    resumed, _ = theirs.resume(theirs.start(X0), ours.pack(begun), ())
    for runtime, run in ((ours, begun), (theirs, resumed)):
        run, _ = runtime.advance(run, np.inf, 4)
        assert np.asarray(runtime.models(run)).tobytes() == straight.tobytes()
        runtime.close()
    examples, _ = ours._input.take(np.zeros(N, np.int64), M)
    ours.close()
    held = [shard.data.shape for shard in examples["x"].addressable_shards]
    assert held == [(1, 4 * M * B // S, X0.size)] * (N * S)


def test_augmented_slices_draw_what_one_device_draws():
    class Drawn(type(SAMPLES)):
        def draws(self, workers, counters):
            return self.indices(workers, counters).astype(np.uint32) * np.uint32(2654435761)

    def noisy(examples, draws):
        noise = (draws % 1024).astype(jnp.float32) / 1024
        return {**examples, "y": examples["y"] + noise}

    def models(**options):
        runtime = mesh.Mesh(
            METHODS["local_sgd"](), losses, DATA, Drawn(), workers=N, mini_batches=M,
            augment=noisy, **options,
        )  # fmt: skip
        return advanced(runtime, 8)[0]

    np.testing.assert_allclose(models(devices_per_worker=S), models(), rtol=2e-5, atol=2e-6)


def test_the_devices_of_a_worker_average_once_in_a_gradient():
    """Beside that, one all-reduce between workers for every device of a slice."""
    runtime = build(all_reduce(optax.sgd(0.1)))
    run = runtime.start(X0)
    examples, table = runtime._input.take(run.consumed, 4 * M)
    arguments = (run.model, table, examples, None, np.int32(4))
    text = runtime.dispatch.lower(*arguments).compile().as_text()
    lines = re.findall(r" all-reduce\(.*", text)
    joined = sorted((traced.groups(line, N * S) for line in lines), key=len)
    assert joined == [[[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]]]


# The devices divide two arrays and have one whole; the names of a slice's codecs follow.
DIVIDED = {"in": (6, 512), "out": (512,), "whole": (2, 2)}
CODED = [(None, None), ("int8", None), (None, "int4"), ("fp16", "mxfp4")]


def of_divided(params, examples):
    hidden = jnp.tanh(examples["x"] @ params["in"])
    return (hidden @ params["out"] + params["whole"].sum() - examples["y"]) ** 2


def gradient_of_a_slice(codecs):
    """Return (the slice of four devices, its gradient as a program, placements of a model)."""
    made = [name and getattr(reducers, name)() for name in codecs]
    team = slices.fsdp(*made)(4, False)
    grid = team.grid(1)
    on = {name: NamedSharding(grid, team.split(shape)) for name, shape in DIVIDED.items()}
    gradient = jax.shard_map(
        jax.grad(lambda params, examples: team.shared(of_divided)(params, examples).sum()),
        mesh=grid, in_specs=(P(), P()), out_specs=P(), axis_names={AXIS}, check_vma=False,
    )  # fmt: skip
    examples = NamedSharding(grid, P(slices.SLICE))
    return team, jax.jit(gradient, in_shardings=(on, examples), out_shardings=on)


@pytest.fixture
def divided():
    """Return a model and eight examples."""
    draws = np.random.default_rng(0)
    model = {name: draws.normal(size=shape).astype("f4") for name, shape in DIVIDED.items()}
    return model, {"x": DATA["x"][:8], "y": DATA["y"][:8]}


@pytest.mark.parametrize("codecs", CODED)
def test_bytes_of_a_slice_are_those_of_its_program(codecs, divided):
    team, gradient = gradient_of_a_slice(codecs)
    text = gradient.lower(*divided).compile().as_text()
    assert traced.sent_bytes(text, 4) == team.sent_bytes(divided[0])


def coded(name, parts):
    """Return parts [devices, ...] as the others read them."""
    if name is None:
        return parts
    encoder, rows = getattr(reducers, name)().encoder, parts.reshape(len(parts), -1)
    read = jax.vmap(lambda row: encoder.decode(encoder.encode(row, None), row.size))
    return np.asarray(jax.jit(read)(rows)).reshape(parts.shape)


@pytest.mark.parametrize("codecs", CODED[1:])
def test_codes_of_a_slice_are_read_at_its_losses_and_summed_where_parts_are_kept(codecs, divided):
    """Against NumPy in float64: gradients of devices at decoded parameters, in coded parts."""
    model, examples = divided
    axes = {"in": 1, "out": 0}

    def of_devices(name, array, codec):
        return coded(codec, np.stack(np.split(array, 4, axes[name])))

    read = model | {
        name: np.concatenate(of_devices(name, model[name], codecs[0]), axes[name]) for name in axes
    }
    read = {name: array.astype(float) for name, array in read.items()}
    expected = dict.fromkeys(model, 0.0)
    for x, y in zip(np.split(examples["x"], 4), np.split(examples["y"], 4), strict=True):
        hidden = np.tanh(x.astype(float) @ read["in"])
        slope = 2 * (hidden @ read["out"] + read["whole"].sum() - y)
        inner = slope[:, None] * read["out"] * (1 - hidden**2)
        own = {"in": x.T @ inner, "out": slope @ hidden, "whole": np.full((2, 2), slope.sum())}
        for name in axes:
            own[name] = of_devices(name, own[name].astype("f4"), codecs[1])
        expected = {name: expected[name] + own[name].astype(float) for name in own}
    expected |= {name: np.concatenate(expected[name], axes[name]) for name in axes}
    found = gradient_of_a_slice(codecs)[1](model, examples)
    for name, array in expected.items():
        # A value next to the middle of two codes may be rounded to either of them.
        far = np.abs(found[name] - array) > 1e-5 * np.abs(array).max()
        assert far.mean() < 0.01, (name, far.mean())


SMALL = {"runtime": "mesh", "delay": "none", "workers": 4, "batch_size": 8}

test_what_slices_cannot_do_is_one_sentence = refused(
    ({"workers": 4, "devices_per_worker": 4}, "8 devices but config.workers=4 with "
     "config.devices_per_worker=4 each; set config.workers=2 or"),
    ({"batch_size": 6, "devices_per_worker": 4, "workers": 2},
     "4 devices of a worker cannot share config.batch_size=6 samples equally; set it to a "
     "multiple of 4"),
    ({"devices_per_worker": 2, "runtime": "actors", "wait": "k_async(k=1)"},
     "use runtime='mesh'"),
    ({"devices_per_worker": 2, "sharding": "half"},
     "sharding: unknown name 'half'; known names: fsdp, replicated"),
    ({"devices_per_worker": 2, "sharding": "fsdp(gradients=top_k)"},
     "fsdp: gradients=top_k has no codes that round every entry to the nearest; take bf16"),
    ({"devices_per_worker": 2, "sharding": "fsdp(parameters=int9)"}, "did you mean 'int8'?"),
    ({"runtime": "simulate", "sharding": "fsdp(parameters=int8)"},
     "config.sharding='fsdp(parameters=int8)' and config.overlap='none' are for"),
    ({"sharding": "fsdp"}, "which is a single one; set config.devices_per_worker"),
    ({"devices_per_worker": 2, "sharding": "fsdp", "delay": "deterministic(value=0.01)"},
     "none of them can ask the host about delays or a trigger"),
    by=lambda changes: prepare.prepare(base.arm(
        task="synthetic_logistic(samples=64, dimension=4)", **SMALL | changes)),
)  # fmt: skip
