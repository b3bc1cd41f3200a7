"""Modules, files and moves between files of one small simulated run, from its config to its end.

    python -m benchmarks.path_of_a_run

Modules and their lines are counted after the run has ended. A file is entered when a function in it
is called. A move is a call from a function of one file to a function of another one; moves are
counted until the simulator exists.
"""

import pathlib
import sys
import tempfile
from types import FrameType
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIG, CHANGES = "configs/nonblocking.py", {"updates": "20"}


class Path(NamedTuple):
    """The way of one run through the code."""

    modules: list[str]  # that are loaded at its end
    lines: int  # of them
    files: list[str]  # that are entered
    moves: int  # between files before the simulator exists


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


def walk() -> Path:
    """Run the arm once in this process, which should be a fresh one."""
    seen = _Walk()
    with tempfile.TemporaryDirectory() as folder:
        from experiments import config_files, train

        config = config_files.read(str(ROOT / CONFIG), CHANGES).config
        sys.setprofile(seen)
        try:
            train.run(config, pathlib.Path(folder, "run"))
        finally:
            sys.setprofile(None)
    ours = {
        name: file
        for name, module in list(sys.modules.items())
        if _is_ours(file := getattr(module, "__file__", None)) and "benchmarks" not in name
    }
    ours.pop("__main__", None)
    lines = sum(len(pathlib.Path(file).read_text().splitlines()) for file in ours.values())
    files = sorted(str(pathlib.Path(file).relative_to(ROOT)) for file in seen.files)
    own = str(pathlib.Path(__file__).relative_to(ROOT))
    return Path(sorted(ours), lines, [file for file in files if file != own], seen.moves)


def main() -> None:
    """Print the numbers and the files that are entered."""
    path = walk()
    numbers = {
        "modules loaded": len(path.modules), "lines of these": path.lines,
        "files entered": len(path.files), "moves before the simulator exists": path.moves,
    }  # fmt: skip
    for what, number in numbers.items():
        print(f"{number:6d} {what}")
    print("\n".join(path.files))


if __name__ == "__main__":
    main()
