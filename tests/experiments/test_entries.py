import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import nonblocking
from experiments import registry

ONE = ("workers", "batch_size", "mini_batches", "updates", "devices", "rounds_per_dispatch")
PARTS = ("task", "split", "algorithm", "graph", "optimizer", "wait", "delay")
BAD_ENTRIES = [
    *((name, value) for name in ONE for value in (0, -1, 2.5, "2", None, True)),
    *(("seed", value) for value in (-1, 0.5, "0", None)),
    *(
        (n, v)
        for n in ("seconds", "evaluate_every")
        for v in (0.0, -1.0, np.nan, np.inf, "1", None)
    ),
    *(("communication", value) for value in (-1e-9, np.nan, np.inf, None)),
    *(("target_loss", value) for value in (0.0, -1.0, np.nan, "low")),
    *((name, value) for name in ("name", "runtime", "draw") for value in ("", 3, None)),
    *((name, value) for name in PARTS for value in (3, None)),
    ("baseline", 3),
]


@pytest.mark.parametrize(("name", "value"), BAD_ENTRIES)
def test_an_entry_of_a_wrong_type_or_range_is_named(name, value):
    config = nonblocking.get_config()
    with config.ignore_type():
        config[name] = value
    with pytest.raises(ValueError) as caught:
        registry.check_arm(config)
    assert str(caught.value).startswith(f"config.{name} must be ")
    assert f"got {value!r}; set config.{name}" in str(caught.value)


def test_a_missing_entry_is_named():
    registry.check_arm(nonblocking.get_config())
    for name in {name for name, _ in BAD_ENTRIES}:
        config = nonblocking.get_config()
        del config[name]
        with pytest.raises(ValueError, match=f"^config.{name} is missing; set it to a"):
            registry.check_arm(config)


def test_no_target_and_no_baseline_are_fine():
    config = nonblocking.get_config()
    with config.ignore_type():
        config.target_loss = config.baseline = None
    registry.check_arm(config)


def test_entries_are_checked_from_a_table_entries_of_entries_too():
    table = [
        ("positive whole numbers", registry.several(registry.is_count), ("workers",)),
        ("a share up to 1", lambda v: 0 < v <= 1, ("links.fast", "links.slow")),
    ]
    good = {"workers": (1, 2), "links": {"fast": 1.0, "slow": 0.5}}
    registry.check(ConfigDict(good), table)
    for changes, words in (
        ({"workers": (1, True)}, "config.workers must be positive whole numbers, got (1, True)"),
        ({"workers": ()}, "config.workers must be positive whole numbers, got ()"),
        ({"workers": 1}, "config.workers must be positive whole numbers, got 1; set"),
        ({"links": {"fast": 1.0, "slow": 2.0}}, "config.links.slow must be a share up to 1, got 2"),
        ({"links": {"slow": 1.0}}, "config.links.fast is missing; set it to a share up to 1"),
    ):
        with pytest.raises(ValueError) as caught:
            registry.check(ConfigDict(good | changes), table)
        assert words in str(caught.value)
