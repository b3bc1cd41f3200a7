"""One arm from its config to its records, and the refusal of what cannot run."""

import json
import pickle
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from algorithms import ALGORITHMS
from comms import topology
from configs import nonblocking, swarm
from experiments import (
    executors,
    optimizers,
    prepare,
    records,
    report,
    runtime_builders,
    sweep,
    tasks,
    train,
)
from experiments.tasks import data
from stragglers.rule import whole
from stragglers.rules import RULES
from tests import launcher
from tests.compilations import compilations
from tests.experiments.test_checkpoints import killed
from tests.refusals import sentence

TINY = {
    "name": "tiny",
    "task": "synthetic_logistic(samples=64, dimension=4)",
    "workers": 4,
    "batch_size": 4,
    "mini_batches": 2,
    "seconds": 1.0,
    "evaluate_every": 0.25,
    "delay": "persistent(law=jitter(mean=0.02, sigma=0.1), factors={0: 3.0})",
    "communication": 0.01,
    "target_loss": 0.6,
    "optimizer.learning_rate": 0.5,
}


def configured(**changes):
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return sweep.override(nonblocking.get_config(), TINY | dotted)


# --- refusals ---

DPSGD = {"algorithm": "dpsgd"}
MESH = {"runtime": "mesh"}
W = "[[0.5, 0.5], [0.5, 0.5]]"
# One row per kind of refusal.
BAD = [
    ({"wait": "quorum(k=1,leftovers=keep)"}, "unknown leftovers='keep'; choose one of carry, drop"),
    ({"wait": "barrier(leftovers=drop)"}, "barrier.*leftovers"),  # nobody is stopped
    ({"wait": "first_finisher(landing=some)"}, "unknown landing='some'; choose one of neighbours"),
    ({"wait": "neighbour_barrier"}, "got neither graph nor links; wait for adaptive_deadline, "),
    ({"wait": "random_pairs"}, "all_reduce cannot wait for random_pairs: nodes meet neighbours"),
    ({"mini_batches": [1, 2]}, "mini_batches lists 2 numbers for"),
    (DPSGD | {"graph": "edge_list(edges='links.csv')"}, "or take from_file(path='...')"),
    (DPSGD | {"graph": "from_file(path='none.graphml')"}, "none.graphml cannot be read as a graph"),
    (DPSGD | {"graph": "networkx:empty_graph"}, "graph 'networkx:empty_graph': the graph of 4"),
    (DPSGD | {"graph": "networkx:star_graph"}, "has 5 nodes but there are 4 workers; set config.w"),
    ({"algorithm": "dpsgd(mixing_matrix=weights(path='none.csv'))"}, "none.csv cannot be read as"),
    ({"algorithm": f"dpsgd(mixing_matrix={W})", "graph": "base_k", "workers": 2},
     "and this W would not be used; leave it out"),
    ({"task": "digits(model=mlp(hidden=3))"}, "model 'mlp': cannot use {'hidden': 3} ("),
    ({"task": "digits(model=mlp(hidden=(-1,)))"}, "the model cannot be built ("),
    ({"split": "dirichlet(alpha=0.0)"}, "dirichlet: alpha must be positive, got 0.0"),
    ({"delay": "none"}, "set config.delay, as to deterministic(value=1.0), or config.runtime=mesh"),
    ({"delay": "persistent(law=gama(shape=1, scale=1), factors=[1])"}, "unknown name 'gama'"),
    ({"delay": "lognormal(mu=9999, sigma=1)"}, "lognormal: needs a finite mu, got mu=9999"),
    ({"devices": 3}, "cannot shard 4 workers over 3 of "),
    (MESH | {"wait": "k_async(k=1)"}, "this rule does not or not with a trigger; wait for adaptiv"),
    (MESH | {"wait": "k_batch_sync(k=2)", "algorithm": "local_sgd"},
     "local steps of the second would begin where the first ended"),
    (MESH | {"draw": "batch"}, "unknown draw='batch'"),
]  # fmt: skip


