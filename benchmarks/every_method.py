"""A sweep of the method battery, for `benchmarks.same_behaviour`: a few updates of every setting.

Settings have the names of `tests.algorithms.methods.METHODS`. All entries are texts, as on the
command line, so that checkouts with other modules read them too. One worker is slow, so that some
rounds get nothing from it and its gradients reach a server stale.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

SPARSE = {  # rows of a table: 8 samples of 4 words are at most 32 of 128
    "task": "hashed_logistic(corpus=python(files=40), window=4, buckets=128, largest=3, "
    "evaluated=64)"
}
ASYNC = {"wait": "k_async(k=3)", "mini_batches": 1}
EVERY_PUSH = {"wait": "k_async(k=1)"}
PAIRS = {"wait": "random_pairs", "graph": "hypercube"}
ADAM = {"optimizer": "adam(learning_rate=0.01)"}
SGD = {"optimizer": "sgd(learning_rate=0.05)"}


def on(graph: str) -> dict[str, str]:
    """Return the change to gossip over this graph."""
    return {"graph": graph}


# Setting -> the method and what else differs from `get_config`.
METHODS = {
    "all_reduce": ("all_reduce", {}),
    "all_reduce/adam": ("all_reduce", ADAM),
    "all_reduce/ring": ("all_reduce(collective=ring)", {}),
    "all_reduce/halving": ("all_reduce(collective=halving_doubling)", {}),
    "all_reduce/straggl_ar": ("all_reduce(collective=straggl_ar)", {}),
    "all_reduce/equal": ("all_reduce(weighting=equal)", {}),
    "dpsgd": ("dpsgd", {}),
    "dpsgd/adapt_then_combine": ("dpsgd(order=adapt_then_combine)", on("star") | ADAM),
    "dpsgd/confidence": ("dpsgd(weighting=confidence)", {}),
    "dpsgd/local_sum": ("dpsgd(weighting=local_sum, mixing_matrix=best_constant)", {}),
    "easgd": ("easgd", {}),
    "choco_sgd": ("choco_sgd(exchange=top_k(ratio=0.4), gamma=0.3)", {}),
    "choco_sgd/star": ("choco_sgd(exchange=chain(top_k(ratio=0.6), quantise(bits=8)), gamma=0.3)",
        on("star")),
    "noloco": ("noloco", on("hypercube")),
    "gasloc": ("gasloc", {}),
    "gasloc/pairs": ("gasloc(gamma=0.5, pairs=true)", on("hypercube")),
    "dpsgd/rounds": ("dpsgd", on("one_peer_exponential")),
    "gradient_tracking": ("gradient_tracking", SGD),
    "gradient_tracking/rounds": ("gradient_tracking", on("one_peer_exponential")),
    "exact_diffusion": ("exact_diffusion", SGD),
    "exact_diffusion/rounds": ("exact_diffusion", on("base_k(k=2)") | SGD),
    "qg_dsgdm": ("qg_dsgdm", SGD),
    "qg_dsgdm/rounds": ("qg_dsgdm", on("hierarchical(group=2)") | SGD),
    "decentlam": ("decentlam", SGD),
    "decentlam/rounds": ("decentlam(momentum=0.5)", on("base_k") | SGD),
    "matcha": ("matcha(budget=0.4)", on("matcha(k=0)")),
    "matcha/confidence": ("matcha(budget=1.0, weighting=confidence)", on("hypercube") | ADAM),
    "periodic": ("periodic(budget=0.5, order=combine_while_adapting)", {}),
    "periodic/dense": ("periodic(budget=0.1, dense=[20, 30])", {}),
    "dsgd_ac": ("dsgd_ac(samples=600)", {"wait": "neighbour_barrier"}),
    "edit": ("edit(warmup=3, clip=0.5)", {}),
    "local_sgd": ("local_sgd", {}),
    "local_sgd/ring": ("local_sgd(collective=ring, weighting=proportional, server_momentum=0.5)",
        ADAM),
    "mg_wfbp": ("mg_wfbp", {"buckets": "wfbp", "profile": "none"}),
    "mg_wfbp/ring": ("mg_wfbp(collective=ring)",
        {"buckets": "fixed:1kB", "profile": "none"} | ADAM),
    "all_reduce/chain": ("all_reduce(exchange=error_feedback(random_k(ratio=0.5), int8(bucket=2)))",
        {}),
    "all_reduce/bf16": ("all_reduce(exchange=bf16)", {}),
    "all_reduce/ring of int8": ("all_reduce(exchange=ring(int8))", {}),
    "all_reduce/fp16": ("all_reduce(exchange=error_feedback(fp16))", {}),
    "local_sgd/bf16": ("local_sgd(exchange=error_feedback(top_k(ratio=0.4), bf16))", {}),
    "local_sgd/top_k": ("local_sgd(exchange=error_feedback(top_k(ratio=0.4)))", {}),
    "local_sgd/chain": ("local_sgd(exchange=chain(random_k(ratio=0.8), quantise(bits=8)))", {}),
    "local_sgd/lists": ("local_sgd(exchange=error_feedback(top_k(ratio=0.6), natural))", {}),
    "local_sgd/adam server": (
        "local_sgd(server=[scale_by_adam(), scale_by_learning_rate(learning_rate=0.05)])",
        {}),
    "streaming_diloco": ("streaming_diloco(fragments=3, overlap=2)", {}),
    "streaming_diloco/4 bits": (
        "streaming_diloco(fragments=2, overlap=0, alpha=0.0, exchange=quantise(bits=4))",
        {}),
    "loscar_sgd": ("loscar_sgd(ratio=0.4, every=3)", {}),
    "decoupled_diloco": ("decoupled_diloco(fragments=3)", {}),
    "decoupled_diloco/mean": ("decoupled_diloco(fragments=2, alpha=0.5, average=mean)", {}),
    "decoupled_diloco/4 bits": ("decoupled_diloco(fragments=2, exchange=quantise(bits=4))", {}),
    "sparse_loco": ("sparse_loco(chunk=4, k=2, bits=4)", {}),
    "demo": ("demo(chunk=4, k=2, decay=0.9)", {"optimizer": "sgd(learning_rate=0.001)"}),
    "async_diloco": ("async_diloco(period=3)", EVERY_PUSH),
    "sgp": ("sgp", {}),
    "sgp/overlap": ("sgp(overlap=2)", {}),
    "swarm": ("swarm(lockstep=true)", on("hypercube")),
    "swarm/8 bits": ("swarm(bits=8, lockstep=true)", {}),
    "swarm/unbiased": ("swarm(bits=6, rounding=unbiased, lockstep=true)", {}),
    "swarm/blocking": ("swarm(blocking=true, lockstep=true)", {}),
    "s2_reducer": ("s2_reducer(budget=40)", SPARSE),
    "s2_reducer/overloaded": ("s2_reducer(ratio=0.1, fallback=dense)", SPARSE),
    "s2_reducer/elements": ("s2_reducer(budget=160, rows=4, granularity=element)", SPARSE),
    "s2_reducer/estimated": ("s2_reducer(rows=1, budget=32, peel=false)", SPARSE),
    "s2_reducer/exact": ("s2_reducer(exact=true, ratio=1.0)", SPARSE | ADAM | {"buckets": "wfbp"}),
    "s2_reducer/too small": ("s2_reducer(exact=true, budget=8)", SPARSE),
    "s2_reducer/memory": (
        "s2_reducer(budget=32, peel=false, error_feedback=true, warmup_updates=5)",
        SPARSE),
    "sparse_all_gather": ("sparse_all_gather(ratio=1.0)", SPARSE),
    "sparse_all_gather/too small": ("sparse_all_gather(budget=4, weighting=equal)", SPARSE),
    "sparcml": ("sparcml(ratio=1.0)", SPARSE),
    "sparcml/too small": ("sparcml(budget=4)", SPARSE),
    "omnireduce": ("omnireduce(block=2, ratio=1.0)", SPARSE),
    "omnireduce/too small": ("omnireduce(ratio=0.01)", SPARSE),
    "parallax": ("parallax(ratio=1.0)", SPARSE),
    "parallax/too small": ("parallax(budget=4, union_ratio=0.5, weighting=equal)", SPARSE),
    "top_k": ("top_k(ratio=0.4)", {}),
    "top_k/momentum": ("top_k(ratio=0.2, momentum=0.9, warmup_updates=20)", SGD),
    "random_k": ("random_k(ratio=0.4)", {}),
    "random_k/unbiased": ("random_k(ratio=0.4, error_feedback=false)", SGD),
    "sketched_sgd": ("sketched_sgd(ratio=1.0, k_ratio=0.5)", SGD),
    "sketched_sgd/momentum": ("sketched_sgd(ratio=1.0, k_ratio=0.5, momentum=0.5)", SGD),
    "powersgd": ("powersgd(warmup_updates=10)", {}),
    "one_bit_adam": ("one_bit_adam(warmup_updates=20)", SGD),
    "one_bit_adam/equal": ("one_bit_adam(warmup_updates=30, weighting=equal)", SGD),
    "qsgd": ("qsgd", {}),
    "natural_compression": ("natural_compression", {}),
    "ef21": ("ef21(exchange=top_k(ratio=0.4))", {}),
    "ef21/int8": ("ef21(exchange=int8(bucket=2))", {}),
    "ef21_sgdm": ("ef21_sgdm(exchange=top_k(ratio=0.4))", SGD),
    "ef21/broadcast": ("ef21(exchange=top_k(ratio=0.4), broadcast=top_k(ratio=0.6))", {}),
    "ef_sign": ("ef_sign", SGD),
    "int8_all_reduce": ("int8_all_reduce", {}),
    "all_reduce/fp8": ("all_reduce(exchange=fp8(format=e5m2))", {}),
    "all_reduce/int4": ("all_reduce(exchange=error_feedback(int4))", {}),
    "all_reduce/mxfp4": ("all_reduce(exchange=mxfp4)", {}),
    "coordinate_median": ("coordinate_median", {}),
    "trimmed_mean": ("trimmed_mean", {}),
    "krum": ("krum(keep=2)", SGD),
    "centred_clipping": ("centred_clipping(radius=1.0, iterations=2)", {}),
    "ringleader": ("ringleader", EVERY_PUSH),
    "compensated_rate": ("compensated_rate(threshold=0.1)", ASYNC),
    "dc_asgd": ("dc_asgd", ASYNC),
    "delay_adaptive": ("delay_adaptive", ASYNC),
    "hinge_staleness": ("hinge_staleness(free=1)", ASYNC),
    "inverse_staleness": ("inverse_staleness", ASYNC),
    "polynomial_staleness": ("polynomial_staleness", ASYNC),
    # Beyond the battery: pairs that do not march in step.
    "swarm/pairs": ("swarm(bits=8, rounding=unbiased)", PAIRS),
    "ad_psgd": ("ad_psgd", PAIRS | {"mini_batches": 1}),
}  # fmt: skip


def get_config() -> ConfigDict:
    """Return all-reduce in rounds that end when the first worker has finished."""
    return ConfigDict({
        "name": "method", "baseline": None, "seed": 3, "task": "digits(model=mlp(hidden=(8,)))",
        "split": "iid", "runtime": "simulate", "devices": 1, "devices_per_worker": 1,
        "sharding": "replicated", "rounds_per_dispatch": 4, "workers": 8, "batch_size": 2,
        "mini_batches": 3, "algorithm": "all_reduce", "graph": "ring",
        "optimizer": "momentum(learning_rate=0.02)", "wait": "first_finisher",
        "delay": "persistent(law=exponential(scale=1), factors={0: 6.0})", "draw": "mini_batch",
        "communication": 0.25, "buckets": None, "profile": None, "seconds": 1e9, "updates": 32,
        "evaluate_every": 1e9, "target_loss": None, "stop_at_target": False,
    })  # fmt: skip


def sweep() -> Iterator[tuple[str, dict]]:
    """Yield every setting."""
    for name, (algorithm, changes) in METHODS.items():
        yield name.replace(" ", "_"), {"algorithm": algorithm} | changes
