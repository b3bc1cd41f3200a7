"""Grids of the command line: every combination of the values that some entries take is an arm.

    --grid='optimizer.learning_rate=0.05,0.1,0.2' --grid='wait=barrier,deadline(seconds=0.3)'
"""

import itertools
from collections.abc import Iterator, Sequence

OPENS, CLOSES, QUOTES = "([{", ")]}", "'\""


def read(grids: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of every entry, as texts; ValueError for a grid that cannot be read."""
    found: dict[str, list[str]] = {}
    for grid in grids:
        entry, equals, listed = grid.partition("=")
        entry, values = entry.strip().removeprefix("config."), split(listed)
        if not (equals and entry and all(values)):
            raise ValueError(
                f"--grid={grid!r} is no list of values; write it as "
                "--grid='optimizer.learning_rate=0.05,0.1'"
            )
        if entry == "name":
            raise ValueError("--grid names its arms after their values; leave out name")
        if entry in found:
            raise ValueError(f"--grid gives {entry} twice; put all of its values into one list")
        inside = [one for one in found if f"{one}.".startswith(f"{entry}.")
                  or f"{entry}.".startswith(f"{one}.")]  # fmt: skip
        if inside:
            raise ValueError(
                f"--grid gives {entry} and {inside[0]}, one of which is inside of the other; write "
                "whole parts, as in --grid='wait=quorum(k=1),quorum(k=2)'"
            )
        if len(set(values)) < len(values):
            raise ValueError(f"--grid={grid!r} has a value twice; leave one of them")
        found[entry] = values
    return found


def split(listed: str) -> list[str]:
    """Return the parts of a text between commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for character in listed:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        elif character in OPENS + CLOSES:
            depth += 1 if character in OPENS else -1
        if character == "," and not (depth or quote):
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def points(grids: dict[str, list[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of every combination and its values by entry.

    A name has the last word of each entry, and the whole of it where two have the same.
    """
    lasts = [entry.rpartition(".")[2] for entry in grids]
    labels = [
        last if lasts.count(last) == 1 else entry
        for entry, last in zip(grids, lasts, strict=True)
    ]
    for values in itertools.product(*grids.values()):
        pairs = zip(labels, values, strict=True)
        name = "/".join(f"{label}={value.replace('/', '_')}" for label, value in pairs)
        yield name, dict(zip(grids, values, strict=True))
