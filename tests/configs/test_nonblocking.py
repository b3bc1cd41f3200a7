"""Arms of the sweeps of non-blocking SGD."""

import pytest

from configs import nonblocking
from experiments import prepare, sweep

QUESTIONS = {"": nonblocking, **nonblocking.VARIANTS}
ARMS = {"": 16, "tuned": 180, "tuned_images": 100, "tuned_text": 96}


@pytest.mark.parametrize("delay", ["slow4", "pause"])
def test_tuned_rounds_of_any_length_meet_the_same_spells(delay):
    """A draw per round of 128 samples lasts for 32 mini-batches of 4, whatever M is."""
    config = QUESTIONS["tuned"].get_config(f"delay={delay}")
    assert (config.batch_size, config.draw) == (4, "mini_batch")
    assert (config.delay.get("mini_batches") == 32) == (delay == "pause")
    law = prepare.build_delay(config.delay).seeded(0)
    first, last, other = (float(law.duration(1, 0.0, count)) for count in (0, 31, 32))
    assert (first == last) == (delay == "pause")
    assert min(first, last, other) == pytest.approx(nonblocking.NOMINAL / 32, rel=0.5)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ARMS)
def test_every_arm_can_run(name):
    file = QUESTIONS[name]
    arms = dict(file.sweep())
    assert len(arms) == ARMS[name]
    task = None
    for name in list(arms)[:: 1 if len(arms) < 20 else 30]:
        config = sweep.override(file.get_config(), arms[name] | {"name": name})
        if "corpus" in config.task:
            config.task.corpus.files = 40
        task = prepare.prepare(config, task).task


def test_the_grid_of_digits_begins_and_ends_with_these_arms():
    first, *_, last = QUESTIONS["tuned"].sweep()
    algorithm, barrier = nonblocking.MIXERS["all_reduce"]
    assert first == (
        "all_reduce/blocking/M=1/rate=0.1",
        {"algorithm": algorithm, "wait": barrier, "mini_batches": 1,
         "optimizer.learning_rate": 0.1, "baseline": None},
    )  # fmt: skip
    assert last[0] == "matcha/nonblocking/M=32/rate=1.6"
    assert last[1]["wait"].name == "first_finisher"


@pytest.mark.parametrize("name", ["tuned_images", "tuned_text"])
def test_other_tasks_meet_the_delays_of_the_digits(name):
    """The time of a mini-batch is as its samples, and an exchange takes four mini-batches."""
    file = QUESTIONS[name]
    config = file.get_config()
    each = nonblocking.NOMINAL * config.batch_size / 128
    assert config.delay.law.mean == each and config.delay.factors.to_dict() == {0: 4.0}
    assert config.communication == 4 * each and config.stop_at_target
    assert file.get_config("workers=8,communication=0.25").communication == 0.05
    with pytest.raises(ValueError, match="unknown delay 'slow3'; did you mean 'slow4'"):
        file.get_config("delay=slow3")
