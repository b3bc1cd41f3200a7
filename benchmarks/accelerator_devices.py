"""What is measured on several devices: rounds, buckets, rings and gossip, a process per device."""

import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS
from algorithms.gossip import graph_matchings
from algorithms.mg_wfbp import mg_wfbp, plan_with
from benchmarks import sides, traces
from benchmarks.accelerator_record import Line, Row, Skip, compared
from benchmarks.accelerator_rows import Sizes
from comms import collectives, gossip, mixing, topology
from experiments import profiling, tasks
from runtimes import mesh
from runtimes.rounds import Table

ROUND = 1.03  # goal of a plain round
PLANS = ("wfbp", "single", "optimal")
HIDDEN, BATCH = (384,) * 6, 64  # of the model whose gradients travel in buckets
ELEMENTS = (1 << 10, 1 << 20)  # float32, of an all-reduce or of what neighbours exchange
# A data dependence keeps buckets apart; the threshold says so twice. Only the scheduler that hides
# latency runs an all-reduce beside the backward pass.
OPTIONS = {
    "gpu": {
        "xla_gpu_all_reduce_combine_threshold_bytes": 1,
        "xla_gpu_enable_latency_hiding_scheduler": True,
    }
}
SECONDS = 240  # after which processes of devices are ended


def device_rows(sizes: Sizes, devices: int, processes: int | None) -> Iterator[Row]:
    """Rows for several devices; processes: as many as asked for, None: one per accelerator."""
    section = "several devices"
    least = sizes.devices_seconds
    if devices > 1:
        yield compared(
            section,
            f"plain round, {devices} devices",
            ROUND,
            lambda: sides.mesh_sides(*sides.task_and_sampler(devices), devices),
            least,
        )
        yield Row(section, "buckets", functools.partial(bucket_lines, devices), least)
        for size in ELEMENTS:
            for collective, candidates in {"ring": ring_sides, "gossip": gossip_sides}.items():
                yield compared(
                    section,
                    f"{collective} over the library's, {4 * size >> 10:,} KiB",
                    None,
                    functools.partial(candidates, devices, size),
                    least / 4,
                )
    else:
        yield Row(section, "rounds, buckets, rings and gossip", alone)
    asked = processes or (devices if jax.default_backend() == "gpu" else 1)
    measure = functools.partial(process_lines, asked)
    yield Row(section, "one process per device", measure, least if asked > 1 else 0)


def alone(budget: float) -> Iterator[Line]:
    del budget
    raise Skip("there is one device")


# --- buckets ---


def bucket_lines(devices: int, budget: float) -> Iterator[Line]:
    """All-reduces in the compiled program over the plan's; then what runs beside them."""
    task = tasks.build({"name": "digits", "model": {"name": "mlp", "hidden": HIDDEN}})
    steps = int(np.clip(10 * budget, 3, 40))
    profile = profiling.measure(task, BATCH, jax.devices()[:devices], steps)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    options = OPTIONS.get(jax.default_backend(), {})
    for plan in PLANS:
        planned = len(plan_with(plan, profile)(shapes)[0].buckets)
        run, text = _bucketed(
            task, mg_wfbp(sides.optimizer(), buckets=plan, profile=profile), devices, options
        )
        found = len(re.findall(r" all-reduce(?:-start)?\(", text))
        jax.block_until_ready(run())
        facts = {"planned": planned, "compiled": found, "options": options}
        beside = traces.beside(traces.taken(run))
        facts["beside"] = "no device timeline on this backend" if beside is None else beside
        off = max(found / planned, planned / found) if found else np.inf  # merged, or split
        yield Line(f"buckets {plan}, compiled against planned", off, "x", 1.0, {}, facts)


