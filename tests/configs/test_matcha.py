import pytest
from PIL import Image

from configs import matcha
from experiments import prepare, sweep, train
from experiments.parts import part
from experiments.reports import comparison
from tests.configs import made_up

ARMS = dict(matcha.sweep(matcha.get_config()))


# A task without labels has nothing to split by Dirichlet.
TINY = {"task": "synthetic_logistic(samples=256, dimension=4)", "split": "iid"}


def run(tmp_path, arm, **changes):
    config = sweep.override(matcha.get_config(), ARMS[arm] | {"name": arm} | changes)
    return train.run(config, tmp_path / arm)


@pytest.fixture
def config():
    return matcha.get_config()


@pytest.mark.slow
@pytest.mark.parametrize("graph", range(6))
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


def test_claims_stand_beside_what_was_measured():
    level = {"matcha/budget=0.5": 0.9, "matcha/budget=0.2": 0.5, "periodic/budget=0.5": 2.0}
    made = made_up.arms(matcha, level=lambda name: level.get(name.rpartition("/")[0], 1.0))
    keeps, communicates, sooner, five, *periodic, theory = (t for _, t in matcha.claims(made))
    assert keeps.startswith("holds: matcha/budget=0.5/rate=0.57 9.009")
    assert communicates.startswith("does not hold: ") and sooner.startswith("holds: ")
    assert five.startswith("does not hold: matcha/budget=0.2/rate=0.57 5.005") and "0.50x" in five
    assert periodic[-1].startswith("holds: matcha/budget=0.5/rate=0.57") and len(periodic) == 3
    alone = [arm | {"reached": "2/3"} if arm["name"].startswith("vanilla/") and
             not arm["name"].endswith("/rate=0.57") else arm for arm in made]  # fmt: skip
    *_, five = (t for claim, t in matcha.claims(alone) if claim.startswith("up to 5x"))
    assert five.startswith("cannot be told: not every seed of the rates beside vanilla/rate=0.57")
    assert theory.startswith("holds where: on matcha(k=0): matcha(k=0) 0.6440 against 0.6538; ")
    own, ring, path = matcha.numbers(made)
    assert own.rows[4][:3] == ("0.5", "0.6440", "0.8269") and "vanilla 0.6538" in own.title
    assert ("ring" in ring.title, "path" in path.title) == (True, True)


@pytest.mark.parametrize("workers", [8, 16])
def test_on_a_ring_and_a_path_matcha_is_not_better(workers):
    made = made_up.arms(matcha, f"graph={0 if workers == 8 else 4}")
    for table in list(matcha.numbers(made))[1:]:
        vanilla = float(table.title.rpartition(" ")[2])
        assert all(float(cell) >= vanilla for row in table.rows for cell in row[1:4:2])


@pytest.mark.slow
def test_a_sweep_draws_rho_and_hands_the_configs_to_the_claims(config, tmp_path, capsys):
    arms = [
        sweep.Arm(name, sweep.override(config, ARMS[name] | TINY | {"name": name, "seconds": 2.0}))
        for name in ("vanilla/rate=0.8", "matcha/budget=0.5/rate=0.8")
    ]
    how = {name: getattr(matcha, name) for name in ("claims", "numbers", "figures")}
    comparison.launch(arms, str(tmp_path), False, **how)
    assert "rho on matcha(k=0)" in capsys.readouterr().out
    with Image.open(tmp_path / "rho.png") as image:
        assert image.format == "PNG" and image.size == (1200, 675)
