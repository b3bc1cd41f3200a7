"""What we take from JAX's coordination service is there, in whatever version of JAX this is."""

import ast
import subprocess
import sys

import pytest

from experiments import coordination
from tests.launcher import ROOT
from tests.test_architecture import FOLDERS
from tests.two_processes import free_port

ALONE = """
import jax
from experiments import coordination, distributed, shared_tally

distributed.initialize("127.0.0.1:{port}", 1, 0)
assert (coordination.processes(), coordination.process_id()) == (1, 0)
coordination.put("a/text", "one")
try:
    coordination.put("a/text", "two")
except jax.errors.JaxRuntimeError as error:
    assert "ALREADY_EXISTS" in str(error) and not coordination.is_late(error)
else:
    raise AssertionError("a key was set twice")
coordination.put("a/text", "three", again=True)
assert coordination.get("a/text", 1.0) == coordination.get_now("a/text") == "three"
assert coordination.get_now("a/nothing") is None
try:
    coordination.get("a/nothing", 0.05)
except jax.errors.JaxRuntimeError as error:
    assert coordination.is_late(error)
else:
    raise AssertionError("a key that nobody has set was read")
assert [coordination.add("a/b/count", n) for n in (1, 5, 0)] == [1, 6, 6]
assert sorted(coordination.keys("a")) == ["a/b/count", "a/text"]
coordination.remove("a")
assert coordination.keys("a") == []

tally = shared_tally.SharedTally()
for start in range(2):
    tally.begin(3)
    for first in range(0, {rounds} // 2, 8):
        rounds = range(first, first + 8)
        assert not any(map(tally.over, rounds))
        assert tally.add(first, 2) and not tally.over(first)
        assert tally.add(first, 1) and tally.over(first) and not tally.add(first, 1)
        tally.close(rounds)
        assert len(tally._threads) == len(tally._over) == 0
assert coordination.keys(shared_tally.PLACE) == []
print("all is there")
"""


@pytest.mark.parametrize("rounds", [320, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_service_does_what_we_rely_on_and_keeps_no_key_of_old_rounds(rounds):
    """Of two starts with half of the rounds each."""
    script = ALONE.format(port=free_port(), rounds=rounds)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "all is there\n", done.stderr[-2000:]


def test_what_is_private_in_jax_stands_in_one_module():
    """With its names: a JAX without them fails here, and not in the middle of a run."""
    inside = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("*/**/*.py")
        if path.relative_to(ROOT).parts[0] in FOLDERS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax._")
    }
    assert inside == {"experiments/coordination.py"}
    from jax._src.lib import _jax

    client = _jax.DistributedRuntimeClient
    missing = [name for name in coordination.RELIED_ON if not hasattr(client, name)]
    assert not missing, f"JAX {sys.modules['jax'].__version__} has no {', '.join(missing)}"
