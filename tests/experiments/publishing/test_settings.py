"""What a record keeps of its arms' settings, and what counts as a change of them."""

import pytest
from ml_collections import ConfigDict

from experiments.parts import part
from experiments.publishing import settings


def arm(rate, **changes):
    entries = {"name": f"rate={rate}", "seed": 0, "workers": 4, "delay": part("jitter", mean=0.1)}
    return ConfigDict(entries | {"optimizer": part("sgd", learning_rate=rate)} | changes)


ARMS = {"slow": arm(0.1), "quick": arm(0.4)}
KEPT = settings.of(ARMS)


def test_what_all_arms_have_is_a_text_and_the_rest_a_digest():
    assert KEPT["workers"] == "4" and KEPT["delay"] == "jitter(mean=0.1)"
    assert KEPT["optimizer"].startswith(settings.UNLIKE)
    assert not {"name", "seed"} & KEPT.keys()


def test_an_order_of_arms_or_of_parameters_is_no_change():
    turned = arm(0.4, optimizer=ConfigDict({"learning_rate": 0.4, "name": "sgd"}), seed=3)
    assert settings.changed(KEPT, settings.of({"quick": turned, "slow": ARMS["slow"]})) == []


@pytest.mark.parametrize(
    ("changes", "entries"),
    [
        ({"workers": 8}, ["workers"]),  # in one arm of two
        ({"optimizer": part("sgd", learning_rate=0.2)}, ["optimizer"]),
        ({"delay": part("jitter", mean=0.2)}, ["delay"]),
        ({"since": "more"}, []),  # an entry that the config has gained
    ],
)
def test_a_change_in_one_arm_is_noticed_by_its_entry(changes, entries):
    assert settings.changed(KEPT, settings.of(ARMS | {"slow": arm(0.1, **changes)})) == entries
