import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from experiments import tasks
from experiments.tasks import data, dense_tasks, models, sampling

TINY = data.Dataset(
    train=data.Images(np.ones((3, 1, 1, 1), np.float32), np.array([0, 1, 1], np.int32)),
    test=data.Images(np.ones((1, 1, 1, 1), np.float32), np.array([1], np.int32)),
    classes=2,
)


def tiny(l2=0.0):
    model = models.MODELS["logistic"](2)
    task = dense_tasks.classification("tiny", TINY, model, l2)
    params = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
    return task, params


def test_classification_worked_out_by_hand():
    task, params = tiny()
    np.testing.assert_allclose(task.losses(params, task.train), np.log([2, 2, 2]), rtol=1e-6)
    kernel, bias = sorted(jax.tree.leaves(params), key=jnp.ndim, reverse=True)
    assert kernel.shape == (1, 2) and bias.shape == (2,)
    # Logits (0, log 3): probabilities 1/4 and 3/4.
    params = jax.tree.map(lambda a: jnp.array([0, jnp.log(3)]) if a.ndim == 1 else a, params)
    np.testing.assert_allclose(
        task.losses(params, task.train), np.log([4, 4 / 3, 4 / 3]), rtol=1e-6
    )
    np.testing.assert_array_equal(task.correct(params, task.train), [0, 1, 1])


def test_l2_adds_half_the_squared_norm_to_every_example():
    (plain, params), (decayed, _) = tiny(), tiny(l2=0.5)
    params = jax.tree.map(jnp.ones_like, params)  # four entries
    np.testing.assert_allclose(
        decayed.losses(params, TINY.train), plain.losses(params, TINY.train) + 1.0, rtol=1e-6
    )


def test_quadratic_reaches_its_optimum_at_0():
    task = tasks.build({"name": "synthetic_quadratic", "samples": 100, "dimension": 4})
    w = task.init(jax.random.key(0))
    assert jnp.linalg.norm(w) == 2
    at_0 = tasks.evaluate(task, jnp.zeros(4))
    np.testing.assert_allclose(at_0["train_loss"], task.optimum, rtol=1e-6)
    assert tasks.evaluate(task, w)["train_loss"] > task.optimum
    assert at_0["test_accuracy"] is None and task.correct is None
    gradient = jax.grad(lambda w: task.losses(w, task.train).mean())(w)
    np.testing.assert_allclose(gradient, np.geomspace(1, 0.1, 4), rtol=1e-5)


def test_logistic_reaches_its_optimum():
    task = tasks.build("synthetic_logistic(samples=200, l2=0.1)")
    w = task.init(jax.random.key(0))
    np.testing.assert_allclose(task.losses(w, task.train), np.log(2), rtol=1e-6)
    step = jax.jit(lambda w: w - 0.5 * jax.grad(lambda w: task.losses(w, task.train).mean())(w))
    for _ in range(200):
        w = step(w)
    after = tasks.evaluate(task, w)
    np.testing.assert_allclose(after["train_loss"], task.optimum, rtol=1e-5)
    assert after["test_accuracy"] > 0.6
    assert set(task.labels) == {0, 1} and task.labels.dtype == np.int32


@pytest.mark.parametrize("batch", [1, 5, 2048])
def test_evaluation_does_not_depend_on_the_chunks(batch):
    task, params = tiny()
    assert tasks.evaluate(task, params, batch) == pytest.approx(
        {"train_loss": np.log(2), "test_loss": np.log(2), "test_accuracy": 0.0}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [{"name": "logistic"}, {"name": "mlp"}, {"name": "cnn", "channels": (16, 32)}]
)
def test_digits_are_learned(model):
    task = tasks.build(ConfigDict({"name": "digits", "model": model}))
    optimizer = optax.adam(1e-2)
    params = task.init(jax.random.key(0))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, examples):
        gradient = jax.grad(lambda p: task.losses(p, examples).mean())(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    before = tasks.evaluate(task, params)
    sampler = sampling.Sampler([np.arange(len(task.labels))], batch_size=32, seed=0)
    for indices in sampler.indices(0, np.arange(100)):
        params, state = step(params, state, jax.tree.map(lambda a, i=indices: a[i], task.train))
    after = tasks.evaluate(task, params)
    assert after["train_loss"] < 0.5 * before["train_loss"]
    assert after["test_accuracy"] > 0.8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "imagenet"}, "task: unknown name 'imagenet'; did you mean 'imagenet2012'"),
        ({"name": "synthetic_quadratic", "dim": 3}, "unknown parameter 'dim'.*dimension"),
        ({"name": "digits"}, "parameter 'model' is missing"),
        ({"name": "digits", "model": "vgg"}, "model: unknown name 'vgg'.*logistic.*mlp"),
        ({"name": "digits", "model": "cnn(width=3)"}, "unknown parameter 'width'.*channels"),
    ],
)
def test_bad_specs_say_what_is_known(spec, message):
    with pytest.raises(ValueError, match=message):
        tasks.build(spec)
