"""What we take from JAX's coordination service is there, in whatever version of JAX this is."""

import ast
import re
import runpy
import subprocess
import sys

import jax
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


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [320, 10_000])
def test_the_service_does_what_we_rely_on_and_keeps_no_key_of_old_rounds(rounds):
    """Of two starts with half of the rounds each."""
    script = ALONE.format(port=free_port(), rounds=rounds)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "all is there\n", done.stderr[-2000:]


def test_what_is_private_in_jax_stands_in_one_module():
    paths = [ROOT / "launch.py", *(path for name in (*FOLDERS, "tests") for path in _python(name))]
    inside = {path.relative_to(ROOT).as_posix() for path in paths if any(map(_private, _of(path)))}
    assert inside == {"experiments/coordination.py", "tests/experiments/test_coordination.py"}


def test_what_is_private_in_jax_is_where_it_was():
    """A JAX without it fails here, and not in the middle of a run."""
    from jax._src.lib import _jax

    client = _jax.DistributedRuntimeClient
    missing = [
        name for name in coordination.OF_STATE if not hasattr(coordination.global_state, name)
    ]
    missing += [name for name in coordination.RELIED_ON if not hasattr(client, name)]
    assert not missing, (
        f"JAX {jax.__version__} has no {', '.join(missing)} in jax._src.distributed; mend "
        "experiments/coordination.py, the one module that relies on them"
    )


def test_a_jax_that_has_moved_it_is_told_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.distributed", None)
    with pytest.raises(ImportError, match=r"^coordination: JAX [\d.]+ has moved jax\._src\.dist"):
        runpy.run_path(coordination.__file__)


def _python(folder):
    return (ROOT / folder).rglob("*.py")


def _of(path):
    """The modules that a file imports, if it names any that is private."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if re.search(r"jax\._|jaxlib", text) else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def _private(module):
    return module.startswith(("jax._", "jaxlib"))
