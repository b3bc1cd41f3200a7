import pytest

from configs import swarm
from experiments import prepare, records, sweep, train
from experiments.registry import part

ARMS = dict(swarm.sweep())


def config_of(arm, argument=None, **changes):
    return sweep.override(swarm.get_config(argument), ARMS[arm] | {"name": arm} | changes)


def test_every_arm_can_run():
    other = dict.fromkeys(["swarm/H=4"], "graph=hypercube,split=dirichlet,delay=slow4")
    for name, argument in (*dict.fromkeys(ARMS, "").items(), *other.items()):
        config = config_of(name, argument)
        algorithm = prepare.prepare(config).algorithm
        assert algorithm.graph is None or algorithm.graph.number_of_nodes() == config.workers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all_reduce", "swarm/H=2/blocking"])
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
        ("delay=none", "unknown delay 'none'; known delays: equal, slow4"),
        ("split=even", "unknown split 'even'; known splits: iid, dirichlet"),
        ("task=mnist", "unknown task 'mnist'; known tasks: digits, gaussians"),
        ("width=3", "known arguments: nodes, graph"),
        ("nodes=12", "nodes must be a multiple of 8, got 12"),
        ("nodes=0", "nodes must be a multiple of 8, got 0"),
        ("graph=star", "all meetings share a few nodes"),
    ],
)
def test_bad_arguments_are_refused(argument, words):
    with pytest.raises(ValueError, match=words):
        swarm.get_config(argument)


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
@pytest.mark.parametrize("method", ["all_reduce", "swarm/H=1", "swarm/H=4"])
def test_arms_of_a_length_see_equal_samples_under_a_rate_that_falls_over_them(method, tmp_path):
    epochs = swarm.VARIANTS["epochs"]
    config, length = epochs.get_config(), swarm.LENGTHS[0]
    name = f"{method}/batches={length}"
    changes = dict(epochs.sweep(config))[name]
    own = {"name": name, "task": "synthetic_logistic(samples=256, dimension=4)"}
    summary = train.run(sweep.override(config, changes | own), tmp_path)
    samples = 16 * 8 * length
    assert summary["samples"] == pytest.approx(samples, rel=0.01)
    assert changes["optimizer.schedule"].samples == samples
