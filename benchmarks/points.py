"""Records of benchmarks that are measured piece by piece, in the form that pages can quote.

{"command": ..., "date": ..., "versions": ..., "summary": {"points": [{...}, ...]}}
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Sequence

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "results" / "benchmarks"
LIBRARIES = ("jax", "jaxlib", "numpy", "optax")


def put(path: pathlib.Path, command: str, key: Sequence[str], points: Sequence[dict]) -> None:
    """Put points into the record at a path; the others in it stay, but for those with their `key`.

    key: names of the fields that say what was measured. Numbers keep five digits.
    """
    known = json.loads(path.read_text())["summary"]["points"] if path.exists() else []
    merged = {tuple(point[name] for name in key): point for point in [*known, *points]}
    lines = ",\n".join(f"  {json.dumps(_rounded(merged[one]))}" for one in sorted(merged))
    versions = {library: importlib.metadata.version(library) for library in LIBRARIES}
    head = {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | versions,
        "claims": [],
        "cores": os.cpu_count(),
    }
    body = f'{json.dumps(head, indent=1)[:-2]},\n "summary": {{"points": [\n{lines}\n ]}}\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(body)
    os.replace(beside, path)


def _rounded(point: dict) -> dict:
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in point.items()
    }
