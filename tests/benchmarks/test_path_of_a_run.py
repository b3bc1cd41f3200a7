"""The path of a run through the code does not grow unseen."""

import pytest

from tests.launcher import program

# Each is lowered when a change shortens the path.
MOST = {
    "modules loaded": 63,
    "lines of these": 15_425,
    "files entered": 44,
    "moves before the simulator exists": 95,
}


@pytest.mark.slow
def test_a_simulated_run_takes_no_longer_path_than_it_did():
    found = program("-m", "benchmarks.path_of_a_run", XLA_FLAGS="", JAX_PLATFORMS="cpu")
    assert found.returncode == 0, found.stderr[-2000:]
    rows = [line.split(maxsplit=1) for line in found.stdout.splitlines()]
    numbers = {row[1]: int(row[0]) for row in rows if row[1:] and row[0].isdigit()}
    assert numbers.keys() == MOST.keys()
    assert all(0 < numbers[name] <= most for name, most in MOST.items()), numbers


@pytest.mark.slow
def test_an_arm_loads_no_library_that_it_does_not_use(tmp_path):
    flags = ("--sweep", "--arm=all_reduce/blocking", "--config.updates=2")
    words = ("-X", "importtime", "launch.py", "--config=configs/demo.py", *flags)
    ended = program(*words, f"--workdir={tmp_path}", XLA_FLAGS="", JAX_PLATFORMS="cpu")
    assert ended.returncode == 0, ended.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert {"jax", "experiments.train", "flax.linen"} <= loaded  # what is looked for is seen
    # SciPy 1.18 itself loads scipy.linalg with scipy.special, in which the delays of this arm are.
    slow = {
        "grain", "matplotlib", "numba", "orbax", "pandas", "ray", "scipy.optimize", "scipy.sparse",
        "scipy.stats", "sklearn", "tensorflow_datasets",
    }  # fmt: skip
    assert not loaded & slow
