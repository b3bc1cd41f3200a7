"""The part of a page that says how the configs of arms differ, and what they share."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments import parts
from experiments.reports import markup, table, workdirs


def sections(arms: Sequence[workdirs.Arm]) -> Iterator[str]:
    """The entries in which configs differ, and those that they share."""
    if not arms:
        return
    columns = _columns([arm.config for arm in arms])
    differing = [key for key in columns if len(set(columns[key])) > 1]
    yield "<h2>Settings</h2>"
    if differing:
        rows = zip((arm.name for arm in arms), *(columns[key] for key in differing), strict=True)
        caption = "the entries of the configs in which arms differ"
        yield markup.table("settings", ("arm", *differing), [list(rows)], caption)
    common = [(key, cells[0]) for key, cells in columns.items() if key not in differing]
    yield f"<details><summary>{len(common)} common settings</summary>"
    yield markup.table("words", ("entry", "value"), [common])
    yield "</details>"


def _columns(configs: Sequence[Mapping]) -> dict[str, list[str]]:
    """Entry -> what it is in every config; of a part that all arms share, its parameters."""
    columns = {}
    for key in dict.fromkeys(key for config in configs for key in config if key != "name"):
        values = [config.get(key) for config in configs]
        names = {value.get("name") if isinstance(value, Mapping) else ... for value in values}
        if len(names) == 1 and ... not in names:
            for own in dict.fromkeys(own for value in values for own in value):
                label = key if own == "name" else f"{key}.{own}"
                columns[label] = [_value(value.get(own)) for value in values]
        else:
            columns[key] = [_value(value) for value in values]
    return columns


def _value(value: Any) -> str:
    """An entry of a config, as one would write it on the command line."""
    return table.NONE if value is None else parts.text(value)
