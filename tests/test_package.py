"""The library as it is installed: one package `gossax`, beside folders of a user's own."""

import ast
import importlib
import importlib.metadata
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
from packaging.requirements import Requirement

import gossax
import launch
from tests import warm
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


@pytest.fixture
def project(tmp_path):
    """Return a folder in which a user's own modules have the names of ours."""
    for room in setup.ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise RuntimeError('of the user')")
    return tmp_path


def run(project, *words, python=sys.executable, **environment):
    """Run Python in a user's project and return how it has ended.

    Without the folder of compiled modules that `make` names: what it keeps outlives the project.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    return subprocess.run(
        [python, *words],
        cwd=project,
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


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
    script = "import gossax.experiments.stats as one\nfrom experiments import stats\n"
    subprocess.run([sys.executable, "-c", f"{script}assert one is stats"], cwd=ROOT, check=True)
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


def link(required, folder):
    """Link what these requirements lead to, as it is installed here, into site-packages."""
    linked, waiting = set(), [(one, "") for one in required]
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(found.version, prereleases=True), text
        for extra in {"", *requirement.extras}:
            if (found.name, extra) not in linked:
                linked.add((found.name, extra))
                waiting += [(one, extra) for one in found.requires or ()]
        for name in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(found.locate_file(name))


@pytest.mark.slow
def test_the_installed_library(project):
    """Its dependencies suffice for the shortest loop of the docs, and with flax for the others.

    Beside folders of a user's own no bare import is left, other files are there, and all modules
    are imported. Its launcher starts arms in processes of their own, of a config that is found from
    any folder.
    """
    copy, python = project / "sources", project / "environment" / "bin" / "python"
    others = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "gossax_checkout.py")
    for path in (*others, *setup.sources()):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    words = ["--quiet", "--no-compile", "--no-deps", str(copy)]
    done = run(project, "-m", "pip", f"--python={python}", "install", *words)
    assert done.returncode == 0, done.stderr
    (installed,) = python.parents[1].glob("lib/*/site-packages/gossax")
    information = f"gossax-{gossax.__version__}.dist-info"
    required = importlib.metadata.Distribution.at(installed.parent / information).requires
    examples = BLOCK.findall((ROOT / "docs" / "library.md").read_text())
    assert {language for language, _ in examples} == {"python"}
    shortest, *blocks = (body for _, body in examples)
    no_numba = "import importlib.util\nassert not importlib.util.find_spec('numba')\n"
    for more, text in ((required, no_numba + shortest), (["flax"], "\n".join(blocks))):
        link(more, installed.parent)
        done = run(project, "-c", text, python=python)
        assert done.returncode == 0, done.stderr
    done = run(project, "-m", "gossax.launch", python=python)
    assert done.stderr.startswith("error: ml_collections is not installed; run pip install")

    record = (installed.parent / information / "RECORD").read_text().splitlines()
    assert {line.partition("/")[0] for line in record} == {"gossax", information}
    bare = [
        f"{path.relative_to(installed)}:{line} imports {module}"
        for path in installed.rglob("*.py")
        for line, module in imported(ast.walk(ast.parse(path.read_text())))
        if module in (*setup.ROOMS, "launch")
    ]
    assert not bare
    table = "comms/data/googlenet_k80.csv"
    assert (installed / table).read_bytes() == (ROOT / table).read_bytes()
    alone = project / "alone"  # beside what this Python has
    alone.mkdir()
    (alone / "gossax").symlink_to(installed)
    done = run(project, "-c", EVERY_MODULE, PYTHONPATH=str(alone))
    assert done.returncode == 0, done.stderr
    tiny = "--config.task=synthetic_logistic(samples=256, dimension=8)"
    words = ["--config=configs/nonblocking.py", tiny, "--config.updates=2", "--jobs=2"]
    launched = ["-m", "gossax.launch", *words, "--workdir=run"]
    done = run(project, *launched, PYTHONPATH=str(alone), XLA_FLAGS=warm.COMPILING)
    assert done.returncode == 0, done.stderr
    assert (project / "run" / "report.html").exists()
