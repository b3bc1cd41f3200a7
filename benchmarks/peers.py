"""Our simulator beside others who simulate distributed training, on the same task, in turn.

    python -m benchmarks.peers [--peers=fedjax,appfl,call]

The task is noise of the shape of images with a softmax, or an MLP, in float32.

    local SGD      64 workers x 10 steps of 20 samples, seconds of a round. FedJAX's federated
                   averaging compiles a client's step and loops over clients and steps. It shuffles
                   each client's samples on the host and takes the norm of each client's progress,
                   which we do not; we plan a schedule with delays, which it does not.
                   pfl-research loops over clients and steps in torch and adds up the differences
                   of their models, with weights and counts, which we do not. It has no clock
                   either. It can clip differences, add noise and spread clients over processes;
                   here it does none of that.
                   APPFL's virtual-time simulator has a clock, as we have, and loops over clients
                   and steps in torch. It makes an optimizer for every client and round, takes the
                   accuracy of its mini-batches and formats a row of a log, which we do not. It can
                   leave out late clients; here it waits for all, as we do.
    asynchronous   8 workers, 32 samples, an update with every gradient, seconds of an update.
                   Event loops as one writes them down: a heap and a compiled call for each event,
                   in JAX or in torch, and a single `lax.scan` over all events that keeps what each
                   worker has read. They get durations and samples for nothing; our side plans and
                   draws them. APPFL's simulator keeps a heap of events and draws them as well. Its
                   client sends the difference of its model before and after a step as a gradient.

pfl-research and APPFL get one thread, since two are slower, and data in memory. They neither
evaluate nor write a log in a turn that is timed.

Every side is a process that waits while another has its turn. Libraries that the project does not
use are installed into environments of their own in --environments. Points go to
docs/results/benchmarks/peers.json, with the median of all turns and their least and greatest.
"""

import functools
import importlib.metadata
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
from absl import app, flags, logging

from algorithms import all_reduce, local_sgd
from algorithms.base import scale_by_samples
from benchmarks import peers_data as data
from benchmarks import points, sides
from benchmarks.floors import gradient_of, plain_loop
from experiments.tasks import models
from stragglers.rule import Setting
from stragglers.rules import RULES

SIDES = ("fedjax", "appfl", "pfl", "call", "scan", "torch")
_PEERS = flags.DEFINE_list("peers", list(SIDES), "Who takes part.")
_TIMED = flags.DEFINE_integer("timed", 5, "Turns of every side that are timed.", lower_bound=1)
_ENVIRONMENTS = flags.DEFINE_string("environments", "runs/peers", "Where they are made.")

RECORD = points.FOLDER / "peers.json"
KEY = ("task", "side")  # of a point
MODELS = {
    "softmax": models.logistic,
    "hidden": functools.partial(models.mlp, hidden=(data.HIDDEN,)),
}
AMOUNT = {"rounds": 4, "softmax": 2048, "hidden": 512}  # rounds or updates of a turn
EVENTS = ("appfl", "call", "scan", "torch")  # who trains asynchronously
TAKES = {"rounds": ("fedjax", "appfl", "pfl"), "softmax": EVENTS, "hidden": EVENTS}
OTHERS = {"fedjax": (("fedjax",), "benchmarks/peers_fedjax.py"),
          "appfl": (("appfl",), "benchmarks/peers_appfl.py"),
          "pfl": (("pfl", "torch"), "benchmarks/peers_pfl.py"),
          "torch": (("torch", "numpy"), "benchmarks/peers_torch.py")}  # fmt: skip
GOALS = {"fedjax": 4.0, "call": 5.0, "scan": 2.0}  # times their seconds over ours


# --- sides that run in the project's own environment; each makes a turn ---


def ours(task: str) -> Callable:
    """The simulator, which goes on from where it stopped."""
    if task == "rounds":
        made = _task("softmax")
        method = local_sgd(scale_by_samples(data.RATE))
        sampler = sides.sampler_of(made, data.CLIENTS, data.BATCH)
        rule = sides.barrier(data.CLIENTS, data.STEPS)
        steps = data.STEPS
    else:
        made = _task(task)
        method = all_reduce(scale_by_samples(data.STALE_RATE))
        sampler = sides.sampler_of(made, data.WORKERS, data.STALE_BATCH)
        rule = RULES["k_batch_async"](Setting(sides.STALE_LAW, data.WORKERS, 1, 0), k=1)
        steps = 1
    return sides.simulated(method, made, sampler, rule, AMOUNT[task], steps)


