import io

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from experiments.studies import published_speedups, study


def test_a_published_run_beside_the_model():
    run = {"trace": "googlenet", "compute": 0.4, "workers": 8, "alpha": 1e-3, "beta": 2e-9,
           "throughput": {"wfbp": 10.0, "greedy": 12.0, "single": 8.0}}  # fmt: skip
    published = {"a_run": run, "slower": run | {"compute": 4.0, "trace": "transformer"}}
    ratios = published_speedups.compare_published(ConfigDict({"published": published}))
    assert [(r.setting, r.baseline) for r in ratios] == [
        ("a_run", "single"),
        ("a_run", "wfbp"),
        ("slower", "single"),
        ("slower", "wfbp"),
    ]
    for ratio in ratios:
        assert ratio.published == pytest.approx({"wfbp": 1.2, "single": 1.5}[ratio.baseline])
        assert ratio.optimal >= ratio.greedy
    assert ratios[2].greedy < ratios[0].greedy  # more computation to hide behind
    out = io.StringIO()
    study.show(Console(file=out), published_speedups.tables(ratios))
    assert "over single" in out.getvalue() and f"1.20 | {ratios[1].greedy:.2f} |" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 120
    # The median of two is their mean.
    errors = [abs(np.log(r.greedy / r.published)) for r in ratios if r.baseline == "single"]
    off = f"{100 * np.expm1(np.mean(errors)):.0f} %"
    shown = " ".join(out.getvalue().split())
    assert f"over single, 2 runs: simulated and published differ by {off} in the median" in shown
    single, wfbp = published_speedups.errors(ratios)
    assert (single.baseline, single.runs, wfbp.runs) == ("single", 2, 2)
    assert single.median == pytest.approx(np.expm1(np.mean(errors)))
    assert single.constant_worst == pytest.approx(0)  # both published runs gained as much
    assert single.correlation is None
    assert all(text.startswith("cannot be told: 2 runs ") for _, text in
               published_speedups.claims([single, wfbp]))  # fmt: skip


def test_another_reading_of_a_run_counts_no_more_and_skill_needs_a_correlation():
    def ratio(number, published, greedy, counted=True):
        return published_speedups.Ratio(
            f"run {number}", 8, "single", published, greedy, greedy, counted
        )

    near = [ratio(n, 1 + n / 10, 1 + n / 11) for n in range(5)]
    (error,) = published_speedups.errors([*near, ratio(9, 5.0, 1.0, counted=False)])
    assert error.runs == 5 and error.correlation > 0.99
    assert next(published_speedups.claims([error]))[1].startswith("holds: 5 runs: median error ")
    assert (
        next(published_speedups.claims([error]))[1].endswith(" %") and error.beyond_constant[1] < 0
    )
    far = [ratio(n, 1 + n / 10, 3 + n / 11) for n in range(5)]
    (error,) = published_speedups.errors(far)  # correlated, and a constant is nearer
    assert next(published_speedups.claims([error]))[1].startswith("does not hold: ")
    (error,) = published_speedups.errors([ratio(n, 1 + n / 10, 1.5 - n / 11) for n in range(5)])
    assert next(published_speedups.claims([error]))[1].startswith("cannot be told: in the noise: ")
