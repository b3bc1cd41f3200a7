import pytest
from PIL import Image

from configs import matcha
from experiments import prepare, sweep, train
from experiments.parts import part
from experiments.reports import comparison, table

ARMS = dict(matcha.sweep())


# A task without labels has nothing to split by Dirichlet.
TINY = {"task": "synthetic_logistic(samples=256, dimension=4)", "split": "iid"}


def run(tmp_path, arm, **changes):
    config = sweep.override(matcha.get_config(), ARMS[arm] | {"name": arm} | changes)
    return train.run(config, tmp_path / arm)


def arm_of(name, updates, seconds, communication, config):
    return {
        "name": name,
        "updates_to_target": updates,
        "seconds_to_target": seconds,
        "communication_seconds_to_target": communication,
        "config": config,
    }


@pytest.fixture
def config():
    return matcha.get_config()


@pytest.mark.parametrize("graph", range(6))
def test_every_arm_can_run_on_every_graph(graph):
    config = matcha.get_config(f"graph={graph}")
    assert config.workers == (8 if graph in (0, 5) else 16)
    for name, changes in ARMS.items():
        algorithm = prepare.prepare(sweep.override(config, changes | {"name": name})).algorithm
        assert algorithm.graph.number_of_nodes() == config.workers


def test_arguments_reach_the_config():
    config = matcha.get_config("graph=4,budget=0.2,communication=0.02")
    assert (config.name, config.algorithm) == ("matcha/0.2", part("matcha", budget=0.2))
    assert (config.graph, config.communication) == (part("matcha", k=4), part("link", seconds=0.02))


@pytest.mark.parametrize(
    ("argument", "words"),
    [("graph=6", "has base graphs 0 to 5, got k=6"), ("workers=8", "known arguments: graph, ")],
)
def test_bad_arguments_are_refused(argument, words):
    with pytest.raises(ValueError, match=words):
        matcha.get_config(argument)


def test_a_matching_is_a_unit_of_time_and_the_whole_budget_is_vanilla(tmp_path):
    brief = TINY | {"updates": 40, "target_loss": None, "evaluate_every": 100}
    vanilla, whole, half = (
        run(tmp_path, arm, **brief) for arm in ("vanilla", "matcha/1", "periodic/0.5")
    )
    assert vanilla["communication_seconds"] == pytest.approx(40 * 5 * 0.1)  # 5 matchings
    assert whole["communication_seconds"] == pytest.approx(40 * 5 * 0.1)
    assert whole["train_loss"] == pytest.approx(vanilla["train_loss"], rel=1e-3)
    rounds = half["communication_seconds"] / (5 * 0.1)
    assert rounds == pytest.approx(round(rounds)) and 10 < rounds < 30  # of 40, half expected


@pytest.mark.slow
def test_half_the_budget_keeps_the_iterations_and_halves_the_communication(tmp_path):
    vanilla, half = run(tmp_path, "vanilla"), run(tmp_path, "matcha/0.5")
    for what, bound in (("updates", 1.1), ("communication_seconds", 0.6), ("seconds", 0.7)):
        assert half[f"{what}_to_target"] <= bound * vanilla[f"{what}_to_target"], what


def test_claims_stand_beside_what_was_measured(config):
    arms = [arm_of("vanilla", 200, 120.0, 100.0, config)]
    arms += [arm_of(f"matcha/{b}", 210, 70.0, 52.5, config) for b in ("0.2", "0.5")]
    arms[1]["seconds_to_target"] = 60.0
    claims = list(matcha.claims(arms))
    assert claims[0][1] == "210 against 200, 1.05x vanilla's iterations"
    assert "52.5 against 100, 0.53x vanilla's communication time" in claims[1][1]
    assert "fastest, matcha/0.2: 60 against 120, 0.50x vanilla's time" in claims[1][1]
    assert "0.5: matcha 0.6440, periodic 0.8269\n" in claims[2][1]
    assert "\nvanilla 0.6538\nbetter than vanilla per iteration\nbetter " in claims[2][1]


@pytest.mark.parametrize("workers", [8, 16])
def test_on_a_ring_and_a_path_matcha_is_not_better(workers):
    config = matcha.get_config(f"graph={0 if workers == 8 else 4}")
    arms = [arm_of(name, 1, 1.0, 1.0, config) for name in ("vanilla", "matcha/0.5")]
    ring, path = list(matcha.claims(arms))[3:]
    for (claim, measured), name in ((ring, "ring"), (path, "path")):
        assert name in claim
        assert "\nnot better than vanilla per iteration\nnot better than vanilla per co" in measured


def test_an_arm_that_never_arrives_has_no_ratio(config, capsys):
    arms = [arm_of("vanilla", None, None, None, config), arm_of("matcha/0.5", 9, 9.0, 9.0, config)]
    claims = list(matcha.claims(arms))
    assert claims[0][1] == "target not reached, no ratio of iterations"
    table.print_claims(table.Console(), claims)
    assert "no ratio of time" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_draws_rho_and_hands_the_configs_to_the_claims(config, tmp_path, capsys):
    arms = [
        sweep.Arm(name, sweep.override(config, ARMS[name] | TINY | {"name": name, "seconds": 2.0}))
        for name in ("vanilla", "matcha/0.5")
    ]
    comparison.launch(arms, str(tmp_path), False, claims=matcha.claims, figures=matcha.figures)
    assert "matcha(k=0)" in capsys.readouterr().out
    with Image.open(tmp_path / "rho.png") as image:
        assert image.format == "PNG" and image.size == (1200, 675)
