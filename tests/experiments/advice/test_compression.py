"""Compression: break-even bandwidths and losses in records."""

import numpy as np
import pytest

from configs import nonblocking
from experiments import codec_times, sweep
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


def test_more_bytes_never_pay_and_fewer_for_nothing_always_do():
    assert break_even(DENSE._replace(traffic=9e6, codec=1e-4), DENSE) is None
    assert break_even(DENSE._replace(traffic=1e6), DENSE) == np.inf
    assert break_even(DENSE, DENSE) is None
    assert break_even(DENSE._replace(latency=DENSE.latency / 2), DENSE) == np.inf


@pytest.mark.slow
def test_methods_are_weighed_for_a_config(config):
    found = compression.explain(config)
    methods = {row["method"]: row for row in found.summary["methods"]}
    assert {"top_k", "powersgd", "qsgd", "one_bit_adam"} <= methods.keys()
    assert methods["sketched_sgd"]["loss"][0] > 1.03  # in a published record
    dense = 4 * 4  # bytes that two workers send of four numbers, once each
    for row in methods.values():
        if row["bytes"] > dense:
            assert row["break_even"] is None  # faster above a bandwidth, if at all
            continue
        for one, gigabits in zip(row["networks"], compression.GIGABITS, strict=True):
            below = row["break_even"] is not None and gigabits * 1e9 / 8 < row["break_even"]
            assert (one["gain"] > 1) == below, row
    assert any("verdict at 10 Gbit/s: " in line for line in found.tables if isinstance(line, str))


def configured(**changes):
    config = nonblocking.get_config("workers=4")
    return sweep.override(config, {"task": "digits(model=logistic)", "wait": "barrier"} | changes)


@pytest.mark.slow
def test_a_codec_takes_time():
    arm = codec_times.prepare.prepare(config := configured(algorithm="qsgd"))
    rounds = codec_times.step_rounds({"one": (arm, config), "other": (arm, config)}, 2)
    assert [len(found) for found in rounds.values()] == [2, 2]
    assert all(seconds > 0 for found in rounds.values() for pair in found for seconds in pair)
