"""Iterations of two layers worked out by hand, and traces of layers."""

import numpy as np
import pytest

from comms import buckets, iteration
from comms.cost import AlphaBeta, ring
from comms.iteration import LayerTrace, googlenet
from tests.refusals import refused

# Two layers; the second one's gradient, of 4 bytes, is ready at 1 s, the first one's, 2, at 3 s.
TWO = LayerTrace("two", np.array([2.0, 4.0]), np.array([1.0, 1.0]), np.array([2.0, 1.0]))
PER_BYTE = AlphaBeta(0.0, 1.0)


def test_traces():
    sizes, ready = TWO.backward_order()
    assert sizes.tolist() == [4, 2] and ready.tolist() == [1, 3]
    trace = googlenet()
    sizes, ready = trace.backward_order()
    assert len(sizes) == 64 and sizes.sum() == 4 * 13_379_136
    assert sizes[0] == 4 * 1_025_024 and ready[0] == pytest.approx(456.416e-6)
    assert ready[-1] == pytest.approx(0.201531926)
    assert trace.forward.sum() == pytest.approx(ready[-1] / 2)


def test_buckets_by_hand():
    # Layer 2 from 1 to 5, layer 1 from 5 to 7, then 2 s of forward.
    assert iteration.iteration(TWO, PER_BYTE, "wfbp") == (9, 5, 4, 2)
    assert iteration.iteration(TWO, PER_BYTE, "single") == (11, 5, 6, 1)


def test_partition_and_priority_by_hand():
    # Half of layer 2 from 1 to 3, then layer 1, which has come meanwhile, to 5, and the other half
    # to 7; the forward pass runs layer 1 from 5, layer 2 from 7.
    assert iteration.byte_scheduler(TWO, PER_BYTE, bytes=2) == (8, 5, 3, 3)
    # Undivided, layer 2 takes until 5, layer 1 until 7.
    assert iteration.byte_scheduler(TWO, PER_BYTE, bytes=100) == (9, 5, 4, 2)
    # Parts of 3: three bytes to 4, layer 1 to 6, the last byte to 7.
    assert iteration.byte_scheduler(TWO, PER_BYTE, bytes=3) == (8, 5, 3, 3)


def test_split_all_reduces_by_hand():
    # Scattered: layer 2 from 1 to 3, layer 1 to 4. Gathered: layer 1 to 5, layer 2 to 7.
    assert iteration.dear(TWO, PER_BYTE, bytes=4) == (8, 5, 3, 4)
    # Together: from 3 to 6 and to 9.
    assert iteration.dear(TWO, PER_BYTE, bytes=6) == (11, 5, 6, 2)


def test_schedules_are_their_plans_and_take_the_best_size():
    trace, affine = googlenet(), ring(64, 3e-5, 4e-10)
    bucketed = {name: plan for name, plan in buckets.PLANNERS.items() if not plan.eager}
    for name, planner in bucketed.items():
        plan = planner(*trace.backward_order(), affine)
        result = iteration.iteration(trace, affine, name)
        assert result.seconds == pytest.approx(trace.forward.sum() + plan.finish)
        assert (result.exposed, result.messages) == (plan.exposed, len(plan.buckets))
    for name in ("dear", "byte_scheduler"):
        each = [getattr(iteration, name)(trace, affine, size).seconds for size in iteration.SIZES]
        assert iteration.iteration(trace, affine, name).seconds == min(each) < max(each)


def test_scaling():
    result = iteration.scaling(TWO, lambda n: AlphaBeta(n - 2.0, 1.0), (2, 3), "wfbp")
    assert result.workers.tolist() == [2, 3] and result.seconds.tolist() == [9, 11]
    np.testing.assert_allclose(result.efficiency, [5 / 9, 5 / 11])
    np.testing.assert_allclose(result.speedup, [10 / 9, 15 / 11])


test_what_makes_no_sense_is_refused = refused(
    (
        lambda: iteration.iteration(TWO, PER_BYTE, "best"),
        "'best' is unknown; choose one of wfbp",
    ),
    (lambda: iteration.byte_scheduler(TWO, PER_BYTE, 0), "needs bytes > 0, got 0"),
    (lambda: iteration.dear(TWO, PER_BYTE, -1), "needs bytes > 0, got -1"),
    (lambda: iteration.byte_scheduler(TWO, AlphaBeta(np.nan, 1.0), 2), "cost: gave nan s"),
)


def test_a_trace_of_ones_own_is_a_file_like_that_of_googlenet(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("\ufeff# measured\nname, bytes,backward_us\nfirst,4000,100\nlast,80,300\n")
    trace = iteration.read(path)
    assert trace.name == "mine" and trace.sizes.tolist() == [4000, 80]
    np.testing.assert_allclose(trace.backward, [1e-4, 3e-4])
    np.testing.assert_allclose(trace.forward, trace.backward / 2)
    assert trace.backward_order()[1].tolist() == pytest.approx([3e-4, 4e-4])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("bytes,us\n1,2\n", "has no column 'backward_us'; write bytes,backward_us in its first"),
        ("bytes,backward_us\n1\n", "has a layer without two numbers"),
        ("bytes,backward_us\n", "needs layers of bytes > 0"),
        ("bytes,backward_us\n1,-2\n", "needs layers of bytes > 0"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_a_sentence(tmp_path, content, words):
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(ValueError, match=words):
        iteration.read(tmp_path / "mine.csv")
    with pytest.raises(ValueError, match="cannot read"):
        iteration.read(tmp_path / "none.csv")
