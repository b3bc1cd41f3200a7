"""EDiT's penalty against the authors' loop in NumPy, float64, with an outlier and idle workers."""

from collections import deque

import jax
import numpy as np
import optax
import pytest

import algorithms as use
from algorithms.base import AXIS
from algorithms.edit import penalised_mean

WORKERS, ROUNDS, WARMUP, DECAY, THRESHOLD = 4, 24, 5, 0.1, 2.0
CLIP, TEMPERATURE = 1.7, 0.5
_RNG = np.random.default_rng(3)
SHAPES = {"b": (3,), "w": (2, 4)}
PROGRESS = [
    {k: _RNG.standard_normal((WORKERS, *shape)).astype(np.float32) for k, shape in SHAPES.items()}
    for _ in range(ROUNDS)
]
PROGRESS[12]["w"][1] *= 50.0  # an outlier
for _k in SHAPES:
    PROGRESS[18][_k][:] *= 80.0  # all of them
FINISHED = np.ones((ROUNDS, WORKERS), np.int32)
FINISHED[3, 2] = FINISHED[12, 0] = 0


class Detector:
    """Online mean and variance of lengths, and the spread of their ratios."""

    def __init__(self):
        self.mean = self.variance = 0.0
        self.count, self.ratios = 0, deque(maxlen=WARMUP)

    def ratio(self, value):
        if self.count < WARMUP or self.variance == 0:
            return 0.0
        return (value - self.mean) / np.sqrt(self.variance)

    def is_outlier(self, value):
        if self.count < WARMUP:
            return False
        spread = max(1.0, np.std(self.ratios, ddof=1))
        return self.ratio(value) > THRESHOLD * spread

    def update(self, value):
        self.count += 1
        delta = value - self.mean
        self.mean += DECAY * delta
        moved = DECAY * delta * (value - self.mean)
        self.variance = (1 - DECAY) * (self.variance + moved)
        self.ratios.append(self.ratio(value))


def by_hand():
    """Return the mean progress of every round, and the outliers [round, array, worker]."""
    detectors = [[Detector() for _ in range(WORKERS)] for _ in SHAPES]
    found, outliers = [], np.zeros((ROUNDS, len(SHAPES), WORKERS), bool)
    for t, progress in enumerate(PROGRESS):
        means = {}
        for a, name in enumerate(SHAPES):
            rows = progress[name].astype(float)
            length = np.array([np.linalg.norm(row) for row in rows])
            busy = FINISHED[t] > 0
            for i in np.flatnonzero(busy):
                if detectors[a][i].is_outlier(length[i]):
                    outliers[t, a, i], rows[i] = True, 0.0
                    length[i] += 1e6
                else:
                    detectors[a][i].update(length[i])
            weights = np.where(busy, np.exp((length[busy].min() - length) / TEMPERATURE), 0)
            means[name] = np.tensordot(weights / weights.sum(), rows, 1)
        total = np.sqrt(sum((mean**2).sum() for mean in means.values()))
        found.append({k: min(1.0, CLIP / (total + 1e-6)) * mean for k, mean in means.items()})
    return found, outliers


def started(exchange, params):
    """Return (states of all workers, the exchange of a round)."""
    update = jax.vmap(lambda u, s, b: exchange.update(u, s, batches=b), axis_name=AXIS)
    return jax.jit(jax.vmap(lambda _: exchange.init(params)))(np.arange(WORKERS)), jax.jit(update)


def test_every_round_is_the_authors():
    exchange = penalised_mean(CLIP, TEMPERATURE, THRESHOLD, DECAY, WARMUP)
    params = {k: np.zeros(shape, np.float32) for k, shape in SHAPES.items()}
    state, update = started(exchange, params)
    expected, outliers = by_hand()
    assert outliers[12, 1].tolist() == [False, True, False, False] and outliers[18].all()
    clipped = 0
    for t, progress in enumerate(PROGRESS):
        means, state = update(progress, state, FINISHED[t])
        for name, mean in expected[t].items():
            found = np.asarray(means[name])
            np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
            np.testing.assert_allclose(found[0], mean, rtol=2e-4, atol=2e-5)
        clipped += float(optax.tree.norm(expected[t])) > CLIP - 1e-3
    assert 0 < clipped < ROUNDS


def test_equal_lengths_and_a_wide_clip_are_plain_local_steps():
    ones = {k: np.ones((WORKERS, *shape), np.float32) for k, shape in SHAPES.items()}
    method = use.edit(optax.sgd(0.1), clip=1e9)

    def update(progress):
        return method.exchange.update(progress, method.exchange.init(progress))[0]

    means = jax.jit(jax.vmap(update, axis_name=AXIS))(ones)
    jax.tree.map(np.testing.assert_allclose, means, ones)
    with pytest.raises(ValueError, match="edit: needs clip"):
        use.edit(optax.sgd(0.1), clip=0.0)


def test_progress_that_is_no_number_is_left_out_and_not_remembered():
    exchange = penalised_mean(1e9, TEMPERATURE, THRESHOLD, DECAY, WARMUP)
    state, update = started(exchange, {k: np.zeros(shape) for k, shape in SHAPES.items()})
    broken = PROGRESS[0] | {"w": PROGRESS[0]["w"].copy()}
    broken["w"][1, 0, 0] = np.nan
    found, seen = update(broken, state, np.ones(WORKERS, np.int32))
    without, _ = update(PROGRESS[0], state, np.int32([1, 0, 1, 1]))
    np.testing.assert_allclose(found["w"], without["w"], rtol=1e-6)
    for name, before, after in zip(seen._fields, state, seen, strict=True):
        np.testing.assert_array_equal(after[1, 1], before[1, 1], err_msg=name)


def test_the_length_of_short_floats_does_not_overflow():
    """Of 10,000 numbers 4 in float16, whose squares add up to 160,000."""
    progress = np.full((WORKERS, 10_000), 4.0, np.float16)
    exchange = penalised_mean(40.0, TEMPERATURE, THRESHOLD, DECAY, WARMUP)
    state, update = started(exchange, progress[0])
    means, _ = update(progress, state, np.ones(WORKERS, np.int32))
    np.testing.assert_allclose(means, 0.4, rtol=1e-3)
