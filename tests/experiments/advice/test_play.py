"""Rules played over durations: grids, what is refused, and rates in closed form."""

import numpy as np
import pytest

from configs import slow_and_stale
from experiments import prepare, waiting
from experiments.advice import durations, grids, play, ranking
from experiments.config_files import override
from stragglers import delays
from stragglers.processes import persistent
from stragglers.rules import RULES, quorum


def half(setting):
    """A rule that is brought along."""
    return quorum(setting, k=max(1, setting.workers * setting.mini_batches // 2))


def some(setting, *, share: float):
    """A rule with a parameter that has a grid."""
    return quorum(setting, k=max(1, round(share * setting.workers * setting.mini_batches)))


def unknown(setting, *, colour: str):
    """A rule with a parameter that nobody has a grid for."""
    return half(setting)


def config(**changes):
    base = {"workers": 4, "mini_batches": 2, "wait": "barrier", "delay": "exponential(scale=1)"}
    return override(slow_and_stale.get_config(), base | changes)


def measured(delay=None, workers=4):
    delay = delays.shifted_exponential(1.0, 1.0) if delay is None else delay
    return durations.of_delay(delay, workers, 0, "law")


def weighed(arm, named=()):
    source = measured()
    scale = grids.scale_of(source, arm.workers, arm.mini_batches)
    return play.rules(arm, named, scale)


@pytest.fixture(scope="module")
def all_rules():
    return weighed(config(), ["barrier", f"{__name__}:half", f"{__name__}:some"])


def test_every_rule_of_the_registry_is_played_or_has_a_reason(all_rules):
    arms, refused = all_rules
    names = {arm.wait.name for arm, _ in arms}
    assert names | {one.wait for one in refused} >= set(RULES)
    assert len(names & set(RULES)) >= 12
    assert {f"{__name__}:half", f"{__name__}:some"} <= names
    reasons = {one.wait: one.reason for one in refused}
    assert "got no graph" in reasons["random_pairs"]
    assert "protocol" in reasons["adasync"]


def test_a_grid_goes_with_the_name_of_a_parameter(all_rules):
    shares = [arm.wait.share for arm, _ in all_rules[0] if arm.wait.name.endswith(":some")]
    assert shares == [0.25, 0.5, 0.75]
    counts = [arm.wait.k for arm, _ in all_rules[0] if arm.wait.name == "k_sync"]
    assert counts == [1, 2, 3, 4]  # more than there are workers are refused


def test_a_parameter_without_a_grid_has_to_be_given():
    scale = grids.scale_of(measured(), 4, 2)
    with pytest.raises(ValueError, match="nothing says which colour to weigh"):
        list(grids.candidates(waiting.RULE, f"{__name__}:unknown", scale))
    named = f"{__name__}:unknown(colour=red)"
    assert list(grids.candidates(waiting.RULE, named, scale)) == [
        {"name": f"{__name__}:unknown", "colour": "red"}
    ]


def test_rates_are_those_of_known_durations():
    """Workers of 1, 1, 2 and 4 s: a barrier has 1/4 updates per second, Async-SGD 2.75."""
    source = measured(persistent(delays.deterministic(1.0), [1.0, 1.0, 2.0, 4.0]))
    base = config(mini_batches=1, seconds=400.0)
    for wait, updates, idle in (
        ("barrier", 1 / 4, 1 - 8 / 16),
        ("k_async(k=1)", 2.75, 0.0),
        ("k_sync(k=2)", 1.0, None),
    ):
        arm = override(base, {"wait": wait})
        played = next(play.repeats(arm, prepare.prepare(arm), source, 1))
        assert played.updates == pytest.approx(updates, rel=0.02)
        assert played.samples == pytest.approx(
            updates * played.mini_batches * arm.batch_size, rel=0.02
        )
        if idle is not None:
            assert played.idle == pytest.approx(idle, abs=0.01)


def contender(steps, noise, samples=1.0):
    played = play.Played({}, 1.0, samples, 0.0, None, None)
    return ranking.Contender(None, None, played, (ranking.Costs(steps, noise),))


def test_who_is_beaten_in_both_costs_is_dominated():
    front = [contender(1, 4), contender(2, 2), contender(4, 1)]
    beaten = [contender(2, 4), contender(3, 2), contender(4, 4)]
    assert ranking.undominated([*front, *beaten]) == front
    for ratio in np.geomspace(0.01, 100, 20):
        assert ranking.ranked([*beaten, *front], ratio, front[0])[0] in front


def test_costs_of_equal_workers_follow_from_the_definitions():
    """Four workers of 1 s: a barrier makes an update of 4 a second, of which none is stale."""
    source = measured(delays.deterministic(1.0))
    arm = config(mini_batches=1, seconds=100.0)
    played = next(play.repeats(arm, prepare.prepare(arm), source, 1))
    assert ranking.costs(played) == pytest.approx((1.0, 1 / 4))
    stale = override(arm, {"wait": "k_batch_async(k=4)"})
    played = next(play.repeats(stale, prepare.prepare(stale), source, 1))
    assert ranking.costs(played).steps > 1.0
    assert ranking.costs(played).noise == pytest.approx(1 / 4)


def test_a_verdict_is_sure_of_what_is_always_so():
    first, second = np.array([1.0, 2.0, 3.0]), np.array([1.2, 2.4, 3.6])
    assert ranking.is_sure(first, second)
    assert not ranking.is_sure(first, first * 1.01)
    assert not ranking.is_sure(first, second[::-1])
