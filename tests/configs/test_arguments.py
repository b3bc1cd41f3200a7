"""Arguments of a config as text."""

import pytest

from configs import arguments

DEFAULTS = {"workers": 8, "slow": 4.0, "graph": "ring", "quick": False}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (None, {}),
        ("workers=16,slow=2", {"workers": 16, "slow": 2.0}),
        ("slow=1e-3, quick", {"slow": 0.001, "quick": True}),
        ("quick=true", {"quick": True}),
        ("quick=False", {}),
        ("workers=2,workers=3", {"workers": 3}),
    ],
)
def test_arguments_replace_defaults_and_take_their_types(text, changed):
    parsed = arguments.parse(text, **DEFAULTS)
    assert parsed == DEFAULTS | changed
    assert [type(value) for value in parsed.values()] == [int, float, str, bool]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wokers=16", "'wokers' is unknown; did you mean 'workers'? known arguments: workers"),
        ("=3", "'' is unknown"),
        ("workers", "'workers' needs a value of type int, got ''; write workers=8"),
        ("workers=2.5", "type int, got '2.5'"),
        ("graph", "type str, got ''; write graph=ring"),
        ("quick=maybe", "'quick' is a switch, got 'maybe'; use true"),
    ],
)
def test_misfits_are_explained(text, words):
    with pytest.raises(ValueError) as caught:
        arguments.parse(text, **DEFAULTS)
    assert words in str(caught.value)