def test_impossible_arms_are_refused_before_anything_is_compiled_or_written(tmp_path):
    compilations.clear()
    for changes, words in BAD:
        with sentence(words):
            train.run(configured(**changes), tmp_path / "run")
        assert not compilations and not (tmp_path / "run").exists(), words


def test_the_simulator_does_not_run_on_several_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="in one process, and there are 2; use runtime='mesh'"):
        prepare.prepare(configured())


def test_an_unknown_name_is_answered_with_known_ones_on_two_lines():
    for entry, known in {
        "algorithm": ALGORITHMS, "wait": RULES, "graph": topology.GRAPHS, "task": tasks.TASKS,
        "split": data.SPLITS, "delay": prepare.DELAYS, "optimizer": optimizers.TRANSFORMS,
        "runtime": runtime_builders.RUNTIMES,
    }.items():  # fmt: skip
        unknown = "nothing(learning_rate=1)" if entry == "optimizer" else "nothing"
        with pytest.raises(ValueError) as caught:
            prepare.prepare(configured(**DPSGD | {entry: unknown}))
        head = f"{entry}: unknown name 'nothing'; known names: "
        names, _, way_out = str(caught.value).partition(head)[2].partition("; ")
        names, _, more = names.removesuffix(", see --list").partition(" and ")
        shown, left = names.split(", "), int(more.removesuffix(" more") or 0)
        assert set(shown) <= set(known) and len(shown) + left == len(known)
        assert entry == "runtime" or way_out == "or bring your own as package.module:factory"
        assert len(str(caught.value)) < 250


# --- runs that train nothing ---


@pytest.mark.filterwarnings("error")
def test_a_run_that_trains_nothing_says_so_and_why(tmp_path):
    for number, (changes, words) in enumerate((
        ({"delay": "pareto(minimum=1.0, shape=0.02)"}, "no update was made in 1 s of first_fini"),
        ({"communication": 1e290}, "no update was made in 1 s of first_finisher with delay=pers"),
        ({"wait": "anytime(seconds=1e-8)", "updates": 5, "delay": "exponential(scale=0.3)"},
         "never moved in 5 updates: under anytime(seconds=1e-08)"),
        ({"algorithm": "ringleader", "wait": "k_sync(k=2)", "updates": 9},
         "never moved in 9 updates: worker 0 delivered in none of them under k_sync(k=2)"),
    )):  # fmt: skip
        summary = train.run(configured(**changes), tmp_path / f"{number}")
        assert words in summary["stopped"]
        assert summary["train_loss"] == pytest.approx(np.log(2), rel=1e-6)
        made = summary["updates"] > 0
        assert made == words.startswith("never") == (tmp_path / f"{number}/schedule.npz").exists()
        if not made:
            assert summary["samples"] == summary["bytes_per_worker"] == 0
            assert summary["idle_fraction"] is None and summary["staleness_mean"] is None


# --- runs ---


def test_records_of_a_run_agree_with_each_other(tmp_path):
    seen = []
    config = configured()
    compilations.clear()
    summary = train.run(config, tmp_path, on_record=seen.append)
    assert compilations  # what the test above counts is there to be counted
    metrics = records.read_metrics(tmp_path)
    assert metrics == seen and summary == records.read_summary(tmp_path)
    assert records.read_config(tmp_path / "config.json").to_dict() == config.to_dict()
    assert json.loads((tmp_path / "config.json").read_text())["wait"] == config.wait.to_dict()
    assert [record["seconds"] for record in metrics] == [0, 0.25, 0.5, 0.75, 1.0]
    for grows in ("update", "samples", "bytes_per_worker", "wall_seconds"):
        assert (np.diff([record[grows] for record in metrics]) > 0).all()
    last = launcher.metrics(tmp_path)[-1] | {"updates": metrics[-1]["update"]}
    last = {key: value for key, value in last.items() if not key.startswith("slow_")}
    del last["update"]
    assert {key: summary[key] for key in last} == last

    with np.load(tmp_path / "schedule.npz") as schedule:
        assert summary["updates"] == len(schedule["time"])
        assert summary["samples"] == 4 * schedule["batches"].sum()
        assert schedule["time"][-1] <= 1.0
    assert summary["clock"] == "virtual" and summary["workers"] == 4
    assert 0 < summary["idle_fraction"] < 1 and summary["staleness_mean"] == 0
    assert summary["stopped"] is None and "kept_long" not in summary  # samples cost nothing
    assert summary["train_loss"] < metrics[0]["train_loss"]
    # Ring all-reduce of 4 float32 among 4 workers: 2 (n - 1) / n times 16 bytes.
    assert summary["bytes_per_worker"] == 24 * summary["updates"]


