"""A worker of `benchmarks.hosts` that exchanges real gradients: what it takes, and was expected.

    python -m benchmarks.hosts_exchange JSON    # started by benchmarks.hosts, on every host

Every method's exchange and step is one compiled program. It is run alone, after a sleep as long as
a gradient takes on a host that computes undisturbed, and after a real gradient, which shares the
machine's cores with the other hosts' gradients. What is expected is the sum of three: the time of
encoding, decoding and stepping with nobody else, taken on all hosts at once; the seconds of the
bytes by the model of costs; and the seconds of the messages. What a byte and a message take is
measured by two all-reduces. `nominal` is what the model says of the exchange who knows the rate
alone.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.core import ClosedJaxpr
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.base import AXIS, Algorithm
from benchmarks.namespaces import ROOT, bits_per_second
from comms import cost, messages
from experiments import (
    codec_times,
    config_files,
    optimizers,
    parts,
    prepare,
    profiling,
    stopwatch,
    tasks,
)
from experiments.tasks import sampling
from runtimes.gossip import partition

GRADIENTS = 4  # different ones that take turns
SIZES = (2**12, 2**20)  # bytes of the all-reduces that say what a message and a byte cost
CONFIG = str(ROOT / "configs" / "s2_reducer.py")
RIVALS = {  # beside the config's arms
    "bf16": parts.part("all_reduce", exchange=parts.part("bf16")),
    "int8": parts.part("int8_all_reduce"),
}
ARMS = (
    "dense", "s2/sketch", "s2/median", "s2/element", "s2/exact", "sparse_all_gather", "sparcml",
    "omnireduce", "top_k", *RIVALS,
)  # fmt: skip
COLUMNS = ("exchange", "injected", "shared")  # without a gradient, with a sleep, with a real one


class Orders(NamedTuple):
    """What a worker is to do."""

    coordinator: str
    hosts: int
    rank: int
    tasks: list[str]
    methods: list[str]  # empty: all
    rates: list[str]
    turns: int


def arms(task: str, hosts: int) -> dict[str, Any]:
    """The configs of S2 Reducer and its rivals, by name."""
    file = config_files.read(f"{CONFIG}:task={task},workers={hosts},runtime=mesh")
    changes = dict(config_files.swept_arms(file.module, file.config)) | {
        name: {"algorithm": rival} for name, rival in RIVALS.items()
    }
    return {name: config_files.override(file.config, changes[name]) for name in ARMS}


def nominal(rate: str, hosts: int) -> cost.Network:
    """Links of a rate as `experiments.codec_times` has them: nobody has measured them."""
    return codec_times.link(bits_per_second(rate) / 1e9, hosts)


def measured(hosts: int, all_reduce: cost.AlphaBeta) -> tuple[float, cost.Network]:
    """(seconds of a message, links on which a byte takes as long as in this all-reduce).

    A ring's start-up is that of its 2 (n - 1) messages, of which each holds an n-th of the bytes.
    """
    messages_of_ring = 2 * (hosts - 1)
    per_byte = all_reduce.beta * hosts / messages_of_ring
    links = cost.uniform_network(0.0, 1 / per_byte, workers=hosts)
    return all_reduce.alpha / messages_of_ring, links


def algorithm_of(config, task: tasks.Task) -> Algorithm:
    """The method of a config on a task that is there already: reading text takes seconds."""
    spec = parts.spec(parts.canonical(config).algorithm)
    if spec.get("exchange") is not None:
        spec["exchange"] = prepare.build_reducer(spec["exchange"], config.seed)
    optimizer = optimizers.build(config.optimizer)
    given = {"workers": config.workers, "seed": config.seed, "sparse": task.sparse}
    return prepare.METHOD.build(spec, optimizer=optimizer, **given)


class Exchange(NamedTuple):
    """A method on this host."""

    run: Callable[[], Any]  # the exchange and the step of the next gradient
    after_gradient: Callable[[], Any]  # the same, but of a gradient taken now
    codec: Callable[[], Any]  # all but the collectives: with nobody else
    sent: Callable[[cost.Network], float]  # seconds of its bytes, by the model of costs
    steps: int  # messages of a worker, one after the other


class Bench:
    """A task on all hosts."""

    def __init__(self, config, hosts: int):
        self._devices = jax.make_mesh((hosts,), (AXIS,), (AxisType.Auto,))
        self._stacked = NamedSharding(self._devices, P(AXIS))
        self._task = task = tasks.build(config.task)
        self._params = jax.jit(task.init)(jax.random.key(config.seed))
        shards = prepare.SPLIT.build(
            config.split, labels=task.labels, workers=hosts, seed=config.seed
        )
        sampler = sampling.Sampler(shards, config.batch_size, config.seed)
        losses = tasks.first_draw(task)
        self._gradient = jax.jit(jax.grad(lambda p, examples: losses(p, examples).mean()))
        me = np.int32(jax.process_index())
        taken = [np.asarray(sampler.indices(me, counter)) for counter in range(GRADIENTS)]
        self._examples = [
            jax.tree.map(lambda a, i=indices: jnp.asarray(a[i]), task.train) for indices in taken
        ]
        self._gradients = [self._gradient(self._params, each) for each in self._examples]
        self._turn = 0

    def gradient(self) -> Any:
        """The gradient of the next mini-batch of this host."""
        self._turn += 1
        return self._gradient(self._params, self._examples[self._turn % GRADIENTS])

    def exchange(self, config) -> Exchange:
        """A method, compiled."""
        method = algorithm_of(config, self._task)
        body = functools.partial(_step, method)
        everybody = _over(self._devices, body)
        nobody_else = _over(
            jax.make_mesh((1,), (AXIS,), (AxisType.Auto,), devices=jax.local_devices()[:1]), body
        )
        state = method.exchange.init(self._params), method.server.init(self._params)
        here = jax.tree.map(lambda a: jnp.asarray(a)[None], (*state, self._params))
        kept = [jax.tree.map(self._place, here)]
        held = [jax.tree.map(self._place, _stack(g)) for g in self._gradients]
        lead = _stack(self._gradients[0])
        together, alone = in_turn(
            lambda: (
                everybody.lower(held[0], *kept[0]).compile(),
                nobody_else.lower(lead, *here).compile(),
            )
        )

        def run(gradient=None):
            self._turn += 1
            given = held[self._turn % GRADIENTS] if gradient is None else gradient
            kept[0] = together(given, *kept[0])
            return kept[0]

        def after_gradient():
            return run(jax.tree.map(self._place, _stack(self.gradient())))

        def sent(links):
            workers = self._devices.size
            of_update = messages.exchange_seconds(method, self._params, workers, links)
            return of_update(method.settled)

        program = jax.make_jaxpr(body, axis_env=[(AXIS, self._devices.size)])(
            self._gradients[0], *state, self._params
        )
        steps = steps_of(program, self._devices.size)
        return Exchange(run, after_gradient, lambda: alone(lead, *here), sent, steps)

    def _place(self, row):
        """This host's row of an array over all hosts."""
        shape = (self._devices.size, *row.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._stacked, [row])


