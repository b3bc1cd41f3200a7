"""The picture of graphs with more workers shows what the records say."""

import pytest

from experiments.publishing import graphs

LOSS = "final_train_loss"
RATES = (0.1, 0.2, 0.4)
RING = "dpsgd/ring"
TRIED = "The best rate of a hollow point is the lowest or the highest that was tried."


def arms_of(losses: dict[float, float | None], group: str = RING) -> dict[str, dict]:
    """The arms of a record: the loss at the end by rate, None where it is not finite."""
    return {
        f"{group}/rate={rate}": {
            "name": f"{group}/rate={rate}",
            "seeds": [0, 1],
            "bytes_per_worker": 15.2e6,
            LOSS: loss,
            f"{LOSS}_by_seed": [loss, loss] if loss is None else [loss - 0.1, loss + 0.1],
        }
        for rate, loss in losses.items()
    }


def lines_of(axes) -> list:
    return [line for line in axes.lines if not line.get_label().startswith("_")]


def of_group(arm: dict, group: str) -> bool:
    return arm["name"].startswith(f"{group}/rate=") and arm[LOSS] is not None


def test_a_point_is_the_best_rate_and_says_whether_it_is_inside_of_the_grid():
    records = {
        16: arms_of({0.1: 0.5, 0.2: 0.3, 0.4: 0.4}),
        64: arms_of({0.1: 0.2, 0.2: 0.3, 0.4: None}),
        128: arms_of({0.1: 0.5, 0.2: 0.3, 0.4: 0.2}),
        256: arms_of(dict.fromkeys(RATES)),
    }
    inside, *at_the_ends = graphs.points(records, RING)
    assert inside == (16, 0.3, pytest.approx((0.2, 0.4)), True)
    lowest, highest = at_the_ends
    assert lowest == (64, 0.2, pytest.approx((0.1, 0.3)), False)
    assert highest == (128, 0.2, pytest.approx((0.1, 0.3)), False)
    assert graphs.points(records, "dpsgd/torus") == []


def test_the_picture_has_a_line_for_every_graph_with_the_losses_of_the_records():
    records = graphs.read()
    canvas = graphs.draw(records)
    for axes, (title, groups) in zip(canvas.axes, graphs.PANELS.items(), strict=True):
        assert axes.get_title() == title and axes.get_xlabel() == "workers"
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert [line.get_label() for line in lines_of(axes)] == list(groups.values())
        dots = [set(line.get_ydata()) for line in axes.lines if line.get_marker() == "."]
        for line, group in zip(lines_of(axes), groups, strict=True):
            for workers, x, y in zip(records, *line.get_data(), strict=True):
                assert x == pytest.approx(workers, rel=0.3)
                members = [arm for arm in records[workers].values() if of_group(arm, group)]
                best = min(members, key=lambda arm: arm[LOSS])
                assert y == best[LOSS]
                assert set(best[f"{LOSS}_by_seed"]) in dots


def test_the_first_two_panels_have_one_vertical_axis():
    first, second, third = graphs.draw(graphs.read()).axes
    assert first.get_ylim() == second.get_ylim() != third.get_ylim()


def test_a_hollow_point_has_its_best_rate_at_the_end_and_a_sentence_says_so():
    hollow = graphs.draw({16: arms_of({0.1: 0.2, 0.2: 0.3})})
    point = hollow.axes[0].lines[-1]
    assert point.get_markerfacecolor() == "white" and point.get_ydata() == [0.2]
    assert TRIED in hollow.get_supxlabel()
    full = graphs.draw({16: arms_of({0.1: 0.3, 0.2: 0.2, 0.4: 0.3})})
    assert all(line.get_markerfacecolor() == line.get_color() for line in full.axes[0].lines)
    assert TRIED not in full.get_supxlabel()
    assert "about 15 MB" in full.get_supxlabel()


@pytest.mark.parametrize("loss", [None, 1e27, 2.5])
def test_what_diverges_at_every_rate_is_left_out_and_named(loss):
    """A loss can be finite and huge, or at least that of a model that guesses."""
    records = {
        16: arms_of({0.1: 0.5, 0.2: 0.3, 0.4: 0.4}),
        64: arms_of(dict.fromkeys(RATES, loss)),
        256: arms_of({0.1: 0.5, 0.2: 0.3, 0.4: 2.5}),
    }
    canvas = graphs.draw(records)
    assert [line.get_label() for line in lines_of(canvas.axes[0])] == ["ring"]
    assert [point.workers for point in graphs.points(records, RING)] == [16, 256]
    assert lines_of(canvas.axes[0])[0].get_ydata().tolist() == [0.3, 0.3]
    assert "ring (D-PSGD and MATCHA on graphs, 64 workers)" in canvas.get_supxlabel()
    assert "ring (D-PSGD and MATCHA on graphs, 16 workers)" not in canvas.get_supxlabel()
    assert "diverges" not in graphs.draw(graphs.read()).get_supxlabel()