def test_the_last_step_of_the_clock_ends_with_the_budget():
    """2.1 / 0.7 is more than 3 in floats."""
    for every, budget, at in ((0.25, 0.6, [0.25, 0.5, 0.6]), (0.7, 2.1, [0.7, 1.4, 2.1])):
        config = configured(evaluate_every=every, seconds=budget)
        last = train._evaluations(config)
        assert [train._until(config, number) for number in range(1, last + 1)] == at
    arm = object.__new__(train.Arm)  # whose clock has run far, past evaluations that are close
    arm._config, arm._evaluation = configured(evaluate_every=1e-6, seconds=1e6), 0
    for now, number in ((9e5, 900_000_000_000), (1e6, 10**12), (1e6 + 1, None)):
        arm.state = SimpleNamespace(seconds=now)
        assert arm._next() == number


def test_a_run_that_diverges_ends_early_and_says_null(tmp_path):
    changes = {"task": "synthetic_quadratic(samples=64, dimension=4)", "workers": 2}
    summary = train.run(configured(optimizer__learning_rate=1e9, **changes), tmp_path)
    assert summary["train_loss"] is None and summary["seconds_to_target"] is None
    assert summary["seconds"] < 1
    expected = f"training loss is not finite at update {summary['updates']}, {summary['seconds']} s"
    assert summary["stopped"] == expected
    assert records.read_metrics(tmp_path)[-1]["train_loss"] is None
    assert summary["test_accuracy"] is None and summary["test_samples"] is None  # no prediction


def test_the_trained_model_is_the_one_that_was_evaluated_and_a_replay_trains_it_again(tmp_path):
    config = configured(**DPSGD, wait="quorum(k=5)")
    summary = train.run(config, tmp_path / "first")
    with np.load(tmp_path / "first" / "parameters.npz") as model:
        expected = tasks.evaluate(tasks.build(config.task), model["params"])
    assert {name: summary[name] for name in expected} == expected
    assert summary["test_samples"] == tasks.tested(tasks.build(config.task)) > 0
    assert summary["consensus_distance"] > 0  # of workers that differ
    _, distance = train._mean_and_spread({"w": np.float16([[0], [600]])})
    assert distance == 300**2  # beyond the largest float16
    assert summary["test_accuracy_worst_worker"] <= summary["test_accuracy_best_worker"]

    replay = DPSGD | {"wait": f"replay(path={str(tmp_path / 'first' / 'schedule.npz')!r})"}
    replayed = train.run(configured(**replay), tmp_path / "replayed")
    same = set(summary) - {"wait", "wall_seconds"}
    assert {key: summary[key] for key in same} == {key: replayed[key] for key in same}
    with pytest.raises(ValueError, match=r"has 4 workers, the config asks for 2; set config.work"):
        train.run(configured(**replay, workers=2), tmp_path / "other")


def test_the_final_loss_is_the_mean_over_the_last_tenth():
    losses = [8.0] * 18 + [1.0, 2.0]
    assert train._tail_mean(losses) == 1.5 and train._tail_mean(losses[:19]) == 1.0
    assert train._tail_mean([*losses, None]) is None


