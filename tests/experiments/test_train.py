import json
import re

import jax
import numpy as np
import pytest

from algorithms import ALGORITHMS
from comms import topology
from configs import nonblocking, swarm
from experiments import (
    optimizers,
    prepare,
    records,
    runtime_builders,
    sweep,
    tasks,
    train,
    training_loop,
)
from experiments.tasks import data
from stragglers.rules import RULES

compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
)

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


def but_for_wall_time(record):
    return {key: value for key, value in record.items() if key != "wall_seconds"}


# --- what cannot run ---

DPSGD = {"algorithm": "dpsgd"}
MESH = {"runtime": "mesh"}
CUT = "deadline(seconds=0.5, in_flight=cut)"
BAD = [
    ({"algorithm": "alreduce"}, "algorithm: unknown name 'alreduce'; did you mean 'all_reduce'?"),
    ({"algorithm": "all_reduce(colective=ring)"}, "'colective'; did you mean 'collective'?"),
    ({"algorithm": "all_reduce(collective=rings)"}, "unknown choice 'rings'; known choices: psum"),
    ({"algorithm": "local_sgd(server_momentum=x)"}, "'server_momentum' must be a number, got 'x'"),
    ({"algorithm": "all_reduce("}, "cannot read the part 'all_reduce(': '(' was never closed"),
    ({"wait": "bariers"}, "wait: unknown name 'bariers'; did you mean 'barrier'?"),
    ({"wait": "deadline"}, "wait 'deadline': parameter 'seconds' is missing; write deadline(sec"),
    ({"wait": "deadline(second=1)"}, "unknown parameter 'second'; did you mean 'seconds'?"),
    ({"wait": "deadline(seconds=0)"}, "deadline: needs seconds > 0, got 0"),
    ({"wait": "deadline(seconds=soon)"}, "'seconds' must be a number, got 'soon'"),
    ({"wait": CUT, "delay": "deterministic(value=1)"}, "cuts every mini-batch, the quickest takes"),
    ({"wait": "quorum(k=0)"}, "quorum: needs 1 <= k <= 8 (workers x mini-batches), got k=0"),
    ({"wait": "quorum(k=9)"}, "got k=9; choose k in this range"),
    ({"wait": "quorum(k=2.5)"}, "'k' must be a whole number, got 2.5"),
    ({"wait": "barrier(leftovers=keep)"}, "unknown leftovers='keep'; choose one of carry, drop"),
    ({"wait": "barrier(in_flight=stop)"}, "unknown in_flight='stop'; choose one of finish, cut"),
    ({"wait": "first_finisher(landing=some)"}, "unknown landing='some'; choose one of neighbours"),
    ({"wait": "neighbour_barrier"}, "got neither graph nor links; wait for adaptive_deadline, "),
    ({"wait": "replay"}, "parameter 'path' is missing"),
    ({"wait": "replay(path='none.npz')"}, "load: none.npz holds no schedule ("),
    (DPSGD | {"graph": "rings"}, "graph: unknown name 'rings'; did you mean 'ring'?"),
    (DPSGD | {"graph": "geometric(radius=0.1)"}, "parameter 'seed' is missing"),
    (DPSGD | {"graph": "geometric(radius=1e-6, seed=0)"}, "4 workers falls into 4 components"),
    (DPSGD | {"graph": "edge_list(edges=[(0, 1), (2, 3)])"}, "falls into 2 components"),
    (DPSGD | {"graph": "edge_list(edges=[(0, 4)])"}, "does not link two of the workers 0..3"),
    (DPSGD | {"graph": "edge_list(edges=3)"}, "edge_list: edges must be pairs of workers, got 3;"),
    (DPSGD | {"graph": "edge_list(edges='links.csv')"}, "or take from_file(path='...')"),
    (
        DPSGD | {"graph": "from_file(path='none.graphml')"},
        "none.graphml cannot be read as a graph (",
    ),
    (DPSGD | {"graph": "links.graphml"}, "stands in a parameter, as in name(path='links.graphml')"),
    ({"algorithm": "dpsgd(mixing_matrix=weights)"}, "'path' is missing; write weights(path=...)"),
    (
        {"algorithm": "dpsgd(mixing_matrix=weights(path='none.csv'))"},
        "none.csv cannot be read as a",
    ),
    ({"algorithm": "dpsgd(mixing_matrix=[[0.5, 0.5], [0.5, 0.5]])"}, "W is for 2 workers, but the"),
    (
        {
            "algorithm": "dpsgd(mixing_matrix=[[0.5,0.5],[0.5,0.5]])",
            "graph": "base_k",
            "workers": 2,
        },
        "and this W would not be used; leave it out",
    ),
    ({"delay": "none"}, "set config.delay, as to deterministic(value=1.0), or config.runtime=mesh"),
    ({"wait": "random_pairs"}, "all_reduce cannot wait for random_pairs: nodes meet neighbours"),
    ({"wait": "k_sync(6)"}, "6 has no name, write k_sync(parameter=6), as --list names it"),
    (
        {"delay": "trace(path=/data/x.csv)"},
        "a path has quotes inside of the part, path='/data/x.csv'",
    ),
    ({"task": "images(source=npy(folder=~/x))"}, "quotes inside of the part, folder='~/x'"),
    (DPSGD | {"graph": "erdos_renyi(probability=0.0, seed=0)"}, "falls into 4 components"),
    (DPSGD | {"graph": "hypercube", "workers": 6}, "hypercube: needs a power of two, got n=6"),
    (
        DPSGD | {"graph": "networkx:empty_graph"},
        "graph 'networkx:empty_graph': the graph of 4 work",
    ),
    (DPSGD | {"graph": "networkx:star_graph"}, "has 5 nodes but there are 4 workers; set config.w"),
    ({"algorithm": "decentlam", "graph": "base_k", "workers": 8}, "set momentum to "),
    ({"task": "digit(model=mlp)"}, "task: unknown name 'digit'; did you mean 'digits'?"),
    ({"task": "digits"}, "task 'digits': parameter 'model' is missing"),
    ({"task": "digits(model=mpl)"}, "model: unknown name 'mpl'; known names: "),
    ({"task": "digits(model=mlp(width=3))"}, "model 'mlp': unknown parameter 'width'"),
    ({"task": "digits(model=mlp(hidden=3))"}, "model 'mlp': cannot use {'hidden': 3} ("),
    ({"task": "digits(model=mlp(hidden=(-1,)))"}, "the model cannot be built ("),
    ({"task": "digits(model=mlp, l2=x)"}, "'l2' must be a number, got 'x'"),
    ({"split": "idd"}, "split: unknown name 'idd'; known names: "),
    ({"split": "dirichlet"}, "parameter 'alpha' is missing"),
    ({"split": "dirichlet(alpha=0.0)"}, "dirichlet: alpha must be positive, got 0.0"),
    ({"workers": 65}, "cannot share 64 samples among workers=65; set workers between 1 and 64"),
    ({"optimizer__name": "sdg"}, "optimizer: unknown name 'sdg'; known names: "),
    ({"optimizer__learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
    ({"optimizer__learning_rate": "x"}, "learning_rate must be a number, got 'x'"),
    ({"optimizer__decay": "x"}, "'decay' must be a number, got 'x'"),
    (
        {"delay": "expo"},
        "delay: unknown name 'expo'; known names: ",
    ),
    ({"delay": "exponential"}, "delay 'exponential': parameter 'scale' is missing"),
    ({"delay": "exponential(scale=0)"}, "exponential: needs scale > 0, got scale=0"),
    ({"delay": "deterministic(value=-1)"}, "deterministic: needs value > 0, got value=-1"),
    ({"delay": "exponential(scale=slow)"}, "'scale' must be a number, got 'slow'"),
    ({"delay": "persistent(law=gama(shape=1, scale=1), factors=[1])"}, "unknown name 'gama'"),
    ({"delay": "persistent(law=jitter, factors=[1])"}, "delay 'jitter': parameter 'mean' is miss"),
    ({"delay": "persistent(law=exponential(scale=1), factors=2)"}, "cannot use {"),
    ({"delay": "persistent(law=exponential(scale=1), factors=[1, 2])"}, "2 factors, but worker 3"),
    ({"delay": "persistent(law=exponential(scale=1), factors={0: 0})"}, "needs positive factors"),
    ({"delay": "trace(path='none.csv')"}, "trace: cannot read none.csv ("),
    ({"delay": "lognormal(mu=9999, sigma=1)"}, "delay 'lognormal': cannot use {"),
    ({"draw": "batch"}, "unknown draw='batch'; choose one of mini_batch, round"),
    ({"devices": 3}, "cannot shard 4 workers over 3 of "),
    ({"devices": 16, "workers": 16}, "cannot shard 16 workers over 16 of 8 devices"),
    ({"runtime": "simulated"}, "runtime: unknown name 'simulated'; did you mean 'simulate'?"),
    (MESH | {"workers": 9}, "there are 8 devices but config.workers=9; set config.workers=8"),
    (MESH | {"wait": "k_async(k=1)"}, "this rule does not or not with a trigger; wait for adaptiv"),
    (MESH | {"wait": "k_sync"}, "wait 'k_sync': parameter 'k' is missing"),
    (
        MESH | {"wait": "k_batch_sync(k=2)", "algorithm": "local_sgd"},
        "local steps of the second would begin where the first ended",
    ),
    ({"wait": "k_sync(k=2)", "mini_batches": [1, 2, 3]}, "lists 3 numbers for"),
    ({"mini_batches": [1, 2]}, "mini_batches lists 2 numbers for"),
    ({"mini_batches": []}, "config.mini_batches must be a positive whole number, or one per"),
    (MESH | {"wait": "quorum(k=9)"}, "got k=9; choose k in this range"),
    (MESH | {"wait": "deadline(seconds=-1)"}, "deadline: needs seconds > 0, got -1"),
    (MESH | {"wait": "barrier(leftovers=keep)"}, "unknown leftovers='keep'"),
    (MESH | {"draw": "batch"}, "unknown draw='batch'"),
    (MESH | {"delay": "expo"}, "delay: unknown name 'expo'"),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_what_cannot_run_is_refused_before_anything_is_compiled_or_written(
    tmp_path, changes, words
):
    compilations.clear()
    with pytest.raises(ValueError) as caught:
        train.run(configured(**changes), tmp_path / "run")
    assert words in str(caught.value)
    assert not compilations
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actors.restore": "nobody"}, "actors.restore must be 'neighbour' or 'checkpoint', got"),
        (
            {"algorithm": "all_reduce", "wait": "k_async(k=1)"},
            "config.actors.restore is for methods with a model per worker",
        ),
        ({"actors.least_workers": 0}, "actors.least_workers must be a positive whole number"),
    ],
)
def test_what_happens_to_a_node_that_has_gone_is_checked(changes, words):
    with pytest.raises(ValueError) as caught:
        prepare.prepare(sweep.override(swarm.VARIANTS["real"].get_config(), changes))
    assert words in str(caught.value)


def test_the_simulator_does_not_run_on_several_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="in one process, and there are 2; use runtime='mesh'"):
        prepare.prepare(configured())


