"""Names of configs, the parts that they name, factories and the entries of an arm."""

import functools
import hashlib

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import nonblocking
from experiments import registry
from experiments.registry import part
from tests.refusals import refused, sentence

READ = [
    (" ring() ", {"name": "ring"}),
    ("deadline(seconds=0.3, leftovers=drop)",
     {"name": "deadline", "seconds": 0.3, "leftovers": "drop"}),
    ("f(a=true, b='two words', c=None)", {"name": "f", "a": True, "b": "two words", "c": None}),
    ("f(edges=[(0, 1)], by={0: -4.0})", {"name": "f", "edges": [(0, 1)], "by": {0: -4.0}}),
    ("digits(model=mlp(hidden=(8,)), l2=0.1)",
     {"name": "digits", "model": {"name": "mlp", "hidden": (8,)}, "l2": 0.1}),
    ("f(g, h(a=1), b=2)", {"name": "f", "b": 2, "*": [{"name": "g"}, {"name": "h", "a": 1}]}),
    ("f(g(h(k)))",
     {"name": "f", "*": [{"name": "g", "*": [{"name": "h", "*": [{"name": "k"}]}]}]}),
    ("[f, g(a=1)]", {"name": "chain", "*": [{"name": "f"}, {"name": "g", "a": 1}]}),
    (["f", part("g", a=1)], {"name": "chain", "*": [{"name": "f"}, {"name": "g", "a": 1}]}),
    ("f(a=[g, h(b=1)])", {"name": "f", "a": [{"name": "g"}, {"name": "h", "b": 1}]}),
    ("my.own:f(a=1, b=other:g)", {"name": "my.own:f", "a": 1, "b": "other:g"}),
    ("f(my:g(a='x:y'), b=p.q:h(c=1))",
     {"name": "f", "*": [{"name": "my:g", "a": "x:y"}], "b": {"name": "p.q:h", "c": 1}}),
    ("f(a={x: g, 'y': h(b=1)})",
     {"name": "f", "a": {"x": {"name": "g"}, "y": {"name": "h", "b": 1}}}),
    (part("f", part("g"), a=1), {"name": "f", "a": 1, "*": [{"name": "g"}]}),
    (ConfigDict({"name": "f", "a": 1}), {"name": "f", "a": 1}),
]  # fmt: skip


def test_a_call_and_a_mapping_say_the_same():
    for written, expected in READ:
        assert registry.spec(written) == expected
        assert registry.spec(registry.text(registry.as_part(written))) == expected
    for written in ("f(g(a=1), h, b=2)", "f(a='true', b='3')", "f(a={'x': g, 'y': h(b=1)})"):
        assert registry.text(registry.as_part(written)) == written


UNREADABLE = [
    "", "f(**{})", "f(*a)", "f(name=g)", "f(a=b.c)", "a.f()", "3", "[1]", "[]", "{'a': 1}",
    "f(a=1) + 2", "f(true)", "f([g])", "f(g, *h)", "f(a={x: 1})", "f g", "f\0", None, "my:f:g",
    "my.own:", ":f(a=1)",
]  # fmt: skip
SHOWN = {
    "f(": "'(' was never closed",
    "f(a={1, 2})": "{1, 2} is no value of a config, write a list",
    "f(a=[1, ...])": "[1, ...] is no value of a config, write a list",
    "f(6)": "6 has no name, write f(parameter=6), as --list names it",
    "f(a=1, b=g('x', c=2))": "'x' has no name, write g(parameter='x')",
    "f(a=1, a=2)": "a stands there twice",
    "f(folder=/data/x, a=1)": "folder='/data/x'",
    "f(path=runs/*.csv)": "path='runs/*.csv'",
    "data/x.csv": "as in name(path='data/x.csv')",
    "f(a=fixed:1MB)": "a text with a colon has quotes inside of the part, a='fixed:1MB'",
    "f(a=1))": ", at )",
}


def test_unreadable_parts_are_refused_and_the_piece_is_shown():
    for text in (*UNREADABLE, *SHOWN):
        with pytest.raises(ValueError, match="cannot read the part") as caught:
            registry.spec(text)
        assert SHOWN.get(text, "") in str(caught.value)
    with pytest.raises(ValueError, match="no parameter can be called 'name'"):
        part("f", name="g")


def test_all_parts_of_a_config_become_mappings():
    config = ConfigDict({"wait": "k_sync(k=4)", "communication": 0.5, "optimizer": ["f", "g"]})
    made = registry.canonical(config)
    assert made.wait.k == 4 and made.communication == 0.5
    assert [one["name"] for one in made.optimizer["*"]] == ["f", "g"]
    assert config.wait == "k_sync(k=4)"
    again = registry.canonical(made)
    assert again.to_dict() == made.to_dict()


# --- factories ---


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


test_misfits_are_explained = refused(
    ("any", "thing: unknown name 'any'; known names: anything, half, made_of, none"),
    ({}, "unknown name None"),
    ("anything(size=1, sizes=2)", "unknown parameter 'sizes'; did you mean 'size'? it takes: "),
    ("none(a=1)", "unknown parameter 'a'; it takes: no parameters"),
    ("anything(size=1, n=2)", "unknown parameter 'n'; it takes: size, rate, label, on, rest"),
    ("anything", "parameter 'size' is missing; write anything(size=...)"),
    ("anything(size=1.5)", "parameter 'size' must be a whole number, got 1.5"),
    ("anything(size=true)", "'size' must be a whole number, got True"),
    ("anything(size=1, rate=fast)", "'rate' must be a number, got 'fast'"),
    ("anything(size=1, label=3)", "'label' must be text, got 3"),
    ("anything(size=1, on=1)", "'on' must be true or false, got 1"),
    ("optional(limit=2.5)", "parameter 'limit' must be a whole number, got 2.5"),
    ("anything(size=1, rest=3)", "thing 'anything': cannot use {'rest': 3, 'size': 1} ("),
    ("anything(g, size=1)", "'anything': is not made of other parts, got 1 without a key"),
    ("made_of(g, inner=1)", "unknown parameter 'inner'; it takes: size"),
    by=lambda written: THING.build(written, n=8),
)


