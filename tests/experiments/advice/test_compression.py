"""Compression: break-even bandwidths."""

import numpy as np
import pytest

from experiments import codec_times, prepare, stopwatch
from experiments.advice import compression
from experiments.advice.compression import Line, faster_between
from experiments.config_files import override

DENSE = Line("all_reduce", 8e6, 1e-3, 8e6, 0.0)


def break_even(line, dense, hidden=0.0):
    """Return the bandwidth below which a method is faster, or None."""
    least, most = faster_between(line, dense, hidden) or (0.0, None)
    return None if least else most


@pytest.mark.parametrize("codec", [1e-4, 2e-3, 0.1])
def test_at_the_bandwidth_of_a_break_even_both_take_as_long(codec):
    line = Line("m", 1e6, 1.5e-3, 1e6, codec)
    for hidden in (0.0, 5e-3, 0.2):
        bandwidth = break_even(line, DENSE, hidden)

        def update(exchange, at, codec=0.0, hidden=hidden):
            return codec + max(hidden, exchange.seconds(at))

        assert update(line, bandwidth, codec) == pytest.approx(update(DENSE, bandwidth))
        slower, faster = 0.9 * bandwidth, 1.1 * bandwidth
        assert update(line, slower, codec) < update(DENSE, slower)
        assert update(line, faster, codec) > update(DENSE, faster)


def test_more_bytes_never_pay_and_fewer_for_nothing_always_do():
    assert break_even(DENSE._replace(traffic=9e6, codec=1e-4), DENSE) is None
    assert break_even(DENSE._replace(traffic=1e6), DENSE) == np.inf
    assert break_even(DENSE, DENSE) is None
    assert break_even(DENSE._replace(latency=DENSE.latency / 2), DENSE) == np.inf
    late = DENSE._replace(latency=0.1)  # beyond the gradient, whatever the bandwidth
    few = DENSE._replace(traffic=1e6, latency=1e-3, codec=1e-3)
    assert break_even(few, late, hidden=0.01) == np.inf
    # At lower bandwidths more bytes take longer, though fewer messages may be faster at this one.
    more = few._replace(traffic=9e6)
    assert break_even(more, late, hidden=0.2) is None
    above, most = faster_between(more, late)
    assert most == np.inf
    assert more.codec + more.seconds(above) == pytest.approx(late.seconds(above))
    assert more.codec + more.seconds(2 * above) < late.seconds(2 * above)
    assert faster_between(few, late)[0] == 0 and faster_between(DENSE, DENSE) is None
    # Behind a long gradient both are hidden at high bandwidths.
    least, most = faster_between(more, late, hidden=0.2)
    assert least == above

    def gains(bandwidth):
        ours, theirs = (max(0.2, line.seconds(bandwidth)) for line in (more, late))
        return more.codec + ours < theirs

    at = (0.99 * least, 1.01 * least, 0.99 * most, 1.01 * most)
    assert [*map(gains, at)] == [False, True, True, False]
    assert faster_between(more, late, hidden=1.0) is None
    for overlaps, words in ((False, f"above {8e-9 * above:.3g}"),
                            (True, f"{8e-9 * least:.3g} to {8e-9 * most:.3g}")):
        row = compression._row(more, late, 0.2, {"1 GB/s": 1e9}, overlaps)
        table, *_ = compression._tables({"methods": [row]})
        assert [*table.rows[0][3:]] == [f"above {8e-9 * above:.3g}", words]


def test_an_update_is_as_long_as_its_parts_where_the_network_lets_nothing_overlap():
    line, one_second = Line("m", 1e6, 1e-3, 1e6, 1e-3), {"1 MB/s": 1e6}
    row = compression._row(line, DENSE, 1.0, one_second, overlaps=False)
    assert row["break_even_overlapped"] == row["break_even"] == pytest.approx(7e9)
    assert row["networks"][0]["gain_of_overlapped_update"] == pytest.approx(9.001 / 2.002)
    row = compression._row(line, DENSE, 1.0, one_second, overlaps=True)
    assert row["break_even_overlapped"] < row["break_even"]
    assert row["networks"][0]["gain_of_overlapped_update"] == pytest.approx(8.001 / 1.002)


def test_a_method_that_cannot_wait_for_a_barrier_is_named_as_not_weighed(config, monkeypatch):
    """Its config can run, and all others are weighed on its task."""
    some = {name: prepare.METHOD.factories[name] for name in ("swarm", "top_k", "all_reduce")}
    monkeypatch.setattr(prepare, "METHOD", prepare.METHOD._replace(factories=some))
    monkeypatch.setattr(stopwatch, "seconds", lambda programs, turns: dict.fromkeys(programs, 1.0))
    pairs = override(config, {"algorithm": "swarm", "wait": "random_pairs", "updates": 4})
    found = compression.explain(pairs)
    assert [row["method"] for row in found.summary["methods"]] == ["top_k"]
    assert found.tables[-1] == "not weighed: swarm"
    with pytest.raises(ValueError, match="swarm cannot wait for barrier"):  # it cannot run either
        compression.explain(override(pairs, {"wait": "barrier"}))


@pytest.mark.slow
def test_methods_are_weighed_for_a_config_by_codecs_that_take_time(config, monkeypatch):
    compared, measure = [], stopwatch.seconds

    def seconds(programs, turns):
        compared.append({*programs})
        return measure(programs, turns)

    monkeypatch.setattr(codec_times, "TURNS", 3)
    monkeypatch.setattr(stopwatch, "seconds", seconds)
    found = compression.explain(config)
    assert found.summary["overlaps"]
    assert compared[0] == {"gradient"} and all(one == {"own", "plain"} for one in compared[1:])
    methods = {row["method"]: row for row in found.summary["methods"]}
    assert {"top_k", "powersgd", "qsgd", "one_bit_adam"} <= methods.keys()
    dense = 4 * 4  # bytes that two workers send of four numbers, once each
    for row in methods.values():
        if row["bytes"] > dense:
            above, _ = row["faster_above"] or (np.inf, np.inf)
            for one, gigabits in zip(row["networks"], compression.GIGABITS, strict=True):
                assert (one["gain"] > 1) == (gigabits * 1e9 / 8 > above), row
            continue
        for one, gigabits in zip(row["networks"], compression.GIGABITS, strict=True):
            below = row["break_even"] is not None and gigabits * 1e9 / 8 < row["break_even"]
            assert (one["gain"] > 1) == below, row
    assert any("verdict at 10 Gbit/s: " in line for line in found.tables if isinstance(line, str))
    arm = codec_times.prepare.prepare(config)
    rounds = codec_times.step_rounds({"one": (arm, config), "other": (arm, config)}, 2)
    assert [len(found) for found in rounds.values()] == [2, 2]
    assert all(seconds > 0 for found in rounds.values() for pair in found for seconds in pair)