@pytest.mark.parametrize(
    ("entry", "known"),
    [
        ("algorithm", ALGORITHMS),
        ("wait", RULES),
        ("graph", topology.GRAPHS),
        ("task", tasks.TASKS),
        ("split", data.SPLITS),
        ("delay", prepare.DELAYS),
        ("optimizer", optimizers.TRANSFORMS),
        ("runtime", runtime_builders.RUNTIMES),
    ],
)
def test_an_unknown_name_is_answered_with_known_ones_on_two_lines(entry, known):
    unknown = "nothing(learning_rate=1)" if entry == "optimizer" else "nothing"
    with pytest.raises(ValueError) as caught:
        prepare.prepare(configured(**DPSGD | {entry: unknown}))
    _, _, listed = str(caught.value).partition(f"{entry}: unknown name 'nothing'; known names: ")
    names, _, way_out = listed.partition("; ")
    names, _, more = names.removesuffix(", see --list").partition(" and ")
    shown, left = names.split(", "), int(more.removesuffix(" more") or 0)
    assert set(shown) <= set(known) and len(shown) + left == len(known)
    assert entry == "runtime" or way_out == "or bring your own as package.module:factory"
    assert len(str(caught.value)) < 250


# --- what trains nothing ---


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delay": "pareto(minimum=1.0, shape=0.02)"}, "no update was made in 1 s of first_fini"),
        ({"delay": "deterministic(value=3e299)"}, "no update was made in 1 s"),
        ({"communication": 1e290}, "no update was made in 1 s of first_finisher with delay=pers"),
        (
            {"wait": "anytime(seconds=1e-8)", "updates": 5, "delay": "exponential(scale=0.3)"},
            "never moved in 5 updates: under anytime(seconds=1e-08) .* no mini-batch was finished",
        ),
        (
            {"algorithm": "ringleader", "wait": "k_sync(k=2)", "updates": 9},
            "never moved in 9 updates: worker 0 delivered in none of them under k_sync(k=2)",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_run_that_trains_nothing_says_so_and_why(tmp_path, changes, words):
    summary = train.run(configured(**changes), tmp_path)
    assert re.search(words.replace("(", r"\(").replace(")", r"\)"), summary["stopped"])


@pytest.mark.slow
def test_a_mesh_whose_rounds_are_too_short_says_so(tmp_path):
    short = {"wait": "anytime(seconds=1e-7)", "updates": 3, "delay": "exponential(scale=0.1)"}
    summary = train.run(configured(runtime="mesh", **short), tmp_path)
    assert "never moved in 3 updates" in summary["stopped"]


# --- what runs ---


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
    last = but_for_wall_time(metrics[-1]) | {"updates": metrics[-1]["update"]}
    del last["update"]
    assert {key: summary[key] for key in last} == last

    with np.load(tmp_path / "schedule.npz") as schedule:
        assert summary["updates"] == len(schedule["time"])
        assert summary["samples"] == 4 * schedule["batches"].sum()
        assert schedule["time"][-1] <= 1.0
    assert summary["clock"] == "virtual" and summary["workers"] == 4
    assert 0 < summary["idle_fraction"] < 1 and summary["staleness_mean"] == 0
    assert summary["stopped"] is None
    assert summary["train_loss"] < metrics[0]["train_loss"]
    # Ring all-reduce of 4 float32 among 4 workers: 2 (n - 1) / n times 16 bytes.
    assert summary["bytes_per_worker"] == 24 * summary["updates"]


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(tmp_path):
    def numbers(place, **changes):
        train.run(configured(**changes), tmp_path / place)
        return [*map(but_for_wall_time, records.read_metrics(tmp_path / place))]

    first = numbers("first")
    assert numbers("second") == first
    assert numbers("third", seed=1) != first


def test_a_finished_run_is_not_run_again(tmp_path):
    first = train.run(configured(), tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert train.run(configured(), tmp_path, on_record=pytest.fail) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    again = train.run(configured(), tmp_path, overwrite=True)
    assert again["wall_seconds"] != first["wall_seconds"]
    assert but_for_wall_time(again) == but_for_wall_time(first)


def test_updates_are_a_budget_too(tmp_path):
    summary = train.run(configured(updates=3), tmp_path)
    assert summary["updates"] == 3 and summary["seconds"] < 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("every", "budget", "at"),
    [(0.25, 0.6, [0, 0.25, 0.5, 0.6]), (0.7, 2.1, [0, 0.7, 1.4, 2.1]), (3.0, 0.2, [0, 0.2])],
)
def test_the_last_step_of_the_clock_ends_with_the_budget(tmp_path, every, budget, at):
    train.run(configured(evaluate_every=every, seconds=budget), tmp_path)
    seconds = [record["seconds"] for record in records.read_metrics(tmp_path)]
    assert seconds == at  # 2.1 / 0.7 is more than 3 in floats


def test_a_clock_too_short_for_an_update_leaves_the_model_as_it_was(tmp_path):
    summary = train.run(configured(seconds=0.001), tmp_path)
    assert summary["updates"] == summary["samples"] == summary["bytes_per_worker"] == 0
    assert summary["idle_fraction"] is None and summary["staleness_mean"] is None
    assert summary["train_loss"] == pytest.approx(np.log(2), rel=1e-6)
    assert not (tmp_path / "schedule.npz").exists()


def test_a_run_that_diverges_ends_early_and_says_null(tmp_path):
    changes = {"task": "synthetic_quadratic(samples=64, dimension=4)", "workers": 2}
    summary = train.run(configured(optimizer__learning_rate=1e9, **changes), tmp_path)
    assert summary["train_loss"] is None and summary["seconds_to_target"] is None
    assert summary["seconds"] < 1
    expected = f"training loss is not finite at update {summary['updates']}, {summary['seconds']} s"
    assert summary["stopped"] == expected
    assert records.read_metrics(tmp_path)[-1]["train_loss"] is None
    assert summary["test_accuracy"] is None and summary["test_samples"] is None  # no prediction


def test_the_trained_model_is_the_one_that_was_evaluated(tmp_path):
    config = configured(algorithm="dpsgd", wait="neighbour_barrier")
    summary = train.run(config, tmp_path)
    with np.load(tmp_path / "parameters.npz") as model:
        expected = tasks.evaluate(tasks.build(config.task), model["params"])
    assert {name: summary[name] for name in expected} == expected
    assert summary["test_samples"] == tasks.tested(tasks.build(config.task)) > 0


def test_the_distance_of_models_in_short_floats_does_not_overflow():
    _, distance = training_loop._mean_and_spread({"w": np.float16([[0], [600]])})
    assert distance == 300**2


def test_gossip_has_a_consensus_distance_and_workers_that_differ(tmp_path):
    summary = train.run(configured(algorithm="dpsgd", wait="neighbour_barrier"), tmp_path)
    assert summary["consensus_distance"] > 0
    assert summary["test_accuracy_worst_worker"] <= summary["test_accuracy_best_worker"]


def test_the_final_loss_is_the_mean_over_the_last_tenth():
    losses = [8.0] * 18 + [1.0, 2.0]
    assert training_loop._tail_mean(losses) == 1.5 and training_loop._tail_mean(losses[:19]) == 1.0
    assert training_loop._tail_mean([*losses, None]) is None


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
@pytest.mark.parametrize("algorithm", ["all_reduce(collective=ring)", "dpsgd", "local_sgd"])
def test_one_worker_alone_can_train(tmp_path, algorithm):
    changes = {"workers": 1, "delay": "exponential(scale=0.02)", "wait": "barrier"}
    summary = train.run(configured(algorithm=algorithm, **changes), tmp_path)
    assert summary["updates"] > 0 and summary["consensus_distance"] == 0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("algorithm", "wait"),
    [
        ("all_reduce", "first_finisher"),
        ("dpsgd", "quorum(k=5)"),
        ("local_sgd", "deadline(seconds=0.05)"),
    ],
)
def test_a_replayed_schedule_gives_the_same_parameters(tmp_path, algorithm, wait):
    first = train.run(configured(algorithm=algorithm, wait=wait), tmp_path / "first")
    path = str(tmp_path / "first" / "schedule.npz")
    replayed = train.run(
        configured(algorithm=algorithm, wait=f"replay(path={path!r})"), tmp_path / "replayed"
    )
    same = set(first) - {"wait", "wall_seconds"}
    assert {key: first[key] for key in same} == {key: replayed[key] for key in same}


def test_a_replay_ends_with_its_schedule(tmp_path):
    """With the first evaluation before which nothing has landed."""
    first = train.run(configured(updates=6), tmp_path / "first")
    wait = f"replay(path={str(tmp_path / 'first' / 'schedule.npz')!r})"
    train.run(configured(wait=wait, seconds=50.0), tmp_path / "replayed")
    metrics = records.read_metrics(tmp_path / "replayed")
    updates = [record["update"] for record in metrics]
    assert updates[-3] < updates[-2] == updates[-1] == 6
    assert metrics[-2]["seconds"] >= first["seconds"] > metrics[-3]["seconds"]


def test_a_replay_of_other_workers_is_refused(tmp_path):
    train.run(configured(updates=2), tmp_path / "first")
    wait = f"replay(path={str(tmp_path / 'first' / 'schedule.npz')!r})"
    with pytest.raises(ValueError, match=r"has 4 workers, the config asks for 2; set config.work"):
        train.run(configured(wait=wait, workers=2), tmp_path / "replayed")
