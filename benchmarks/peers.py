"""Our simulator beside FedJAX, and beside event loops, on the same task, in turn.

    python -m benchmarks.peers [--peers=fedjax,call,scan]

The task is noise of the shape of images with a softmax, or an MLP, in float32.

    local SGD      64 workers x 10 steps of 20 samples, seconds of a round. FedJAX's federated
                   averaging compiles a client's step and loops over clients and steps; it shuffles
                   each client's samples on the host and takes the norm of each client's progress,
                   which we do not; we plan a schedule with delays, which it does not.
    asynchronous   8 workers, 32 samples, an update with every gradient, seconds of an update.
                   Plain event loops are a heap with a compiled call for each event, and a single
                   `lax.scan` over all events that keeps the model that each worker has read. They
                   get durations and samples precomputed; our side plans and draws them.

Every side is a process that waits while another has its turn. FedJAX is installed into an
environment of its own in `runs/peers`, in which only NumPy and JAX are sure to exist: other imports
stand in the functions that need them. Points go to docs/results/benchmarks/peers.json.
"""

import functools
import heapq
import importlib.metadata
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "runs" / "peers"
TURNS = 5  # of every side
SAMPLES, INPUTS, CLASSES = 8192, 784, 10
RATE = 0.05  # of local steps
STALE_RATE = 0.001  # of gradients that are some updates old
CLIENTS, STEPS, BATCH = 64, 10, 20  # of a round of local SGD
WORKERS, STALE_BATCH = 8, 32  # of asynchronous training
HIDDEN = 128  # of the MLP
LOOPS = {"call": 5.0, "scan": 2.0}
# Rounds or updates of a turn; other sides, with goals for their seconds over ours.
TASKS = {"rounds": (4, {"fedjax": 4.0}), "softmax": (2048, LOOPS), "hidden": (512, LOOPS)}

# --- sides that run in the project's own environment; each makes a turn ---


def task_of(name: str) -> Any:
    from benchmarks import floors

    model = f"mlp(hidden=[{HIDDEN}])" if name == "hidden" else "logistic"
    return floors.noise(model, SAMPLES, (INPUTS,))


def gossax(task: str, amount: int) -> Callable:
    """Return a turn of the simulator, which continues from the last one."""
    from algorithms import all_reduce, local_sgd
    from algorithms.base import scale_by_samples
    from benchmarks import floors
    from stragglers.rule import Setting
    from stragglers.rules import RULES

    made = task_of(task)
    if task == "rounds":
        method, steps = local_sgd(scale_by_samples(RATE)), STEPS
        rule = floors.waiting(method, CLIENTS, STEPS)
        sampler = floors.sampler_of(made, CLIENTS, BATCH)
    else:
        method, steps = all_reduce(scale_by_samples(STALE_RATE)), 1
        rule = RULES["k_batch_async"](Setting(floors.STALE_LAW, WORKERS, 1, 0), k=1)
        sampler = floors.sampler_of(made, WORKERS, STALE_BATCH)
    return floors.simulated(method, made, sampler, rule, amount, steps)


def events(task: str, updates: int) -> tuple:
    """Return parameters, gradient, seconds [workers, updates], samples [.., batch] and examples."""
    from benchmarks import floors

    made, rng = task_of(task), np.random.default_rng(1)
    seconds = 1.0 + rng.exponential(1.0, (WORKERS, updates))
    rows = jnp.asarray(rng.integers(0, SAMPLES, (WORKERS, updates, STALE_BATCH)), jnp.int32)
    examples = jax.tree.map(jnp.asarray, made.train)
    gradient = floors.gradient_of(made.losses)
    return made.init(jax.random.key(0)), gradient, seconds, rows, examples


def stepped(params: Any, gradient: Any) -> Any:
    return jax.tree.map(lambda p, g: p - STALE_RATE * g, params, gradient)


def call(task: str, amount: int) -> Callable:
    """Return a loop with a heap of events and a compiled call for each."""
    start, gradient, seconds, rows, examples = events(task, amount)
    rows, gradient, step = np.asarray(rows), jax.jit(gradient), jax.jit(stepped)

    def run():
        w, draws = start, [iter(row) for row in seconds.tolist()]
        read, counters = [w] * WORKERS, [0] * WORKERS
        flying = [(next(draw), i) for i, draw in enumerate(draws)]
        heapq.heapify(flying)
        for _ in range(amount):
            now, i = heapq.heappop(flying)
            w = step(w, gradient(read[i], rows[i, counters[i]], examples))
            read[i], counters[i] = w, counters[i] + 1
            heapq.heappush(flying, (now + next(draws[i]), i))
        return w

    return run


