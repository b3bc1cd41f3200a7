"""Rounds whose buckets travel beside the backward pass: the same training, and really beside it."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import all_reduce, mg_wfbp
from experiments import tasks
from experiments.profiling import Profile
from runtimes import mesh
from runtimes.overlapped import Stages, in_order
from tests.marks import slow
from tests.runtimes import one_of_several
from tests.runtimes.toy import bits

N, B, D = 4, 8, 3
RNG = np.random.default_rng(1)
DATA = {"x": RNG.standard_normal((64, D)).astype(np.float32), "y": RNG.standard_normal(64, "f")}
PARAMS = {f"layer_{i}": {"w": np.eye(D, dtype="f") * 0.9, "b": np.zeros(D, "f")} for i in range(3)}
LATE = pytest.mark.skipif(
    not hasattr(jax.lax, "psum_scatter_start"), reason="JAX 0.12 has asynchronous collectives"
)


def losses(params, examples):
    """[b] squared errors of three layers, of which the middle one is compiled apart."""
    x = examples["x"]
    for i in range(3):
        layer = lambda x, p: jnp.tanh(x @ p["w"] + p["b"][None])  # noqa: E731
        x = (jax.jit(layer) if i == 1 else layer)(x, params[f"layer_{i}"])
    return (x.sum(-1) - examples["y"]) ** 2


class Drawn:
    """Mini-batches of fixed samples."""

    batch_size = B

    @staticmethod
    def indices(workers, counters):
        start = 7 * np.asarray(workers)[..., None] + 3 * np.asarray(counters)[..., None]
        return ((start + np.arange(B)) % 64).astype(np.int32)


# Parts of 20, 20 and 8 bytes take as long as the backward pass of a layer.
PARTS = "byte_scheduler:0.02kB"
LAYERS = [[f"layer_{i}/b", f"layer_{i}/w"] for i in (2, 1, 0)]
PROFILE = Profile(LAYERS, np.array([1.0, 2.0, 3.0]), np.array([1.0, 20.0]), np.ones(2))


def built(buckets="wfbp", collective="psum", overlap="threads"):
    method = mg_wfbp(
        optax.sgd(0.05, momentum=0.9), buckets=buckets, profile=PROFILE, collective=collective
    )
    return mesh.Mesh(
        method, losses, DATA, Drawn, workers=N, mini_batches=1, rounds_per_dispatch=4,
        overlap=overlap,
    )  # fmt: skip


def trained(runtime, updates=10):
    """Return the parameters after some rounds, with a break in which the run is packed."""
    run, _ = runtime.advance(runtime.start(PARAMS), np.inf, 3)
    packed = runtime.pack(run)
    run, _ = runtime.resume(runtime.start(PARAMS), packed, ())
    run, schedule = runtime.advance(run, np.inf, updates - 3)
    assert run.update == updates and run.samples == updates * N * B
    schedule.validate()
    params = jax.device_get(run.model.params)
    runtime.close()
    return params


@functools.cache
def by_hand(updates=10):
    """Return the parameters of SGD with momentum on the samples of all workers."""
    optimizer = optax.sgd(0.05, momentum=0.9)

    @jax.jit
    def step(params, state, batch):
        gradient = jax.grad(lambda p: losses(p, batch).mean())(params)
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state

    params, state = PARAMS, optimizer.init(PARAMS)
    for t in range(updates):
        places = Drawn.indices(np.arange(N), np.full(N, t)).ravel()
        params, state = step(params, state, {name: a[places] for name, a in DATA.items()})
    return params


def is_sgd(found):
    """Assert that all workers have the parameters of SGD on all samples."""

    def near(a, b):
        np.testing.assert_allclose(a, np.stack([b] * N), rtol=2e-5, atol=1e-6)

    jax.tree.map(near, found, by_hand())


@pytest.mark.parametrize(
    ("overlap", "collective", "buckets"),
    [
        ("threads", "ring", "single"),
        ("threads", "decoupled", "wfbp"),
        ("threads", "psum", PARTS),
        slow("threads", "decoupled", PARTS),
        slow("none", "psum", PARTS),
        slow("none", "decoupled", "single"),
        pytest.param("program", "decoupled", "wfbp", marks=LATE),
        pytest.param("program", "psum", PARTS, marks=LATE),
    ],
)
def test_what_is_trained_is_sgd_on_all_samples(overlap, collective, buckets):
    is_sgd(trained(built(buckets, collective, overlap)))


def test_in_threads_it_is_the_plain_round_bit_for_bit():
    found = trained(built())
    assert bits(found) == bits(trained(built(overlap="none")))
    is_sgd(found)


def held(runtime):
    """Return the compiled rounds of a runtime, whose collectives a test may hold up."""
    run, _ = runtime.advance(runtime.start(PARAMS), np.inf, 1)
    return run, runtime._program


def advanced_while_held_up(runtime, run, updates, collectives, programs, place, message=0):
    """Advance while the collective of a message ends only once the program at `place` has run."""
    computed = threading.Event()
    collective, program = collectives[message], programs[place]

    def exchanges(x):
        assert computed.wait(60), "computing waits for the exchange"
        return collective(x)

    def computes(*values):
        found = program(*values)
        computed.set()
        return found

    collectives[message], programs[place] = exchanges, computes
    after, _ = runtime.advance(run, np.inf, updates)
    runtime.close()
    return after.update


def test_a_bucket_travels_while_the_backward_pass_goes_on():
    """The first bucket's all-reduce ends only once the last stage of the backward pass has run."""
    runtime = built()
    run, rounds = held(runtime)
    assert advanced_while_held_up(
        runtime, run, 1, rounds._reduce, rounds._first._programs, -1
    ) == 2


