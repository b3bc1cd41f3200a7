"""MG-WFBP: the plan is what is compiled, and what is trained is what plain all-reduce trains."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, mg_wfbp
from algorithms.base import AXIS, scale_by_samples
from algorithms.mg_wfbp import plan_with
from comms import cost, iteration
from comms.messages import Row, exchange_seconds, exchange_transfers, seconds, sent_bytes
from experiments import profiling, tasks
from experiments.profiling import Profile
from experiments.tasks import data, sampling
from runtimes import mesh
from runtimes.rounds import Table
from stragglers import delays
from tests import planned
from tests.conftest import make_mesh

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


@pytest.mark.slow
def test_parameters_are_those_of_plain_pmean_bit_for_bit(task):
    """With momentum, which a compiler fuses with the taking apart of a bucket."""
    expected = trained(task, all_reduce(momentum()))
    for buckets in ("optimal", "single", "byte_scheduler:2kB"):
        got = trained(task, mg_wfbp(momentum(), buckets=buckets, profile=PROFILE))
        jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.slow
def test_the_compiled_program_has_one_all_reduce_per_bucket_between_the_products(task):
    """The text is the schedule, and the products of its backward pass are dots."""
    built = runtime(task, mg_wfbp(momentum(), profile=PROFILE))
    model = built.start(task.init(jax.random.key(0))).model
    table = Table(np.zeros((N, 20, B), np.int32), np.zeros(N, np.int32))
    lowered = built.dispatch.lower(model, table, task.train, None, np.int32(1))
    text = lowered.compile().as_text()
    assert "is_scheduled=true" in text
    params = jax.eval_shape(task.init, jax.random.key(0))
    plan, leaves = plan_with("optimal", PROFILE)(params)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    sent = [int(n) for n in re.findall(r"f32\[(\d+)\]\S* all-reduce\(", text)]
    assert sent == [1 + sum(sizes[i] for i in bucket) for bucket in leaves]

    operations = re.findall(r" (all-reduce|dot)\(", text)
    assert operations.count("all-reduce") == len(plan.buckets)
    gaps = " ".join(operations).split("all-reduce")[1:-1]
    assert sum("dot" in gap for gap in gaps) >= min(len(gaps), max(1, len(gaps) - 2))


def test_buckets_that_are_all_ready_at_once_are_warned_of():
    """By a round of several mini-batches, which add up in a loop; a single bucket overlaps none."""
    given = {"module_1": {"w": jnp.ones(N)}, "module_2": {"w": jnp.ones((N, 3))}}
    for buckets, warned in (("wfbp", True), ("single", False)):
        exchange = mg_wfbp(momentum(), buckets=buckets).exchange

        def mean(g, exchange=exchange):
            return exchange.update(g, exchange.init(g), nominal=2)[0]

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            jax.eval_shape(jax.vmap(mean, axis_name=AXIS), given)
        assert any("all buckets are ready at once" in str(one.message) for one in found) == warned


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


def test_sizes_have_units():
    sizes = ("839 kB", "840kB", "0.84kB", "0.82KiB", "0.00084MB", "1GiB")
    assert [len(plan_with(f"fixed:{size}")(SHAPES)[1]) for size in sizes] == [1, 1, 2, 2, 2, 1]


def test_parts_are_sent_as_the_compiled_exchange_sends_them(task):
    """In the plan's order, each of at most 2 kB and a token; a part leaves with its layer."""
    method = mg_wfbp(sgd(), buckets="byte_scheduler:2kB", profile=PROFILE._replace(forward=2e-3))
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    messages, made = method.messages(shapes, N, Row(0)), method.buckets.buffers_of(shapes)
    sizes = [payload.size // 4 for payload in messages]
    assert [b.elements + 1 for b in made] == sizes and max(sizes) == 501
    assert sum(sizes) == sum(leaf.size for leaf in jax.tree.leaves(shapes)) + len(sizes)
    assert len(sizes) == 1 + 4 * 3 + 5  # of 1320, four times 4224, and 8320 bytes
    order = [b.bucket for b in made]
    assert order != sorted(order) and order[0] == 0
    assert [p.share for p in messages] == pytest.approx([(3 + b) / 8 for b in order])

    def exchange(contribution):
        return method.exchange.update(contribution, method.exchange.init(contribution))[0]

    mapped = jax.shard_map(
        exchange, mesh=make_mesh(N), in_specs=jax.P(), out_specs=jax.P(), check_vma=False
    )
    text = jax.jit(mapped).lower(shapes).compile().as_text()
    assert [int(n) for n in re.findall(r"f32\[(\d+)\]\S* all-reduce\(", text)] == sizes


def test_parts_without_a_size_have_the_one_of_the_shortest_step():
    """Of all that are tried, by the seconds of an event loop; neither the least nor the largest."""
    shapes = {f"module_{i}": jax.ShapeDtypeStruct((10**6,), jnp.float32) for i in range(3)}
    ready = np.array([0.01, 0.02, 0.03])
    cost_of = (np.array([0.0, 1e6]), np.array([1e-3, 1.1e-2]))
    profile = Profile([[f"module_{i}"] for i in (2, 1, 0)], ready, *cost_of, forward=0.06)
    seconds = {}
    for size in iteration.SIZES:
        plan, _ = plan_with(f"byte_scheduler:{size / 2**10}KiB", profile)(shapes)
        now = ready[-1]
        for layer in (2, 1, 0):
            last = max(t for of, t in zip(plan.order, plan.end, strict=True) if of == layer)
            now = max(now, last) + 0.02
        seconds[size] = now
    best = plan_with("byte_scheduler", profile)(shapes)[0].bytes
    assert seconds[best] == min(seconds.values())
    assert best not in (min(seconds), max(seconds))


def test_bytes_and_seconds_count_every_buckets_token_and_start():
    method = mg_wfbp(sgd(), buckets="wfbp")
    # Two workers: each sends half of 210 + 1 and of 100 + 1 floats, rounded up, twice.
    rounds = planned.plan("barrier", delays.deterministic(1.0), 2, 3)
    np.testing.assert_array_equal(sent_bytes(method, SHAPES, rounds), 3 * [8 * (106 + 51)])
    network = cost.uniform_network(latency=1.0, bandwidth=4.0, workers=2)
    both = exchange_seconds(method, SHAPES, 2, network)(0)
    assert both == 2 * (1 + 211 / 2) + 2 * (1 + 101 / 2)
    single = exchange_seconds(mg_wfbp(sgd(), buckets="single"), SHAPES, 2, network)(0)
    assert single == 2 * (1 + 311 / 2)


def test_a_round_with_buckets_lasts_as_long_as_the_plan_says(task):
    """An iteration of one mini-batch is forward, backward and what the plan leaves exposed."""
    profile = PROFILE._replace(forward=2e-3)
    for buckets in ("optimal", "single"):
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
