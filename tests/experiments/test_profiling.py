"""Profiles: the order of a backward pass, measured times, and how a config gets one."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from algorithms.mg_wfbp import plan_with
from configs import base, mg_wfbp
from experiments import (
    config_files,
    prepare,
    profiling,
    records,
    stopwatch,
    sweep,
    tasks,
    train,
)
from experiments.profiling import Profile
from runtimes import overlapped

PROFILE = Profile(
    [["b"], ["a/bias", "a/kernel"]],
    np.array([0.25, 0.5]),
    np.array([1000.0, 2000.0, 4000.0]),
    np.array([2.0, 3.0, 5.0]),
    -0.04,
    0.125,
)
TINY = "digits(model={'name': 'mlp', 'hidden': [8]})"


@pytest.fixture(scope="module")
def task():
    return tasks.build(TINY)


def test_the_order_is_that_of_the_computation_not_of_the_names():
    """By name layers_10 would come after layers_1; each layer's parameters stay together."""
    task = tasks.build("digits(model=cnn, l2=0.1)")
    order = profiling.backward_order(task, 4)
    assert [layer[0].split("/")[0] for layer in order] == [f"layers_{i}" for i in (10, 6, 5, 2, 1)]
    assert order[1] == ["layers_6/bias", "layers_6/scale"]


def test_a_layer_is_ready_with_the_last_of_its_gradients(task):
    """The first layer's scale is used at the end, so that its gradient comes first."""
    leaf = np.zeros((), np.float32)
    params = {"first": {"kernel": leaf, "scale": leaf}, "second": {"kernel": leaf}}

    def losses(params, examples):
        x = jnp.sin(params["first"]["kernel"] * examples["x"])
        return params["first"]["scale"] * jnp.sin(params["second"]["kernel"] * x)

    odd = task._replace(
        init=lambda key: params, losses=losses, train={"x": np.zeros(4, np.float32)}
    )
    order = profiling.backward_order(odd, 4)
    assert order == [["second/kernel"], ["first/scale", "first/kernel"]]


def test_times_are_taken_apart_as_they_were_put_together(task, monkeypatch):
    """Less the forward pass, and per all-reduce of those that ran in a row."""
    timed = {"forward": 1.0, "whole": 5.0, 1: 4.0, 2: 3.0}  # the second layer before the first?
    monkeypatch.setattr(stopwatch, "seconds", lambda programs, turns: timed)
    measured = profiling.measure_backward(task, 16)
    assert measured.ready.tolist() == [2.5, 2.5]
    assert (measured.forward, measured.error) == (1.0, -0.375)
    timed = {4096: 1.0, 2**20: 1.0, 2**23: 1.0}
    monkeypatch.setattr(stopwatch, "seconds", lambda programs, turns, warm_ups: timed)
    _, seconds = profiling.measure_all_reduce(jax.devices()[:2], tuple(timed))
    assert seconds.tolist() == [1 / 32, 1 / 4, 1.0]


def test_a_cut_gradient_is_the_gradient(task):
    params = task.init(jax.random.key(0))
    examples = jax.tree.map(lambda a: a[:8], task.train)

    def loss(p, e):
        return task.losses(p, e).mean()

    whole = jax.grad(loss)(params, examples)
    last = profiling.backward_order(task, 8)[0]
    cut = profiling._cut(loss, set(last))(params, examples)
    assert sorted(cut) == last
    for path, gradient in cut.items():
        module, name = path.split("/")
        np.testing.assert_array_equal(gradient, whole[module][name])


