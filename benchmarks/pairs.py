"""Every method under every waiting rule in every runtime: three updates of all accepted pairs.

    python -m benchmarks.pairs
    python -m benchmarks.pairs --runtimes=simulate --of_methods=top_k
    python -m benchmarks.pairs --runtimes=actors --covering

`experiments.prepare.fitting_rule` decides from declarations; this benchmark shows whether accepted
pairs train, and whether a pair is refused too late. A point per runtime and method has the numbers
of rules that are accepted, that train and under which the parameters have not moved yet; errors are
listed by rule. Models are small, as they only have to run, on four workers, or on two if each is a
process. With --covering all pairs are accepted or refused, but only as many train as it takes for
every method and every rule to occur. Points go to the record as soon as they are known, and a later
start continues after them.
"""

import contextlib
import itertools
from collections import Counter

import jax
import numpy as np
from ml_collections import ConfigDict

from algorithms import ALGORITHMS
from benchmarks import every_rule, harness
from experiments import parts, prepare
from stragglers.rules import RULES

RECORD = harness.Record(
    harness.FOLDER / "pairs.json", harness.typed("pairs"), ("runtime", "method")
)
WORKERS, UPDATES = 4, 3
PROCESSES = {"actors": 2}  # workers where each is one
TURNS = 60  # of 5 s each, in which all updates have to come
NUMBERS = {  # that methods and rules need
    "centred_clipping": "radius=1.0", "choco_sgd": "exchange=top_k(ratio=0.5), gamma=0.3",
    "compensated_rate": "threshold=1.0", "dsgd_ac": "samples=64", "matcha": "budget=0.5",
    "mg_wfbp": "buckets=wfbp", "periodic": "budget=0.5",
    "adasync": "protocol=k_batch_async, interval=5.0", "anytime": "seconds=0.02",
    "ata": "tasks=4", "deadline": "seconds=0.02", "equal_work": "cost=1.5",
    "mindflayer": "seconds=0.006", "quorum": "k=5", "ringmaster": "limit=4, k=2",
    **dict.fromkeys(("k_async", "k_batch_async", "k_batch_sync", "k_sync", "quorum_async",
                     "quorum_grace", "rennala"), "k=2"),
}  # fmt: skip
OF_PROCESSES = [("top_k", "quorum_async")]  # for a test, as a start of processes takes seconds
ROWS = "ncf(interactions=identifiers(files=60), width=8, hidden=8)"  # a task with embeddings
DENSE = "synthetic_logistic(samples=64, dimension=4)"


def call(name: str) -> str:
    """Return a method or a rule as a config names it."""
    return f"{name}({NUMBERS[name]})" if name in NUMBERS else name


METHODS = [call(name) for name in sorted(ALGORITHMS)]
WAITS = [call(name) for name in sorted(set(RULES) - {"replay"})]  # which needs a file


def config(method: str, wait: str, runtime: str) -> ConfigDict:
    """Return a small arm."""
    sparse = prepare.METHOD.wants(parts.as_part(method), "sparse")
    changes = {
        "algorithm": method, "task": ROWS if sparse else DENSE, "graph": "ring", "wait": wait,
        "runtime": runtime, "workers": PROCESSES.get(runtime, WORKERS), "mini_batches": 2,
        "updates": UPDATES, "delay": "jitter(mean=0.005, sigma=0.2)", "communication": 0.0,
    }  # fmt: skip
    return ConfigDict(every_rule.get_config().to_dict() | changes)


def trained(method: str, wait: str, runtime: str) -> bool:
    """Train three updates and return whether parameters have moved.

    Raises ValueError for a pair that `prepare` refuses, and RuntimeError for any later error.
    """
    made = prepare.prepare(config(method, wait, runtime))
    with contextlib.closing(made.runtime):
        try:
            start = jax.device_get(made.task.init(jax.random.key(0)))
            run = made.runtime.start(start)
            for _ in range(TURNS):
                if run.update < UPDATES:  # the last advance of pairs may make a few more
                    run, _ = made.runtime.advance(run, run.seconds + 5.0, UPDATES - run.update)
            if run.update < UPDATES:
                raise RuntimeError(f"{run.update} updates in {5 * TURNS} s")
            models = jax.device_get(made.runtime.models(run))
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models)):
        raise RuntimeError("parameters are not finite")
    pairs = zip(jax.tree.leaves(models), jax.tree.leaves(start), strict=True)
    return any((model != first).any() for model, first in pairs)


def covering(runtime: str) -> set[tuple[str, str]]:
    """Return accepted pairs of a runtime in which every method and rule that can run occurs."""
    found: set[tuple[str, str]] = set()
    methods, waits = set(METHODS), set(WAITS)
    # Rules in turn, so that few of the pairs have neither a new method nor a new rule.
    for turn, (number, method) in itertools.product(range(len(WAITS)), enumerate(METHODS)):
        wait = WAITS[(number + turn) % len(WAITS)]
        if (method in methods or wait in waits) and accepted(method, wait, runtime):
            methods.discard(method)
            waits.discard(wait)
            found.add((method, wait))
    return found


def accepted(method: str, wait: str, runtime: str) -> bool:
    """Return whether `prepare` takes a pair."""
    try:
        prepare.prepare(config(method, wait, runtime)).runtime.close()
    except ValueError:
        return False
    return True


def main() -> None:
    """Train all pairs, one method after the other."""
    options = harness.options(
        __doc__, runtimes=(["simulate", "mesh", "actors"], "that train"),
        of_methods=(sorted(ALGORITHMS), "that are trained"),
        covering=(False, "train every method and every rule once"),
    )  # fmt: skip
    harness.devices_of_cpu(WORKERS)  # of a mesh
    known = {(point["runtime"], point["method"]) for point in RECORD.points()}
    for runtime in options.runtimes:
        names = [name for name in options.of_methods if (runtime, name) not in known]
        chosen = covering(runtime) if options.covering and names else None
        for name in names:
            RECORD.put([{"runtime": runtime, "method": name} | _tried(name, runtime, chosen)])
            jax.clear_caches()


def _tried(name: str, runtime: str, chosen: set[tuple[str, str]] | None) -> dict:
    """Return the counts of one method's rules; chosen: the pairs that train, None for all."""
    seen: Counter[str] = Counter()
    errors = []
    for wait in WAITS:
        pair = call(name), wait
        if not accepted(*pair, runtime):
            seen["refused"] += 1
            continue
        seen["accepted"] += 1
        if chosen is None or pair in chosen:
            try:
                seen["trained" if trained(*pair, runtime) else "unmoved"] += 1
            except (ValueError, RuntimeError) as error:
                errors.append(f"{wait}: {error}"[:200])
    counts = {kind: seen[kind] for kind in ("accepted", "refused", "trained", "unmoved")}
    return counts | {"errors": errors}


if __name__ == "__main__":
    main()
