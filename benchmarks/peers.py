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

import argparse
import functools
import heapq
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

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
AMOUNT = {"rounds": 4, "softmax": 2048, "hidden": 512}  # rounds or updates of a turn
TAKES = {"rounds": ("fedjax",), "softmax": ("call", "scan"), "hidden": ("call", "scan")}
GOALS = {"fedjax": 4.0, "call": 5.0, "scan": 2.0}  # times their seconds over ours


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return noise as images, float32 [samples, inputs], and classes, int32 [samples]."""
    rng = np.random.default_rng(0)
    inputs = rng.random((SAMPLES, INPUTS), np.float32)
    return inputs, rng.integers(0, CLASSES, SAMPLES).astype(np.int32)


def events(updates: int) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds of every mini-batch [workers, updates], and its samples [.., batch]."""
    rng = np.random.default_rng(1)
    seconds = 1.0 + rng.exponential(1.0, (WORKERS, updates))
    return seconds, rng.integers(0, SAMPLES, (WORKERS, updates, STALE_BATCH)).astype(np.int32)


def take_turns(turn: Callable[[], object]) -> None:
    """Compile in a first turn, then answer every line on standard input with a turn's seconds."""
    turn()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        turn()
        print(time.perf_counter() - began, flush=True)


# --- sides that run in the project's own environment; each makes a turn ---


def _task(model: str):
    from benchmarks import floors
    from experiments.tasks import models

    make = {"softmax": models.logistic, "hidden": functools.partial(models.mlp, hidden=(HIDDEN,))}
    return floors.noise(make[model], SAMPLES, (INPUTS,))


def gossax(task: str, amount: int) -> Callable:
    """Return a turn of the simulator, which continues from the last one."""
    from algorithms import all_reduce, local_sgd
    from algorithms.base import scale_by_samples
    from benchmarks import floors
    from stragglers.rule import Setting
    from stragglers.rules import RULES

    if task == "rounds":
        made = _task("softmax")
        method, rule = local_sgd(scale_by_samples(RATE)), floors.barrier(CLIENTS, STEPS)
        sampler = floors.sampler_of(made, CLIENTS, BATCH)
    else:
        made, method = _task(task), all_reduce(scale_by_samples(STALE_RATE))
        sampler = floors.sampler_of(made, WORKERS, STALE_BATCH)
        rule = RULES["k_batch_async"](Setting(floors.STALE_LAW, WORKERS, 1, 0), k=1)
    steps = STEPS if task == "rounds" else 1
    return floors.simulated(method, made, sampler, rule, amount, steps)


def call(task: str, amount: int) -> Callable:
    """Return a loop with a heap of events and a compiled call for each."""
    import jax
    import jax.numpy as jnp

    from benchmarks.floors import gradient_of

    made = _task(task)
    seconds, rows = events(amount)
    examples, gradient = jax.tree.map(jnp.asarray, made.train), jax.jit(gradient_of(made.losses))
    step = jax.jit(lambda w, g: jax.tree.map(lambda a, b: a - STALE_RATE * b, w, g))
    start = made.init(jax.random.key(0))

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
    import jax
    import jax.numpy as jnp

    from benchmarks.floors import gradient_of

    made = _task(task)
    seconds, rows = map(jnp.asarray, events(amount))
    gradient = gradient_of(made.losses)
    examples = jax.tree.map(jnp.asarray, made.train)

    def event(carry, _):
        params, read, counters, finish = carry
        i = jnp.argmin(finish)
        own = jax.tree.map(lambda a: a[i], read)
        g = gradient(own, rows[i, counters[i]], examples)
        params = jax.tree.map(lambda a, b: a - STALE_RATE * b, params, g)
        read = jax.tree.map(lambda all_, one: all_.at[i].set(one), read, params)
        counters = counters.at[i].add(1)
        return (params, read, counters, finish.at[i].add(seconds[i, counters[i]])), None

    @jax.jit
    def train(params):
        read = jax.tree.map(lambda a: jnp.stack([a] * WORKERS), params)
        begin = (params, read, jnp.zeros(WORKERS, jnp.int32), seconds[:, 0])
        return jax.lax.scan(event, begin, length=amount)[0][0]

    return functools.partial(train, made.init(jax.random.key(0)))