def scan(task: str, amount: int) -> Callable:
    """Return one program that scans over all events."""
    start, gradient, seconds, rows, examples = events(task, amount)
    seconds = jnp.asarray(seconds)

    def event(carry, _):
        params, read, counters, finish = carry
        i = jnp.argmin(finish)
        own = jax.tree.map(lambda a: a[i], read)
        params = stepped(params, gradient(own, rows[i, counters[i]], examples))
        read = jax.tree.map(lambda all_, one: all_.at[i].set(one), read, params)
        counters = counters.at[i].add(1)
        return (params, read, counters, finish.at[i].add(seconds[i, counters[i]])), None

    @jax.jit
    def train(params):
        read = jax.tree.map(lambda a: jnp.stack([a] * WORKERS), params)
        begin = (params, read, jnp.zeros(WORKERS, jnp.int32), seconds[:, 0])
        return jax.lax.scan(event, begin, length=amount)[0][0]

    return functools.partial(train, start)


# --- a side in an environment of its own ---


def fedjax(task: str, amount: int) -> Callable:
    """Return FedJAX's federated averaging: rounds of all clients, with a client's step compiled."""
    import fedjax
    from fedjax.algorithms import fed_avg

    del task
    jax.tree_map = jax.tree.map  # which the library calls, and newer versions of JAX have not
    rng = np.random.default_rng(0)
    inputs = rng.random((CLIENTS, SAMPLES // CLIENTS, INPUTS), np.float32)
    labels = rng.integers(0, CLASSES, inputs.shape[:2]).astype(np.int32)
    sets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(inputs, labels, strict=True)]

    def loss(params, batch, rng):
        logits = batch["x"] @ params["w"] + params["b"]
        taken = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)
        return -taken.mean()

    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)), fedjax.optimizers.sgd(RATE), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_steps=STEPS, seed=0),
    )  # fmt: skip
    state = algorithm.init({"w": jnp.zeros((INPUTS, CLASSES)), "b": jnp.zeros(CLASSES)})
    keys = jax.random.split(jax.random.PRNGKey(0), CLIENTS)
    clients = [(b"%d" % i, one, key) for i, (one, key) in enumerate(zip(sets, keys, strict=True))]

    def turn():
        nonlocal state
        for _ in range(amount):
            state, _ = algorithm.apply(state, clients)
        return state.params

    return turn


OWN = {"gossax": gossax, "call": call, "scan": scan}
SIDES = OWN | {"fedjax": fedjax}


def take_turns(side: str, task: str, amount: str) -> None:
    """Compile in a first turn, then answer every line on standard input with a turn's seconds."""
    turn = SIDES[side](task, int(amount))
    jax.block_until_ready(turn())
    library = "jax" if side in OWN else side
    print(library, importlib.metadata.version(library), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        jax.block_until_ready(turn())
        print(time.perf_counter() - began, flush=True)


# --- the parent ---


def command(side: str) -> list[str]:
    """Return the command of a side; make its environment first if it is missing."""
    if side in OWN:
        return [sys.executable, "-m", "benchmarks.peers"]
    place = ENVIRONMENTS / side
    python = str(place / "bin" / "python")
    if not (place / "installed").exists():
        print(f"installing {side} into {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", side], check=True)
        (place / "installed").touch()
    return [python, __file__]


def compare(
    task: str, names: Sequence[str], amount: int, turns: int = TURNS
) -> dict[str, tuple[str, list[float]]]:
    """Return, by side, its library's version and the seconds of a round or update in each turn."""
    running, found = {}, {}
    try:
        for name in names:
            words = [*command(name), "side", name, task, str(amount)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            running[name] = subprocess.Popen(words, cwd=ROOT, **pipes)
            found[name] = running[name].stdout.readline().strip(), []
            if not found[name][0]:
                raise SystemExit(f"{name} has not begun; see above")
        for turn in range(turns):
            for name in names[:: 1 if turn % 2 else -1]:
                print(file=running[name].stdin, flush=True)
                found[name][1].append(float(running[name].stdout.readline()) / amount)
        return found
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def main() -> None:
    from benchmarks import harness

    record = harness.Record(
        harness.FOLDER / "peers.json", "python -m benchmarks.peers", ("task", "side")
    )
    others = [name for name in SIDES if name != "gossax"]
    options = harness.options(__doc__, peers=(others, "sides beside ours"))
    for task, (amount, goals) in TASKS.items():
        names = ["gossax", *(name for name in options.peers if name in goals)]
        if len(names) == 1:
            continue
        found = compare(task, names, amount)
        middle = {name: statistics.median(times) for name, (_, times) in found.items()}
        record.put([
            {
                "task": task, "side": name, "seconds": middle[name], "least": min(times),
                "greatest": max(times), "times_ours": middle[name] / middle["gossax"],
                "goal": goals.get(name), "version": version,
            }
            for name, (version, times) in found.items()
        ])  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["side"]:
        take_turns(*sys.argv[2:])
    else:
        main()
