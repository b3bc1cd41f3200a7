"""The wheel, in which everything lies below one package, `gossax`.

A checkout has its folders at the top. The build copies them below gossax/, where gossax.py is the
package itself, and rewrites imports, names of modules in texts, and commands.
"""

import re
import shutil
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parent
ROOMS = ("algorithms", "comms", "configs", "experiments", "runtimes", "stragglers")
IMPORT = re.compile(rf"^( *from )(?=(?:{'|'.join(ROOMS)})[\w.]* import )", re.MULTILINE)
BOUND = re.compile(rf"^ *import (?:{'|'.join((*ROOMS, 'launch'))})\b", re.MULTILINE)
NAME = re.compile(rf"(?<![\w./])(?:{'|'.join(ROOMS)})\.\w+")


def sources() -> list[Path]:
    """Return all files of the wheel, relative to the root."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
    kept = sorted(path.relative_to(ROOT) for path in found if "__pycache__" not in path.parts)
    return [Path("gossax.py"), Path("launch.py"), *kept]


def rewritten(source: str) -> str:
    """Return Python code of a checkout as it stands in the wheel.

    Raises ValueError where more than imports and texts would change, or an import binds a folder.
    """
    if bound := BOUND.search(source):
        raise ValueError(f"{bound[0].strip()!r} has to be written as from ... import ...")
    imports = IMPORT.sub(r"\1gossax.", source)
    changed = NAME.sub(_below, imports)
    if changed != imports and _users(_code(changed)) != _users(_code(imports)):
        raise ValueError("code, not only an import or a text, names a module with its folder")
    changed = changed.replace("python launch.py", "python -m gossax.launch")
    return changed.replace('"launch.py"', '"-m", "gossax.launch"')


def _below(name: re.Match) -> str:
    """Return the dotted name of a module with its package, any other as it is."""
    module = ROOT.joinpath(*name[0].split(".")[:2])
    found = module.is_dir() or module.with_suffix(".py").is_file()
    return f"gossax.{name[0]}" if found else name[0]


def _code(source: str) -> CodeType:
    return compile(source, "<source>", "exec", dont_inherit=True)


def _users(code: CodeType) -> list[bool]:
    """Return, for a module and each function in it, True if it uses the name `gossax`."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return ["gossax" in code.co_names, *(user for one in inner for user in _users(one))]


def assemble(folder: Path) -> None:
    """Write the package below a folder, in place of an older one."""
    shutil.rmtree(folder / "gossax", ignore_errors=True)
    for path in sources():
        target = folder / "gossax" / ("__init__.py" if path.name == "gossax.py" else path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
        if path.suffix == ".py":
            try:
                target.write_text(rewritten(target.read_text("utf-8")), "utf-8")
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error


if __name__ == "__main__":
    from setuptools import setup
    from setuptools.command.build_py import build_py

    class BelowGossax(build_py):
        """The step that copies modules."""

        def run(self) -> None:
            """Write the package; an editable install uses the checkout instead."""
            if not self.editable_mode:
                assemble(Path(self.build_lib))

        def get_source_files(self) -> list[str]:
            """Return what a source distribution has."""
            return ["gossax_checkout.py", *map(str, sources())]

    setup(cmdclass={"build_py": BelowGossax})