def test_a_decoupled_bucket_is_gathered_while_the_next_forward_pass_goes_on():
    """The last layer's all-gather ends only once the next forward pass has used the first's."""
    runtime = built(collective="decoupled")
    run, rounds = held(runtime)
    stages = rounds._following._stages.stages
    begun = next(i for i, stage in enumerate(stages) if stage.awaits == 0)
    assert stages[begun].program.outvars  # the first layer, which arrives first, is computed with
    assert advanced_while_held_up(
        runtime, run, 2, rounds._gather, rounds._following._programs, begun
    ) == 3


def test_a_part_of_the_last_layer_travels_while_the_next_forward_pass_goes_on():
    """Its last part, which goes last, ends only once the first layer's values have been used."""
    runtime = built(PARTS)
    made = runtime._algorithm.buckets.buffers_of(PARAMS)
    assert [(b.bucket, b.first, b.elements) for b in made] == [
        (0, 0, 5), (1, 0, 5), (2, 0, 5), (2, 5, 5), (2, 10, 2), (1, 5, 5), (1, 10, 2), (0, 5, 5),
        (0, 10, 2),
    ]  # fmt: skip
    run, rounds = held(runtime)
    stages = rounds._following._stages.stages
    begun = next(i for i, stage in enumerate(stages) if stage.awaits == 0)
    assert stages[begun].program.outvars
    assert advanced_while_held_up(
        runtime, run, 2, rounds._reduce, rounds._following._programs, begun, message=8
    ) == 3


def test_messages_are_sent_in_the_order_of_the_plan_however_they_become_known():
    sent = []
    leave = in_order([[0, 3], [1], [2, 4]], lambda i, value: sent.append((i, value)))
    for group, values, expected in ((0, "ad", 1), (2, "ce", 1), (1, "b", 5)):
        leave(group, values)
        assert sent == [*enumerate("abcde")][:expected]


def test_an_exchange_that_fails_ends_the_run():
    runtime = built()
    run, programs = held(runtime)

    def fails(x):
        raise RuntimeError("the peer has gone")

    programs._reduce[1] = fails
    with pytest.raises(RuntimeError, match="the peer has gone"):
        runtime.advance(run, np.inf, 1)
    runtime.close()


def test_a_timeline_has_every_stage_and_every_bucket_of_every_round():
    runtime = built()
    run, _ = held(runtime)
    runtime.timeline = []
    runtime.advance(run, np.inf, 3)
    runtime.close()
    names = [(span.lane, span.name) for span in runtime.timeline]
    assert all(names.count(("exchange", f"reduce {b}")) == 3 for b in range(3))
    assert all(names.count(("compute", f"stage {i}")) == 3 for i in range(3))
    assert all(span.start <= span.end for span in runtime.timeline)


@LATE
def test_the_program_has_the_backward_pass_between_start_and_end_of_a_buckets_exchange():
    runtime = built(overlap="program")
    run = runtime.start(PARAMS)
    examples, table = runtime._input.take(run.consumed, 4)
    lowered = runtime.dispatch.lower(run.model, table, examples, None, np.int32(1)).as_text()
    assert lowered.count('@"reduce-scatter-start"') == lowered.count("stablehlo.all_gather") == 3
    beside = [part.partition("-done")[0] for part in lowered.split("reduce-scatter-start")[1:]]
    assert ["dot_general" in part for part in beside] == [True, True, False]


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (mg_wfbp, {"overlap": "thread"}, "overlap='thread' is unknown; choose one of none, thr"),
        (all_reduce, {"overlap": "threads"}, "does not send its gradients in buckets; take mg_wf"),
        (mg_wfbp, {"overlap": "threads", "mini_batches": 2}, "mini_batches=1 and devices_per_work"),
        (mg_wfbp, {"overlap": "threads", "devices_per_worker": 2}, "or leave overlap out"),
    ],
    ids=["unknown", "no buckets", "several mini-batches", "slices"],
)
def test_what_cannot_overlap_is_refused(method, options, words):
    own = {"buckets": "wfbp"} if method is mg_wfbp else {}
    given = {"workers": 2, "mini_batches": 1} | options
    with pytest.raises(ValueError, match=words):
        mesh.Mesh(method(optax.sgd(0.1), **own), losses, DATA, Drawn, **given)