def _bucketed(task, method, devices: int, options: dict) -> tuple[Callable, str]:
    """A candidate of one round, and the text of its compiled program."""
    sampler = sides.sampler_of(task, devices, BATCH)
    runtime = mesh.Mesh(
        method,
        task.losses,
        task.train,
        sampler,
        workers=devices,
        mini_batches=1,
        rounds_per_dispatch=1,
    )
    model = runtime.start(task.init(jax.random.key(0))).model
    indices = sampler.indices(np.arange(devices)[:, None], np.zeros((devices, 1), np.int64))
    mesh_of_all, stacked = _stacked(devices)
    table = jax.device_put(Table(indices, np.zeros(devices, np.int32)), stacked)
    examples = jax.device_put(task.train, NamedSharding(mesh_of_all, P()))
    count = np.int32(1)
    lowered = runtime.dispatch.lower(model, table, examples, None, count)
    program = lowered.compile(compiler_options=options)

    def turn():
        nonlocal model
        model = program(model, table, examples, None, count)
        return model

    return turn, program.as_text()


# --- collectives ---


def _stacked(devices: int):
    mesh_of_all = jax.make_mesh(
        (devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    return mesh_of_all, NamedSharding(mesh_of_all, P(AXIS))


def _collective(body: Callable, devices: int, size: int) -> Callable:
    """A candidate: `body` of an array of float32 on every device."""
    mesh_of_all, sharding = _stacked(devices)
    values = jax.device_put(np.ones((devices, size), np.float32), sharding)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh_of_all, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    def program(x):
        return body(x[0])[None]

    return lambda: program(values)


def ring_sides(devices: int, size: int) -> dict[str, Callable]:
    """Our ring all-reduce against `psum`."""
    bodies = {"ring": collectives.ring_all_reduce, "psum": jax.lax.psum}
    return {
        name: _collective(lambda x, f=f: f(x, AXIS), devices, size) for name, f in bodies.items()
    }


def gossip_sides(devices: int, size: int) -> dict[str, Callable]:
    """Our mixing on a ring, or a pair, against the library's permutations to either side."""
    graph = topology.ring(devices)
    weights = mixing.MIXINGS["metropolis"](graph)
    _, partners = graph_matchings(graph)
    shifts = sorted({1 % devices, -1 % devices})
    share = 1 / (1 + len(shifts))

    def by_hand(x):
        received = [
            jax.lax.ppermute(x, AXIS, [(i, (i + shift) % devices) for i in range(devices)])
            for shift in shifts
        ]
        return share * (x + sum(received))

    ours = _collective(lambda x: gossip.mix(x, weights, partners, AXIS), devices, size)
    return {"gossip": ours, "ppermute": _collective(by_hand, devices, size)}


# --- a process per device ---


def process_lines(count: int, budget: float) -> Iterator[Line]:
    """Plain rounds of as many processes with a device each, over hand-written ones."""
    del budget
    if count < 2:
        raise Skip("for lack of several GPUs; --processes=2 starts two of them")
    if jax.default_backend() == "tpu":
        raise Skip(
            "a TPU is held by the process that measures; benchmarks.accelerator_process "
            "is what each of them would run"
        )
    taken = measured_by(count)
    ours, by_hand = taken["ours"], taken["by hand"]
    yield Line(f"plain round, {count} processes", ours / by_hand, "x", ROUND, taken)


def measured_by(count: int) -> dict[str, float]:
    """Start the processes on this host; what the first of them prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    backend = jax.default_backend()
    every = ",".join(map(str, range(count)))
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",")
    workers = []
    try:
        for rank in range(count):
            command = [sys.executable, "-m", "benchmarks.accelerator_process", coordinator]
            environment = dict(os.environ)
            environment["XLA_FLAGS"] = re.sub(
                r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")
            )
            if backend == "gpu":
                environment["CUDA_VISIBLE_DEVICES"] = visible[rank]
            else:
                environment["JAX_PLATFORMS"] = backend
            workers.append(
                subprocess.Popen(
                    [*command, str(count), str(rank)],
                    cwd=Path(__file__).parent.parent,
                    stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stderr=subprocess.DEVNULL if rank else subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        output, errors = workers[0].communicate(timeout=SECONDS)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if workers[0].returncode:
        raise RuntimeError(f"the first of {count} processes failed: {errors[-400:]}")
    return json.loads(output.splitlines()[-1])
