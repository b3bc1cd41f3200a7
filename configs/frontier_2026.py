"""Methods of 2024 to 2026 beside older ones, each at its best rate.

Eight workers train on scikit-learn's digits, most arms until the mean model has a loss of .15.
Sending a model over a link takes a third of a mini-batch's time. The first three conditions are as
in `configs.slow_links`, with local steps and few classes a worker; each also comes with killed
workers (as in `link_killed`), which are away for 15 s after 60 s of work on average. Then come

    late     all-reduces while the last worker takes twice as long for a mini-batch
    heavy    durations with a heavy tail
    unequal  workers of four speeds
    apart    gossip of an MLP on a ring under a falling rate, to the end of the samples
    budget   averages over all links: in 5 % of the updates, evenly or late, or only in the last

    --config=configs/frontier_2026.py --sweep --seeds=5 --together
"""

from configs import arguments, base, slow_links
from configs.slow_links import COMPLETE, JITTER, LINK, OUTER
from experiments import papers
from experiments.registry import part

LOCAL, RATES = (0.4, 0.8, 1.6, 3.2, 6.4), (1.6, 3.2, 6.4, 12.8, 25.6)
UPDATES, WORKERS, BATCH = 600, 8, 16
SAMPLES = UPDATES * WORKERS * BATCH  # of an arm that goes on to the end
BARRIER = part("barrier")
KILLED = part("bernoulli_slowdown", value=0.3, factor=51.0, probability=0.005)


def _local(algorithm, wait=BARRIER, count: int = 8) -> dict:
    return {"algorithm": algorithm, "wait": wait, "mini_batches": count, "graph": COMPLETE}


def _reduced(wait, count: int = 1, **own) -> dict:
    return {"algorithm": part("all_reduce", **own), "wait": wait, "mini_batches": count}


def _to_the_end(algorithm, model: str, graph, alpha: float) -> dict:
    schedule = part("cosine", samples=SAMPLES)
    return {
        "algorithm": algorithm, "graph": graph, "wait": part("neighbour_barrier"),
        "task": part("digits", model=model), "split": part("dirichlet", alpha=alpha),
        "optimizer.schedule": schedule, "updates": UPDATES, "stop_at_target": False,
        "target_loss": None, "evaluate_every": 20.0,
    }  # fmt: skip


LINKS = {  # method -> its changes
    "diloco": _local(part("local_sgd", server=OUTER)),
    "edit": _local(part("edit", server=OUTER, warmup=10)),
    "noloco": _local(part("noloco"), part("neighbour_barrier")),
    "gasloc": _local(part("gasloc", gamma=0.7, pairs=True), part("neighbour_barrier")),
    "swarm": _local(part("swarm"), part("random_pairs"), 2),
    "streaming_diloco": _local(part("streaming_diloco", fragments=2), count=4),
    "loscar": _local(part("loscar_sgd", ratio=0.5, every=1), count=4),  # as many bytes, as often
    "decoupled_diloco": _local(part("decoupled_diloco", fragments=2), part("quorum_async", k=4), 4),
}
ROUNDS, COUNTS = (1, 2, 4), (4, 8, 16, 32)  # mini-batches of a worker, and of all workers
BARRIERS = {f"barrier/M={m}": _reduced(BARRIER, m) for m in ROUNDS}
BATCHES = {f"k_batch_sync/K={k}": _reduced(part("k_batch_sync", k=k)) for k in COUNTS}
CONDITIONS = {  # condition -> (its own changes, methods with their changes, rates)
    f"{name}{end}": (
        {"delay": delay, "communication": part("link", seconds=LINK, spells=spells)},
        LINKS,
        LOCAL,
    )
    for end, delay in (("", JITTER), ("_killed", KILLED))
    for name, (spells, _) in slow_links.CONDITIONS.items()
    if name != "both"
} | {
    "late": (
        {"delay": part("persistent", law=JITTER, factors={WORKERS - 1: 2.0})},
        {
            "ring": _reduced(BARRIER, collective="ring"),
            "straggl_ar": _reduced(BARRIER, collective="straggl_ar"),
            "k_sync": _reduced(part("k_sync", k=WORKERS - 1)),
        },
        RATES,
    ),
    "heavy": (
        {"delay": part("pareto", minimum=0.1, shape=1.2), "seconds": 1500.0},
        {
            **BARRIERS,
            **{f"mindflayer/M={m}": _reduced(part("mindflayer", seconds=0.325), m) for m in ROUNDS},
            "drop_compute": _reduced(part("drop_compute", calibration=5), 4),
            **BATCHES,
        },
        RATES,
    ),
    "unequal": (
        {"delay": part("persistent", law=JITTER, factors={4: 2.0, 5: 2.0, 6: 4.0, 7: 8.0})},
        {
            **BARRIERS,
            **{f"ata/K={k}": _reduced(part("ata", tasks=k, alpha=0.01), 8) for k in COUNTS},
            **BATCHES,
        },
        RATES,
    ),
    "apart": (
        {},
        {
            "dpsgd": _to_the_end(part("dpsgd"), "mlp", part("ring"), 0.3),
            "dsgd_ac": _to_the_end(part("dsgd_ac", samples=SAMPLES), "mlp", part("ring"), 0.3),
        },
        (0.1, 0.2, 0.4, 0.8, 1.6),
    ),
    "budget": (
        {},
        {
            name: _to_the_end(part("periodic", **own), "mlp", COMPLETE, 0.1)
            for name, own in (
                ("even", {"budget": 0.05}),
                ("late", {"budget": 0.0, "dense": (UPDATES - UPDATES // 20, UPDATES)}),
                ("once", {"budget": 0.0, "dense": (UPDATES - 1, UPDATES)}),
            )
        },
        (0.2, 0.4, 0.8, 1.6, 3.2),
    ),
}


def get_config(arg: str | None = None) -> base.ConfigDict:
    """Return one arm: StragglAR with a late worker. It takes no arguments."""
    arguments.parse(arg)
    own, methods, _ = CONDITIONS["late"]
    return base.arm(
        name="late/straggl_ar/rate=12.8",  # condition/method/rate
        task=part("digits", model="logistic"),
        split=part("dirichlet", alpha=0.3),
        workers=WORKERS,
        batch_size=BATCH,
        optimizer=part("sgd", learning_rate=12.8),
        communication=part("link", seconds=LINK),
        seconds=500.0,
        evaluate_every=1.0,
        target_loss=0.15,
        stop_at_target=True,
        **own,
        **methods["straggl_ar"],
    )


def sweep() -> base.Arms:
    """Yield every method in every condition at every rate of its grid."""
    for condition, (own, methods, rates) in CONDITIONS.items():
        for method, changes in methods.items():
            yield from base.at_rates(f"{condition}/{method}", own | changes, rates)


claims = papers.Judged("frontier", "frontier_2026")
numbers = papers.at_best("seconds_to_target", "test_accuracy")
