import json

import pytest
from PIL import Image

from configs import swarm
from experiments import premises, prepare, records, sweep, train
from experiments.parts import part
from experiments.publishing import verdict_rows
from experiments.reports import comparison
from experiments.studies import swarm as study
from tests.configs import made_up

ARMS = dict(swarm.sweep())


def config_of(arm, argument=None, **changes):
    return sweep.override(swarm.get_config(argument), ARMS[arm] | {"name": arm} | changes)


def arm_of(arm, accuracy=0.97, megabytes=10.0, seconds=20.0, **last):
    """A summary of one seed that halves its loss, down to the target of the config at the end."""
    config = config_of(arm, last.pop("argument", None))
    start = {"train_loss": 2 * config.target_loss, "bytes_per_worker": 0.0, "seconds": 0.0}
    end = {
        "train_loss": config.target_loss,
        "bytes_per_worker": 1e6 * megabytes,
        "seconds": seconds,
        "consensus_distance": 1e-3,
    }
    return {
        "name": arm,
        "config": config,
        "metrics": [[start, end | last]],
        "samples": 76800,
        "seconds_to_target": seconds,
        "test_accuracy": accuracy,
        "test_accuracy_worst_worker": accuracy - 0.02,
        "test_accuracy_best_worker": accuracy + 0.01,
    }


def some(**changed):
    """All arms alike, but those that are given."""
    return [changed.get(name) or arm_of(name) for name in ARMS]


@pytest.mark.few(10)
@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("argument", ["", "graph=hypercube,split=dirichlet,delay=slow4"])
def test_every_arm_can_run(name, argument):
    config = config_of(name, argument)
    algorithm = prepare.prepare(config).algorithm
    assert algorithm.graph is None or algorithm.graph.number_of_nodes() == config.workers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all_reduce", "local_sgd/H=2", "swarm/H=4", "swarm/H=2/blocking"])
def test_every_arm_has_the_same_samples(name, tmp_path):
    """A twentieth of each budget, of a tiny task: 240 samples per node."""
    config = config_of(name)
    config = sweep.override(config, {
        "task": "synthetic_logistic(samples=256, dimension=4)", "updates": config.updates // 20,
        "seconds": 100.0, "evaluate_every": 50.0,
    })  # fmt: skip
    summary = train.run(config, tmp_path)
    assert summary["samples"] == pytest.approx(16 * 240, rel=0.02)


def test_all_reduce_scales_its_rate_with_the_nodes():
    rate = config_of("all_reduce").optimizer.learning_rate
    assert rate == 16 * swarm.RATES["all_reduce"]
    assert config_of("swarm/H=2").optimizer.learning_rate == swarm.RATES["local"]
    assert config_of("all_reduce").optimizer.warmup_samples == 3840


def test_arguments_reach_the_config():
    config = swarm.get_config("nodes=256,model=logistic,split=dirichlet,delay=slow4,graph=ring")
    assert config.workers == 256 and config.graph.name == "ring"
    assert config.split == part("dirichlet", alpha=0.3)
    assert config.task == part("digits", model="logistic")
    assert config.delay.factors.to_dict() == {0: 4.0}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("delay=none", "unknown delay 'none'; choose one of equal, slow4"),
        ("split=even", "unknown split 'even'; choose one of iid, dirichlet"),
        ("task=mnist", "unknown task 'mnist'; choose one of digits, gaussians"),
        ("width=3", "known arguments: nodes, graph"),
        ("nodes=12", "nodes must be a multiple of 8, got 12"),
        ("nodes=0", "nodes must be a multiple of 8, got 0"),
        ("graph=star", "all meetings share a few nodes"),
    ],
)
def test_bad_arguments_are_refused(argument, words):
    with pytest.raises(ValueError, match=words):
        swarm.get_config(argument)