def test_the_worst_and_the_best_worker_are_those_of_single_models():
    task = tasks.build(TINY["task"])
    params = jax.tree.map(np.ones_like, task.init(jax.random.key(0)))
    models = jax.tree.map(lambda a: np.stack([a, -a, 0.5 * a]), params)
    each = [tasks.evaluate(task, jax.tree.map(lambda a, i=i: a[i], models)) for i in range(3)]
    accuracies = [one["test_accuracy"] for one in each]
    assert tasks.worker_accuracy(task, models) == {
        "test_accuracy_worst_worker": pytest.approx(min(accuracies)),
        "test_accuracy_best_worker": pytest.approx(max(accuracies)),
    }
    assert min(accuracies) < max(accuracies)


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["all_reduce(collective=ring)", "dpsgd"])
def test_one_worker_alone_can_train(tmp_path, algorithm):
    changes = {"workers": 1, "delay": "exponential(scale=0.02)", "wait": "barrier"}
    summary = train.run(configured(algorithm=algorithm, updates=3, **changes), tmp_path)
    assert summary["updates"] == 3 and summary["consensus_distance"] == 0
    assert summary["seconds"] < 1  # updates are a budget, too


def test_a_replay_ends_with_its_schedule(tmp_path):
    """With the first evaluation before which nothing has landed."""
    first = train.run(configured(updates=6), tmp_path / "first")
    wait = f"replay(path={str(tmp_path / 'first' / 'schedule.npz')!r})"
    train.run(configured(wait=wait, seconds=50.0), tmp_path / "replayed")
    metrics = records.read_metrics(tmp_path / "replayed")
    updates = [record["update"] for record in metrics]
    assert updates[-3] < updates[-2] == updates[-1] == 6
    assert metrics[-2]["seconds"] >= first["seconds"] > metrics[-3]["seconds"]


LENGTHS = {
    "task": "uneven_lengths(samples=200, dimension=2)", "batch_size": 1, "mini_batches": 2,
    "delay": "deterministic(value=0.01)", "communication": 0.0, "target_loss": None,
    "optimizer.learning_rate": 0.02, "sample_cost": "packed",
}  # fmt: skip


def with_lengths(**changes):
    return configured(**LENGTHS | changes)


def test_a_run_says_which_samples_it_has_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "PILOTED", 1000)
    waits = train.run(with_lengths(wait="barrier"), tmp_path / "waits")
    dropped = train.run(with_lengths(wait="k_sync(k=2)"), tmp_path / "drops")
    assert waits["kept_long"] == waits["kept_short"] == 1.0
    assert dropped["kept_long"] < dropped["kept_short"] - 0.2 and dropped["kept_cost"] < 0.97
    assert len(dropped["kept_by_tenth"]) == 10
    assert dropped["train_loss_long"] > waits["train_loss_long"]
    weighted = train.run(with_lengths(wait="k_sync(k=2)", sample_weight="kept"), tmp_path / "w")
    assert weighted["train_loss_long"] < dropped["train_loss_long"]
    assert weighted["kept_by_tenth"] == dropped["kept_by_tenth"]
    assert 0.5 < weighted["effective_share"] < 1 and "effective_share" not in dropped


def test_weights_are_of_one_arm_alone(monkeypatch):
    """Neither another arm that gets its task nor an evaluation sees them."""
    monkeypatch.setattr(prepare, "PILOTED", 1000)
    dropping = with_lengths(wait="k_sync(k=2)")
    config = sweep.override(dropping, {"sample_weight": "kept"})
    made = prepare.prepare(config)
    weight = made.task.train.weight
    assert np.corrcoef(weight, made.task.cost)[0, 1] > 0.5
    again = prepare.prepare(config, made.task).task
    np.testing.assert_array_equal(again.train.weight, weight)
    other = prepare.prepare(sweep.override(config, {"wait": "k_sync(k=3)"}), made.task).task
    assert np.ptp(other.train.weight) < np.ptp(weight)
    plain = prepare.prepare(dropping, made.task).task
    assert plain is made.task.plain and plain.plain is None
    params = plain.init(jax.random.key(1))
    assert tasks.evaluate(made.task, params) == tasks.evaluate(plain, params)
    batch = tasks.take(made.task.train, slice(8))
    expected = weight[:8] * plain.losses(params, tasks.take(plain.train, slice(8)))
    np.testing.assert_allclose(made.task.losses(params, batch), expected, rtol=1e-6)
    assert prepare.alike(config) is None and prepare.alike(dropping) is not None


