"""Every block of the documentation and every cell of the tour runs; names are real."""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import pathlib
import re
import shlex
import sys
from unittest import mock

import jax
import numpy as np
import pytest
import yaml
from absl import flags
from ray.scripts.scripts import cli as ray_commands

import algorithms
from experiments import distributed, executors, profiling, runtime_builders, slurm
from experiments.advice import play
from runtimes import simulate
from runtimes.asynchronous import pool
from stragglers import rules
from tests import launcher
from tests.algorithms import test_contract as of_methods
from tests.launcher import ROOT
from tests.marks import slow_but
from tests.stragglers import test_contract as of_rules

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [page for page in PAGES if page.name != "library.md"]  # run by the installed library
QUICK = [ROOT / "docs" / "rule.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
# Commands are checked as they stand, with all of their arms. Those whose records another command
# reads are run as well, in this form, as they would take seconds to minutes.
TINY = ("--config.task=synthetic_logistic(samples=256, dimension=8)", "--config.updates=2")
# What the examples add a method or a rule to.
REGISTRIES = (algorithms.ALGORITHMS, of_methods.METHODS, rules.RULES, of_rules.ROWS)
PLAYED = ("barrier", "first_finisher", "k_async")  # of all rules that an advice plays
# Programs that start ours, here or elsewhere.
STARTERS = ("srun", "mpirun", "gcloud", "ray")
# Of commands that were checked: [--arm=PATH], or [] of one that trains nothing. Pages repeat some.
first_arm = {}


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    """Run the words of a command in an empty directory that has the configs and the examples."""
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    rows = [f"{worker},{time},{1 + worker}" for worker in range(10) for time in range(9)]
    (tmp_path / "job_1_norm.csv").write_text("\n".join(["worker,time,batch_time_norm", *rows]))
    monkeypatch.setattr(profiling, "measure", made_up_profile)
    monkeypatch.setattr(play, "noise_ratio", lambda *_: 1.0)
    monkeypatch.setattr(play, "ROUNDS", 4)  # of a minute's work; what they say is not read
    monkeypatch.setattr(play, "REPEATS", 1)
    variants = play.variants
    monkeypatch.setattr(play, "variants", lambda wait, grids: (
        variants(wait, grids)[:1] if wait["name"] in PLAYED else []))  # fmt: skip
    call = launcher.caller(monkeypatch, capsys)
    monkeypatch.setattr(distributed, "initialize", join_nobody)
    monkeypatch.setattr(pool.SESSION, "join", lambda address: None)
    simulated = runtime_builders.RUNTIMES["simulate"]
    simulated = simulated._replace(cluster=True)  # at once, without processes
    monkeypatch.setitem(runtime_builders.RUNTIMES, "actors", simulated)
    monkeypatch.setattr(simulate.Simulator, "check_room", lambda *_: None, raising=False)
    arms = {}  # by their workdirs: the words of a command that runs one of them

    def launched(words):
        value = dict(word.partition("=")[::2] for word in words)
        for place in [place for place in arms if re.search(rf"{place}(?!\w)", shlex.join(words))]:
            started(arms.pop(place), *TINY)  # what it leaves is read by this command
        if value.keys() & {"--report", "--advise"}:
            started(words)
            return
        if "--dry_run" in value:  # of any size; a small one has a test of its own
            kept = (word for word in words if word != "--dry_run")
            started([*kept, "--workdir=runs/dry"], "--seeds=1", "--print_commands")
            return
        if "--slurm" in value:
            slurm.options(value["--slurm"])
        given = shlex.join(word for word in words if not word.startswith("--workdir="))
        if "--jobset" in value:
            started([*words, "--seeds=1"])
            return
        if given not in first_arm:
            printed = started(words, "--seeds=1", "--print_commands")
            first_arm[given] = re.findall("--arm=[^ \n']*", printed)[:1]
        if first_arm[given]:
            # An arm alone has no path; run without one it writes its report.
            arm = [word for word in first_arm[given] if word != "--arm="]
            _, _, *kept = executors.command(["launch.py", *words], [])
            arms[value["--workdir"]] = [*kept, "--seeds=1", *arm]

    def started(words, *more):
        code, out, err = call(*words, *more)
        assert code == 0, f"{shlex.join(words)}: {err}"
        return out

    def run(words):
        if words[0].startswith("PYTHONPATH="):  # with code of the page's own, which is short
            monkeypatch.syspath_prepend(tmp_path / words.pop(0).partition("=")[2])
            started([word for word in words[2:] if not word.startswith("--jobs")])
            return
        while re.match(r"\w+=", words[0]):
            monkeypatch.setenv(*words.pop(0).split("=", 1))
        program, *rest = words
        if program == "ray":
            assert rest[0] in ray_commands.commands, rest
        if program == "make":
            targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            rest = [word for word in rest if not re.match(r"\w+=", word)]
            assert set(rest) <= set(targets), rest
        elif program == "git":
            assert rest[0] == "clone", rest
        elif program in STARTERS and "python" in rest:
            run(rest[rest.index("python") :])
        elif program == "gcloud":
            (given,) = (word for word in rest if word.startswith("--command="))
            run(shlex.split(given.partition("=")[2]))
        elif words[:2] == ["python", "launch.py"]:
            launched(rest[1:])
        elif words[:2] == ["python", "-m"]:
            importable(*rest[1:])
        elif program != "ray":
            raise AssertionError(f"a command that no test knows: {shlex.join(words)}")

    return run


def importable(module, *arguments):
    """Check that the module is there; flags are its own, and paths for pytest exist."""
    found = importlib.util.find_spec(module)
    assert found, module
    if module == "pytest":
        assert (ROOT / arguments[0]).exists(), arguments
        return
    text = pathlib.Path(found.origin).read_text()
    known = re.findall(r'(?:DEFINE_\w+|add_argument)\(\s*"(?:--)?(\w+)"', text)
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    known += [
        flag.arg
        for call in calls
        if getattr(call.func, "attr", None) == "options"  # of `benchmarks.harness`
        for flag in call.keywords
    ]
    given = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    assert '__name__ == "__main__"' in text and set(given) <= set(known), (module, arguments)


def join_nobody(address, count, number):
    """Check an address in place of the other processes, which are not there."""
    if address is not None:
        assert re.fullmatch(r"[\w.]+:\d+", address) and number < count


def made_up_profile(task, batch_size, devices):
    """Return what stands for a measured profile, which takes seconds."""
    layers = profiling.backward_order(task, batch_size)
    sizes, each = np.array([0, 1 << 20]), 1e-3
    return profiling.Profile(layers, each * (1 + np.arange(len(layers))), sizes, each * (1 + sizes))


def commands(body):
    """Yield the words of each command; a listing of this repository has none."""
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not (ROOT / line.split()[0]).exists():
            yield shlex.split(line, comments=True)


@contextlib.contextmanager
def without_new_modules():
    """Forget the modules that a page has written; installed ones are not to be there twice."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if not file.startswith((sys.prefix, sys.base_prefix)):
            del sys.modules[name]


@pytest.mark.parametrize("page", slow_but(QUICK, RUN), ids=lambda page: page.name)
def test_every_block_runs(page, shell):
    names = {"__name__": page.stem}
    with contextlib.ExitStack() as unchanged:
        for registry in REGISTRIES:
            unchanged.enter_context(mock.patch.dict(registry))
        unchanged.enter_context(without_new_modules())
        for number, (language, body) in enumerate(BLOCK.findall(page.read_text())):
            assert language in ("", "python"), f"{page.name}: what is {language}?"
            if language:
                exec(compile(body, f"{page.name}, block {number}", "exec"), names)
            else:
                for words in commands(body):
                    shell(words)


def test_the_cluster_of_ray_for_kubernetes_has_the_required_version_a_head_and_workers():
    text = yaml.safe_load((ROOT / "examples" / "ray_cluster.yaml").read_text())
    assert (text["apiVersion"], text["kind"]) == ("ray.io/v1", "RayCluster")
    required = re.search(r"^ray>=(.+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    spec = text["spec"]
    assert spec["rayVersion"].startswith(required[1]) and spec["workerGroupSpecs"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["image"] == "registry.example/gossax:latest"


def test_named_files_pages_and_flags_exist():
    for page in PAGES:
        text = BLOCK.sub("", page.read_text())
        for target in re.findall(r"\]\(([^)#]+)", text):
            file = target.partition(' "')[0]  # a title may follow
            assert file.startswith("http") or (page.parent / file).exists(), (page.name, target)
        for span in SPAN.findall(text):
            file = re.match(r"[a-z_]+/[\w/]+\.(py|md)", span)
            assert not file or (ROOT / file[0]).exists(), (page.name, span)
            flag = re.match(r"--([a-z_]+)", span)
            assert not flag or flag[1] in flags.FLAGS or flag[1] == "config", (page.name, span)


def test_the_table_of_methods_is_complete():
    """It names all methods and rules, and the file of every method and codec with another name."""
    known = (*algorithms.ALGORITHMS.values(), *algorithms.REDUCERS.values())
    files = {f"{inspect.unwrap(method).__module__.replace('.', '/')}.py" for method in known}
    text = (ROOT / "docs" / "methods.md").read_text()
    (table,) = re.findall(r"^\| method \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    listed = set()
    for span in SPAN.findall(table):
        before, _, rest = span.partition("{")  # `a/{b,c}.py` is both
        names, _, after = rest.partition("}")
        listed |= {before + name + after for name in names.split(",")}
    assert len(files) > 10 and files <= listed | {f"algorithms/{name}.py" for name in listed}
    spans = {span.partition("(")[0] for span in SPAN.findall(text)}
    assert rules.RULES.keys() | algorithms.ALGORITHMS.keys() <= spans


@pytest.mark.slow
def test_every_cell_of_the_tour_runs_in_order(tmp_path, monkeypatch, capsys):
    """Its outputs are not stored; what its last expression gives, a notebook shows."""
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of Ray's processes
    names, pictures = {"__name__": "tour"}, []
    with mock.patch.dict(algorithms.ALGORITHMS), jax.numpy_rank_promotion("allow"):
        for number, cell in enumerate(code):
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"cell {number}", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
                pictures += [value._repr_png_()] if hasattr(value, "_repr_png_") else []
    pool.SESSION.close()
    assert [picture[:4] for picture in pictures] == 2 * [b"\x89PNG"]
    assert "wall clock" in capsys.readouterr().out
    assert (tmp_path / "runs/tour_replay/summary.json").exists()
