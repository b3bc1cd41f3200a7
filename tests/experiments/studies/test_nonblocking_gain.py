import io

import pytest
from ml_collections import ConfigDict
from PIL import Image
from rich.console import Console

from experiments.studies import nonblocking_gain, study
from stragglers.delays import shifted_exponential
from stragglers.theory import rounds as theory


def config(**changes):
    return ConfigDict(
        {
            "seed": 0,
            "mini_batches": 4,
            "draw": "round",
            "in_flight": "finish",
            "rounds": 400,
            "rounds_in_time": 20,
            "workers": (2, 4),
            "at_communication": 0.5,
            "communication": (0.0, 1.0, 2.0),
            "at_workers": 4,
            "delays": {
                "shifted": "shifted_exponential(shift=0.1, scale=0.1)",
                "slow_worker": "persistent(law=deterministic(value=0.25), factors={0: 3.0})",
                "spells": "markov(law=deterministic(value=0.25), factor=5, mean_normal=9, "
                "mean_slow=1)",
            },
        }
        | changes
    )


@pytest.fixture(scope="module")
def gains():
    return nonblocking_gain.compare_gains(config())


def test_every_delay_has_a_gain_at_every_place(gains):
    places = [(g.delay, g.workers, g.communication) for g in gains.by_workers]
    assert places[:3] == [("shifted", 2, 0.5), ("shifted", 4, 0.5), ("slow_worker", 2, 0.5)]
    places = [(g.workers, g.communication) for g in gains.by_communication]
    assert places == 3 * [(4, 0.0), (4, 1.0), (4, 2.0)]


def test_gains_are_those_of_the_theory_and_the_simulation_agrees(gains):
    law = shifted_exponential(0.1, 0.1)
    first = gains.by_workers[0]
    assert first.source == "closed form"
    assert first.expected == theory.throughput_gain(law, 2, 4, 0.5, "round", "finish")
    assert first.simulated == theory.estimate_gain(
        law, 2, 4, 0.5, rounds=400, seed=0, draw="round", in_flight="finish"
    )
    for gain in (*gains.by_workers, *gains.by_communication):
        bound = {"shifted": 0.05, "slow_worker": 1e-9, "spells": 0.5}[gain.delay]
        assert abs(gain.error) < bound and gain.error == gain.simulated / gain.expected - 1


def test_a_delay_without_a_closed_form_is_estimated_with_other_draws(gains):
    spells = [g for g in gains.by_workers if g.delay == "spells"]
    assert {g.source for g in spells} == {"estimate"}
    assert all(g.expected != g.simulated for g in spells)


def test_gains_of_cut_mini_batches_with_durations_of_their_own():
    other = config(draw="mini_batch", in_flight="cut", workers=(4,), communication=(0.0,))
    (shifted, slow_worker, _), _ = nonblocking_gain.compare_gains(other)
    expected = theory.throughput_gain(
        shifted_exponential(0.1, 0.1), 4, 4, 0.5, draw="mini_batch", in_flight="cut"
    )
    assert shifted.expected == expected and abs(shifted.error) < 0.05
    factors = [0.75, 0.25, 0.25, 0.25]
    assert slow_worker.expected == pytest.approx(theory.speeds_gain(factors, 4, 0.5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": (2, 0)}, "config.workers must be positive whole numbers, got (2, 0)"),
        ({"workers": 2}, "config.workers must be positive whole numbers, got 2"),
        ({"workers": ()}, "config.workers must be positive whole numbers, got ()"),
        ({"communication": (0.5, -1)}, "config.communication must be seconds, 0 or more"),
        ({"communication": (float("nan"),)}, "config.communication must be seconds"),
        ({"at_workers": 2.5}, "config.at_workers must be a positive whole number, got 2.5"),
        ({"at_communication": "x"}, "config.at_communication must be seconds"),
        ({"rounds": 0}, "config.rounds must be a positive whole number, got 0"),
        ({"rounds": True}, "config.rounds must be a positive whole number, got True"),
        ({"seed": -1}, "config.seed must be a whole number, 0 or more, got -1"),
        ({"delays": {}}, "config.delays must be delays by name"),
        ({"delays": {"a": "paret"}}, "delay: unknown name 'paret'"),
        ({"delays": {"a": "exponential(scale=x)"}}, "parameter 'scale' must be a number"),
        (
            {"delays": {"a": "persistent(law=deterministic(value=1.0), factors=[1, 2])"}},
            "2 factors, but worker 3",
        ),
        ({"draw": "epoch"}, "unknown draw='epoch'"),
        ({"in_flight": "wait"}, "unknown in_flight='wait'"),
        ({"delays": {"a": "pareto(minimum=1, shape=0.9)"}}, "neither round has a finite mean"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, words):
    base = {key: value for key, value in config().items() if key not in changes}
    with pytest.raises(ValueError) as caught:
        nonblocking_gain.compare_gains(ConfigDict(base | changes))
    assert words in str(caught.value)


def test_a_missing_entry_is_refused():
    incomplete = config()
    del incomplete.rounds
    with pytest.raises(ValueError, match=r"config.rounds is missing; set it to a positive"):
        nonblocking_gain.compare_gains(incomplete)


def test_the_tables_fit_120_columns(gains):
    out = io.StringIO()
    study.show(Console(file=out), nonblocking_gain.tables(gains))
    lines = list(map(str.strip, out.getvalue().splitlines()))
    assert max(map(len, out.getvalue().splitlines())) <= 120 and "…" not in out.getvalue()
    assert sum(line.startswith("spells*") for line in lines) == 2
    assert sum("(+0.0%)" in line for line in lines if line.startswith("slow worker")) == 2


def test_the_figure_of_gains_is_a_png(gains, tmp_path):
    nonblocking_gain.draw_gains(gains, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.format == "PNG" and image.size == (1200, 600)
