"""The library as it is installed: one package `gossax`, beside folders of a user's own."""

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from absl.testing import flagsaver

import gossax
import launch
from tests.launcher import ROOT
from tests.test_architecture import imported
from tests.test_docs import BLOCK

spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
setup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(setup)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EVERY_MODULE = """
import importlib, pkgutil
import gossax
def failed(name): raise
for module in pkgutil.walk_packages(gossax.__path__, "gossax.", onerror=failed):
    importlib.import_module(module.name)
"""
# D-PSGD on a ring of four: all workers come to the mean of what they want.
LOOP = """
import importlib.util
import jax, jax.numpy as jnp, numpy as np, optax
import gossax
assert not importlib.util.find_spec("ml_collections") and not importlib.util.find_spec("numba")
method = gossax.as_optax(gossax.dpsgd(optax.sgd(0.1), gossax.graphs.ring(4)))
wanted = jnp.arange(4.0)
def step(params, state, wanted):
    gradient = params - wanted
    update, state = method.update(gradient, state, params)
    return optax.apply_updates(params, update), state
step = jax.jit(jax.vmap(step, axis_name="workers"))
params = jnp.zeros(4)
state = jax.vmap(method.init)(params)
for _ in range(200):
    params, state = step(params, state, wanted)
np.testing.assert_allclose(params.mean(), 1.5, atol=1e-4)
"""
# Of the battery of methods: what it needs, and the methods that stand for their families here.
BATTERY = (
    "__init__.py", "conftest.py", "marks.py", "planned.py", "algorithms/traced.py",
    "algorithms/methods.py", "algorithms/test_contract.py",
)  # fmt: skip
METHODS = "dpsgd or s2_reducer"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return a folder with all files of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    setup.assemble(folder)
    return folder


@pytest.fixture
def project(tmp_path):
    """Return a folder in which a user's own modules have the names of ours."""
    for room in setup.ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise RuntimeError('of the user')")
    return tmp_path


def run(project, *words, python=sys.executable, **environment):
    """Run Python in a user's project and return how it has ended."""
    return subprocess.run(
        [python, *words],
        cwd=project,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_the_wheel_beside_folders_of_a_users_own(wheel, project):
    """No bare import is left, other files are there, and all modules are imported.

    Its launcher starts arms in processes of their own, of a config that is found from any folder.
    """
    bare = [
        f"{path.relative_to(wheel)}:{line} imports {module}"
        for path in wheel.rglob("*.py")
        for line, module in imported(ast.parse(path.read_text()))
        if module in (*setup.ROOMS, "launch")
    ]
    assert not bare and {path.name for path in wheel.iterdir()} == {"gossax"}
    table = "comms/data/googlenet_k80.csv"
    assert (wheel / "gossax" / table).read_bytes() == (ROOT / table).read_bytes()
    done = run(project, "-c", EVERY_MODULE, PYTHONPATH=str(wheel))
    assert done.returncode == 0, done.stderr
    tiny = "--config.task=synthetic_logistic(samples=256, dimension=8)"
    words = ["--config=configs/nonblocking.py", tiny, "--config.updates=2", "--seeds=2", "--jobs=2"]
    launched = ["-m", "gossax.launch", *words, "--workdir=run"]
    done = run(project, *launched, PYTHONPATH=str(wheel), XLA_FLAGS="")
    assert done.returncode == 0, done.stderr
    assert (project / "run" / "report.html").exists()


def test_imports_that_the_build_rewrites():
    for before, after in {
        "from comms.cost import table": "from gossax.comms.cost import table",
        "def f():\n    from comms import (\n        cost,\n    )": "def f():\n    from "
        "gossax.comms import (\n        cost,\n    )",
        "x = 'comms.cost', 'runtimes.png'": "x = 'gossax.comms.cost', 'runtimes.png'",
        "run('python launch.py', 'launch.py')": "run('python -m gossax.launch', 'launch.py')",
        '["launch.py"]': '["-m", "gossax.launch"]',
        "from gossax.comms import cost": "from gossax.comms import cost",
    }.items():
        assert setup.rewritten(before) == after
    for refused in ("import comms", "import comms.cost as c", "x = comms.cost"):
        with pytest.raises(ValueError):
            setup.rewritten(refused)


def test_a_checkout_says_which_folder_is_in_the_way(project):
    done = run(project, "-c", "import gossax", PYTHONPATH=str(ROOT))
    there, ours = project / "algorithms" / "__init__.py", ROOT / "algorithms"
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: gossax: {there} is imported in place of {ours}; rename it, or install the "
        f"wheel, which keeps its own folders apart: pip install {ROOT}"
    )


