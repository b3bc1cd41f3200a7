"""What `--list` prints."""

import io

import pytest
from rich.console import Console

from experiments import catalogue, config_files


def printed():
    text = io.StringIO()
    catalogue.show(Console(file=text, width=100))
    return text.getvalue()


def test_every_name_of_every_kind_is_listed_with_a_sentence():
    lines = printed().splitlines()
    heads = {line.strip().partition("(")[0] for line in lines}
    for _, _, kind in catalogue.SECTIONS:
        assert set(kind.factories) <= heads
        for name, factory in kind.factories.items():
            assert catalogue.sentence(factory), name
    paths = dict(catalogue.configs())
    assert len(paths) > 10 and set(paths) <= heads and all(paths.values())


def test_a_listed_config_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_files.read("configs/demo.py").config.name
    with pytest.raises(ValueError, match=r"there is no file 'launch\.py'"):
        config_files.load("launch.py")


def test_parameters_are_those_of_the_config():
    rules = next(kind for _, entry, kind in catalogue.SECTIONS if entry == "wait")
    methods = next(kind for _, entry, kind in catalogue.SECTIONS if entry == "algorithm")
    assert catalogue.call(rules, "k_sync") == "k_sync(k)"
    assert catalogue.call(rules, "rennala") == "rennala(k, interrupt=false)"
    assert catalogue.call(methods, "inverse_staleness") == "inverse_staleness"
    assert "top_k(ratio=0.01" in catalogue.call(methods, "top_k")