def test_stages_of_a_round_are_timed_as_they_run(monkeypatch):
    """Each sleeps 5 ms more than the one before; the plan has the layers in their order."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp", "hidden": [8, 8]}})
    timed = overlapped.Threads._timed

    def slow(self, name, program):
        number = int(name.removeprefix("stage ")) if name.startswith("stage") else -1
        return timed(self, name, lambda *given: time.sleep(5e-3 * (1 + number)) or program(*given))

    monkeypatch.setattr(overlapped.Threads, "_timed", slow)
    profile = profiling.measure(task, 4, jax.devices()[:2], overlap="threads")
    assert profile.layers == profiling.backward_order(task, 4) and profile.error is None
    since_forward_began = profile.forward + profile.ready
    assert (since_forward_began >= [0.005, 0.015, 0.03]).all() and profile.cost.seconds(1e3) > 0
    plan = plan_with("optimal", profile)
    assert sum(map(len, plan(jax.eval_shape(task.init, jax.random.key(0)))[1]), 0) == 6


def test_profiles_are_saved_and_loaded(tmp_path):
    profiling.save(tmp_path / "p.json", PROFILE)
    loaded = profiling.load(tmp_path / "p.json")
    assert loaded.layers == PROFILE.layers
    for one, other in zip(loaded[1:], PROFILE[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert loaded.fit[0].seconds(1500) == pytest.approx(2.5)
    assert loaded.cost.seconds(1500) == pytest.approx(2.5)


# --- configs ---


def config(**changes) -> ConfigDict:
    base = sweep.override(mg_wfbp.get_config("workers=2"), {"task": TINY, "profile": None})
    return sweep.override(base, changes)


def test_a_config_measures_once_and_saves(tmp_path, monkeypatch, task):
    calls = []
    monkeypatch.setattr(profiling, "_MEASURED", {})
    monkeypatch.setattr(profiling, "measure", lambda *given, **own: calls.append(given) or PROFILE)
    path = tmp_path / "p.json"
    for source in ("measure", f"measure:{path}", "measure"):
        wanted = config(profile=source, mini_batches=3, batch_size=5)
        assert profiling.for_config(wanted, task) is PROFILE
    assert [given[1] for given in calls] == [15]
    assert profiling.for_config(config(profile=str(path)), task).layers == PROFILE.layers


def test_a_run_goes_on_with_the_profile_that_it_began_with(tmp_path, monkeypatch, task):
    layers = profiling.backward_order(task, 1)
    taken = iter(PROFILE._replace(layers=layers, ready=np.array([0.25, x])) for x in (0.5, 1, 2))
    monkeypatch.setattr(profiling, "measure", lambda *given, **own: next(taken))
    wanted = config(profile="measure", runtime="simulate", delay="deterministic(value=1.0)")
    kept = tmp_path / records.PROFILE

    def newest(*_):  # before anything is compiled
        raise InterruptedError

    monkeypatch.setattr(train, "newest", newest)
    for overwrite, ready in ((False, 0.5), (False, 0.5), (True, 1)):
        monkeypatch.setattr(profiling, "_MEASURED", {})  # as in another process
        with pytest.raises(InterruptedError):
            train.run(wanted, tmp_path, overwrite=overwrite)
        assert profiling.load(kept).ready.tolist() == [0.25, ready]
    assert next(taken).ready[-1] == 2
    wanted.updates += 1
    with records.Recorder(tmp_path, wanted) as recorder:
        recorder.begin()
    assert prepare.prepare(wanted, settled=True, kept=kept).profile.ready[-1] == 1


def test_a_profile_of_another_model_is_refused_before_the_run(tmp_path):
    profiling.save(tmp_path / "p.json", PROFILE)
    with pytest.raises(ValueError, match="of another model: the model does not have 'a/bias'"):
        prepare.prepare(config(profile=str(tmp_path / "p.json"), runtime="mesh"))


def test_entries_that_cannot_be_used_are_refused(task):
    with pytest.raises(ValueError, match=r"takes 99 devices and there are 8; set config\.runtime"):
        profiling.for_config(config(profile="measure", workers=99), task)
    with pytest.raises(ValueError, match=r"save into a directory that does not exist; make it"):
        profiling.for_config(config(profile="measure:missing/p.json"), task)
    with pytest.raises(ValueError, match=r"config.profile must be 'measure', a path, .*, got 3;"):
        prepare.prepare(config(profile=3, runtime="mesh"))
    with pytest.raises(ValueError, match=r"need the times of the backward .*; set profile to"):
        prepare.prepare(config(profile=None, buckets="optimal"))
    other = config_files.override(base.arm(), {"profile": "measure"})  # any config has it
    assert other.profile == "measure"
    with pytest.raises(ValueError, match="'25' is no size of a bucket"):
        prepare.prepare(config(buckets="fixed:25"))
    with pytest.raises(ValueError, match=r"'layers.csv': layers of a CSV file are for configs/mg_"):
        profiling.for_config(config(profile="layers.csv"), task)
