"""DeMo and pairs with local steps on a small GPT: the arms run, and claims say what was found."""

import numpy as np
import pytest

from configs import small_messages
from experiments import premises, sweep, train
from experiments.studies import small_messages as study
from tests.configs import made_up
from tests.marks import slow_but

CONFIG = small_messages.get_config("tiny,steps=30,workers=2")
ARMS = dict(small_messages.sweep(CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(("demo/1 of 256",), study.METHODS))
def test_every_method_trains_the_tiny_model_on_the_same_samples(method, tmp_path):
    name = f"{method}/rate={study.RATES[method][0]:g}"
    summary = train.run(sweep.override(CONFIG, ARMS[name] | {"name": name}), tmp_path)
    assert summary["samples"] == 2 * 2 * 30 and np.isfinite(summary["train_loss"])


def test_signs_are_scaled_by_the_rate_and_decay_with_the_weights():
    decay, signs = ARMS["demo/8 of 64/rate=0.002"]["optimizer"]
    assert decay.weight_decay == CONFIG.optimizer.weight_decay > 0
    assert signs.learning_rate == 0.002 and signs.schedule == CONFIG.optimizer.schedule


def test_claims_tell_losses_from_bytes():
    level = {"demo/8 of 64": 1.005, "demo/1 of 256": 1.02, study.NOLOCO: 1.2}
    made = made_up.arms(
        small_messages, "tiny", level=lambda name: level.get(name.partition("/rate")[0], 1.0)
    )
    for arm in made:
        arm["bytes_per_worker"] = 1e4 if arm["name"].startswith("demo/1") else 1e6
    found = [text.partition(":")[0] for _, text in small_messages.claims(made)]
    good, bad = premises.HOLDS, premises.FAILS
    assert found == [good, bad, bad, good, bad]
    (table,) = small_messages.numbers(made)
    rows = {row[0]: row[1:] for row in table.rows}
    assert set(rows) == set(study.METHODS) and rows["demo/1 of 256"][-2:] == ("0.01", "100")
    assert rows[study.DENSE][0] == "0.002"
