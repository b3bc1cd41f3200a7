"""Arms of the sweep over weightings of non-blocking rounds."""

import pytest

from algorithms import base, gossip
from configs import nonblocking
from experiments import prepare, sweep

VARIANT = nonblocking.VARIANTS["weightings"]
ARMS = dict(VARIANT.sweep())
GROUPS = list(dict.fromkeys(name.rpartition("/")[0] for name in ARMS))


@pytest.mark.parametrize("group", GROUPS)
def test_every_weighting_can_run(group):
    name = next(arm for arm in ARMS if arm.startswith(f"{group}/"))
    config = VARIANT.get_config("workers=4,mini_batches=2,slow=2,alpha=1")
    prepare.prepare(sweep.override(config, ARMS[name] | {"name": name}))
    assert config.delay.factors.to_dict() == {0: 2.0} and config.split.alpha == 1.0


def test_every_mixer_has_all_of_its_weightings_and_its_blocking_rounds_at_all_rates():
    known = {"all_reduce": base.WEIGHTINGS}
    expected = [
        f"{mixer}/{variant}"
        for mixer in nonblocking.MIXERS
        for variant in (*known.get(mixer, gossip.STEP_WEIGHTINGS), "blocking")
    ]
    assert expected == GROUPS
    for group in GROUPS:
        members = [arm for arm in ARMS if arm.rpartition("/")[0] == group]
        rates = nonblocking.RATES[group.partition("/")[0]]
        assert len(members) == len(rates) >= 5 and list(rates) == sorted(set(rates))
        assert ("wait" in ARMS[members[0]]) == group.endswith("/blocking")
