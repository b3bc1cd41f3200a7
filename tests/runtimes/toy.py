"""A regression small enough to redo in NumPy, shared by the tests of the runtimes."""

import jax
import numpy as np
import optax

from algorithms.base import scale_by_samples
from runtimes.simulate import Simulator
from stragglers.rules.replay import recorded

B, D = 2, 6
_RNG = np.random.default_rng(0)
DATA = {
    "x": _RNG.standard_normal((48, D)).astype(np.float32),
    "y": _RNG.standard_normal(48).astype(np.float32),
}
X0 = np.linspace(-1, 1, D).astype(np.float32)


def losses(w, examples):
    """[b] squared errors."""
    return 0.5 * (examples["x"] @ w - examples["y"]) ** 2


def gradient(w, places):
    """Mean gradient of the samples at these places in NumPy, float64."""
    places = np.ravel(places)
    x, y = DATA["x"][places].astype(np.float64), DATA["y"][places].astype(np.float64)
    return x.T @ (x @ w - y) / len(places)


def optimizer(rate=0.05):
    """Return momentum, and a rate that falls with the samples that have been seen."""
    return optax.chain(optax.trace(0.9), scale_by_samples(rate, lambda samples: 1 / (1 + samples)))


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def replayed(method, schedule, mini_batches, losses=losses):
    """Return the models at the end of a schedule, simulated."""
    rule = recorded(schedule)
    runtime = Simulator(method, losses, DATA, SAMPLES, rule, mini_batches=mini_batches)
    run, _ = runtime.advance(runtime.start(X0), np.inf)
    return np.asarray(runtime.models(run))


class _Counters:
    """The sample of (worker, counter, j) is a fixed index."""

    batch_size = B

    def indices(self, workers, counters):
        position = np.asarray(counters)[..., None] * self.batch_size + np.arange(self.batch_size)
        return ((position + 5 * np.asarray(workers)[..., None]) % 48).astype(np.int32)

    on_host = indices


class _OfFour(_Counters):
    """As `SAMPLES`, with mini-batches for four devices."""

    batch_size = 4


SAMPLES, SAMPLES_OF_FOUR = _Counters(), _OfFour()


class Counted:
    """Examples as a source that writes down which are read; it can be pickled."""

    def __init__(self, examples=DATA):
        self.examples, self.reads = examples, []
        self.example = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), examples)

    def __len__(self):
        return len(jax.tree.leaves(self.examples)[0])

    def read(self, indices):
        self.reads.append(np.array(indices))
        return jax.tree.map(lambda a: a[indices], self.examples)
