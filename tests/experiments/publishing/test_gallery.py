import math
import re

import pytest
from PIL import Image

from experiments.publishing import gallery, published, quoted

TIME = "seconds_to_target"


def test_the_page_is_what_the_records_say():
    way_out = "run python -m experiments.publishing.gallery"
    assert gallery.PAGE.read_text() == gallery.page(), way_out


def test_every_result_has_a_picture_a_sentence_and_its_command():
    text = gallery.page()
    for exhibit in gallery.EXHIBITS:
        section = re.search(rf"## {re.escape(exhibit.heading)}\n(.*?)\n```\n", text, re.DOTALL)[1]
        assert f"(gallery/{exhibit.record}.png)" in section and exhibit.sentence in section
        with Image.open(gallery.PICTURES / f"{exhibit.record}.png") as picture:
            assert picture.format == "PNG" and 900 < picture.width < 1100
        assert not re.search(r"\d", exhibit.sentence)  # numbers stand where tests compare them
    for name, module in gallery.MODULES.items():
        assert f"(gallery/{name}.png)" in text and all(line in text for line in module.commands())
    names = [*gallery.MODULES, *(exhibit.record for exhibit in gallery.EXHIBITS)]
    assert {path.name for path in gallery.PICTURES.iterdir()} == {f"{name}.png" for name in names}


def test_bars_have_the_lengths_of_the_record_and_points_its_places():
    bars = next(exhibit for exhibit in gallery.EXHIBITS if exhibit.record == "adasync")
    arms = quoted.arms(published.record(bars.record))
    (axes,) = gallery.draw(bars, arms).axes
    groups = dict.fromkeys(name.partition("/rate=")[0] for name in arms)
    best = [
        min(arm[TIME] or math.inf for name, arm in arms.items() if name.startswith(f"{group}/"))
        for group in groups
    ]
    assert [bar.get_width() for bar in axes.patches] == best and len(best) < len(arms)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(groups)
    late = {name: arm for name, arm in arms.items() if not name.startswith("fixed/K=8")}
    late |= {"fixed/K=8/rate=8.0": arms["fixed/K=8/rate=8.0"]}
    (axes,) = gallery.draw(bars, late).axes
    assert "; 1 of 7 arms did not get there in every seed" in axes.get_xlabel()
    points = next(exhibit for exhibit in gallery.EXHIBITS if exhibit.up is not None)
    arms = quoted.arms(published.record(points.record))
    (axes,) = gallery.draw(points, arms).axes
    places = [line.get_xydata()[0].tolist() for line in axes.lines]
    assert places == [[arm["seconds_to_target"], arm["bytes_per_worker"]] for arm in arms.values()]


def test_points_are_the_best_of_all_rates_and_dots_their_seeds():
    (points,) = (exhibit for exhibit in gallery.EXHIBITS if exhibit.best is not None)
    losses = {"a/H=3/outer=1/rate=2": 3.0, "a/H=3/outer=2/rate=2": 1.0, "a/H=9/outer=1/rate=2": 2.0}
    arms = {
        name: {
            "name": name,
            "bytes_per_worker": 1e6 * place,
            "final_train_loss": loss,
            "final_train_loss_by_seed": [loss - 0.1, loss + 0.1],
        }
        for place, (name, loss) in enumerate(losses.items(), 1)
    }
    (axes,) = gallery.draw(points, arms).axes
    places = [line.get_xydata().tolist() for line in axes.lines]
    assert places == [
        [[2e6, 1.0]],
        [[2e6, 0.9], [2e6, 1.1]],
        [[3e6, 2.0]],
        [[3e6, 1.9], [3e6, 2.1]],
    ]


def test_an_axis_of_seconds_names_the_loss_that_all_arms_run_to():
    arms = [{"target_loss": 0.35}, {"target_loss": 0.35}]
    assert gallery._to_loss(arms).label == "seconds to training loss 0.35"
    assert gallery._to_loss([*arms, {"target_loss": 0.5}]) == gallery.TO_TARGET


@pytest.mark.parametrize("ratio", [2.4, 50.0, 1e4])
def test_a_logarithmic_axis_has_three_numbers_on_it(ratio):
    """However the range lies in its decades."""
    places = [part * 10.0**n for part in gallery._ticks(ratio) for n in range(6)]
    for low in (1.0, 1.3, 2.2, 4.1, 7.0):
        assert sum(low <= place <= low * ratio for place in places) >= 3
