"""Whether compressing pays: where two straight lines of seconds cross."""

import numpy as np
import pytest

from experiments.advice import compression
from experiments.advice.compression import Line, break_even

DENSE = Line("all_reduce", 8e6, 1e-3, 8e6, 0.0)


@pytest.mark.parametrize("codec", [1e-4, 2e-3, 0.1])
@pytest.mark.parametrize("hidden", [0.0, 5e-3, 0.2])
def test_at_the_bandwidth_of_a_break_even_both_take_as_long(codec, hidden):
    line = Line("m", 1e6, 1.5e-3, 1e6, codec)
    bandwidth = break_even(line, DENSE, hidden)

    def update(exchange, codec, at):
        return codec + max(hidden, exchange.seconds(at))

    assert update(line, codec, bandwidth) == pytest.approx(update(DENSE, 0.0, bandwidth))
    slower, faster = 0.9 * bandwidth, 1.1 * bandwidth
    assert update(line, codec, slower) < update(DENSE, 0.0, slower)
    assert update(line, codec, faster) > update(DENSE, 0.0, faster)


def test_what_sends_more_never_pays_and_what_costs_nothing_always_does():
    assert break_even(DENSE._replace(traffic=9e6, codec=1e-4), DENSE) is None
    assert break_even(DENSE._replace(traffic=1e6), DENSE) == np.inf
    assert break_even(DENSE, DENSE) is None
    assert break_even(DENSE._replace(latency=DENSE.latency / 2), DENSE) == np.inf


def test_losses_are_looked_up_in_the_published_records():
    found = compression.in_records()
    ratio, record = found["sketched_sgd"]
    assert ratio > 1.03 and record.startswith("s2_")


@pytest.mark.slow
def test_methods_are_weighed_for_a_config(config):
    found = compression.explain(config)
    methods = {row["method"]: row for row in found.summary["methods"]}
    assert {"top_k", "powersgd", "qsgd", "one_bit_adam"} <= methods.keys()
    dense = 4 * 4  # bytes that two workers send of four numbers, once each
    for row in methods.values():
        alone = row["break_even"]
        if row["bytes"] > dense:
            assert alone is None  # faster above a bandwidth at most, as there are fewer messages
            continue
        for one, gigabits in zip(row["networks"], compression.GIGABITS, strict=True):
            below = alone is not None and gigabits * 1e9 / 8 < alone
            assert (one["gain"] > 1) == below, row
    assert any("verdict at 10 Gbit/s: " in line for line in found.tables if isinstance(line, str))
