"""Every claim of every config, fed with arms that break what it presupposes."""

import importlib

import pytest

from experiments import premises
from experiments.catalogue import configs
from experiments.studies import mg_wfbp, s2_reducer
from tests.configs import made_up

# Config: (argument, {how its arms are broken: words of the claims that do not depend on that}). A
# break that is not listed is of nothing that the config's claims presuppose.
TABLE = {
    "adasync": (None, {"never": (), "one_seed": (), "at_the_edge": (), "diverged": ()}),
    "async_baselines": (None, {"never": (), "one_seed": (), "at_the_edge": (), "diverged": ()}),
    "frontier_async": (None, {"one_seed": (), "at_the_edge": (), "diverged": ()}),
    "heterogeneous": (None, {"unequal": (), "one_seed": (), "at_the_edge": (), "diverged": ()}),
    "language_model": ("tiny", {"unequal": (), "one_seed": (), "diverged": ()}),
    "local_training": (
        "tiny",
        {"unequal": (), "one_seed": (), "at_the_edge": (), "diverged": ()},
    ),
    "matcha": (
        None,
        {name: ("rho",) for name in ("never", "one_seed", "at_the_edge", "diverged")},
    ),
    "mg_wfbp": (None, {"unequal": (), "diverged": ()}),
    "nonblocking": (
        None,
        {"unequal": ("one mini-batch",), "never": (), "one_seed": (), "diverged": ()},
    ),
    **{
        name: (None, {"never": (), "one_seed": (), "at_the_edge": (), "diverged": ()})
        for name in ("nonblocking_tuned", "nonblocking_tuned_images", "nonblocking_tuned_text")
    },
    "nonblocking_weightings": (
        None,
        {"unequal": ("after the same time",), "one_seed": (), "at_the_edge": (), "diverged": ()},
    ),
    "s2_reducer": (
        "task=ncf",
        {name: ("1.8x", "scales") for name in ("unequal", "one_seed", "diverged")},
    ),
    "small_messages": (
        "tiny",
        {"unequal": (), "one_seed": ("fewer bytes",), "at_the_edge": ("fewer bytes",),
         "diverged": ()},
    ),
    "slow_and_stale": (
        None,
        {
            "never": ("eta at which", "ends below"),
            "one_seed": (),
            "at_the_edge": ("all at rate", "eta at which"),
            "diverged": (),
        },
    ),
    "slow_and_stale_real": (None, {"few": (), "one_seed": ()}),
    "swarm": (
        "delay=slow4",
        {
            "unequal": ("equal loss", "less time", "local steps", "one node"),
            "never": ("point", "equal samples"),
            "one_seed": ("equal samples",),  # twice the bytes are no luck of the draw
            "diverged": (),
        },
    ),
    "swarm_epochs": (None, {"one_seed": (), "diverged": ()}),
    "swarm_tuned": (None, {"never": (), "one_seed": (), "at_the_edge": (), "diverged": ()}),
    "swarm_real": (None, {"never": (), "one_seed": (), "at_the_edge": ("processes take",),
                          "diverged": ()}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch):
    """What the two studies read from files, or measure on this machine."""
    monkeypatch.setattr(mg_wfbp, "_same_parameters", lambda one, other: True)
    sent = {"dense": 1.0}
    monkeypatch.setattr(s2_reducer, "_sent_for_tables", lambda arm: sent.get(arm["name"], 0.1))
    taken = {"dense": 3.0, "s2/sketch": 1.0, "s2/exact": 1.1, "s2/median": 1.0, "sparcml": 2.0}
    steps = {name: s2_reducer.Step(name, ms, 0.01, range(5), "") for name, ms in taken.items()}
    monkeypatch.setattr(s2_reducer, "_steps", lambda arms, gigabits: steps)
    monkeypatch.setattr(s2_reducer, "_prepared", lambda arm: _Prepared())
    found = s2_reducer.Gathered([(4, 1.0, 2.0)], 4)
    monkeypatch.setattr(s2_reducer, "_against_all_gather", lambda task, batch: found)


class _Prepared:
    task = None


def module(name):
    return importlib.import_module(f"configs.{name}")


@pytest.fixture(scope="module")
def intact():
    """Config -> its made-up arms, made once."""
    found = {}

    def of(name):
        if name not in found:
            # Two methods with the same numbers would count as one.
            found[name] = made_up.arms(module(name), TABLE[name][0], level=_of_method)
        return found[name]

    return of


def _of_method(name):
    return 1 + 1e-4 * len(name.partition("/")[0])


def verdicts(name, arms):
    claims = dict(module(name).claims(arms))
    for claim, text in claims.items():
        assert made_up.has_a_verdict(text), f"{claim}: {text}"
    return {claim: text.partition(":")[0] for claim, text in claims.items()}


def test_every_config_with_claims_is_in_the_table():
    names = [path.removeprefix("configs/").removesuffix(".py") for path, _ in configs()]
    assert {name for name in names if hasattr(module(name), "claims")} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_claims_about_arms_that_meet_the_premises_are_judged(name, intact):
    found = verdicts(name, intact(name))
    judged = [claim for claim, verdict in found.items() if verdict != premises.UNKNOWN]
    assert 3 * len(judged) >= len(found), found


@pytest.mark.few(40)
@pytest.mark.parametrize(
    ("name", "broken"), [(name, broken) for name, (_, breaks) in TABLE.items() for broken in breaks]
)
def test_a_claim_whose_premise_is_broken_cannot_be_judged(name, broken, intact):
    independent = TABLE[name][1][broken]
    found = verdicts(name, made_up.BREAKS[broken](intact(name)))
    judged = [
        claim
        for claim, verdict in found.items()
        if verdict != premises.UNKNOWN and not any(words in claim for words in independent)
    ]
    assert found and not judged


@pytest.mark.parametrize("name", TABLE)
def test_without_its_arms_no_claim_is_judged(name, intact):
    found = verdicts(name, made_up.missing(intact(name)))
    without_arms = ("rho", "1.8x", "scales")  # theory, and what the fixture makes up
    judged = [claim for claim, verdict in found.items() if verdict != premises.UNKNOWN]
    assert not [claim for claim in judged if not any(words in claim for words in without_arms)]


def test_swarm_with_one_number_of_updates_is_not_compared_by_its_bytes():
    """400 updates are 51,200 samples in rounds and 12,800 in rows of two meetings."""
    swarm = module("swarm")
    made = made_up.arms(swarm, "delay=slow4")
    for arm in made:
        pairs = arm["name"].startswith(("swarm", "ad_psgd"))
        arm["samples"] = 12_800.0 if pairs else 51_200.0
        arm["bytes_per_worker"] = 1e5 if pairs else 1e6
    found = dict(swarm.claims(made))
    assert found["swarm/H=2: half the bytes of dpsgd/ring at equal samples"] == (
        "cannot be told: the samples of the arms differ: swarm/H=2 12,800, dpsgd/ring 51,200"
    )
