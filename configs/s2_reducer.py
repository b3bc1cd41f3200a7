"""S2 Reducer and its relatives on tasks with embedding tables (arXiv 2110.02140).

Workers train on the text of Python's standard library, in lock-step. The seconds of an update on a
network are computed from the bytes sent and the measured time to encode and decode.

    --config=configs/s2_reducer.py:task=ncf,workers=8
    --config=configs/s2_reducer.py:rates,task=ncf --sweep --seeds=5
"""

from typing import NamedTuple

from configs import arguments, base
from experiments import papers, registry
from experiments.registry import part

# Task, samples in a mini-batch, learning rate of Adam, updates. The rates are the best of a small
# grid for dense training; all arms use them.
TASKS = {
    "lstm": (part("language_model", model="lstm", candidates=256), 8, 0.01, 150),
    "transformer": (part("language_model", model="transformer", candidates=256), 8, 0.01, 150),
    "skip_gram": (part("skip_gram"), 32, 0.01, 300),
    "ncf": (part("ncf"), 4, 0.01, 1500),
    "hashed_logistic": (part("hashed_logistic"), 8, 0.03, 300),
}
ROWS, SKETCH = 3, 0.18  # of a sketch, and its size relative to a table


class Touched(NamedTuple):
    """Largest shares of a table that one mini-batch, or mini-batches of 4 workers, touch."""

    rows: float
    blocks: float  # of 256 elements, which hold several rows of a narrow table
    rows_of_4: float  # by 4 workers together
    blocks_of_4: float


# Largest shares in 64 to 400 random updates, plus 15 %. Exact methods send lists with this much
# room, and everything where a list overflows; unused room costs bytes, too.
TOUCHED = {
    "language_model": Touched(0.015, 0.046, 0.023, 0.071),
    "skip_gram": Touched(0.0105, 0.038, 0.028, 0.092),
    "ncf": Touched(0.0065, 0.051, 0.026, 0.203),
    "hashed_logistic": Touched(0.0042, 0.065, 0.0106, 0.16),
}


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: S2 Reducer with a sketch.

    Arguments: task, a key of TASKS; workers; updates, by default as in TASKS; ratio, the size of
    the sketch relative to a table; runtime, simulate or mesh.
    """
    a = arguments.parse(arg, task="lstm", workers=4, updates=0, ratio=SKETCH, runtime="simulate")
    task, batch, rate, updates = arguments.chosen(a, "task", TASKS)
    updates = a["updates"] or updates

    return base.arm(
        name="s2/sketch",
        baseline="dense",
        task=task,
        runtime=a["runtime"],
        rounds_per_dispatch=10,
        workers=a["workers"],
        batch_size=batch,
        algorithm=part("s2_reducer", rows=ROWS, ratio=a["ratio"]),
        optimizer=part("adam", learning_rate=rate),
        delay=base.nominal(a["runtime"], 1.0),
        seconds=1e6,  # all arms take the same updates
        updates=updates,
        evaluate_every=max(1.0, updates / 3),
    )


def sweep(config: base.ConfigDict) -> base.Arms:
    """Yield dense, S2 Reducer in four variants (`median` decodes as the paper does), and others.

    Exact methods get the room that the config's task and its number of workers need.
    """
    touched = TOUCHED.get(registry.as_part(config.task).name)
    if touched is None:
        raise ValueError(
            f"how much of its tables {registry.text(config.task)} touches is not known; add it to "
            f"TOUCHED, which has {', '.join(TOUCHED)}"
        )
    own, blocks = {"ratio": touched.rows}, {"ratio": touched.blocks}
    union = _of_workers(touched.rows_of_4, config.workers)
    union_of_blocks = _of_workers(touched.blocks_of_4, config.workers)
    yield "dense", {"algorithm": part("all_reduce")}
    # All entries one by one, so that the same mean is summed in another order: the distance of its
    # loss from dense is the noise level. Its bytes are of no interest.
    yield "dense/reordered", {"algorithm": part("top_k", ratio=1.0)}
    yield "bf16", {"algorithm": part("all_reduce", exchange=part("bf16"))}
    yield "s2/sketch", {}
    yield "s2/median", {"algorithm.peel": False}
    yield "s2/element", {"algorithm.granularity": "element"}
    yield "s2/exact", {"algorithm": part("s2_reducer", exact=True, ratio=union)}
    yield "sparse_all_gather", {"algorithm": part("sparse_all_gather", **own)}
    yield "sparcml", {"algorithm": part("sparcml", **own)}
    yield "omnireduce", {"algorithm": part("omnireduce", **blocks, union_ratio=union_of_blocks)}
    yield "parallax", {"algorithm": part("parallax", **own, union_ratio=union)}
    yield "top_k", {"algorithm": part("top_k", ratio=0.01)}
    yield "sketched_sgd", {"algorithm": part("sketched_sgd", ratio=SKETCH, k_ratio=0.01)}


def _of_workers(of_4: float, workers: int) -> float:
    """Return the share that `workers` touch together, as if groups of four were independent.

    They touch less, as all workers meet the frequent words.
    """
    return float(f"{1 - (1 - of_4) ** (workers / 4):.3g}")


claims = papers.Judged("s2_reducer", "s2_ncf")
numbers = papers.analyse("s2_reducer", "numbers")


# --- each at its best learning rate ---

RATES = (0.005, 0.007, 0.01, 0.014, 0.02)  # of Adam
RATED = ("dense", "dense/reordered", "bf16", "s2/median")


def _rates_sweep(config: base.ConfigDict) -> base.Arms:
    """Yield dense training, also reordered or in 16 bits, and the paper's sketch, at all rates."""
    arms = dict(sweep(config))
    for name in RATED:
        yield from base.at_rates(name, arms[name] | {"baseline": None}, RATES)


VARIANTS = {
    "rates": base.Variant(
        "S2 Reducer beside dense training in 32 and in 16 bits, each at its best learning rate.\n\n"
        "It takes the tasks and arguments of the file. Dense training that sums in another order "
        "has the noise level of a loss.",
        get_config,
        sweep=_rates_sweep,
        claims=papers.Judged("s2_reducer", "s2_ncf_rates"),
        numbers=papers.at_best("train_loss", "bytes_per_worker"),
    ),
}