@LATE
def test_a_ring_of_ours_is_no_reduce_scatter_of_the_compiler():
    with pytest.raises(ValueError, match="take collective=psum or decoupled"):
        built(collective="ring", overlap="program")


def test_collectives_of_a_later_jax_are_refused_before(monkeypatch):
    monkeypatch.delattr(jax.lax, "psum_scatter_start", raising=False)
    with pytest.raises(ValueError, match="came with JAX"):
        built(overlap="program")


# --- stages


def chain(arriving, x):
    """Of y = x + the sum of what arrives: results of the last, the middle and the first term."""
    (a,), (b,), (c,) = arriving
    first = jnp.sin(x + a)
    second = jnp.cos(first * b)
    third = jnp.exp(second - c)
    return [[third * 2], [second * third], [first, second * 3]], {"x": x, "sum": first + second}


GIVEN = [[1.0], [2.0], [3.0]]


def test_a_stage_needs_no_more_than_has_arrived_and_computes_no_more_than_is_to_leave():
    stages = Stages(chain, 2, GIVEN, jnp.float32(0.5))
    there, left, ran = [], [], []

    def arrived(k):
        there.append(k)
        return GIVEN[k]

    def run(i, stage):
        def computed(*values):
            ran.append((i, [e.primitive.name for e in stage.program.eqns], list(there), list(left)))
            return stages.traced(stage)(*values)

        return computed

    found = {}
    rest = stages.play(
        [run(i, stage) for i, stage in enumerate(stages.stages)],
        (jnp.float32(0.5),),
        arrived,
        lambda b, values: (left.append(b), found.setdefault(b, values)),
    )
    expected, kept = chain(GIVEN, jnp.float32(0.5))
    assert [found[b] for b in range(3)] == expected and rest == kept
    assert there == left == [0, 1, 2]
    when = {name: (seen, gone) for _, names, seen, gone in ran for name in names}
    assert when["sin"] == ([0], []) and when["cos"] == ([0, 1], [])
    assert when["exp"] == ([0, 1, 2], [])
    multiplied = [(len(gone), names.count("mul")) for _, names, _, gone in ran if "mul" in names]
    assert multiplied == [(0, 1), (0, 1), (1, 1), (2, 1)]  # first * b, then a product per group


@pytest.mark.parametrize("name", ["digits", slow("next_token")])
def test_stages_of_a_models_gradient_are_its_gradient(name):
    """With calls, loops and constants inside, and a seed for what a model draws."""
    task = tasks.build(
        {"name": "digits", "model": {"name": "cnn", "channels": [16]}}
        if name == "digits"
        else {"name": "next_token", "model": {"name": "gpt", "layers": 1, "width": 8, "heads": 2}}
    )
    params = jax.tree.map(np.asarray, task.init(jax.random.key(0)))
    examples = jax.tree.map(np.asarray, tasks.take(task.train, np.arange(2)))

    def gradient(arriving, params, examples):
        del arriving
        found = jax.grad(lambda p: tasks.first_draw(task)(p, examples).mean())(params)
        return [[leaf] for leaf in jax.tree.leaves(found)][::-1], ()

    stages, found = Stages(gradient, 1, (), params, examples), []
    run = [jax.jit(stages.traced(stage)) for stage in stages.stages]
    stages.play(run, (params, examples), leave=lambda b, values: found.append((b, *values)))
    expected = [leaf for (leaf,) in jax.jit(gradient)((), params, examples)[0]]
    assert [b for b, _ in found] == list(range(len(expected))) and len(run) >= len(expected)
    for (_, got), leaf in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, leaf, rtol=2e-4, atol=1e-6)


@pytest.mark.slow
def test_processes_that_differ_in_speed_never_wait_for_ever(tmp_path):
    """Hundreds of rounds of four, in which every stage of a process is late at random."""
    found, _ = one_of_several.results(tmp_path, "overlapped", count=4, devices=1)
    expected = one_of_several.not_overlapped(4)
    for name in ("psum", "decoupled", "parts"):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)