def test_a_factorys_own_sentence_is_passed_on():
    def picky(size: int):
        raise ValueError(f"picky: size {size} is too small; raise it")

    with pytest.raises(ValueError, match=r"^picky: size 1 is too small; raise it$"):
        registry.Kind("thing", {"picky": picky}).build("picky(size=1)")


# --- factories that are brought along ---

MODULE = """
def double(size: int, n: int):
    return 2.0 * size * n

def text():
    return "a number, in words"

def leaves():
    raise SystemExit(3)

def fails():
    raise KeyError("none")

def divides(n: int = 1):
    return n / 0

constant = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return the name of a module that is not of this project."""
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"broken_{name}.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


NUMBER = registry.Kind("number", {"one": lambda: 1.0}, float)


def test_a_factory_can_be_brought_along(mine):
    assert NUMBER.build(f"{mine}:double(size=3)", n=2) == 12.0
    assert NUMBER.wants(f"{mine}:double", "n") and not NUMBER.wants(f"{mine}:double", "m")


def test_parts_inside_of_parts_of_one_kind_are_built_first():
    numbers = {"one": lambda by=1.0: 1.0 * by, "sum": lambda *all_of, of=0.0: sum(all_of) + of}
    kind = registry.Kind("number", numbers, float, ("by",), nested=("*", "of"))
    assert kind.build("sum(one, sum(one, of=one), of=sum(one))", by=3.0) == 12.0
    with pytest.raises(ValueError, match="number: unknown name 'two'"):
        kind.build("sum(one, of=sum(two))")


def test_a_factory_that_does_not_fit_is_refused_in_a_sentence(mine):
    for name, words in (
        ("nowhere:f", "number 'nowhere:f': nowhere cannot be imported (ModuleNotFoundError: "),
        (f"broken_{mine}:f", "cannot be imported (ZeroDivisionError: division by zero); correct"),
        (f"{mine}:none", f"{mine} has no function 'none'; correct the name"),
        (f"{mine}:constant", "has no function 'constant'"),
        (f"{mine}:text", "the factory gives str; let it return float"),
        (f"{mine}:fails", "the factory fails with KeyError: 'none'; correct it"),
        (f"{mine}:divides", "the factory fails with ZeroDivisionError: division by zero; corr"),
        (f"{mine}:divides(by=1)", "unknown parameter 'by'"),
        (f"{mine}:leaves", "the factory fails with SystemExit: 3; correct it"),
    ):
        with sentence(words):
            NUMBER.build(name, n=1)


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


# --- entries ---

BAD_ENTRIES = [
    *((name, value) for name in registry.COUNTS for value in (0, 2.5, True)),
    *(("mini_batches", value) for value in (0, "2", None, [])),
    *(("seed", value) for value in (-1, 0.5, "0", None)),
    *((n, v) for n in ("seconds", "evaluate_every") for v in (0.0, np.nan, np.inf, "1")),
    *(("communication", value) for value in (-1e-9, np.nan, None)),
    *(("target_loss", value) for value in (0.0, np.nan, "low")),
    *((name, value) for name in ("name", "runtime", "draw") for value in ("", 3)),
    *((name, value) for name in registry.PARTS for value in (3, None)),
    ("baseline", 3),
]


def test_an_entry_of_a_wrong_type_or_range_is_named():
    for name, value in BAD_ENTRIES:
        config = nonblocking.get_config()
        with config.ignore_type():
            config[name] = value
        with pytest.raises(ValueError) as caught:
            registry.check_arm(config)
        assert str(caught.value).startswith(f"config.{name} must be ")
        assert f"got {value!r}; set config.{name}" in str(caught.value)


def test_a_missing_entry_is_named():
    registry.check_arm(nonblocking.get_config())
    for name in {name for name, _ in BAD_ENTRIES}:
        config = nonblocking.get_config()
        del config[name]
        with pytest.raises(ValueError, match=f"^config.{name} is missing; set it to a"):
            registry.check_arm(config)


def test_entries_are_checked_from_a_table_entries_of_entries_too():
    table = [
        ("positive whole numbers", registry.several(registry.is_count), ("workers",)),
        ("a share up to 1", lambda v: 0 < v <= 1, ("links.fast", "links.slow")),
    ]
    good = {"workers": (1, 2), "links": {"fast": 1.0, "slow": 0.5}}
    registry.check(ConfigDict(good), table)
    for changes, words in (
        ({"workers": (1, True)}, "config.workers must be positive whole numbers, got (1, True)"),
        ({"workers": ()}, "config.workers must be positive whole numbers, got ()"),
        ({"workers": 1}, "config.workers must be positive whole numbers, got 1; set"),
        ({"links": {"fast": 1.0, "slow": 2.0}}, "config.links.slow must be a share up to 1, got 2"),
        ({"links": {"slow": 1.0}}, "config.links.fast is missing; set it to a share up to 1"),
    ):
        with sentence(words):
            registry.check(ConfigDict(good | changes), table)
