"""The package `gossax` of a checkout, whose folders lie beside gossax.py and not below it.

A wheel does without this file.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parent
ROOMS = ("algorithms", "comms", "configs", "experiments", "runtimes", "stragglers")


class Aliases:
    """Finder and loader by which gossax.X[.Y] is the very module X[.Y]."""

    def find_spec(self, name: str, path: Sequence[str] | None, target=None) -> ModuleSpec | None:
        """Return the spec of a name below gossax, None if it is not of the checkout."""
        own = name.removeprefix("gossax.")
        if own == name or own.partition(".")[0] not in (*ROOMS, "launch"):
            return None
        found = importlib.util.find_spec(own)
        return found and ModuleSpec(name, self, origin=found.origin, loader_state=found)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the checkout's own module, whose spec is replaced until `exec_module`."""
        return importlib.import_module(spec.loader_state.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, and alias the submodules that it has imported.

        Importing a submodule by an alias would otherwise replace a function of the same name.
        """
        module.__spec__ = module.__spec__.loader_state
        for name in [name for name in sys.modules if name.startswith(f"{module.__name__}.")]:
            sys.modules.setdefault(f"gossax.{name}", sys.modules[name])

    def get_code(self, name: str) -> CodeType:
        """Return the code, for python -m."""
        own = name.removeprefix("gossax.")
        return importlib.util.find_spec(own).loader.get_code(own)


def begin() -> None:
    """Let names below gossax be found; ImportError where another folder has the name of ours."""
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        place = spec and Path(spec.origin or next(iter(spec.submodule_search_locations))).resolve()
        if place != ROOT / room / "__init__.py":
            raise ImportError(
                f"gossax: {place} is imported in place of {ROOT / room}; rename it, or install the "
                f"wheel, which keeps its own folders apart: pip install {ROOT}"
            )
    sys.meta_path.insert(0, Aliases())  # before the finder of files below a package
