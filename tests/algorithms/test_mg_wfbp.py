"""MG-WFBP: the plan is what is compiled, and what is trained is what plain all-reduce trains."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, mg_wfbp
from algorithms.base import scale_by_samples
from algorithms.mg_wfbp import plan_with
from comms import cost
from comms.messages import Row, exchange_seconds, exchange_transfers, seconds, sent_bytes
from experiments import profiling, tasks
from experiments.profiling import Profile
from experiments.tasks import data, sampling
from runtimes import mesh
from runtimes.rounds import Table
from stragglers import delays
from tests import planned

N, B = 8, 4
MODEL = {"name": "mlp", "hidden": [32] * 5}  # "layers_10" sorts before "layers_2"
LAYERS = [[f"layers_{2 * i}/bias", f"layers_{2 * i}/kernel"] for i in range(6, 0, -1)]
# A layer takes 1 ms to compute and 1.2 ms to send, two together take 1.7 ms.
PROFILE = Profile(LAYERS, 1e-3 * np.arange(1.0, 7), np.array([0.0, 1e6]), np.array([7e-4, 0.12]))
SHAPES = {
    "module_1": {"kernel": jax.ShapeDtypeStruct((10, 10), jnp.float32)},
    "module_2": {
        "bias": jax.ShapeDtypeStruct((10,), jnp.float32),
        "kernel": jax.ShapeDtypeStruct((10, 20), jnp.float32),
    },
}


def sgd():
    return scale_by_samples(0.05)


def momentum():
    return optax.chain(optax.trace(0.9), scale_by_samples(0.05))


@pytest.fixture(scope="module")
def task():
    return tasks.build({"name": "digits", "model": MODEL})


def runtime(task, method):
    sampler = sampling.Sampler(data.iid(task.labels, N, 0), B, 0)
    return mesh.Mesh(
        method, task.losses, task.train, sampler, workers=N, mini_batches=1, rounds_per_dispatch=20
    )


def trained(task, method, updates=20):
    built = runtime(task, method)
    state, _ = built.advance(built.start(task.init(jax.random.key(0))), np.inf, updates)
    return jax.device_get(state.model.params)


def compiled(task, method) -> str:
    built = runtime(task, method)
    state = built.start(task.init(jax.random.key(0)))
    table = Table(np.zeros((N, 20, B), np.int32), np.zeros(N, np.int32))
    return (
        built.dispatch.lower(state.model, table, task.train, None, np.int32(1)).compile().as_text()
    )


@pytest.mark.slow
def test_parameters_are_those_of_plain_pmean_bit_for_bit(task):
    """With momentum, which a compiler fuses with the taking apart of a bucket."""
    expected = trained(task, all_reduce(momentum()))
    for buckets in ("optimal", "wfbp", "single"):
        got = trained(task, mg_wfbp(momentum(), buckets=buckets, profile=PROFILE))
        jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "buckets",
    [
        "optimal",
        "single",
        *(pytest.param(more, marks=pytest.mark.slow) for more in ("wfbp", "fixed:8kB")),
    ],
)
def test_the_compiled_program_has_one_all_reduce_per_bucket_between_the_products(task, buckets):
    """The text is the schedule, and the products of its backward pass are dots."""
    text = compiled(task, mg_wfbp(momentum(), buckets=buckets, profile=PROFILE))
    assert "is_scheduled=true" in text
    params = jax.eval_shape(task.init, jax.random.key(0))
    plan, leaves = plan_with(buckets, PROFILE)(params)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    sent = [int(n) for n in re.findall(r"f32\[(\d+)\]\S* all-reduce\(", text)]
    assert sent == [1 + sum(sizes[i] for i in bucket) for bucket in leaves]

    operations = re.findall(r" (all-reduce|dot)\(", text)
    assert operations.count("all-reduce") == len(plan.buckets)
    gaps = " ".join(operations).split("all-reduce")[1:-1]
    assert sum("dot" in gap for gap in gaps) >= min(len(gaps), max(1, len(gaps) - 2))


def test_the_profile_says_what_is_a_layer_and_in_which_order(task):
    params = jax.eval_shape(task.init, jax.random.key(0))
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    assert profiling.backward_order(task, B) == LAYERS
    plan, leaves = plan_with("wfbp", PROFILE)(params)
    assert [[paths[i] for i in bucket] for bucket in leaves] == LAYERS
    optimal, _ = plan_with("optimal", PROFILE)(params)
    assert 1 < len(optimal.buckets) < 6 and optimal.finish < plan.finish


def test_without_a_profile_layers_are_modules_in_reverse_order():
    for profile in (None, Profile([["module_2/bias", "module_2/kernel"], ["module_1/kernel"]])):
        assert plan_with("wfbp", profile)(SHAPES)[1] == [[1, 2], [0]]
        assert plan_with("single", profile)(SHAPES)[1] == [[1, 2, 0]]
        assert plan_with("fixed", profile)(SHAPES)[1] == [[1, 2, 0]]
        assert plan_with("fixed:0.84kB", profile)(SHAPES)[1] == [[1, 2], [0]]


@pytest.mark.parametrize(
    ("size", "buckets"),
    [("839 kB", 1), ("840kB", 1), ("0.84kB", 2), ("0.82KiB", 2), ("0.00084MB", 2), ("1GiB", 1)],
)
def test_sizes_have_units(size, buckets):
    assert len(plan_with(f"fixed:{size}")(SHAPES)[1]) == buckets


@pytest.mark.parametrize("size", ["25", "MB", "-1MB", "0MB", "25mb", "25 M B", ""])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(ValueError, match=f"{size!r} is no size of a fixed bucket; write a posit"):
        plan_with(f"fixed:{size}")


def test_plans_that_cannot_be_made_are_refused():
    with pytest.raises(ValueError, match="unknown choice 'best'; known choices: wfbp, single"):
        mg_wfbp(sgd(), buckets="best")
    with pytest.raises(ValueError, match="only fixed takes a size; write wfbp"):
        mg_wfbp(sgd(), buckets="wfbp:1MB")
    for profile in (None, Profile(LAYERS)):
        with pytest.raises(
            ValueError, match=r"'optimal' need the times .* one of wfbp, single, fi"
        ):
            mg_wfbp(sgd(), profile=profile)
    with pytest.raises(ValueError, match="unknown choice 'tree'; known choices: psum, ring"):
        mg_wfbp(sgd(), buckets="wfbp", collective="tree")
    other = Profile([["module_1/kernel"], ["module_2/bias"]])
    with pytest.raises(ValueError, match="the profile does not have 'module_2/kernel'; measure"):
        plan_with("wfbp", other)(SHAPES)
    with pytest.raises(ValueError, match="the model does not have 'layers_10/bias'"):
        plan_with("wfbp", PROFILE)(SHAPES)


def rounds(updates, workers):
    """A schedule in which all workers take part."""
    return planned.plan("barrier", delays.deterministic(1.0), workers, updates, 1, 0)


def test_bytes_and_seconds_count_every_buckets_token_and_start():
    method = mg_wfbp(sgd(), buckets="wfbp")
    # Two workers: each sends half of 210 + 1 and of 100 + 1 floats, rounded up, twice.
    np.testing.assert_array_equal(sent_bytes(method, SHAPES, rounds(3, 2)), 3 * [8 * (106 + 51)])
    network = cost.uniform_network(latency=1.0, bandwidth=4.0, workers=2)
    both = exchange_seconds(method, SHAPES, 2, network)(0)
    assert both == 2 * (1 + 211 / 2) + 2 * (1 + 101 / 2)
    single = exchange_seconds(mg_wfbp(sgd(), buckets="single"), SHAPES, 2, network)(0)
    assert single == 2 * (1 + 311 / 2)


def test_buckets_leave_when_the_profile_has_their_gradients():
    """A forward pass of 1 s, gradients after 2 s and 3 s of the backward pass."""
    layers = [["module_2/bias", "module_2/kernel"], ["module_1/kernel"]]
    times = np.array([2.0, 3.0]), np.array([0.0, 1e6]), np.array([0.0, 1.0])
    for profile, shares in (
        (Profile(layers, *times, forward=1.0), [0.75, 1.0]),
        (Profile(layers, *times), [1.0, 1.0]),  # it is not known how much of a mini-batch is left
        (None, [1.0, 1.0]),
    ):
        payloads = mg_wfbp(sgd(), buckets="wfbp", profile=profile).messages(SHAPES, 2, Row(0))
        assert [payload.leaves for payload in payloads] == shares
    (alone,) = mg_wfbp(sgd(), buckets="single", profile=profile).messages(SHAPES, 2, Row(0))
    assert alone.leaves == 1


def test_a_round_with_buckets_lasts_as_long_as_the_plan_says(task):
    """An iteration of one mini-batch is forward, backward and what the plan leaves exposed."""
    profile = PROFILE._replace(forward=2e-3)
    for buckets in ("wfbp", "optimal", "single"):
        method = mg_wfbp(sgd(), buckets=buckets, profile=profile)
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        plan, _ = plan_with(buckets, profile)(shapes)
        network = cost.uniform_network(1e-5, 1e7, workers=2)
        compute = 2e-3 + profile.ready[-1]
        exchange = exchange_transfers(method, shapes, 2, network)
        each = [seconds(payload, 2, network) for payload in method.messages(shapes, 2, Row(0))]
        end = 0.0
        for ready, taken in zip(plan.ready, each, strict=True):
            end = max(end, 2e-3 + ready) + taken
        schedule = planned.plan(
            "barrier", delays.deterministic(compute), 2, 3, communication=exchange
        )
        np.testing.assert_allclose(schedule.time, end * np.arange(1, 4), rtol=1e-9)
        np.testing.assert_allclose(schedule.communication, end - compute, rtol=1e-9)
        assert end < compute + sum(each) or buckets == "single"


MIXED = {
    "module_1": {"kernel": jnp.zeros((3, 5)), "short": jnp.zeros(7, jnp.bfloat16)},
    "module_2": {"kernel": jnp.zeros((5, 2)), "scale": jnp.zeros(())},
    "module_3": {"none": jnp.zeros(0)},
}


def messages(jaxpr):
    """Bytes of every `ppermute` in a program."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "ppermute":
            yield eqn.invars[0].aval.size * eqn.invars[0].aval.dtype.itemsize
        for inner in map(lambda p: getattr(p, "jaxpr", p), eqn.params.values()):
            yield from messages(inner) if hasattr(inner, "eqns") else ()


@pytest.mark.parametrize("workers", [1, 3, 5])
@pytest.mark.parametrize(
    "method",
    [
        lambda: all_reduce(sgd(), collective="ring"),
        lambda: mg_wfbp(sgd(), buckets="wfbp", collective="ring"),
        lambda: mg_wfbp(sgd(), buckets="fixed:40kB", collective="ring"),
    ],
    ids=["all_reduce", "wfbp", "fixed"],
)
def test_the_bytes_that_are_told_are_those_that_a_ring_sends(method, workers):
    """Of every dtype in its own buffer, padded to whole elements for every worker."""
    built = method()
    state = built.exchange.init(MIXED)
    traced = jax.make_jaxpr(
        lambda gradient: built.exchange.update(gradient, state, gradient)[0],
        axis_env=[("workers", workers)],
    )(MIXED)
    assert sent_bytes(built, MIXED, rounds(1, workers)).tolist() == [sum(messages(traced.jaxpr))]
