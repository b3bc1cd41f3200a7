"""What the sweeps of non-blocking SGD say of themselves, on made-up summaries."""

import pytest

from configs import (
    nonblocking,
    nonblocking_tuned,
    nonblocking_tuned_images,
    nonblocking_tuned_text,
)
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


def test_rounds_of_one_sample_are_no_end_of_the_grid():
    made = made_up.arms(nonblocking_tuned_images, level=lambda name: 1 + ("/blocking" in name))
    for arm in made:
        if arm["name"].partition("blocking/")[2] in ("M=1/rate=0.0025", "M=16/rate=0.0025"):
            arm |= {field: 1.0 + ("M=16" in arm["name"]) for field in made_up.TO_TARGET}
    assert nonblocking_tuned_images.get_config().batch_size == 1
    dense, _ = dict(nonblocking_tuned_images.claims(made)).values()
    assert "blocking/M=1/rate=0.0025 1" in dense and "end of its grid" not in dense
    for arm in made:
        if arm["name"].endswith("/M=1/rate=0.0025"):
            arm |= {field: 3.0 for field in made_up.TO_TARGET}
    assert set(dict(nonblocking_tuned_images.claims(made)).values()) == {
        f"cannot be told: M of {mixer}/nonblocking/M=16/rate=0.0025, the best, is at the end of "
        "its grid"
        for mixer in nonblocking_tuned_images.MIXERS
    }


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


ARMS = {
    nonblocking: 16,
    nonblocking_tuned: 180,
    nonblocking_tuned_images: 100,
    nonblocking_tuned_text: 96,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("file", ARMS, ids=lambda file: file.__name__)
def test_every_arm_can_run(file):
    arms = dict(file.sweep())
    assert len(arms) == ARMS[file]
    task = None
    for name in list(arms)[:: 1 if len(arms) < 20 else 30]:
        config = sweep.override(file.get_config(), arms[name] | {"name": name})
        if "corpus" in config.task:
            config.task.corpus.files = 40
        task = prepare.prepare(config, task).task


def test_the_grid_of_digits_begins_and_ends_with_these_arms():
    first, *_, last = nonblocking_tuned.sweep()
    algorithm, barrier = nonblocking.MIXERS["all_reduce"]
    assert first == (
        "all_reduce/blocking/M=1/rate=0.1",
        {"algorithm": algorithm, "wait": barrier, "mini_batches": 1,
         "optimizer.learning_rate": 0.1, "baseline": None},
    )  # fmt: skip
    assert last[0] == "matcha/nonblocking/M=32/rate=1.6"
    assert last[1]["wait"].name == "first_finisher"


@pytest.mark.parametrize("file", [nonblocking_tuned_images, nonblocking_tuned_text])
def test_other_tasks_meet_the_delays_of_the_digits(file):
    """The time of a mini-batch is as its samples, and an exchange takes four mini-batches."""
    config = file.get_config()
    each = nonblocking.NOMINAL * config.batch_size / 128
    assert config.delay.law.mean == each and config.delay.factors.to_dict() == {0: 4.0}
    assert config.communication == 4 * each and config.stop_at_target
    assert file.get_config("workers=8,communication=0.25").communication == 0.05
    with pytest.raises(ValueError, match="unknown delay 'slow3'; known delays: equal, jitter"):
        file.get_config("delay=slow3")
