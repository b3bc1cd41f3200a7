"""Claims about arms whose loss is compared at equal bytes."""

import json

import pytest
from matplotlib import image

from configs import language_model
from experiments.config_files import override
from experiments.studies import loss_and_bytes

LOSSES = {"all_reduce": (2.0, 2.5, 4e6), "local_sgd/H=10": (2.2, 2.4, 4e5)}


def arms():
    config = language_model.get_config("tiny")
    for name, (train, test, sent) in LOSSES.items():
        yield {
            "name": name,
            "config": override(config, {"name": name}),
            "samples": 800,
            "seeds": [0, 1],
            "final_train_loss": train,
            "final_train_loss_by_seed": [train - 0.01, train + 0.01],
            "bytes_per_worker": sent,
            "metrics": 2 * [[{"test_loss": 9.0}, {"test_loss": test}]],
        }


def test_claims_set_arms_beside_their_baseline_and_numbers_say_what_was_trained():
    ((claim, text),) = loss_and_bytes.claims(list(arms()))
    assert claim == ("local_sgd/H=10: at most 0.1 more loss than all_reduce after the same steps")
    assert text.startswith("does not hold: local_sgd/H=10 2.2 ± 0.014 against all_reduce 2 ± 0.014")
    size, losses = loss_and_bytes.numbers(list(arms()))
    assert size.rows[0][0] == "34,976" and size.rows[0][2:] == ("16", "4", "800")
    assert losses.rows[1] == ("local_sgd/H=10", "400 kB", "2.200", "2.400")


@pytest.mark.slow
def test_the_figure_has_a_line_for_every_arm(tmp_path):
    for name in LOSSES:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
        lines = [
            {"bytes_per_worker": sent, "train_loss": 3.0 - 1e-6 * sent, "test_loss": 3.0}
            for sent in (0.0, 1e5, 1e6)
        ]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    loss_and_bytes.figures(tmp_path)
    drawn = image.imread(tmp_path / loss_and_bytes.PICTURE)
    assert drawn.shape[:2] == (630, 1500)
    colours = {tuple((255 * pixel[:3]).round().astype(int)) for row in drawn[::3] for pixel in row}
    assert {(0, 114, 178), (213, 94, 0)} <= colours
