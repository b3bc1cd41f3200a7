"""Optimizers of configs: rates in samples, directions of optax, and what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import optimizers
from tests.refusals import sentence


def rates(part, samples):
    """Return the learning rate at each count of samples: how far SGD goes on a gradient of 1."""
    optimizer = optimizers.build(part)
    params = jnp.zeros(())

    @jax.jit
    def step(seen):
        updates, _ = optimizer.update(jnp.ones(()), optimizer.init(params), params, samples=seen)
        return -updates

    return [float(step(jnp.float32(seen))) for seen in samples]


RATES = {
    "sgd(learning_rate=0.8, schedule=step(boundaries=(100, 200), factor=0.5))":
        {0: 0.8, 99: 0.8, 100: 0.4, 199: 0.4, 200: 0.2, 1000: 0.2},
    # cos 60 degrees = 1/2
    "sgd(learning_rate=0.8, schedule=cosine(samples=300, floor=0.5))":
        {0: 0.8, 100: 0.7, 300: 0.4, 400: 0.4},
    # the update at 0 samples is not lost: it has 1/4 of the rate
    "sgd(learning_rate=0.8, warmup_samples=4)":
        {0: 0.2, 1: 0.4, 2: 0.6, 3: 0.8, 4: 0.8, 100: 0.8},
    "sgd(learning_rate=0.8, warmup_samples=2, schedule=step(boundaries=(1, 9)))":
        {0: 0.4, 1: 0.08, 9: 0.008},
    # schedules of optax count samples, too, and begin or peak at the rate
    "sgd(learning_rate=0.5, schedule=exponential_decay(transition_steps=100, decay_rate=0.1))":
        {0: 0.5, 100: 0.05, 200: 0.005},
    "sgd(learning_rate=0.5, schedule=warmup_cosine_decay_schedule(warmup_steps=10, "
    "decay_steps=110))": {0: 0, 5: 0.25, 10: 0.5, 60: 0.25, 110: 0},
}  # fmt: skip


def test_learning_rates_follow_the_samples():
    for part, expected in RATES.items():
        found = rates(part, expected)
        np.testing.assert_allclose(found, [*expected.values()], 1e-5, 1e-6, err_msg=part)


@pytest.mark.parametrize(("power", "factors"), [(0, (1, 1)), (0.5, (1, 2)), (1, (1, 4))])
def test_learning_rates_follow_the_mini_batches_of_an_update(power, factors):
    optimizer = optimizers.build(f"sgd(learning_rate=0.5, batch_power={power})")
    params = jnp.float32(0)
    steps = [
        optimizer.update(jnp.float32(1), optimizer.init(params), params, batches=jnp.int32(batches))
        for batches in (1, 4)
    ]
    np.testing.assert_allclose([step for step, _ in steps], -0.5 * np.asarray(factors))


def by_axes():
    """Return labels of arrays, as a factory that is brought along gives them."""
    return lambda params: jax.tree.map(lambda x: "many" if jnp.ndim(x) > 1 else "few", params)


def test_a_mask_says_what_is_frozen():
    part = "selective_transform(optimizer=sgd(learning_rate=0.5), freeze_mask=matrices)"
    optimizer = optimizers.build(part)
    params = {"matrix": jnp.ones((2, 2)), "vector": jnp.ones(2)}
    update, _ = optimizer.update(params, optimizer.init(params), params, samples=jnp.float32(0))
    np.testing.assert_allclose(update["matrix"], 0)
    np.testing.assert_allclose(update["vector"], -0.5)


def test_a_bad_step_is_skipped_and_the_rate_inside_follows_the_samples():
    """A step with a gradient that is not finite changes nothing, as docs/faq.md advises."""
    optimizer = optimizers.build(
        "apply_if_finite(inner=sgd(learning_rate=0.8, schedule=cosine(samples=300)), "
        "max_consecutive_errors=3)"
    )
    params, steps = jnp.zeros(2), []
    state = optimizer.init(params)
    for samples, bad in ((0, 1.0), (100, np.nan), (150, np.inf), (200, 1.0)):
        grads = jnp.array([1.0, bad])
        update, state = optimizer.update(grads, state, params, samples=jnp.float32(samples))
        steps.append(-update)
    np.testing.assert_allclose(steps, [[0.8, 0.8], [0, 0], [0, 0], [0.2, 0.2]], atol=1e-6)


def descent(optimizer):
    """Take five steps down 0.5 |x|^2 from (1, -2), with samples passed as the runtimes do."""
    params = jnp.array([1.0, -2.0])
    state = optimizer.init(params)
    for t in range(5):
        updates, state = optax.with_extra_args_support(optimizer).update(
            params, state, params, samples=8.0 * t
        )
        params = optax.apply_updates(params, updates)
    return params


SGD, ADAM, LION = optax.sgd(0.1), optax.adam(0.1), optax.lion(0.1)
IF_FINITE = "apply_if_finite(inner={}, max_consecutive_errors=3{})"
BY_AXES = "param_labels=tests.experiments.test_optimizers:by_axes"
DIRECTIONS = [
    ("momentum(learning_rate=0.1, nesterov=true)", optax.sgd(0.1, 0.9, nesterov=True)),
    (IF_FINITE.format("adam(learning_rate=0.1, b1=0.5)", ""), optax.adam(0.1, b1=0.5)),
    ("adamw(learning_rate=0.1, weight_decay=0.3)", optax.adamw(0.1, weight_decay=0.3)),
    ("scale_by_adam(learning_rate=0.1)", ADAM),
    (IF_FINITE.format("[clip(max_delta=0.1), lion(learning_rate=0.1)]", ""),
     optax.chain(optax.clip(0.1), LION)),
    ("masked(inner=adam, mask=matrices, learning_rate=0.1)", SGD),  # a vector is no matrix
    ("partition(transforms={few: sgd(learning_rate=0.1), many: adam(learning_rate=0.2)}, "
     f"{BY_AXES})", SGD),
    (f"partition(transforms={{few: lion, many: set_to_zero}}, learning_rate=0.1, {BY_AXES})", LION),
    ("fromage(learning_rate=0.1)", optax.fromage(0.1)),  # whole
    ("chain(clip(max_delta=0.1), lion, learning_rate=0.1)", optax.chain(optax.clip(0.1), LION)),
]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize(("part", "reference"), DIRECTIONS)
def test_directions_are_those_of_optax(part, reference):
    np.testing.assert_allclose(descent(optimizers.build(part)), descent(reference), rtol=1e-5)


MISFITS = [
    ("sgd", "learning_rate must be a number, got None; set config.optimizer.learning_rate"),
    ("sgd(learning_rate=0)", "learning_rate must be positive, got 0"),
    ({"name": "sgd", "learning_rate": np.nan}, "learning_rate must be positive, got nan"),
    ("sgd(learning_rate=true)", "learning_rate must be a number, got True"),
    ("sgd(learning_rate=1, warmup_samples=-1)", "warmup_samples must be 0 or more, got -1"),
    ("sgd(learning_rate=1, batch_power=2)", "batch_power must be from 0, the same rate for ev"),
    ("chain(fromage, learning_rate=1)", "give it a learning_rate of its own"),
    ("noisy_sgd(learning_rate=1)", "keeps a key of JAX, which no file holds"),
    ("lbfgs(learning_rate=1)", "cannot follow gradients alone (TypeError: "),
    ("schedule_free_sgd(learning_rate=1)", "is evaluated at other parameters than it trains"),
    ("adam(lr=1)", "unknown parameter 'lr'; it takes: learning_rate, schedule, warmup_samples, ba"),
    ("[sgd(learning_rate=1), adam(learning_rate=1)]", "has one learning_rate, and this"),
    ("chain(sgd, decay=1, learning_rate=1)", "a chain is made of transforms, and at most of a"),
    ("[clip(max_delta=1.0, schedule=constant), sgd(learning_rate=1)]", "'clip': schedule needs"),
    ("adamw(learning_rate=1, mask=vectors)", "mask: unknown name 'vectors'; known names: matri"),
    (IF_FINITE.format("sgd(learning_rate=0.1)", ", learning_rate=0.2"),
     "write apply_if_finite(inner=sgd, learning_rate=0.2, max_consecutive_errors=3)"),
    (IF_FINITE.format("momentum(decay=2)", ", learning_rate=1"),
     "'momentum': decay must be 0 or more and below 1, got 2"),
    # what the mask leaves out would go uphill
    ("masked(inner=adam(b1=0.5, learning_rate=0.1), mask=matrices)",
     "write masked(inner=adam(b1=0.5), mask=matrices, learning_rate=0.1)"),
    ("sam(optimizer=sgd(learning_rate=0.1), adv_optimizer=sgd)",
     "sgd has no learning_rate, and sgd(learning_rate=0.1) in it has one; give one to each"),
    ("sgd(learning_rate=1, schedule=cosine(samples=0))", "samples must be positive, got 0"),
]  # fmt: skip


def test_misfits_are_explained():
    for part, words in MISFITS:
        with sentence(words):
            optimizers.build(part)


@pytest.mark.slow
@pytest.mark.parametrize("factory", sorted(optimizers.SCALED, key=lambda f: f.__name__))
def test_every_optimizer_that_is_said_to_scale_with_its_rate_does(factory):
    rates = np.geomspace(0.5, 0.1, 40, dtype=np.float32)
    params, target = (
        {"matrix": rng.standard_normal((4, 3), "f4"), "vector": rng.standard_normal(4, "f4")}
        for rng in map(np.random.default_rng, range(2))
    )
    unit = optax.with_extra_args_support(factory(1.0))
    whole = optax.with_extra_args_support(factory(lambda count: jnp.asarray(rates)[count]))
    whole_state, unit_state = whole.init(params), unit.init(params)
    for rate in rates:
        grads = jax.tree.map(np.subtract, params, target)
        ours, unit_state = unit.update(grads, unit_state, params)
        theirs, whole_state = whole.update(grads, whole_state, params)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(rate * a, b, rtol=1e-3, atol=1e-7)
        params = jax.tree.map(lambda p, u: np.asarray(p + u), params, theirs)


@pytest.mark.parametrize("name", ["fromage", "lars", "rprop", "rmsprop(momentum=0.9)"])
def test_a_rate_that_does_more_than_scale_the_updates_follows_the_samples(name):
    """As where optax itself has the schedule, whose updates have eight samples each."""
    call, _, own = name.partition("(")
    shape = optax.exponential_decay(0.1, 16, 0.5)
    part = f"{call}(learning_rate=0.1, schedule=exponential_decay(transition_steps=16, "
    found = descent(optimizers.build(f"{part}decay_rate=0.5){', ' * bool(own)}{own or ')'}"))
    changes = {"momentum": 0.9} if own else {}
    expected = descent(optax.inject_hyperparams(getattr(optax, call))(
        learning_rate=lambda count: shape(8.0 * count), **changes
    ))  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_transform_of_ones_own_can_stand_before_or_after(tmp_path, monkeypatch):
    (tmp_path / "own_transforms.py").write_text(
        "import optax\n"
        "def halved(times: int = 1):\n    return optax.scale(0.5**times)\n"
        "def checked(learning_rate):\n    assert learning_rate > 0\n"
        "    return optax.sgd(learning_rate)\n"
        "def large(above: float):\n"
        "    import jax\n"
        "    return lambda params: jax.tree.map(lambda a: a.size > above, params)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for part in (
        "[own_transforms:halved(times=2), sgd(learning_rate=0.8)]",
        "[sgd(learning_rate=0.8), own_transforms:halved(times=2)]",
        "own_transforms:halved(times=2, learning_rate=0.8)",
    ):
        assert rates(part, [0]) == [pytest.approx(0.2)]
    # A constant rate is a number for code that looks at it, and so a constant of its program.
    constant = "own_transforms:checked(learning_rate=0.8)"
    assert rates(constant, [0]) == [pytest.approx(0.8)]
    assert [optimizers.rate_is_data(part) for part in (constant, "adam(learning_rate=1)")] == [0, 1]
    optimizers.build("adamw(learning_rate=1, mask=own_transforms:large(above=3))")
    with pytest.raises(ValueError, match="gives function; let it return GradientTransformation"):
        optimizers.build("own_transforms:large(above=3, learning_rate=1)")


def test_a_second_rate_stays_and_a_schedule_may_have_its_own_peak():
    params, found = {"matrix": jnp.eye(4), "vector": jnp.ones(4)}, []
    for rate in (0.02, 0.04):
        optimizer = optimizers.build(f"muon(learning_rate={rate}, adam_learning_rate=0.003)")
        state = optimizer.init(params)
        found.append(optimizer.update(params, state, params, samples=jnp.float32(0))[0])
    np.testing.assert_allclose(found[1]["matrix"], 2 * found[0]["matrix"], rtol=1e-5)
    np.testing.assert_allclose(found[1]["vector"], found[0]["vector"], rtol=1e-5)
    assert np.all(found[0]["vector"] < -0.002)
    whole = optax.schedules.cosine_onecycle_schedule(100, 1.0)
    expected = {at: float(whole(at)) for at in (0, 10, 30, 90)}
    shape = "cosine_onecycle_schedule(transition_steps=100)"
    found = rates(f"sgd(learning_rate=1.0, schedule={shape})", expected)
    np.testing.assert_allclose(found, [*expected.values()], rtol=1e-5)


@pytest.mark.slow
def test_muon_turns_hidden_matrices_and_leaves_embeddings_to_adam():
    shapes = {
        "embedding": {"embedding": (12, 4)},
        "query": {"kernel": (8, 2, 4)},  # [in, heads, of a head]
        "attention": {"kernel": (2, 4, 8)},  # [heads, of a head, out]
        "convolution": {"kernel": (3, 3, 4, 5)},
        "dense": {"kernel": (6, 4), "bias": (4,)},
    }
    rng = np.random.default_rng(0)

    def uneven(shape):
        columns = np.where(np.arange(shape[-1]) == 0, 10, 1)
        return jnp.asarray(rng.normal(size=shape) * columns, jnp.float32)

    gradient = jax.tree.map(uneven, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    params = jax.tree.map(jnp.ones_like, gradient)
    optimizer = optimizers.build("muon(learning_rate=0.1)")
    moved, _ = jax.jit(optimizer.update)(gradient, optimizer.init(params), params, samples=0.0)
    adam = optax.adam(0.1, nesterov=True)
    by_adam, _ = jax.jit(adam.update)(gradient, adam.init(params), params)
    for name, part in (("embedding", "embedding"), ("dense", "bias")):
        np.testing.assert_allclose(moved[name][part], by_adam[name][part], rtol=1e-5)
    for name, rows in (("query", 8), ("attention", 8), ("convolution", 36), ("dense", 6)):
        matrix = np.asarray(moved[name]["kernel"]).reshape(rows, -1)
        sizes = np.linalg.svd(matrix, compute_uv=False)
        assert sizes.min() > 0.4 * sizes.max()  # five iterations bring them near to each other
        of_gradient = np.linalg.svd(gradient[name]["kernel"].reshape(rows, -1), compute_uv=False)
        assert of_gradient.min() < 0.2 * of_gradient.max()
