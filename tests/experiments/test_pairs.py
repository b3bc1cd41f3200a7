"""Decisions on every method under every waiting rule in every runtime."""

import functools
import itertools
import re

import jax
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from benchmarks import pairs
from comms import topology
from experiments import prepare, registry, runtime_builders
from runtimes import base
from runtimes.asynchronous import runtime as asynchronous_runtime
from stragglers.rule import Setting
from stragglers.rules import RULES
from tests.algorithms.methods import PROFILE

N = pairs.WORKERS
SHAPES = {
    "w": jax.ShapeDtypeStruct((6, 3), np.float32),
    "b": jax.ShapeDtypeStruct((3,), np.float32),
}
CALL = re.compile(r"\w+(?:\([^)]*\))?")
ADVICE = re.compile(
    r"; (?:take runtime='(?P<runtime>\w+)'(?: and )?)?(?:wait for (?P<rules>.*?))?"
    r"(?:, or take runtime=.*|, or set lockstep=true for a rule in rounds)?$"
)


METHODS = [*pairs.METHODS, "swarm(lockstep=true)", "swarm(blocking=true)"]
WAITS = [*pairs.WAITS, "random_pairs(blocking=true)", "rennala(k=2, interrupt=true)",
         "rennala(k=1)", "k_async(k=4)", "k_sync(k=4)", "k_async(k=1, grace=0.5)"]  # fmt: skip


@functools.cache
def method(written):
    spec = registry.spec(written)
    wanted = spec.keys() & prepare.METHOD.opened(spec["name"])[1].keys()
    return prepare.METHOD.build(
        spec | prepare._built_parts(wanted, spec, 0, topology.ring(N)),
        optimizer=optax.sgd(0.1),
        graph=topology.ring(N),
        workers=N,
        seed=0,
        sparse=("w",),
        profile=PROFILE,
    )


@pytest.fixture(autouse=True, scope="module")
def each_part_once():
    """Build every rule, and trace every method, once, so that a pair is decided in no time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, factory in RULES.items():
            patch.setitem(RULES, name, once(factory))
        patch.setattr(base, "remembers", once(base.remembers))
        patch.setattr(prepare, "_check_delay", lambda *_: None)  # of the delay alone
        known = once(asynchronous_runtime.alone)
        patch.setattr(asynchronous_runtime, "alone", known)
        yield


@functools.cache
def of_kinds():
    """Return methods that differ in what decides, one of every kind."""
    def kind(made):
        needs = [bool(need) for need in made.needs[:-1]]
        parts = made.server is None, made.work is None, made.links is None, made.adopt
        return (*needs, *parts, made.needs.otherwise, base.remembers(made, SHAPES))

    return list({kind(method(written)): written for written in METHODS}.values())


def once(function):
    """Return the function, called once for the same objects."""
    found, kept = {}, []

    @functools.wraps(function)
    def wrapper(*arguments, **own):
        flat = [part for one in arguments for part in (one if isinstance(one, Setting) else [one])]
        key = (*(part if isinstance(part, int | float | str) else id(part) for part in flat),
               *sorted(map(str, own.items())))  # fmt: skip
        if key not in found:
            kept.append(arguments)
            try:
                found[key] = function(*arguments, **own), None
            except ValueError as error:
                found[key] = None, error
        result, error = found[key]
        if error is not None:
            raise error
        return result

    return wrapper


@functools.cache
def decision(written, wait, runtime):
    """Return the sentence of a refusal, or None."""
    config = ConfigDict({
        "algorithm": {"name": registry.spec(written)["name"]}, "wait": registry.as_part(wait),
        "runtime": runtime, "workers": N, "mini_batches": 2, "updates": 3, "seconds": 100.0,
        "seed": 0, "draw": "mini_batch", "delay": {"name": "exponential", "scale": 1.0},
    })  # fmt: skip
    try:
        prepare.fitting_rule(config, method(written), SHAPES, 0.0)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("runtime", runtime_builders.RUNTIMES)
def test_every_pair_is_decided_by_declarations_and_what_a_refusal_advises_is_accepted(runtime):
    advised = set()
    for written, wait in itertools.product(of_kinds(), pairs.WAITS):
        said = decision(written, wait, runtime)
        if said is not None:
            refused, found = said.partition(" cannot wait for ")[0], ADVICE.search(said)
            assert refused == f"{runtime}: {registry.spec(written)['name']}", said
            assert found, said
            advised.add((written, found["runtime"] or runtime, found["rules"] or wait))
            if "lockstep" in said:
                assert registry.spec(written)["name"] == "swarm", said
    for written, where, rules in advised:
        calls = [rules] if rules in WAITS else CALL.findall(rules.replace(" or ", ", "))
        for wait in calls:
            assert decision(written, wait.replace("...", "1.0"), where) is None, (written, wait)


def test_a_mesh_accepts_what_a_simulation_does_and_parameters_change_what_is_accepted():
    """Only the several contributions of a round, with local steps, are beyond a mesh alone."""
    for written, wait in itertools.product(of_kinds(), WAITS):
        simulated, meshed = (decision(written, wait, runtime) for runtime in ("simulate", "mesh"))
        if meshed is None:
            assert simulated is None, simulated
        elif simulated is None:
            assert re.search("devices move in rounds|several contributions", meshed), meshed
    for runtime in ("simulate", "mesh"):
        assert decision("swarm(lockstep=true)", "barrier", runtime) is None
        assert "set lockstep=true" in decision("swarm", "barrier", runtime)
    assert "not made for" in decision("dpsgd", "random_pairs", "simulate")
    for runtime in {*runtime_builders.RUNTIMES} - {"mesh"}:
        assert decision("top_k", "rennala(k=1)", runtime) is None
        assert "twice" in decision("top_k", "rennala(k=2)", runtime)
        assert decision("top_k", "k_async(k=2)", runtime) is None
    assert "only 1 of 4" in decision("powersgd", "k_async(k=1, grace=0.5)", "actors")
    assert "move freely" in decision("all_reduce", "barrier", "actors")


@pytest.mark.slow
@pytest.mark.parametrize(("method_name", "rule_name"), pairs.OF_PROCESSES)
def test_processes_train_what_is_accepted(method_name, rule_name):
    """Parameters are finite after three updates; all pairs are for `benchmarks.pairs`."""
    pairs.trained(pairs.call(method_name), pairs.call(rule_name), "actors")
