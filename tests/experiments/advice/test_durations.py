"""Durations from schedules, traces and distributions: drawn ones are kept, cut ones completed."""

import numpy as np
import pytest

from configs import nonblocking
from experiments.advice import durations
from stragglers import delays
from stragglers.processes import as_process, persistent
from tests import planned

LAW = delays.shifted_exponential(1.0, 1.0)
UNEQUAL = persistent(LAW, [1.0, 1.0, 1.0, 3.0])


def drawn(delay, worker, count, seed=0):
    process = as_process(delay).seeded(seed)
    return process.duration(worker, 0.0, np.arange(count))


def schedule_of(name, workers=4, updates=60, mini_batches=1, delay=LAW, **own):
    rule = planned.rule(name, delay, workers, mini_batches, **own)
    return planned.plan(name, delay, workers, updates, mini_batches, **own), "run", rule.trigger


def test_a_schedule_gives_back_what_was_drawn():
    for name, own in (("barrier", {}), ("k_async", {"k": 2})):
        measured = durations.of_schedule(*schedule_of(name, updates=80, delay=UNEQUAL, **own))
        for i, seconds in enumerate(measured.seconds):
            np.testing.assert_allclose(seconds, drawn(UNEQUAL, i, seconds.size), rtol=1e-9)
    # Mini-batches of a row are as long as each other.
    measured = durations.of_schedule(*schedule_of("barrier", 3, 30, 4))
    for i, seconds in enumerate(measured.seconds):
        rounds = seconds.reshape(30, 4)
        np.testing.assert_allclose(rounds.sum(axis=1), drawn(LAW, i, 120).reshape(30, 4).sum(1))
        assert (np.ptp(rounds, axis=1) < 1e-12).all()


def test_resamples_are_blocks_at_the_same_places():
    one = np.random.default_rng(0).uniform(1, 2, 400)
    measured = durations.Measured((one, 10 * one), "t")
    first, second = (measured.process(repeat).records for repeat in (1, 1))
    np.testing.assert_array_equal(first[1], 10 * first[0])
    np.testing.assert_array_equal(first[0], second[0])
    assert not np.array_equal(first[0], measured.process(2).records[0])
    order = {value: place for place, value in enumerate(one.tolist())}
    moves = np.diff([order[value] for value in first[0].tolist()])
    assert np.mean((moves == 1) | (moves == 1 - one.size)) > 0.9


SLOW = persistent(delays.uniform(0.9, 1.1), [1.0, 1.0, 1.0, 5.0])


def test_too_little_is_refused():
    short = {"delay": SLOW, "seconds": 1.2, "in_flight": "cut"}
    for made, words in (
        (schedule_of("barrier", updates=10), "has 40 durations, and fewer than 50"),
        (schedule_of("barrier", workers=1), "durations of one worker"),
        (schedule_of("k_sync", k=3), "cut mini-batches short, so that nobody knows how slow"),
        (schedule_of("k_batch_sync", k=2), "cut mini-batches short"),
        (schedule_of("ringmaster", limit=2, updates=400), "ignored or interrupted"),
        (schedule_of("deadline", **short), "its rule cut mini-batches short"),
        ((*schedule_of("anytime", seconds=3.0)[:2], None), "its rule cut mini-batches short"),
    ):
        with pytest.raises(ValueError, match=words):
            durations.of_schedule(*made)


def test_a_law_may_be_longer_than_the_name_of_a_file():
    factors = {worker: 1.5 for worker in range(60)}
    law = f"persistent(law=exponential(scale=1.0), factors={factors})"
    assert len(law) > 255 and not durations.is_there(law) and durations.as_part(law) == law


def test_a_folder_of_files_without_endings_is_a_trace(tmp_path):
    for rank in range(2):
        lines = "".join(f"{step},{1 + rank}.5\n" for step in range(60))
        (tmp_path / f"rank{rank}").write_text(f"step,seconds\n{lines}")
    config = nonblocking.get_config().unlock()
    config.workers = 2
    measured = durations.read(str(tmp_path), config, []).measured
    assert [float(np.median(values)) for values in measured.seconds] == [1.5, 2.5]
