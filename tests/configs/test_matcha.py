import pytest

from configs import matcha
from experiments import prepare, sweep, train
from experiments.registry import part

ARMS = dict(matcha.sweep(matcha.get_config()))


# A task without labels has nothing to split by Dirichlet.
TINY = {"task": "synthetic_logistic(samples=256, dimension=4)", "split": "iid"}


def run(tmp_path, arm, **changes):
    config = sweep.override(matcha.get_config(), ARMS[arm] | {"name": arm} | changes)
    return train.run(config, tmp_path / arm)


@pytest.mark.slow
@pytest.mark.parametrize("graph", [4, 5])
def test_every_arm_can_run_on_every_graph(graph):
    config = matcha.get_config(f"graph={graph}")
    assert config.workers == (8 if graph in (0, 5) else 16)
    for name, changes in matcha.sweep(config):
        algorithm = prepare.prepare(sweep.override(config, changes | {"name": name})).algorithm
        assert algorithm.graph.number_of_nodes() == config.workers


def test_arguments_reach_the_config():
    config = matcha.get_config("graph=4,budget=0.2,communication=0.02")
    assert (config.name, config.algorithm) == ("matcha/budget=0.2", part("matcha", budget=0.2))
    assert (config.graph, config.communication) == (part("matcha", k=4), part("link", seconds=0.02))


@pytest.mark.parametrize(
    ("argument", "words"),
    [("graph=6", "has base graphs 0 to 5, got k=6"), ("workers=8", "known arguments: graph, ")],
)
def test_bad_arguments_are_refused(argument, words):
    with pytest.raises(ValueError, match=words):
        matcha.get_config(argument)


@pytest.mark.slow
def test_a_matching_is_a_unit_of_time_and_the_whole_budget_is_vanilla(tmp_path):
    brief = TINY | {"updates": 40, "target_loss": None, "evaluate_every": 100}
    vanilla, whole, half = (
        run(tmp_path, f"{arm}/rate=0.8", **brief)
        for arm in ("vanilla", "matcha/budget=1", "periodic/budget=0.5")
    )
    assert vanilla["communication_seconds"] == pytest.approx(40 * 5 * 0.1)  # 5 matchings
    assert whole["communication_seconds"] == pytest.approx(40 * 5 * 0.1)
    assert whole["train_loss"] == pytest.approx(vanilla["train_loss"], rel=1e-3)
    rounds = half["communication_seconds"] / (5 * 0.1)
    assert rounds == pytest.approx(round(rounds)) and 10 < rounds < 30  # of 40, half expected


@pytest.mark.slow
def test_half_the_budget_keeps_the_iterations_and_halves_the_communication(tmp_path):
    vanilla, half = (run(tmp_path, f"{name}/rate=0.8") for name in ("vanilla", "matcha/budget=0.5"))
    for what, bound in (("updates", 1.1), ("communication_seconds", 0.6), ("seconds", 0.7)):
        assert half[f"{what}_to_target"] <= bound * vanilla[f"{what}_to_target"], what
