"""The arms that `benchmarks.together` trains, each an arm of a sweep with several seeds."""

import importlib

from ml_collections import ConfigDict

from experiments.config_files import override, swept_arms

CASES = {  # config and its argument, arm, changes
    "asynchronous, logistic regression": (
        ("slow_and_stale", "seconds=150"), "k_async/K=1/rate=0.16", {}
    ),
    "all-reduce, MLP": (
        ("nonblocking", None), "all_reduce/nonblocking", {"stop_at_target": False, "seconds": 10.0}
    ),
    "D-PSGD on a ring, MLP": (("heterogeneous", None), "dpsgd/ring/rate=0.2", {}),
}  # fmt: skip


def arms_of(case: str, count: int) -> list[ConfigDict]:
    """The first `count` seeds of an arm."""
    (name, argument), arm, changes = CASES[case]
    module = importlib.import_module(f"configs.{name}")
    config = module.get_config(argument)
    chosen = dict(swept_arms(module, config))[arm] | {"name": arm} | changes
    config = override(config, chosen)
    return [override(config, {"seed": seed}) for seed in range(count)]
