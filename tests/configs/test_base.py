"""One arm with every entry, and configs that only say what differs."""

import importlib
import pathlib

import pytest

from configs import base
from experiments import prepare, registry

ARMS = [
    path.stem
    for path in sorted(pathlib.Path(base.__file__).parent.glob("*.py"))
    if "def sweep" in path.read_text()
]
# Of the mesh's buckets alone: others have no plan to make.
OPTIONAL = {"actors", "buckets", "initial", "profile"}


def test_the_arm_is_complete_and_can_run():
    config = base.arm()
    registry.check_arm(config)
    prepare.prepare(config)
    every = (*registry._ENTRIES, *registry._OPTIONAL)
    needed = {name for _, _, names in every for name in names}
    assert set(config) == needed - {"initial"}


def test_changes_replace_whole_entries_of_any_type():
    config = base.arm(target_loss=0.5, communication="link(seconds=1)", optimizer="adam", workers=3)
    assert (config.target_loss, config.communication, config.workers) == (0.5, "link(seconds=1)", 3)
    assert registry.canonical(config).optimizer.to_dict() == {"name": "adam"}
    assert config.batch_size == base.arm().batch_size
    assert base.arm().workers == 8 and base.arm().optimizer.name == "sgd"  # nobody's are changed


def test_an_unknown_entry_is_refused():
    with pytest.raises(ValueError, match=r"an arm has no entry 'grap'; did you mean 'graph'\?"):
        base.arm(grap="star")


def test_every_sweep_starts_from_an_arm_of_the_same_entries():
    for name in ARMS:
        config = importlib.import_module(f"configs.{name}").get_config()
        assert set(config) - OPTIONAL == set(base.arm()), name
        registry.check_arm(registry.canonical(config))