# --- a side in an environment of its own ---


def fedjax(task: str, amount: int) -> Callable:
    """Return FedJAX's federated averaging: rounds of all clients, with a client's step compiled."""
    import fedjax
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    del task
    jax.tree_map = jax.tree.map  # which the library calls, and newer versions of JAX have not
    inputs, labels = images()
    each = SAMPLES // CLIENTS
    rows = [slice(i * each, (i + 1) * each) for i in range(CLIENTS)]
    sets = [fedjax.ClientDataset({"x": inputs[r], "y": labels[r]}) for r in rows]

    def loss(params, batch, rng):
        logits = batch["x"] @ params["w"] + params["b"]
        taken = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)
        return -taken.mean()

    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)), fedjax.optimizers.sgd(RATE), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_steps=STEPS, seed=0),
    )  # fmt: skip
    shape = (INPUTS, CLASSES)
    state = algorithm.init({"w": jnp.zeros(shape), "b": jnp.zeros(CLASSES)})
    keys = jax.random.split(jax.random.PRNGKey(0), CLIENTS)
    clients = [(b"%d" % i, one, key) for i, (one, key) in enumerate(zip(sets, keys, strict=True))]

    def turn():
        nonlocal state
        for _ in range(amount):
            state, _ = algorithm.apply(state, clients)
        return jax.block_until_ready(state.params)

    return turn


OWN = {"gossax": gossax, "call": call, "scan": scan}
SIDES = OWN | {"fedjax": fedjax}

# --- the parent ---


def python(side: str, folder: pathlib.Path) -> str:
    """Return the interpreter of a side; make its environment first if it is missing."""
    if side in OWN:
        return sys.executable
    place = folder / side
    if not (place / "installed").exists():
        print(f"installing {side} into {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        install = [place / "bin" / "python", "-m", "pip", "install", "--quiet", side]
        subprocess.run(install, check=True)
        (place / "installed").touch()
    return str(place / "bin" / "python")


def compare(task: str, names: list[str], turns: int, folder: pathlib.Path) -> dict[str, list]:
    """Return seconds of a round or update of every side, one for each turn."""
    running, amount = {}, AMOUNT[task]
    try:
        for name in names:
            program = ["-m", "benchmarks.peers"] if name in OWN else [__file__]
            words = [python(name, folder), *program, "side", name, task, str(amount)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            running[name] = subprocess.Popen(words, cwd=ROOT, **pipes)
            if running[name].stdout.readline() != "ready\n":
                raise SystemExit(f"{name} has not begun; see above")
        found = {name: [] for name in names}
        for turn in range(turns):
            for name in names[:: 1 if turn % 2 else -1]:
                print(file=running[name].stdin, flush=True)
                found[name].append(float(running[name].stdout.readline()) / amount)
        return found
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def version(side: str, folder: pathlib.Path) -> str:
    """Return the version of the library that a side runs on."""
    library = "jax" if side in OWN else side
    ask = f"import importlib.metadata as m; print(m.version({library!r}))"
    words = [python(side, folder), "-c", ask]
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    return f"{library} {answer.stdout.strip()}"


def main() -> None:
    from benchmarks.harness import FOLDER, put

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", default=",".join(name for name in SIDES if name != "gossax"))
    options = parser.parse_args()
    for task, takes in TAKES.items():
        names = ["gossax", *(name for name in options.peers.split(",") if name in takes)]
        if len(names) == 1:
            continue
        found = compare(task, names, TURNS, ENVIRONMENTS)
        middle = {name: statistics.median(times) for name, times in found.items()}
        rows = [
            {
                "task": task, "side": name, "seconds": middle[name], "least": min(times),
                "greatest": max(times), "times_ours": middle[name] / middle["gossax"],
                "goal": GOALS.get(name), "version": version(name, ENVIRONMENTS),
            }
            for name, times in found.items()
        ]  # fmt: skip
        put(FOLDER / "peers.json", "python -m benchmarks.peers", ("task", "side"), rows)
        for row in rows:
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["side"]:
        made = SIDES[sys.argv[2]](sys.argv[3], int(sys.argv[4]))
        if sys.argv[2] in OWN:
            import jax

            take_turns(lambda: jax.block_until_ready(made()))
        else:
            take_turns(made)
    else:
        main()
