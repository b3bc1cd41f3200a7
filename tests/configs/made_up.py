"""Arms of a sweep with made-up records, which meet the premises of its claims, or break them."""

from collections.abc import Callable

from ml_collections import ConfigDict

from experiments import config_files, premises

SEEDS = 3
TO_TARGET = ("seconds_to_target", "updates_to_target", "communication_seconds_to_target")
LOSSES = ("train_loss", "final_train_loss")
BY_SEED = (*TO_TARGET, *LOSSES, "test_accuracy")


def arms(file, argument=None, level=lambda name: 1.0) -> list[dict]:
    """All arms of a sweep; the middle of every grid is best, and seeds differ by a thousandth.

    level: name -> what its seconds and losses are multiplied by.
    """
    config = file.get_config(argument) if argument else file.get_config()
    names = dict(config_files.swept_arms(file, config))
    config = config.to_dict()
    off = _off(names, _from_the_middle)
    return [
        _arm(name, _changed(config, changes | {"name": name}), level(name) * (1 + off[name]))
        for name, changes in names.items()
    ]


def _changed(config: dict, changes: dict) -> ConfigDict:
    """What `sweep.override` makes, without the checks that take most of its time."""
    changed = dict(config)
    for entry, value in changes.items():
        first, _, inner = entry.partition(".")
        value = value.to_dict() if isinstance(value, ConfigDict) else value
        changed[first] = changed[first] | {inner: value} if inner else value
    return ConfigDict(changed)


def _arm(name, config, factor) -> dict:
    seconds = [10.0 * factor * (1 + 1e-3 * seed) for seed in range(SEEDS)]
    losses = [0.01 * factor * (1 + 1e-3 * seed) for seed in range(SEEDS)]
    made = {
        "name": name, "config": config, "baseline": config.baseline, "clock": "virtual",
        "seeds": list(range(SEEDS)), "workers": config.workers, "target_loss": config.target_loss,
        "reached": f"{SEEDS}/{SEEDS}", "updates": 100,
        "updates_by_seed": [99, 100, 101], "samples": 1000.0, "seconds": 50.0,
        "bytes_per_worker": 1e6, "consensus_distance": 0.1, "staleness_mean": 1.0,
        "staleness_mean_by_seed": [0.99, 1.0, 1.01],
        "test_accuracy_worst_worker": 0.9, "test_accuracy_best_worker": 0.95,
        "workdirs": [name],
        "metrics": [_metrics(*each) for each in zip(seconds, losses, strict=True)],
    }  # fmt: skip
    for field in BY_SEED:
        values = seconds if field in TO_TARGET else losses if field in LOSSES else [0.9] * SEEDS
        made |= {field: sum(values) / SEEDS, f"{field}_by_seed": values, f"{field}_std": 1e-3}
    return made


def _metrics(seconds, loss) -> list[dict]:
    return [
        {"seconds": share * seconds, "train_loss": 2.0 * (loss / 2.0) ** share, "test_loss": 1.0,
         "bytes_per_worker": share * 1e6, "consensus_distance": 0.1, "refusals_per_meeting": 0.0}
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]  # fmt: skip


def _off(names, distance) -> dict[str, float]:
    """A tenth of how far every arm is from the best of its grid, summed over its settings."""
    grids: dict[tuple, dict[str, set]] = {}
    for name in names:
        grid = grids.setdefault(_bare(name), {})
        for key, value in premises.settings(name).items():
            grid.setdefault(key, set()).add(value)
    off = {}
    for name in names:
        values = {key: sorted(found) for key, found in grids[_bare(name)].items()}
        own = premises.settings(name)
        off[name] = sum(
            0.1 * distance(values[key].index(own[key]), len(values[key])) for key in own
        )
    return off


def _bare(name) -> tuple[str, ...]:
    """What is no setting in a name; with other local steps a method has another grid."""
    return tuple(
        piece
        for piece in name.split("/")
        if "=" not in piece or piece.startswith(("H=", "budget="))
    )


def _from_the_middle(place, length) -> float:
    return abs(place - (length - 1) // 2)


def unequal(made) -> list[dict]:
    """Every arm has seen other samples than the one before, with rounds of another length."""
    broken = []
    for place, arm in enumerate(made, 1):
        changed = {
            field: arm[field] * place for field in ("samples", "updates", "bytes_per_worker")
        }
        changed["config"] = _changed(arm["config"].to_dict(), {"mini_batches": place})
        broken.append(arm | changed)
    return broken


def never(made) -> list[dict]:
    """No arm comes to its target, in the last of its seeds."""
    return [
        arm
        | {field: None for field in TO_TARGET}
        | {f"{field}_by_seed": [*arm[f"{field}_by_seed"][:-1], None] for field in TO_TARGET}
        | {"reached": f"{SEEDS - 1}/{SEEDS}", "metrics": [*arm["metrics"][:-1], _high(arm)]}
        for arm in made
    ]


def _high(arm) -> list[dict]:
    return [record | {"train_loss": 5.0} for record in arm["metrics"][-1]]


def one_seed(made) -> list[dict]:
    """Every arm ran once."""
    return [
        {key: value for key, value in arm.items() if not key.endswith("_by_seed")}
        | {f"{field}_std": None for field in BY_SEED}
        | {"seeds": [0], "reached": "1/1", "metrics": arm["metrics"][:1]}
        for arm in made
    ]


def at_the_edge(made) -> list[dict]:
    """The first value of every grid is best."""
    off = _off([arm["name"] for arm in made], lambda place, _: place)
    return [arm | _arm(arm["name"], arm["config"], 1 + off[arm["name"]]) for arm in made]


def diverged(made) -> list[dict]:
    """No loss is finite in the last seed."""
    fields = (*TO_TARGET, *LOSSES, "test_accuracy")
    return [
        arm
        | {field: None for field in fields}
        | {f"{field}_by_seed": [*arm[f"{field}_by_seed"][:-1], None] for field in fields}
        | {"reached": f"{SEEDS - 1}/{SEEDS}", "metrics": [_lost(arm)] * SEEDS}
        for arm in made
    ]


def _lost(arm) -> list[dict]:
    return [record | {"train_loss": None} for record in arm["metrics"][0]]


def missing(made) -> list[dict]:
    """Only the first arm is there."""
    return made[:1]


def few(made) -> list[dict]:
    """Hardly an update was made."""
    return [arm | {"updates": 3} for arm in made]


BREAKS: dict[str, Callable[[list[dict]], list[dict]]] = {
    each.__name__: each for each in (unequal, never, one_seed, at_the_edge, diverged, missing, few)
}


def has_a_verdict(text: str) -> bool:
    return text.startswith(tuple(f"{verdict}: " for verdict in premises.VERDICTS))