def call(task: str) -> Callable:
    """A compiled call for each event."""
    seconds, rows = data.events(AMOUNT[task])
    return plain_loop(_task(task), seconds.tolist(), rows, 1, AMOUNT[task], data.STALE_RATE)


def scan(task: str) -> Callable:
    """All events in one program."""
    made, updates = _task(task), AMOUNT[task]
    seconds, rows = map(jnp.asarray, data.events(updates))
    gradient = gradient_of(made.losses)
    examples = jax.tree.map(jnp.asarray, made.train)

    def event(carry, _):
        params, read, counters, finish = carry
        i = jnp.argmin(finish)
        own = jax.tree.map(lambda a: a[i], read)
        g = gradient(own, rows[i, counters[i]], examples)
        params = jax.tree.map(lambda a, b: a - data.STALE_RATE * b, params, g)
        read = jax.tree.map(lambda all_, one: all_.at[i].set(one), read, params)
        counters = counters.at[i].add(1)
        return (params, read, counters, finish.at[i].add(seconds[i, counters[i]])), None

    @jax.jit
    def train(params):
        read = jax.tree.map(lambda a: jnp.stack([a] * data.WORKERS), params)
        begin = (params, read, jnp.zeros(data.WORKERS, jnp.int32), seconds[:, 0])
        return jax.lax.scan(event, begin, length=updates)[0][0]

    return functools.partial(train, made.init(jax.random.key(0)))


def _task(model: str):
    return sides.noise(MODELS[model], data.SAMPLES, (data.INPUTS,))


OWN = {"gossax": ours, "call": call, "scan": scan}


# --- the parent ---


def environment(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The interpreter of an environment that has a library, which is made if it is not there."""
    place = folder / name
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        print(f"installing {name} into {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *OTHERS[name][0]], check=True
        )
        (place / "installed").touch()
    return python


def command(side: str, task: str, folder: pathlib.Path) -> list[str]:
    """What starts a side."""
    if side in OWN:
        return [sys.executable, "-m", "benchmarks.peers", "side", side, task]
    return [str(environment(side, folder)), OTHERS[side][1], task, str(AMOUNT[task])]


def compare(task: str, names: list[str], folder: pathlib.Path) -> dict[str, list[float]]:
    """Seconds of a round or update of every side, one for each turn."""
    running = {}
    try:
        for name in names:
            words = command(name, task, folder)
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            running[name] = subprocess.Popen(words, **pipes)
            if running[name].stdout.readline() != "ready\n":
                raise SystemExit(f"{name} has not begun; see above")
        found = {name: [] for name in names}
        for turn in range(_TIMED.value):
            for name in names[:: 1 if turn % 2 else -1]:
                print(file=running[name].stdin, flush=True)
                found[name].append(float(running[name].stdout.readline()) / AMOUNT[task])
        return found
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def version(side: str, folder: pathlib.Path) -> str:
    """Of the library that a side runs on."""
    if side in OWN:
        return f"jax {importlib.metadata.version('jax')}"
    library = OTHERS[side][0][0]
    ask = f"import importlib.metadata as m; print(m.version({library!r}))"
    words = [str(environment(side, folder)), "-c", ask]
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    return f"{library} {answer.stdout.strip()}"


def main(_) -> None:
    logging.set_verbosity(logging.WARNING)
    folder = pathlib.Path(_ENVIRONMENTS.value)
    for task in AMOUNT:
        names = ["gossax", *(name for name in _PEERS.value if name in TAKES[task])]
        if len(names) == 1:
            continue
        found = compare(task, names, folder)
        middle = {name: statistics.median(times) for name, times in found.items()}
        rows = [
            {
                "task": task,
                "side": name,
                "seconds": middle[name],
                "least": min(times),
                "greatest": max(times),
                "times_ours": middle[name] / middle["gossax"],
                "goal": GOALS.get(name),
                "version": version(name, folder),
            }
            for name, times in found.items()
        ]
        points.put(RECORD, "python -m benchmarks.peers", KEY, rows)
        for row in rows:
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["side"]:
        turn = OWN[sys.argv[2]](sys.argv[3])
        data.take_turns(lambda: jax.block_until_ready(turn()))
    else:
        app.run(main)