def test_claims_stand_beside_what_was_measured():
    made = {arm["name"]: arm for arm in made_up.arms(swarm, "delay=slow4")}
    made["dpsgd/ring"] |= _slower(made["dpsgd/ring"], 4.0) | {"bytes_per_worker": 2e6}
    coarse = made["swarm/H=2/8 bits"]
    coarse |= {"bytes_per_worker": 2.5e5, "test_accuracy_by_seed": [0.884, 0.885, 0.886]}
    coarse |= {"test_accuracy": 0.885}
    coarse["metrics"] = [[r | {"bytes_per_worker": r["bytes_per_worker"] / 4} for r in run]
                         for run in coarse["metrics"]]  # fmt: skip
    found = dict(swarm.claims(made.values()))
    accurate, few, *_ = found.values()
    assert accurate.startswith("does not hold: all_reduce 90 ± 0 % against swarm/H=2/8 bits 88.5")
    assert few.startswith("does not hold: swarm/H=2 90")
    assert found["swarm/H=2: half the bytes of dpsgd/ring at equal samples"].startswith("holds: ")
    half = found["swarm/H=2/8 bits: half the bytes of sgp at equal samples"]
    assert half.startswith("does not hold: swarm/H=2/8 bits 0.25 MB against sgp 1 MB, 0.25x")
    half = found["swarm/H=2/8 bits: half the bytes of sgp at equal loss"]
    assert half.startswith("holds: swarm/H=2/8 bits 0.")
    assert found["swarm/H=4: half the bytes of sgp at equal samples"].startswith("does not hold")
    slow = (
        "swarm/H=2, one node 4x slower: at most 0.6x the time of blocking D-PSGD, its exchange {} "
        "the gradient, to the same loss"
    )
    assert found[slow.format("beside")].startswith("holds: swarm/H=2 10.01 ± 0.01 s")
    assert found[slow.format("after")].startswith("does not hold: ")
    near = "local steps matter little: H = 4 within 10 % of the time of H = 2"
    assert found[near].startswith("cannot be told") or found[near].startswith("holds")


def _slower(arm, factor):
    values = [factor * value for value in arm["seconds_to_target_by_seed"]]
    return {"seconds_to_target": factor * arm["seconds_to_target"],
            "seconds_to_target_by_seed": values}  # fmt: skip


def test_where_nobody_is_slow_nobody_is_held_up():
    found = dict(swarm.claims(made_up.arms(swarm)))
    slow = [text for claim, text in found.items() if "one node 4x slower" in claim]
    assert len(slow) == 4 and set(slow) == {"cannot be told: here nobody is slow"}


def test_single_models_and_what_was_sent_again_are_numbers():
    decoded = {
        "planned_bytes_per_worker": 2e6, "decode_failures": 3.0, "full_precision_buckets": 1.0,
        "skipped_buckets": 0.0, "extra_bytes_per_worker": 5e5, "extra_seconds_per_worker": 0.125,
    }  # fmt: skip
    made = some(**{"swarm/H=2/8 bits": arm_of("swarm/H=2/8 bits", megabytes=2.5, **decoded)})
    nodes, again = swarm.numbers(made)
    row = next(row for row in nodes.rows if row[0] == "swarm/H=2/8 bits")
    assert row == (row[0], "4,800", "97.00 ± 0.90", "95.00 to 98.00", "0.001", "2.50")
    assert "n = 359 test samples" in nodes.title and "Bayes" not in nodes.title
    assert again.rows == [(row[0], "3.0", "1.0", "0.0", "500.0", "0.12", "25.0")]


def test_numbers_of_points_with_a_known_error_say_what_the_best_classifier_has():
    config = swarm.get_config("task=gaussians")
    assert config.task == part("gaussians", model="mlp")
    assert config.target_loss == swarm.TASKS["gaussians"]
    arm = arm_of("swarm/H=2", argument="task=gaussians")
    (nodes,) = swarm.numbers([arm | {"bayes_accuracy": 0.9725}])
    assert nodes.rows[0][2] == "97.00 ± 0.17"
    assert nodes.title.endswith("over seeds; the Bayes classifier has 97.25 %")