def test_balanced_rounds_end_sooner():
    ends = []
    for balance in (False, True):
        config = with_lengths(wait="barrier", balance=balance)
        rule = prepare.rule(config, prepare.prepare(config))
        ends.append(whole(rule, 30).time[-1])
    assert ends[1] < ends[0]


def test_entries_that_few_configs_have_are_checked(monkeypatch):
    monkeypatch.setattr(prepare, "PILOTED", 100)
    real = swarm.VARIANTS["real"].get_config()
    for config, changes, words in (
        (real, {"actors.restore": "nobody"}, "must be 'neighbour' or 'checkpoint', got"),
        (real, {"algorithm": "all_reduce", "wait": "k_async(k=1)"},
         "config.actors.restore is for methods with a model per worker"),
        (real, {"actors.least_workers": 0}, "least_workers must be a positive whole number"),
        (with_lengths(), {"task": TINY["task"]}, "have no costs; leave sample_cost out"),
        (with_lengths(), {"delay": "by_sample(law=exponential(scale=0.01))"},
         "belong to samples already"),
        (with_lengths(), {"sample_cost": "longest"}, "must be 'packed', 'padded' or None"),
        (with_lengths(), {"sample_weight": "cost"}, "must be 'kept', '' or None, got 'cost'"),
        (with_lengths(), {"sample_weight": "kept", "sample_cost": None}, "set config.sample_cost"),
        (with_lengths(), {"sample_weight": "kept", "wait": "adasync(protocol=k_sync, interval=1)"},
         "adasync follows the training loss"),
        (with_lengths(), {"sample_weight": "kept", "mini_batches": 1,
                          "wait": "deadline(seconds=0.013, leftovers=drop, in_flight=cut)"},
         "no weight makes up for what is never kept"),
        (with_lengths(), {"balance": True, "mini_batches": [1, 2, 1, 1], "wait": "k_sync(k=2)"},
         "one number of"),
        (configured(), {"overlap": "thread"}, "must be 'none', 'threads' or 'program'"),
        (configured(), {"overlap": "threads"},
         "config.overlap='threads' are for devices of a mesh; use runtime='mesh'"),
    ):  # fmt: skip
        with sentence(words):
            prepare.prepare(sweep.override(config, changes))


def test_a_worker_in_another_process_reads_numbers_as_keys():
    falls = "piecewise_constant_schedule(boundaries_and_scales={9: 0.5})"
    rate = f"sgd(learning_rate=0.1, schedule={falls})"
    config = sweep.override(swarm.VARIANTS["real"].get_config(), {"optimizer": rate})
    recipe = pickle.loads(pickle.dumps(prepare.prepare(config).runtime._recipe))
    assert recipe().rule.workers == config.workers


def test_a_run_names_its_slow_worker_also_after_a_cut(tmp_path, capsys):
    delay = "persistent(law=jitter(mean=0.02, sigma=0.05), factors={2: 1.5})"
    lengths = {"seconds": 4.0, "evaluate_every": 0.5}
    changed = configured(wait="k_async(k=1)", delay=delay, algorithm="all_reduce", **lengths)
    shown = executors.Shown(1).arm(changed)
    train.run(changed, tmp_path / "whole", on_record=shown.on_record)
    shown.ended(None)
    assert "worker 2 takes 1.5x, persistent" in capsys.readouterr().out
    lines = launcher.metrics(tmp_path / "whole")
    assert "slow_worker" not in lines[0]
    assert (lines[-1]["slow_worker"], lines[-1]["slow_persistent"]) == (2, True)
    summary = records.read_summary(tmp_path / "whole")
    assert not {"slow_worker", "slow_factor", "slow_persistent"} & set(summary)

    killed(changed, tmp_path / "cut", 6)
    assert "worker 2 takes 1.5x" in report._state(tmp_path / "cut")
    train.run(changed, tmp_path / "cut")
    assert launcher.metrics(tmp_path / "cut") == lines
