"""What `--list` prints."""

import io

import pytest
from rich.console import Console

from experiments import config_files, registry


def printed():
    text = io.StringIO()
    config_files.show_names(Console(file=text, width=100))
    return text.getvalue()


def test_every_name_of_every_kind_is_listed_with_a_sentence():
    lines = printed().splitlines()
    heads = {line.strip().partition("(")[0] for line in lines}
    for _, _, kind in config_files.sections():
        assert set(kind.factories) <= heads
        for name, factory in kind.factories.items():
            assert registry.first_sentence(factory), name
    paths = dict(config_files.listed_configs())
    assert len(paths) > 10 and set(paths) <= heads and all(paths.values())


def test_a_listed_config_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_files.read("configs/demo.py").config.name
    with pytest.raises(ValueError, match=r"there is no file 'launch\.py'"):
        config_files.load("launch.py")


def test_parameters_are_those_of_the_config():
    rules = next(kind for _, entry, kind in config_files.sections() if entry == "wait")
    methods = next(kind for _, entry, kind in config_files.sections() if entry == "algorithm")
    assert rules.call("k_sync") == "k_sync(k)"
    assert rules.call("rennala") == "rennala(k, interrupt=false)"
    assert methods.call("inverse_staleness") == "inverse_staleness"
    assert "top_k(ratio=0.01" in methods.call("top_k")
