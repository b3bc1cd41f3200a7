"""The path of a run through the code does not grow unseen."""

import pytest

from tests.launcher import program


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
