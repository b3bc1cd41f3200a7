import pytest

from configs import nonblocking
from experiments import codec_times, sweep


def configured(**changes):
    config = nonblocking.get_config("workers=4")
    return sweep.override(config, {"task": "digits(model=logistic)", "wait": "barrier"} | changes)


def test_only_methods_that_compress_are_forecast_and_each_once(monkeypatch):
    seconds = iter([(1.0, 0.013), (1.0, 0.003)])  # of top-k and of all-reduce
    monkeypatch.setattr(codec_times, "step_seconds", lambda arm, config: next(seconds))
    top_k = {"name": "top", "algorithm": "top_k(ratio=0.01)", "communication": 0.0}
    configs = [configured(**changes) for changes in ({}, top_k, top_k | {"seed": 1})]
    (line,) = codec_times.forecasts(configs)
    # 650 parameters: both times are what 6 messages take, and the codec is all that matters.
    assert line.startswith("top: at 1 Gbit/s do not compress: 0.33 ms dense, 10.")
    assert "; at 10 Gbit/s do not compress" in line and "10.00 ms to encode" in line


def test_a_codec_that_takes_no_time_pays_on_a_narrow_network(monkeypatch):
    monkeypatch.setattr(codec_times, "step_seconds", lambda arm, config: (1.0, 0.003))
    narrow = "network(latency=0, bandwidth=1e3)"
    (line,) = codec_times.forecasts([configured(algorithm="qsgd", communication=narrow)])
    assert "on its network" in line and "x faster" in line


@pytest.mark.slow
def test_a_codec_takes_time():
    arm = codec_times.prepare.prepare(config := configured(algorithm="qsgd"))
    gradient, exchange = codec_times.step_seconds(arm, config)
    assert gradient > 0 and exchange > 0
    rounds = codec_times.step_rounds({"one": (arm, config), "other": (arm, config)}, 2)
    assert [len(found) for found in rounds.values()] == [2, 2]
    assert all(seconds > 0 for found in rounds.values() for pair in found for seconds in pair)
    with pytest.raises(StopIteration):
        next(codec_times.forecasts([configured()]))
