import functools
import hashlib

import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import registry
from experiments.registry import part


def anything(size: int, rate: float = 1.0, label: str = "a", on: bool = False, *, rest=(), n=None):
    return size, rate, label, on, [item + 1 for item in rest], n


def optional(limit: int | None = None):
    return limit


FACTORIES = {
    "anything": anything,
    "made_of": lambda *inner, size=0, n=None: (inner, size, n),
    "half": functools.partial(anything, 1),
    "none": lambda: None,
    "optional": optional,
}

THING = registry.Kind("thing", FACTORIES)


def test_a_factory_gets_what_is_given_and_what_it_asks_for():
    built = THING.build("anything(size=2, on=true, rest=[1])", n=8, unused=3)
    assert built == (2, 1.0, "a", True, [2], 8)
    assert THING.build({"name": "half", "rate": 2}, n=8)[:2] == (1, 2)
    assert THING.build("optional(limit=None)") is None
    inner = ({"name": "a"}, {"name": "b"})
    assert THING.build("made_of(a, b, size=2)", n=8) == (inner, 2, 8)
    assert THING.build("made_of", n=8) == ((), 0, 8)
    assert THING.build("optional(limit=3)") == 3
    numpy = {"name": "anything", "size": np.int64(3), "rate": np.float32(0.5)}
    assert THING.build(numpy)[:2] == (3, 0.5)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("any", "thing: unknown name 'any'; known names: anything, half, made_of, none"),
        ({}, "unknown name None"),
        ("anything(size=1, sizes=2)", "unknown parameter 'sizes'; did you mean 'size'? it takes: "),
        ("none(a=1)", "unknown parameter 'a'; it takes: no parameters"),
        ("anything(size=1, n=2)", "unknown parameter 'n'; it takes: size, rate, label, on, rest"),
        ("anything", "parameter 'size' is missing; write anything(size=...)"),
        ("anything(size=1.5)", "parameter 'size' must be a whole number, got 1.5"),
        ("anything(size=true)", "'size' must be a whole number, got True"),
        ("anything(size=1, rate=fast)", "'rate' must be a number, got 'fast'"),
        ("anything(size=1, rate=false)", "'rate' must be a number, got False"),
        ("anything(size=1, label=3)", "'label' must be text, got 3"),
        ("anything(size=1, on=1)", "'on' must be true or false, got 1"),
        ("optional(limit=2.5)", "parameter 'limit' must be a whole number, got 2.5"),
        ("optional(limit=many)", "parameter 'limit' must be a whole number, got 'many'"),
        ("anything(size=1, rest=3)", "thing 'anything': cannot use {'rest': 3, 'size': 1} ("),
        ("anything(g, size=1)", "'anything': is not made of other parts, got 1 without a key"),
        ("made_of(g, inner=1)", "unknown parameter 'inner'; it takes: size"),
        ("anything(size=1, rest=[x])", "thing 'anything': cannot use {'rest': [{'name'"),
    ],
)
def test_misfits_are_explained(part, words):
    with pytest.raises(ValueError) as caught:
        THING.build(part, n=8)
    assert words in str(caught.value)


def test_a_factorys_own_sentence_is_passed_on():
    def picky(size: int):
        raise ValueError(f"picky: size {size} is too small; raise it")

    with pytest.raises(ValueError, match=r"^picky: size 1 is too small; raise it$"):
        registry.Kind("thing", {"picky": picky}).build("picky(size=1)")


def test_wants():
    assert THING.wants("anything(size=1)", "n")
    assert not THING.wants("none", "n")
    assert not THING.wants("unknown", "n")


# --- what is brought along ---

MODULE = """
import math


def double(size: int, n: int):
    return 2.0 * size * n


def text():
    return "a number, in words"


def fails():
    raise KeyError("none")


constant = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module that is not of this project; its name."""
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"broken_{name}.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


NUMBER = registry.Kind("number", {"one": lambda: 1.0}, float)


def test_a_factory_can_be_brought_along(mine):
    assert NUMBER.build(f"{mine}:double(size=3)", n=2) == 12.0
    assert NUMBER.build(part(f"{mine}:double", size=3), n=2) == 12.0
    assert NUMBER.wants(f"{mine}:double", "n") and not NUMBER.wants(f"{mine}:double", "m")


def test_what_is_brought_along_and_does_not_fit_is_refused_in_a_sentence(mine):
    for name, words in (
        ("nowhere:f", "number 'nowhere:f': nowhere cannot be imported (ModuleNotFoundError: "),
        (f"broken_{mine}:f", "cannot be imported (ZeroDivisionError: division by zero); correct"),
        (f"{mine}:none", f"{mine} has no function 'none'; correct the name"),
        (f"{mine}:constant", "has no function 'constant'"),
        (f"{mine}:text", "the factory gives str; let it return float"),
        (f"{mine}:fails", "the factory fails with KeyError: 'none'; correct it"),
        (f"{mine}:double", "parameter 'size' is missing"),
        (f"{mine}:double(size=x)", "parameter 'size' must be a whole number, got 'x'"),
    ):
        with pytest.raises(ValueError) as caught:
            NUMBER.build(name, n=1)
        assert words in str(caught.value), caught.value


def test_modules_that_are_brought_along_are_known_by_their_files(mine, tmp_path):
    config = ConfigDict({
        "wait": {"name": "barrier"}, "task": {"name": "digits", "model": f"{mine}:double"},
        "algorithm": {"name": "chain", "*": [{"name": f"{mine}:text"}]},
        "buckets": "fixed:25MB", "name": f"{mine}:double",
    })  # fmt: skip
    digest = hashlib.sha256((tmp_path / f"{mine}.py").read_bytes()).hexdigest()
    assert registry.brought(config) == {mine: f"sha256:{digest}"}
    assert registry.brought(ConfigDict({"delay": {"name": "trace", "path": "a:b"}})) == {}
    with pytest.raises(ValueError, match="part 'nowhere:f': nowhere cannot be imported"):
        registry.brought(ConfigDict({"delay": {"name": "nowhere:f"}}))
