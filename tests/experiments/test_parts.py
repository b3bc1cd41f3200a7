import functools

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import nonblocking
from experiments import parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ring", {"name": "ring"}),
        (" ring() ", {"name": "ring"}),
        (
            "deadline(seconds=0.3, leftovers=drop)",
            {"name": "deadline", "seconds": 0.3, "leftovers": "drop"},
        ),
        ("f(a=-1, b='two words', c=None)", {"name": "f", "a": -1, "b": "two words", "c": None}),
        ("f(a=true, b=false, c=True)", {"name": "f", "a": True, "b": False, "c": True}),
        ("f(edges=[(0, 1)], by={0: 4.0})", {"name": "f", "edges": [(0, 1)], "by": {0: 4.0}}),
        (
            "digits(model=mlp(hidden=(8,)), l2=0.1)",
            {"name": "digits", "model": {"name": "mlp", "hidden": (8,)}, "l2": 0.1},
        ),
        ("f(g, h(a=1), b=2)", {"name": "f", "b": 2, "*": ["g", {"name": "h", "a": 1}]}),
        ("f(g(h(k)))", {"name": "f", "*": [{"name": "g", "*": [{"name": "h", "*": ["k"]}]}]}),
        ({"name": "f", "a": 1}, {"name": "f", "a": 1}),
        (ConfigDict({"name": "f", "a": 1}), {"name": "f", "a": 1}),
    ],
)
def test_a_call_and_a_mapping_say_the_same(text, expected):
    assert parts.spec(text) == expected


def test_a_spec_is_a_copy():
    part = {"name": "f", "a": 1}
    parts.spec(part).pop("a")
    assert part == {"name": "f", "a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "", "f(", "f(1)", "f(**{})", "f(*a)", "f(a=1, a=2)", "f(name=g)", "f(a=b.c)", "a.f()", "3",
        "[1]", "{'a': 1}", "f(a=1) + 2", "f(true)", "f('g')", "f([g])", "f(g, *h)",
        "f(a={x: 1})", "f g", "f\0", 3, None,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError) as caught:
        parts.spec(text)
    assert "cannot read the part" in str(caught.value)


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


def test_a_factory_gets_what_is_given_and_what_it_asks_for():
    built = parts.build("thing", FACTORIES, "anything(size=2, on=true, rest=[1])", n=8, unused=3)
    assert built == (2, 1.0, "a", True, [2], 8)
    assert parts.build("thing", FACTORIES, {"name": "half", "rate": 2}, n=8)[:2] == (1, 2)
    assert parts.build("thing", FACTORIES, "optional(limit=None)") is None
    assert parts.build("thing", FACTORIES, "made_of(a, b, size=2)", n=8) == (("a", "b"), 2, 8)
    assert parts.build("thing", FACTORIES, "made_of", n=8) == ((), 0, 8)
    assert parts.build("thing", FACTORIES, "optional(limit=3)") == 3
    numpy = {"name": "anything", "size": np.int64(3), "rate": np.float32(0.5)}
    assert parts.build("thing", FACTORIES, numpy)[:2] == (3, 0.5)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("any", "thing: unknown name 'any'; known names: anything, half, made_of, none"),
        ({}, "unknown name None"),
        ("anything(size=1, sizes=2)", "thing 'anything': unknown parameter 'sizes'; it takes: "),
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
        ("anything(size=1, rest=3)", "thing 'anything': cannot use {'size': 1, 'rest': 3} ("),
        ("anything(g, size=1)", "'anything': is not made of other parts, got 1 without a key"),
        ("made_of(g, inner=1)", "unknown parameter 'inner'; it takes: size"),
        ("anything(size=1, rest=[x])", "cannot read the part"),
    ],
)
def test_misfits_are_explained(part, words):
    with pytest.raises(ValueError) as caught:
        parts.build("thing", FACTORIES, part, n=8)
    assert words in str(caught.value)


def test_a_factorys_own_sentence_is_passed_on():
    def picky(size: int):
        raise ValueError(f"picky: size {size} is too small; raise it")

    with pytest.raises(ValueError, match=r"^picky: size 1 is too small; raise it$"):
        parts.build("thing", {"picky": picky}, "picky(size=1)")


def test_wants():
    assert parts.wants(FACTORIES, "anything(size=1)", "n")
    assert not parts.wants(FACTORIES, "none", "n")
    assert not parts.wants(FACTORIES, "unknown", "n")


ONE = ("workers", "batch_size", "mini_batches", "updates", "devices", "rounds_per_dispatch")
PARTS = ("task", "split", "algorithm", "graph", "optimizer", "wait", "delay")
BAD_ENTRIES = [
    *((name, value) for name in ONE for value in (0, -1, 2.5, "2", None, True)),
    *(("seed", value) for value in (-1, 0.5, "0", None)),
    *(
        (n, v)
        for n in ("seconds", "evaluate_every")
        for v in (0.0, -1.0, np.nan, np.inf, "1", None)
    ),
    *(("communication", value) for value in (-1e-9, np.nan, np.inf, None)),
    *(("target_loss", value) for value in (0.0, -1.0, np.nan, "low")),
    *((name, value) for name in ("name", "runtime", "draw") for value in ("", 3, None)),
    *((name, value) for name in PARTS for value in (3, None)),
    ("baseline", 3),
]


@pytest.mark.parametrize(("name", "value"), BAD_ENTRIES)
def test_an_entry_of_a_wrong_type_or_range_is_named(name, value):
    config = nonblocking.get_config()
    with config.ignore_type():
        config[name] = value
    with pytest.raises(ValueError) as caught:
        parts.check_entries(config)
    assert str(caught.value).startswith(f"config.{name} must be ")
    assert f"got {value!r}; set config.{name}" in str(caught.value)


def test_a_missing_entry_is_named():
    parts.check_entries(nonblocking.get_config())
    for name in {name for name, _ in BAD_ENTRIES}:
        config = nonblocking.get_config()
        del config[name]
        with pytest.raises(ValueError, match=f"^config.{name} is missing; set it to a"):
            parts.check_entries(config)


def test_no_target_and_no_baseline_are_fine():
    config = nonblocking.get_config()
    with config.ignore_type():
        config.target_loss = config.baseline = None
    parts.check_entries(config)


def test_entries_are_checked_from_a_table_entries_of_entries_too():
    table = [
        ("positive whole numbers", parts.several(parts.is_count), ("workers",)),
        ("a share up to 1", lambda v: 0 < v <= 1, ("links.fast", "links.slow")),
    ]
    good = {"workers": (1, 2), "links": {"fast": 1.0, "slow": 0.5}}
    parts.check(ConfigDict(good), table)
    for changes, words in (
        ({"workers": (1, True)}, "config.workers must be positive whole numbers, got (1, True)"),
        ({"workers": ()}, "config.workers must be positive whole numbers, got ()"),
        ({"workers": 1}, "config.workers must be positive whole numbers, got 1; set"),
        ({"links": {"fast": 1.0, "slow": 2.0}}, "config.links.slow must be a share up to 1, got 2"),
        ({"links": {"slow": 1.0}}, "config.links.fast is missing; set it to a share up to 1"),
    ):
        with pytest.raises(ValueError) as caught:
            parts.check(ConfigDict(good | changes), table)
        assert words in str(caught.value)