def test_in_a_checkout_both_names_are_one_module():
    """Functions stay what they were where a module has their name."""
    from algorithms import dpsgd

    for name in ("gossax.algorithms.dpsgd", "gossax.experiments.train", "gossax.launch"):
        own = importlib.import_module(name.removeprefix("gossax."))
        assert importlib.import_module(name) is own
        assert own.__spec__.name == own.__name__ == name.removeprefix("gossax.")
    assert importlib.import_module("gossax.algorithms").dpsgd is dpsgd is gossax.dpsgd
    with pytest.raises(ModuleNotFoundError, match=r"gossax\.algorithms\.nothing"):
        importlib.import_module("gossax.algorithms.nothing")


def test_requirements_and_the_version_are_one(capsys):
    extras = PROJECT["optional-dependencies"].values()
    listed = {*PROJECT["dependencies"], *(name for extra in extras for name in extra)}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = {line for line in lines if line and not line.startswith("#")}
    assert {name for name in listed if not name.startswith("gossax[")} == required
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert cited == newest == gossax.__version__
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as leaving:
        launch.parse(["launch.py", "--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith(f"gossax {gossax.__version__}, Python 3.")


@pytest.mark.skipif(not shutil.which("make"), reason="make is missing")
def test_make_takes_the_newest_python_that_runs(tmp_path):
    # Without what a make that runs this test was given.
    given = os.environ.keys() - {"MAKEFLAGS", "MAKELEVEL", "PYTHON"}
    environment = {name: os.environ[name] for name in given}
    for name, line in (("3.13", "exit 127"), ("3.12", f'exec {sys.executable} "$@"')):
        (tmp_path / f"python{name}").write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / f"python{name}").chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    for words, wanted in (([], "python3.12"), (["PYTHON=python3.11"], "python3.11")):
        words = ["make", "--eval", "taken:;@echo $(PYTHON)", "taken", *words]
        taken = subprocess.check_output(words, cwd=ROOT, env=environment, text=True)
        assert taken.strip() == wanted


@pytest.mark.slow
def test_the_installed_library_alone(tmp_path, project):
    """Its dependencies suffice for a loop, for the examples of the docs and the battery."""
    copy, python = tmp_path / "sources", tmp_path / "environment" / "bin" / "python"
    others = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "gossax_checkout.py")
    for path in (*others, *setup.sources()):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)

    def install(*packages):
        """Install with the pip that is at hand; only what is imported is compiled then."""
        pip = ("-m", "pip", f"--python={python}", "install", "--quiet", "--no-compile")
        done = run(project, *pip, *packages)
        assert done.returncode == 0, done.stderr

    install(str(copy))
    done = run(project, "-c", LOOP, python=python)
    assert done.returncode == 0, done.stderr
    done = run(project, "-m", "gossax.launch", python=python)
    assert done.stderr.startswith("error: ml_collections is not installed; run pip install")
    install("flax", "pytest")  # of the model on the page, and of the battery
    examples = BLOCK.findall((ROOT / "docs" / "library.md").read_text())
    assert {language for language, _ in examples} == {"python"}
    blocks = "\n".join(body for _, body in examples)
    done = run(project, "-c", blocks, python=python)
    assert done.returncode == 0, done.stderr
    for name in BATTERY:
        target = project / "tests" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(setup.rewritten((ROOT / "tests" / name).read_text()))
    words = ["-m", "pytest", "-q", "tests/algorithms/test_contract.py", "-m", "not slow"]
    done = run(project, *words, "-k", METHODS, python=python)
    assert done.returncode == 0, done.stdout + done.stderr
