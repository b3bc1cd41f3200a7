"""The examples in docstrings give what they say."""

import doctest
import importlib

import pytest

from tests.launcher import ROOT

FOLDERS = ("algorithms", "comms", "stragglers", "experiments")
FILES = [
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_are_true(path):
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_there_are_thirty():
    finder = doctest.DocTestFinder(recurse=True)
    modules = (importlib.import_module(".".join(path.with_suffix("").parts)) for path in FILES)
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) >= 30
