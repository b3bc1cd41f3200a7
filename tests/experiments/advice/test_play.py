"""Rules played over durations: grids, refusals, rates in closed form, and verdicts."""

from types import SimpleNamespace

import numpy as np
import pytest

from configs import slow_and_stale
from experiments import prepare
from experiments.advice import durations, page, play
from experiments.config_files import override
from stragglers import delays
from stragglers.processes import persistent
from stragglers.rule import Setting, whole
from stragglers.rules import RULES, quorum


def half(setting):
    """Return a rule that is brought along."""
    return quorum(setting, k=max(1, setting.workers * setting.mini_batches // 2))


def some(setting, *, share: float):
    """Return a rule with a parameter that has a grid."""
    return quorum(setting, k=max(1, round(share * setting.workers * setting.mini_batches)))


def unknown(setting, *, colour: str):
    """Return a rule with a parameter that has no grid."""
    return half(setting)


def config(**changes):
    base = {"workers": 4, "mini_batches": 2, "wait": "barrier", "delay": "exponential(scale=1)"}
    return override(slow_and_stale.get_config(), base | changes)


def measured(delay=None):
    delay = delays.shifted_exponential(1.0, 1.0) if delay is None else delay
    return durations.of_delay(delay, 4, 0, "law")


GRIDS = play.grids_of(measured(), 4, 2)


def test_every_rule_of_the_registry_is_played_or_has_a_reason():
    own = [f"{__name__}:half", f"{__name__}:some"]
    arms, refused = play.to_play(config(), ["barrier", *own], GRIDS)
    names, reasons = {arm.wait.name for arm, _ in arms}, dict(refused)
    assert names | reasons.keys() >= {*RULES, *own}
    assert len(names & {*RULES}) >= 12 and {*own} <= names
    assert "got no graph" in reasons["random_pairs"] and "protocol" in reasons["adasync"]
    # A grid goes with the name of a parameter.
    assert [arm.wait.share for arm, _ in arms if arm.wait.name == own[1]] == [0.25, 0.5, 0.75]
    # More than there are workers are refused.
    assert [arm.wait.k for arm, _ in arms if arm.wait.name == "k_sync"] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="nothing says which colour to weigh"):
        play.variants(f"{__name__}:unknown", GRIDS)
    given = {"name": f"{__name__}:unknown", "colour": "red"}
    assert play.variants(f"{__name__}:unknown(colour=red)", GRIDS) == [given]


def test_rates_are_those_of_known_durations():
    """Workers of 1, 1, 2 and 4 s: a barrier has 1/4 updates per second, Async-SGD 2.75."""
    source = measured(persistent(delays.deterministic(1.0), [1.0, 1.0, 2.0, 4.0]))
    for wait, updates, idle in (
        ("barrier", 1 / 4, 1 - 8 / 16), ("k_async(k=1)", 2.75, 0.0), ("k_sync(k=2)", 1.0, None),
    ):  # fmt: skip
        arm = config(mini_batches=1, seconds=400.0, wait=wait)
        one = play.play(arm, prepare.prepare(arm), source)
        batches = one.schedule.batches.sum() / one.schedule.updates
        assert one.updates == pytest.approx(updates, rel=0.02)
        assert one.samples == pytest.approx(updates * batches * arm.batch_size, rel=0.02)
        assert idle is None or one.schedule.idle_fraction == pytest.approx(idle, abs=0.01)


def test_costs_of_equal_workers_follow_from_the_definitions():
    """Four workers of 1 s: a barrier makes an update of 4 a second, and none is stale."""
    source, costs = measured(delays.deterministic(1.0)), []
    for wait in ("barrier", "k_batch_async(k=4)"):
        arm = config(mini_batches=1, seconds=100.0, wait=wait)
        costs.append(play.play(arm, prepare.prepare(arm), source).costs[0])
    assert costs[0] == pytest.approx((1, 1 / 4))
    assert costs[1][0] > 1.0 and costs[1][1] == pytest.approx(1 / 4)


def candidate(name, steps, noise=0.0, samples=1.0, repeats=1):
    arm = SimpleNamespace(wait={"name": name}, mini_batches=1)
    costs, prepared = np.array([[steps, noise]] * repeats), SimpleNamespace(config=arm)
    return play.Candidate(arm, prepared, None, 1.0, samples, 1.0, None, costs)


SLOW = persistent(delays.jitter(1.0, 0.05), [1.0, 1.0, 1.0, 3.0])


def test_rules_are_compared_at_the_batch_of_the_config():
    """A quorum of 2 makes an update of 2; at equal batch it is given 8, and more of each worker."""
    arm, source = config(mini_batches=2, seconds=400.0), measured(SLOW)
    prepared = prepare.prepare(arm)
    own = play.play(arm, prepared, source)
    quorum = play.play(override(arm, {"wait": "quorum(in_flight=cut, k=2)"}), prepared, source)
    assert (own.batch, quorum.batch) == (8.0, 2.0)
    found = {one.name: one for one in play.at_equal_batch([own, quorum], own, source)}
    more = "quorum(in_flight=cut, k=8) of 4 each"
    assert {"barrier", "quorum(in_flight=cut, k=8)", more} == found.keys()
    # Three workers of 1 s have 8 mini-batches after 3 s, a barrier after 6 s.
    assert found[more].samples / own.samples == pytest.approx(2.0, rel=0.05)


def test_the_own_rule_stays_unless_another_is_worth_the_change():
    rules = [candidate(name, 1.0) for name in "abc"]  # of which c is the config's own
    for seconds, order, close, reason in (
        ([(10, 12), (10.5, 11), (20, 21)], "bac", "ba", "not sure: b was 1.91 times as fast as c"),
        ([(10, 12), (15, 15.5), (20, 21)], "abc", "a", "a was 1.87 times as fast as c, at an"),
        ([(20, 20), (30, 31), (21, 21)], "acb", "c", "keep c: at an equal batch the fas"),
        ([(20, 20), (30, 31), (19, 19)], "cab", "c", "at an equal batch no other rule was"),
        ([(np.inf, 12), (50, 51), (np.inf, np.inf)], "bac", "b", "every seed, and c with 0 of 2"),
        ([(np.inf, 12), (50, 51)], "bac", "b", "with every seed, and c could not be trained"),
        ([(np.inf, 12), (np.inf, np.inf)], "abc", "c", "not sure: nothing that was trained"),
    ):
        cases = {n: np.array(times) for n, times in zip("abc", seconds, strict=False)}
        verdict = play.verdict(rules, rules[2], cases, "was")
        assert "".join(one.name for one in verdict.order) == order and reason in verdict.reason
        assert "".join(one.name for one in verdict.close) == close
        assert verdict.sure != reason.startswith("not sure")


def test_a_rate_that_is_unstable_for_some_seeds_is_not_taken():
    """The best one of the seed that chose fails for another; two are judged by all others."""
    never = float("inf")
    seconds = {
        "a": {0.8: [10.0, never], 0.4: [18.0, 19.0]},
        "b": {0.2: [7.0, 9.0], 0.1: [6.0, 8.0]},
        "c": {0.1: [never, 5.0]},
    }
    tried = {0.1: 3.0, 0.2: 2.0, 0.4: 2.5, 0.8: 1.0}
    found = play._at_best(seconds, dict.fromkeys("abc", tried))
    assert {name: one.rate for name, one in found.items()} == {"a": 0.4, "b": 0.1, "c": 0.1}
    assert found["a"].seconds == (18.0, 19.0) and not found["a"].edge and found["b"].edge
    assert str(found["c"]) == "1 of 2 seeds"


def test_a_schedule_that_ends_with_the_run_is_trained_with_its_end(tmp_path, monkeypatch):
    arm, source, trained = config(**{"optimizer.schedule": "cosine"}), measured(), []
    one = play.play(arm, prepare.prepare(arm), source)
    durations.write(source, tmp_path / play.DURATIONS[0])

    def run(arms, *_, **__):
        trained.extend(arms)
        return {each.path: "it is not run" for each in arms}

    monkeypatch.setattr(play.sweep, "run", run)
    assert play._seconds([(one, 0.5)], (0,), arm, tmp_path) == {}
    assert trained[0].config.optimizer.schedule.samples > 0


def test_advice_depends_on_the_measured_durations_alone():
    """A limit below the quickest mini-batch of the config's own delay is weighed all the same."""
    seconds = tuple(0.01 * np.random.default_rng(0).gamma(4.0, size=(4, 200)))
    source = durations.Source(durations.Measured(seconds, "trace"), None, [])

    def advised(delay):
        own = config(delay=delay, seconds=20.0)
        return play.weigh(source._replace(config=own))

    delays_of_configs = "none", "deterministic(value=0.04)", "exponential(scale=0.04)"
    found = [{one.arm.wait.name for one in advised(delay).order} for delay in delays_of_configs]
    assert all({"anytime", "deadline", "drop_compute"} <= names for names in found), found


def test_a_rule_over_itself_is_1_in_every_resample():
    seconds = tuple(0.01 * np.random.default_rng(0).gamma(4.0, size=(4, 400)))
    own = config(wait="first_finisher", seconds=20.0, delay="none")
    advice = play.weigh(durations.Source(durations.Measured(seconds, "trace"), own, []))
    row = next(row for row in page.rows(advice) if row["rule"] == advice.reference.name)
    assert row["predicted"] == 1 and row["predicted_range"] == [1, 1]


def test_a_recorded_schedule_is_not_played(tmp_path):
    rule = RULES["barrier"](Setting(delays.deterministic(1.0), 4, 2, 0))
    whole(rule, 5).save(tmp_path / "s.npz")
    own = config(wait=f"replay(path='{tmp_path}/s.npz')", seconds=20.0, delay="none")
    seconds = tuple(np.ones((4, 200)))
    with pytest.raises(ValueError, match=r"durations of its own, and that ends.*; set another"):
        play.weigh(durations.Source(durations.Measured(seconds, "trace"), own, []))
