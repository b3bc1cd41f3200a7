"""DiLoCo on slices: its arms are one training, however the devices of a worker share it."""

import jax
import numpy as np
import pytest

from configs import diloco
from experiments import prepare, sweep
from tests.marks import slow_but

ARMS = dict(diloco.sweep())


def prepared(arm, **changes):
    config = diloco.get_config("tiny,steps=50,batch=4")
    return prepare.prepare(sweep.override(config, ARMS[arm] | changes))


@pytest.mark.few(1)
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_can_run(arm):
    assert prepared(arm).runtime.clock == "wall"


@pytest.mark.parametrize("arm", slow_but((), [arm for arm in ARMS if arm != "diloco/whole"]))
def test_every_arm_is_the_same_training(arm):
    """To float32 rounding, which Adam's first steps enlarge."""

    def trained(arm):
        made = prepared(arm, mini_batches=4)
        params = made.task.init(jax.random.key(0))
        run, _ = made.runtime.advance(made.runtime.start(params), np.inf, 2)
        return made.runtime.models(run)

    near = {"rtol": 1e-2, "atol": 1e-4}
    whole, other = trained("diloco/whole"), trained(arm)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **near), whole, other)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("steps=75", "steps must be a multiple of local_steps=50, got 75"),
        ("local_steps=0", "steps must be a multiple of local_steps=0"),
    ],
)
def test_bad_arguments_are_a_sentence(argument, words):
    with pytest.raises(ValueError, match=words):
        diloco.get_config(argument)


def test_a_batch_that_a_slice_cannot_share_is_a_sentence():
    with pytest.raises(ValueError, match="4 devices of a worker cannot share"):
        prepared("diloco/whole", batch_size=6)
