"""Step times with every kind of buckets, measured on processes of one host beside the prediction.

    python -m benchmarks.buckets_processes                  # two processes, gloo over loopback
    python -m benchmarks.buckets_processes --rate=1gbit     # over rate-limited links; needs root

Every process is a worker with one CPU device. A profile of backward pass and all-reduce is measured
first, then steps of all plans, both by `experiments.stopwatch`, since others may use the host
too. Steps are compared with two predictions: the plan's timeline, in which
communication runs beside the backward pass (`overlapped`; `error` is against it), and plain
addition of both (`added`). Which of them a backend follows, a trace of its operations tells:
`beside` is the share of the time of all-reduces in which the same process was seen to compute
something else, at least: matrix products that other threads go on with are unseen.

An all-reduce on a CPU blocks one of the threads that XLA computes with, which `--threads` adds to.
`--rate` gives every process a link of its own, see `benchmarks.namespaces`.
"""

import contextlib
import functools
import gzip
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

from algorithms.base import AXIS
from algorithms.mg_wfbp import mg_wfbp, plan_with
from benchmarks import namespaces, output
from comms import cost
from experiments import profiling, stopwatch, tasks

_PROCESSES = flags.DEFINE_integer("processes", 2, "Workers.", lower_bound=2)
_RATE = flags.DEFINE_string("rate", None, "Rate of every worker's link, as in 1gbit.")
_LAYERS = flags.DEFINE_integer("layers", 6, "Hidden layers of the model.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 384, "Units of each.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 512, "Samples of a worker's mini-batch.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 40, "Runs of everything timed.", lower_bound=1)
_THREADS = flags.DEFINE_integer(
    "threads", None, "XLA's threads per process; by default as many as there are cores."
)
_TIMEOUT = flags.DEFINE_integer("timeout", 420, "Seconds after which everything is ended.")
_RANK = flags.DEFINE_integer("rank", None, "Number of this worker; set by the first process.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "Set by the first process.")

PLANS = ("wfbp", "single", "fixed:1MB", "greedy", "asc", "optimal")
TRACED = 5  # steps of each plan


# --- a worker ---


def work() -> None:
    """Measure as one of the workers; the first one prints its results as JSON."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        _COORDINATOR.value, _PROCESSES.value, _RANK.value, initialization_timeout=60
    )
    task = tasks.build(
        {"name": "digits", "model": {"name": "mlp", "hidden": [_WIDTH.value] * _LAYERS.value}}
    )
    profile = profiling.measure(task, _BATCH.value, steps=_REPEATS.value)
    steps = {"alone": step_of(task, None)}
    for buckets in PLANS:
        steps[buckets] = step_of(task, mg_wfbp(optax.sgd(0.1), buckets=buckets, profile=profile))
    taken = stopwatch.seconds({name: run for name, (run, _) in steps.items()}, _REPEATS.value)
    shares = {buckets: traced(*steps[buckets]) for buckets in PLANS}
    if _RANK.value:
        return
    params = jax.eval_shape(task.init, jax.random.key(0))
    fitted, r_squared = profile.fit
    alone = taken["alone"] - float(profile.cost.seconds(4))
    timed = {
        "alone": alone,
        "backward": profile.ready[-1],
        "alpha": fitted.alpha,
        "beta": fitted.beta,
        "r_squared": r_squared,
        "largest_error": cost.largest_error(fitted, profile.sizes, profile.seconds),
        "plans": {},
    }
    for buckets in PLANS:
        plan, _ = plan_with(buckets, profile)(params)
        timed["plans"][buckets] = {
            "buckets": len(plan.buckets),
            "overlapped": alone + plan.exposed,
            "added": alone + float(np.sum(plan.end - plan.start)),
            "measured": taken[buckets],
            "beside": shares[buckets],
        }
    print(json.dumps(timed), flush=True)


def step_of(task, method) -> tuple[Callable, set[str]]:
    """(a function that takes a step of plain SGD, the names of its all-reduces); on fixed samples.

    method: None: all that is exchanged is one number.
    """
    devices = jax.make_mesh((jax.device_count(),), (AXIS,), (AxisType.Auto,))
    stacked = NamedSharding(devices, P(AXIS))

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=devices, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    def step(params, examples):
        params = jax.tree.map(lambda a: a[0], params)
        update = jax.grad(lambda p: task.losses(p, examples).mean())(params)
        if method is None:  # one number: waiting for the slowest worker is no communication
            touched = sum(jnp.ravel(u)[0] for u in jax.tree.leaves(update))
            update = jax.tree.map(lambda u: u + 0 * jax.lax.psum(touched, AXIS), update)
        else:
            update, _ = method.exchange.update(update, optax.EmptyState(), params)
        return jax.tree.map(lambda a, u: (a - 0.01 * u)[None], params, update)

    def place(array):
        whole = np.broadcast_to(array, (jax.device_count(), *np.shape(array)))
        return jax.make_array_from_callback(whole.shape, stacked, lambda i: whole[i])

    def samples(array):
        whole = np.resize(array, (jax.device_count() * _BATCH.value, *array.shape[1:]))
        return jax.make_array_from_callback(whole.shape, stacked, lambda i: whole[i])

    params = jax.tree.map(place, jax.device_get(jax.jit(task.init)(jax.random.key(0))))
    examples = jax.tree.map(samples, task.train)
    program = step.lower(params, examples).compile()
    names = re.findall(r"%?([\w.-]+) = [^=]*? all-reduce\(", program.as_text())
    return lambda: program(params, examples), set(names)


def traced(run, all_reduces: set[str]) -> float:
    """The share of the time of the named operations in which this process ran another one."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            for _ in range(TRACED):
                jax.block_until_ready(run())
        (path,) = pathlib.Path(folder).rglob("perfetto_trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    sending, computing = [], []
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            spans = sending if event["name"] in all_reduces else computing
            spans.append((event["ts"], event["ts"] + event["dur"]))
    ticks = np.unique(np.concatenate([np.ravel(sending), np.ravel(computing)]))
    middle, lasts = (ticks[1:] + ticks[:-1]) / 2, np.diff(ticks)
    sends, computes = (
        np.any([(begin < middle) & (middle < end) for begin, end in spans], axis=0)
        for spans in (sending, computing)
    )
    return float(lasts[sends & computes].sum() / lasts[sends].sum())


# --- the parent ---


@contextlib.contextmanager
def places(count: int, rate: str | None) -> Iterator[list[tuple[list[str], str]]]:
    """(prefix of a command, address) of every process: hosts with a link, or all in one place."""
    if rate is None:
        yield [([], "127.0.0.1")] * count
        return
    with namespaces.switch(count, rate) as hosts:
        yield [(host.prefix, host.address) for host in hosts]


def measure(where) -> dict:
    """Start a worker in every place and return what the first one tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"{where[0][1]}:{free.getsockname()[1]}"
    environment = dict(os.environ)
    if _THREADS.value is not None:
        environment["NPROC"] = str(_THREADS.value)  # what XLA's CPU client goes by
    workers = []
    try:
        for rank, (prefix, _) in enumerate(where):
            command = [sys.executable, "-m", "benchmarks.buckets_processes", *sys.argv[1:]]
            command += [f"--rank={rank}", f"--coordinator={coordinator}"]
            workers.append(
                subprocess.Popen(
                    [*prefix, *command],
                    stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        output, errors = workers[0].communicate(timeout=_TIMEOUT.value)
    finally:
        for worker in workers:
            worker.kill()
    if workers[0].returncode:
        raise RuntimeError(f"the first worker failed:\n{errors[-2000:]}")
    return json.loads(output.splitlines()[-1])


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    if _RANK.value is not None:
        work()
        return
    reason = None if _RATE.value is None else namespaces.unmet()
    if reason is not None:
        print(f"skipped: {reason}; leave it out to measure over loopback")
        return
    count = _PROCESSES.value
    try:
        with places(count, _RATE.value) as where:
            timed = measure(where)
    except subprocess.CalledProcessError as error:  # root of a container may not
        print(f"skipped: {' '.join(error.cmd)!r} failed: {error.stderr.strip()}; leave --rate out")
        return
    table = Table(title=f"{count} processes, {_RATE.value or 'loopback'}: ms of a step")
    for column in ("plan", "buckets", "overlapped", "added", "measured", "error", "beside"):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for name, plan in timed["plans"].items():
        milliseconds = (f"{1e3 * plan[k]:.1f}" for k in ("overlapped", "added", "measured"))
        error = plan["measured"] / plan["overlapped"] - 1
        shares = (f"{error:+.0%}", f"{plan['beside']:.0%}")
        table.add_row(name, str(plan["buckets"]), *milliseconds, *shares)
    common = {"processes": count, "rate": _RATE.value or "loopback"}
    common |= {name: timed[name] for name in timed if name != "plans"}
    found = [{**common, "plan": name, **plan} for name, plan in timed["plans"].items()]
    output.put("buckets_processes", ("processes", "rate", "plan"), found)
    console = Console(width=100)
    console.print(table)
    console.print(
        f"a step alone {1e3 * timed['alone']:.1f} ms, backward {1e3 * timed['backward']:.1f} ms; "
        f"all-reduce {1e3 * timed['alpha']:.2f} ms and {1e-6 / timed['beta']:.0f} MB/s "
        f"(R^2 {timed['r_squared']:.3f}, off by up to {timed['largest_error']:.0%}); "
        f"load of the host {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores",
        highlight=False,
    )


if __name__ == "__main__":
    app.run(main)
