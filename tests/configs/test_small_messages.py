"""DeMo and pairs with local steps on a small GPT: every method trains."""

import numpy as np
import pytest

from configs import small_messages
from experiments import sweep, train

CONFIG = small_messages.get_config("tiny,steps=30,workers=2")
ARMS = dict(small_messages.sweep(CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["demo/1 of 256", "swarm/H=30"])
def test_methods_train_the_tiny_model_on_the_same_samples(method, tmp_path):
    name = f"{method}/rate={small_messages.RATES[method][0]:g}"
    summary = train.run(sweep.override(CONFIG, ARMS[name] | {"name": name}), tmp_path)
    assert summary["samples"] == 2 * 2 * 30 and np.isfinite(summary["train_loss"])


def test_signs_are_scaled_by_the_rate_and_decay_with_the_weights():
    decay, signs = ARMS["demo/8 of 64/rate=0.002"]["optimizer"]
    assert decay.weight_decay == CONFIG.optimizer.weight_decay > 0
    assert signs.learning_rate == 0.002 and signs.schedule == CONFIG.optimizer.schedule
