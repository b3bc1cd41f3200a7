"""Modules, files and moves between files of one small simulated run, from its config to its end.

    python -m benchmarks.path_of_a_run
    python -m benchmarks.path_of_a_run --launch     # its first update beside a script of JAX

Modules and their lines are counted after the run has ended. A file is entered when a function in it
is called. A move is a call from a function of one file to a function of another one; moves are
counted until the simulator exists.

With --launch, `launch.py` runs up to the record of its first update, in turn with a script that
imports JAX and compiles a step of the same model. Both have warm caches of compiled programs. CPU
seconds are shown beside the clock's, as other programs on a host lengthen CPU seconds less.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from types import FrameType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIG, CHANGES = "configs/nonblocking.py", {"updates": "20"}
TURNS = 7
SCRIPT = """
import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def loss(params, images, labels):
    hidden = jax.nn.relu(images @ params["in"] + params["b"])
    scores = jax.nn.log_softmax(hidden @ params["out"])
    return -jnp.take_along_axis(scores, labels[:, None], 1).mean()


@jax.jit
def step(params, images, labels):
    gradient = jax.grad(loss)(params, images, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


key = jax.random.key(0)
params = {"in": jax.random.normal(key, (64, 128)), "b": jnp.zeros(128), "out": jnp.zeros((128, 10))}
jax.block_until_ready(step(params, jnp.ones((1024, 64)), jnp.zeros(1024, jnp.int32)))
with open(sys.argv[1], "w") as file:
    file.write("done\\n")
sys.stdin.read()
"""


class _Walk:
    """Calls between files of this repository, for `sys.setprofile`."""

    def __init__(self):
        self.files: set[str] = set()
        self.moves, self.built = 0, False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call."""
        del argument
        file = frame.f_code.co_filename
        if event != "call" or not _is_ours(file) or frame.f_code.co_name == "<module>":
            return
        self.files.add(file)
        caller = frame.f_back
        while caller is not None and not _is_ours(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != file and not self.built:
            self.moves += 1
        self.built |= frame.f_code.co_qualname == "Simulator.__init__"


def _is_ours(file: str | None) -> bool:
    return file is not None and file.startswith(f"{ROOT}/") and "site-packages" not in file


def walk() -> tuple[dict[str, int], list[str]]:
    """Run the arm once in this process, a fresh one; return the numbers and the files entered."""
    seen = _Walk()
    with tempfile.TemporaryDirectory() as folder:
        from experiments import config_files, train

        config = config_files.read(str(ROOT / CONFIG), CHANGES).config
        sys.setprofile(seen)
        try:
            train.run(config, pathlib.Path(folder, "run"))
        finally:
            sys.setprofile(None)
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    loaded = [pathlib.Path(name) for name in names if _is_ours(name)]
    loaded = [path for path in loaded if path.parent != pathlib.Path(__file__).parent]
    files = sorted(str(pathlib.Path(file).relative_to(ROOT)) for file in seen.files - {__file__})
    return {
        "modules loaded": len(loaded),
        "lines of these": sum(len(path.read_text().splitlines()) for path in loaded),
        "files entered": len(files),
        "moves before the simulator exists": seen.moves,
    }, files


def launches() -> dict[str, list[tuple[float, float]]]:
    """Return (clock s, CPU s) of launches to their first update, and of the script, in turns.

    The first turn fills the caches and does not count.
    """
    taken: dict[str, list[tuple[float, float]]] = {"launch": [], "script": []}
    with tempfile.TemporaryDirectory() as folder:
        programs = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": f"{folder}/programs"}
        for turn in range(TURNS + 1):
            work, done = pathlib.Path(folder, f"run_{turn}"), pathlib.Path(folder, f"done_{turn}")
            arm = [f"--config={CONFIG}", "--config.updates=1", f"--workdir={work}"]
            # Two lines of metrics: that of the start, and that after an update.
            taken["launch"].append(_until(work / "metrics.jsonl", 2, programs, "launch.py", *arm))
            taken["script"].append(_until(done, 1, programs, "-c", SCRIPT, str(done)))
    return {name: seconds[1:] for name, seconds in taken.items()}


def _until(
    file: pathlib.Path, lines: int, programs: dict[str, str], *command: str
) -> tuple[float, float]:
    """Return (clock s, CPU s) of a Python command until a file has this number of lines."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=os.environ | programs, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while not (file.exists() and file.read_bytes().count(b"\n") >= lines):
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} has ended with {process.returncode} before its time")
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    process.communicate()
    return seconds, sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the numbers and the files that are entered, or the seconds of a launch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launch", action="store_true", help="time a launch beside a script")
    if not parser.parse_args().launch:
        numbers, files = walk()
        print("\n".join([*(f"{number:6d} {name}" for name, number in numbers.items()), *files]))
        return
    taken = launches()
    for place, clock in enumerate(("on the clock", "of the CPU")):
        ours, script = ([one[place] for one in taken[name]] for name in ("launch", "script"))
        ratios = [a / b for a, b in zip(ours, script, strict=True)]
        middle = statistics.median
        print(f"{clock}: launch {middle(ours):.2f} s, script {middle(script):.2f} s, ratio "
              f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
