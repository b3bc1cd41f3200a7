import pytest
from ml_collections import ConfigDict

from experiments import registry
from experiments.registry import part


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
        (
            "f(g, h(a=1), b=2)",
            {"name": "f", "b": 2, "*": [{"name": "g"}, {"name": "h", "a": 1}]},
        ),
        (
            "f(g(h(k)))",
            {"name": "f", "*": [{"name": "g", "*": [{"name": "h", "*": [{"name": "k"}]}]}]},
        ),
        ("[f, g(a=1)]", {"name": "chain", "*": [{"name": "f"}, {"name": "g", "a": 1}]}),
        (["f", part("g", a=1)], {"name": "chain", "*": [{"name": "f"}, {"name": "g", "a": 1}]}),
        ("f(a=[g, h(b=1)])", {"name": "f", "a": [{"name": "g"}, {"name": "h", "b": 1}]}),
        ("my.own:f(a=1, b=other:g)", {"name": "my.own:f", "a": 1, "b": "other:g"}),
        (
            "f(my:g(a='x:y'), b=p.q:h(c=1))",
            {"name": "f", "*": [{"name": "my:g", "a": "x:y"}], "b": {"name": "p.q:h", "c": 1}},
        ),
        (
            "f(a={x: g, 'y': h(b=1)})",
            {"name": "f", "a": {"x": {"name": "g"}, "y": {"name": "h", "b": 1}}},
        ),
        (part("f", part("g"), a=1), {"name": "f", "a": 1, "*": [{"name": "g"}]}),
        ({"name": "f", "a": 1}, {"name": "f", "a": 1}),
        (ConfigDict({"name": "f", "a": 1}), {"name": "f", "a": 1}),
    ],
)
def test_a_call_and_a_mapping_say_the_same(text, expected):
    assert registry.spec(text) == expected


def test_a_spec_is_a_copy():
    written = {"name": "f", "a": 1}
    registry.spec(written).pop("a")
    assert written == {"name": "f", "a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "", "f(", "f(1)", "f(**{})", "f(*a)", "f(a=1, a=2)", "f(name=g)", "f(a=b.c)", "a.f()", "3",
        "[1]", "[]", "{'a': 1}", "f(a=1) + 2", "f(true)", "f('g')", "f([g])", "f(g, *h)",
        "f(a={x: 1})", "f g", "f\0", 3, None, "my:f:g", "my.own:", ":f(a=1)",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError) as caught:
        registry.spec(text)
    assert "cannot read the part" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f(6)", "6 has no name, write f(parameter=6)"),
        ("f(a=1, b=g('x', c=2))", "'x' has no name, write g(parameter='x')"),
        ("f(a=1, a=2)", "a stands there twice"),
        ("f(folder=/data/x, a=1)", "folder='/data/x'"),
        ("f(a='x', b=g(path=~/x.csv))", "path='~/x.csv'"),
        ("f(path=runs/*.csv)", "path='runs/*.csv'"),
        ("f(path=x.csv)", "path='x.csv'"),
        ("data/x.csv", "as in name(path='data/x.csv')"),
        ("f(a=1))", ", at )"),
        ("f(a=0.3s)", ", at "),
    ],
)
def test_the_piece_that_cannot_be_read_is_shown(text, words):
    with pytest.raises(ValueError, match="cannot read the part") as caught:
        registry.spec(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "ring", "deadline(seconds=0.3, leftovers=drop)", "f(a=true, b=None, c='two words')",
        "digits(model=mlp(hidden=(8,)))", "f(g(a=1), h, b=2)", "f(by={0: 4.0})", "my.own:f(a=1)",
        "f(a=my:g)", "f(path='runs/a.csv')", "f(a='true', b='3')", "f(a={'x': g, 'y': h(b=1)})",
    ],
)  # fmt: skip
def test_a_part_is_shown_as_it_is_written(text):
    shown = registry.text(registry.as_part(text))
    assert registry.spec(shown) == registry.spec(text)
    assert len(shown) <= len(text)


def test_a_parameter_cannot_take_the_place_of_the_name():
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
