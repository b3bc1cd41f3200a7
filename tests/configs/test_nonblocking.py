"""What the sweeps of non-blocking SGD say of themselves, on made-up summaries."""

import pytest

from configs import nonblocking, nonblocking_tuned
from experiments import prepare, sweep, waiting


def arm_of(name, seconds_to_target, **changed):
    """A summary of 100 updates and 1,000 samples in 50 s."""
    summary = {"updates": 100, "samples": 1000, "seconds": 50.0, "test_accuracy": 0.9}
    return summary | {"name": name, "seconds_to_target": seconds_to_target} | changed


def test_claims_tell_the_gain_and_what_the_schedules_expect():
    arms = []
    for mixer in nonblocking.MIXERS:
        arms.append(arm_of(f"{mixer}/blocking", 9.0))
        faster = {"updates": 150, "samples": 1200, "seconds": 25.0, "test_accuracy": 0.915}
        arms.append(arm_of(f"{mixer}/nonblocking", 3.0, **faster))
    arms[-1]["seconds_to_target"] = None
    dense, _, lost = dict(nonblocking.claims(arms)).values()
    assert dense == (
        "3.00x at equal samples per round; expected 3.00x if updates limit, 2.40x if noise does; "
        "final accuracy +1.50 points"
    )
    assert lost.startswith("target not reached at equal samples per round; expected 3.00x")


def grid(**seconds):
    """Summaries of the tuned sweep: `{method/variant/M/rate: s}` reach the target, others never."""
    config = nonblocking_tuned.get_config()
    return [
        arm_of(name, seconds.get(name), config=sweep.override(config, changes))
        for name, changes in nonblocking_tuned.sweep()
    ]


def test_best_against_best_picks_the_first_of_either_and_sees_the_ends_of_the_grid():
    reached = {}
    for mixer in ("all_reduce", "dpsgd"):
        reached |= {
            f"{mixer}/blocking/M=1/rate=0.4": 4.0,
            f"{mixer}/blocking/M=8/rate=0.8": 6.0,
            f"{mixer}/nonblocking/M=4/rate=0.2": 5.0,
            f"{mixer}/nonblocking/M=2/rate=0.8": 2.0,
        }
    reached |= {"dpsgd/blocking/M=16/rate=0.1": 3.0, "matcha/blocking/M=1/rate=0.4": 1.0}
    dense, gossip, matcha = dict(nonblocking_tuned.claims(grid(**reached))).values()
    assert dense == "2.00x: blocking 4.00 s (M=1, rate=0.4), nonblocking 2.00 s (M=2, rate=0.8)"
    assert gossip.startswith(
        "1.50x: blocking 3.00 s (M=16, rate=0.1, M at the grid's end, rate at the grid's end), non"
    )
    assert matcha == "a target was not reached"


@pytest.mark.parametrize("delay", ["slow4", "pause"])
def test_tuned_rounds_of_any_length_meet_the_same_spells(delay):
    """A draw per round of 128 samples lasts for 16 mini-batches of 8, whatever M is."""
    config = nonblocking_tuned.get_config(f"delay={delay}")
    assert (config.batch_size, config.draw) == (8, "mini_batch")
    assert (config.delay.get("mini_batches") == 16) == (delay == "pause")
    law = waiting.build_delay(config.delay).seeded(0)
    first, last, other = (float(law.duration(1, 0.0, count)) for count in (0, 15, 16))
    assert (first == last) == (delay == "pause")
    assert min(first, last, other) == pytest.approx(nonblocking.NOMINAL / 16, rel=0.5)


@pytest.mark.parametrize("file", [nonblocking, nonblocking_tuned])
def test_every_arm_can_run(file):
    arms = dict(file.sweep())
    assert len(arms) == {nonblocking: 16, nonblocking_tuned: 150}[file]
    for name in list(arms)[:: 1 if len(arms) < 20 else 30]:
        prepare.prepare(sweep.override(file.get_config(), arms[name] | {"name": name}))
