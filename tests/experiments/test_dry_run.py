"""Dry runs of arms, beside the compiler's numbers of their programs."""

import jax
import numpy as np
import pytest

from configs import base
from experiments import dry_run, prepare, registry
from runtimes import worker
from tests.launcher import ROOT, caller, refused

GPT = (
    "next_token(model=gpt(layers=2, width=64, heads=2), corpus=python(files=40), vocabulary=512, "
    "length=64)"
)
RESNET = "images(source=noise(samples=64, size=16), model=resnet18(width=16))"
ADAM = "[clip_by_global_norm(max_norm=1.0), adamw(learning_rate=0.01)]"


def arm(task, **changes):
    return registry.canonical(base.arm(**{"task": task, "workers": 2, "batch_size": 4, **changes}))


def bytes_of(lowered):
    """Return the bytes of a device while the compiled program runs."""
    found = lowered.compile().memory_analysis()
    whole = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return whole - found.alias_size_in_bytes


@pytest.mark.slow
def test_memory_is_within_a_tenth_of_the_compilers(monkeypatch):
    """Of programs as accelerators have them: on a CPU convolutions are copied to another order."""
    monkeypatch.setattr(worker, "channels_last", lambda gradient: gradient)
    config = arm(RESNET, optimizer="momentum(learning_rate=0.1)")
    made = prepare.prepare(config)
    traced = dry_run.simulated(made)
    memory, *_ = dry_run.costs_of(traced)
    lowered = jax.jit(traced.program, donate_argnums=0).lower(*traced.arguments)
    assert memory == pytest.approx(bytes_of(lowered), rel=0.1)


def test_what_is_sent_and_counted_of_an_update():
    config = arm("digits(model=logistic)", workers=4)
    found = dry_run.forecast(config)
    assert found.parameters == 650
    assert found.sent == pytest.approx(2 * 3 / 4 * 4 * 650, rel=0.01)  # a ring all-reduce
    # Forward, and the gradient of the weights; images need none.
    assert found.flops == pytest.approx({"float32": 2 * 2 * (4 * 4) * 64 * 10}, rel=0.01)
    whole = 1437 * (64 + 1) * 4
    assert whole < found.memory < 1.1 * whole
    alone = dry_run.forecast(arm("digits(model=logistic)", workers=4, runtime="mesh", delay="none"))
    assert alone.flops == pytest.approx({"float32": 2 * 2 * 4 * 64 * 10}, rel=0.01)
    assert alone.sent == found.sent
    free = {"runtime": "actors", "delay": "none", "wait": "k_async(k=1)"}
    process = dry_run.forecast(arm("digits(model=logistic)", **free))
    assert process.flops == alone.flops


@pytest.mark.slow
def test_the_command_says_so_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call = caller(monkeypatch, capsys)
    path = f"--config={ROOT}/configs/language_model.py:tiny"
    arms = ("--sweep", "--arm=all_reduce", "--arm=diloco/H=10", "--config.task.corpus.files=40")
    code, shown, _ = call(path, *arms, "--dry_run")
    assert code == 0 and not list(tmp_path.iterdir())
    for word in ("all_reduce", "diloco/H=10", "parameters", "TPU v5e"):
        assert word in shown
    assert "local_sgd" not in shown
    assert call(path, "--dry_run", "--num_processes=2")[0] == 2
    analysis = f"--config={ROOT}/configs/goodput.py"
    refused(call(analysis, "--dry_run", "--workdir=out"), "leave out --dry_run")


SLICES = {"runtime": "mesh", "delay": "none", "devices_per_worker": 4, "batch_size": 8}


def test_a_device_of_a_slice_has_its_part_of_the_work_and_of_what_is_divided():
    task = "digits(model=mlp(hidden=[64]))"
    one, whole, part, coded = (
        dry_run.forecast(arm(task, optimizer="adam(learning_rate=0.1)", **SLICES | changes))
        for changes in ({"devices_per_worker": 1}, {}, {"sharding": "fsdp"},
                        {"sharding": "fsdp(parameters=int8, gradients=int4)"})
    )
    assert whole.flops["float32"] == part.flops["float32"] == one.flops["float32"] / 4
    assert one.sent == whole.sent == part.sent
    # Three quarters are gathered and summed, in 4 bytes, or in a byte and half of one.
    assert one.sent_in_slice == 0 and whole.sent_in_slice == pytest.approx(part.sent_in_slice)
    assert 0.18 < coded.sent_in_slice / part.sent_in_slice < 0.21 and coded.sent == part.sent
    # Of parameters and two moments a quarter stays, and the parameters are gathered.
    divided = 4 * (64 * 64 + 64 + 64 * 10)
    assert whole.memory - part.memory > divided * (3 * 3 / 4 - 1)


@pytest.mark.slow
def test_memory_of_a_slice_is_within_a_tenth_of_the_compilers():
    changes = {"optimizer": ADAM, "algorithm": "local_sgd", "mini_batches": 2, **SLICES}
    config = arm(GPT, **changes, sharding="fsdp", rounds_per_dispatch=1)
    made = prepare.prepare(config)
    runtime = made.runtime
    run = runtime.start(made.task.init(jax.random.key(0)))
    examples, table = runtime._input.take(run.consumed, 2)
    lowered = runtime.dispatch.lower(run.model, table, examples, None, np.int32(1))
    assert dry_run.forecast(config).memory == pytest.approx(bytes_of(lowered), rel=0.1)