def test_rows_of_both_tasks_ask_the_same_of_accuracies():
    """.3 points for 8 bits and 1 point beside large batches, after equal samples."""
    rows = [row for row in verdict_rows.ROWS if row.record in ("swarm", "swarm_gaussians")]
    twins = [row for row in rows if row.record == "swarm_gaussians"]
    assert len(twins) == 2
    made = made_up.arms(swarm, "task=gaussians")
    for row in twins:
        claim = row.claim.removeprefix("10,000 test samples: ")
        (of_digits,) = [other for other in rows if other.claim == claim]
        assert row.ask.keywords == of_digits.ask.keywords

    def asked(made, row):
        columns = ("name", "seeds", "samples", "test_accuracy", "test_accuracy_by_seed",
                   "test_samples")  # fmt: skip
        cells = [[arm.get(column) for column in columns] for arm in made]
        return premises.answer(row.ask, {"arms": {"columns": columns, "rows": cells}})

    for arm in made:
        arm["test_samples"] = 20_000
    few, large = twins
    found = asked(made, few)
    assert found.verdict == premises.HOLDS
    assert found.measured.startswith("swarm/H=2 90 ± 0 (test samples: ± 0.21) % against swarm/H=2")
    for broken in (made_up.unequal, made_up.one_seed, made_up.diverged, made_up.missing):
        assert {asked(broken(made), row).verdict for row in twins} == {premises.UNKNOWN}
    images = [arm | {"test_samples": 2_000} for arm in made]
    assert asked(images, few).measured == (
        "2,000 test samples leave the accuracy of swarm/H=2/8 bits a standard error of 0.67 "
        "points, and 0.3 are asked"
    )
    assert dict(swarm.claims(images))["8 bits cost at most .3 points of accuracy"].startswith(
        "cannot be told: 2,000 test samples leave the accuracy of swarm/H=2 a standard error"
    )
    assert asked(images, large).verdict == premises.HOLDS
    coarse = next(arm for arm in made if arm["name"] == "swarm/H=2/8 bits")
    coarse |= {"test_accuracy": 0.895, "test_accuracy_by_seed": [0.8945, 0.895, 0.8955]}
    assert asked(made, few).verdict == premises.FAILS
    assert asked(made, large).verdict == premises.HOLDS


@pytest.mark.slow
def test_a_sweep_tells_who_met_whom(tmp_path, capsys):
    """40 rows of two meetings; the slow node makes fewer rounds, but is met as often as any."""
    arms = [
        sweep.Arm(name, config_of(name, "delay=slow4", updates=updates, evaluate_every=2.0))
        for name, updates in (("dpsgd/ring", 4), ("swarm/H=2", 40))
    ]
    comparison.launch(arms, str(tmp_path), False, figures=swarm.figures)
    capsys.readouterr()
    arm_of = json.loads((tmp_path / "meetings.json").read_text())
    assert list(arm_of) == ["swarm/H=2"]
    met = arm_of["swarm/H=2"]
    assert sum(met["samples"]) == 80 * 2 * 8 and met["samples"][0] < min(met["samples"][1:])
    least, mean, most = met["meetings_of_a_pair"]
    assert 1 <= least <= mean <= most and mean * met["pairs"] == pytest.approx(80)
    assert 0 < met["copy_staleness_mean"] < met["copy_staleness_p99"] < 2.0
    with Image.open(tmp_path / "meetings.png") as image:
        assert image.format == "PNG" and image.size == (1500, 630)


@pytest.mark.slow
def test_many_nodes_learn(tmp_path):
    """256 nodes with five or six images each; one meeting of two steps for a quarter of them."""
    config = swarm.get_config("nodes=256,model=logistic")
    config = sweep.override(config, {
        "algorithm": "swarm", "updates": 2, "evaluate_every": 1.0, "optimizer.warmup_samples": 0,
    })  # fmt: skip
    summary = train.run(config, tmp_path)
    assert summary["samples"] == 2 * 32 * 2 * 8
    metrics = records.read_metrics(tmp_path)
    assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]
    assert metrics[-1]["consensus_distance"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("communication", ["network(latency=0.25, bandwidth=100.0)", 0.5])
def test_what_is_sent_again_has_its_seconds_in_the_records(communication, tmp_path):
    """A start-up a message and the bytes on a network, else half of an exchange a message."""
    task = "synthetic_logistic(samples=256, dimension=4)"
    config = config_of("swarm/H=2/8 bits", updates=20, communication=communication, task=task)
    config.optimizer.learning_rate = 200.0
    train.run(config, tmp_path)
    last = records.read_metrics(tmp_path)[-1]
    count, size = last["extra_messages_per_worker"], last["extra_bytes_per_worker"]
    assert count > 0 and size > 0
    seconds = 0.25 * count
    if communication != 0.5:
        seconds += size / 100.0
    assert last["extra_seconds_per_worker"] == pytest.approx(seconds)
    assert last["bytes_per_worker"] == last["planned_bytes_per_worker"] + size


@pytest.mark.slow
def test_a_figure_has_a_line_for_every_arm_of_the_sweep(tmp_path):
    """However many: colours come again with other dashes."""
    metrics = [{"samples": n, "consensus_distance": 1.0 / n} for n in (1, 2)]
    names = [name for name, _ in swarm.sweep()] + [f"more {n}" for n in range(20)]
    study._draw({name: metrics for name in names}, {}, tmp_path / "drawn.png")
    assert Image.open(tmp_path / "drawn.png").size[0] == 1500