def _over(devices: jax.sharding.Mesh, body: Callable) -> Callable:
    """The body of a worker as a program of all on these devices; arrays have a row for each."""

    def of_worker(*trees):
        return _stack(body(*_first(trees)))

    return jax.jit(
        jax.shard_map(of_worker, mesh=devices, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
    )


def in_turn(make: Callable[[], Any]) -> Any:
    """What `make` compiles: first on the first host, from whose cache the others take it."""
    me = jax.process_index()
    if me:
        multihost_utils.sync_global_devices("compiled")
    made = make()
    if not me:
        multihost_utils.sync_global_devices("compiled")
    return made


def _step(method, gradient, exchange, server, params):
    """Exchange and step of a worker: what both keep, and new parameters."""
    met, exchange = method.exchange.update(
        gradient, exchange, params, samples=0.0, version=0, weight=1.0
    )
    updates, server = method.server.update(met, server, params, samples=0.0, batches=1)
    return exchange, server, jax.tree.map(jnp.add, params, updates)


def steps_of(program: ClosedJaxpr, workers: int) -> int:
    """Messages that a worker sends one after the other in a program over `AXIS`.

    A ring reduces an array in 2 (n - 1) steps and gathers in n - 1; every array goes by itself, as
    XLA hands them to gloo. Of a conditional the first branch counts, where no fallback is taken.
    """
    ring = workers - 1
    steps = {"psum": 2 * ring, "psum_invariant": 2 * ring, "ppermute": 1}
    steps |= dict.fromkeys(("all_gather", "all_to_all", "reduce_scatter"), ring)
    total = 0
    for equation in program.jaxpr.eqns:
        inner = partition.programs_in(equation)
        if "branches" in equation.params:
            inner = inner[:1]
        times = equation.params.get("length", 1)  # of a scan
        total += times * sum(steps_of(each, workers) for each in inner)
        if not inner and partition.names_axis(equation, AXIS):
            arrays = len(partition.inputs(equation))
            total += arrays * steps.get(equation.primitive.name, 0)  # axis_index sends nothing
    return total


def _first(tree):
    return jax.tree.map(lambda a: a[0], tree)


def _stack(tree):
    return jax.tree.map(lambda a: a[None], tree)


def work(orders: Orders, ask: Callable[[dict], None]) -> None:
    """Measure everything; `ask` hands a message to the parent, and returns when it has acted."""
    for task in orders.tasks:
        configs = arms(task, orders.hosts)
        chosen = orders.methods or list(configs)
        bench = Bench(configs[chosen[0]], orders.hosts)
        methods = {name: bench.exchange(configs[name]) for name in chosen}
        codecs = {name: method.codec for name, method in methods.items()}
        shared = stopwatch.seconds(codecs | {"": bench.gradient}, orders.turns)
        injected = undisturbed(bench, orders)
        for rate in orders.rates:
            if orders.rank == 0:
                ask({"rate": rate})
            multihost_utils.sync_global_devices(rate)
            times = profiling.measure_all_reduce(sizes=SIZES, warm_ups=1, repeats=orders.turns)
            latency, links = measured(orders.hosts, cost.fit(*times)[0])
            programs = {}
            for name, method in methods.items():
                programs[name, "exchange"] = method.run
                programs[name, "injected"] = functools.partial(_late, injected, method.run)
                programs[name, "shared"] = method.after_gradient
            taken = stopwatch.seconds(programs, orders.turns)
            for name, method in methods.items():
                point = {"task": task, "method": name, "hosts": orders.hosts, "rate": rate}
                point |= {"codec": shared[name], "sent": method.sent(links)}
                point |= {"steps": method.steps, "latency": latency}
                point |= {"nominal": shared[name] + method.sent(nominal(rate, orders.hosts))}
                point |= {"injected_gradient": injected, "shared_gradient": shared[""]}
                seconds = {column: taken[name, column] for column in COLUMNS}
                if orders.rank == 0:
                    ask({"point": compared(point, seconds)})


def _late(seconds: float, run: Callable[[], Any]) -> Any:
    time.sleep(seconds)
    return run()


def compared(point: dict, seconds: dict[str, float]) -> dict:
    """A point with the measured seconds of every column, those expected, and the error of these."""
    found = dict(point)
    for column in COLUMNS:
        expected = point["codec"] + point["sent"] + point["steps"] * point["latency"]
        expected += point.get(f"{column}_gradient", 0.0)
        found[column] = seconds[column]
        found[f"{column}_predicted"] = expected
        found[f"{column}_error"] = expected / seconds[column] - 1
    return found


def undisturbed(bench: Bench, orders: Orders) -> float:
    """Seconds of a gradient on the first host while the others wait."""
    taken = 0.0
    if orders.rank == 0:
        taken = stopwatch.seconds({"gradient": bench.gradient}, orders.turns)["gradient"]
    return float(multihost_utils.broadcast_one_to_all(np.float32(taken)))


def _ask(message: dict) -> None:
    print(json.dumps(message), flush=True)
    sys.stdin.readline()


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        orders.coordinator, orders.hosts, orders.rank, initialization_timeout=60
    )
    work(orders, _ask)


if __name__ == "__main__":
    main()
