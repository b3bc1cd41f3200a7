"""What the sweeps of non-blocking SGD say of themselves, on made-up summaries."""

import pytest

from configs import nonblocking, nonblocking_tuned
from experiments import prepare, sweep, waiting
from tests.configs import made_up


def test_claims_compare_equal_rounds_and_small_ones():
    level = {"blocking": 3.0, "small_batch": 0.5}
    made = made_up.arms(nonblocking, level=lambda name: level.get(name.partition("/")[2], 1.0))
    for arm in made:
        if arm["name"].endswith("/nonblocking"):
            arm |= {"updates": 150, "samples": 1200, "seconds": 25.0, "test_accuracy": 0.915}
    found = dict(nonblocking.claims(made))
    assert len(found) == 2 * len(nonblocking.MIXERS | nonblocking.SERIAL)
    equal, small = list(found.values())[:2]
    assert equal.startswith(
        "holds where: at equal samples per round: all_reduce/nonblocking 10.01 ± 0.01 s against "
        "all_reduce/blocking 30.03 ± 0.03 s, 0.33x; difference -20 ± "
    )
    assert small.startswith("does not hold: all_reduce/nonblocking")
    (table,) = nonblocking.numbers(made)
    assert table.rows[0] == ("all_reduce", "3.00x", "3.00x", "2.40x", "+1.50")
    never = next(nonblocking.numbers(made_up.never(made)))
    assert never.rows[0][:3] == ("all_reduce", "never", "3.00x")


def test_best_against_best_picks_the_first_of_either_and_sees_the_ends_of_the_grid():
    made = made_up.arms(nonblocking_tuned, level=lambda name: 1 + ("/blocking" in name))
    for arm in made:
        if arm["name"] == "dpsgd/blocking/M=32/rate=0.4":
            arm |= {field: 1.0 for field in made_up.TO_TARGET}
    dense, gossip, _ = dict(nonblocking_tuned.claims(made)).values()
    assert dense.startswith("holds: all_reduce/nonblocking/M=4/rate=0.4 10.01")
    assert "all_reduce/blocking/M=4/rate=0.4 20.02" in dense
    assert gossip == (
        "cannot be told: M of dpsgd/blocking/M=32/rate=0.4, the best, is at the end of its grid"
    )


@pytest.mark.parametrize("delay", ["slow4", "pause"])
def test_tuned_rounds_of_any_length_meet_the_same_spells(delay):
    """A draw per round of 128 samples lasts for 32 mini-batches of 4, whatever M is."""
    config = nonblocking_tuned.get_config(f"delay={delay}")
    assert (config.batch_size, config.draw) == (4, "mini_batch")
    assert (config.delay.get("mini_batches") == 32) == (delay == "pause")
    law = waiting.build_delay(config.delay).seeded(0)
    first, last, other = (float(law.duration(1, 0.0, count)) for count in (0, 31, 32))
    assert (first == last) == (delay == "pause")
    assert min(first, last, other) == pytest.approx(nonblocking.NOMINAL / 32, rel=0.5)


@pytest.mark.parametrize("file", [nonblocking, nonblocking_tuned])
def test_every_arm_can_run(file):
    arms = dict(file.sweep())
    assert len(arms) == {nonblocking: 16, nonblocking_tuned: 180}[file]
    for name in list(arms)[:: 1 if len(arms) < 20 else 30]:
        prepare.prepare(sweep.override(file.get_config(), arms[name] | {"name": name}))
