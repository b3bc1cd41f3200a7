"""The settings of a sweep's arms, which a record keeps to notice that a config has changed."""

import hashlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from experiments import parts

UNLIKE = "differs by arm: "  # before the digest of an entry that is not the same in all arms
LABELS = ("name", "baseline", "seed")  # of an arm, which change nothing that it does


def of(arms: Mapping[str, ConfigDict]) -> dict[str, str]:
    """Entry of a config -> its text if all arms have the same, else a digest of every arm's.

    arms: the name of an arm -> its config.
    """
    texts = {
        name: {entry: _text(config[entry]) for entry in config if entry not in LABELS}
        for name, config in sorted(arms.items())
    }
    entries = dict.fromkeys(entry for each in texts.values() for entry in each)
    found = {}
    for entry in entries:
        values = {name: each.get(entry) for name, each in texts.items()}
        common = set(values.values())
        found[entry] = common.pop() if len(common) == 1 else UNLIKE + _digest(values)
    return found


def _text(value: Any) -> str:
    """As one would write it, whether it was just made or read from JSON."""

    def plain(value: Any) -> Any:
        if hasattr(value, "items"):
            return ConfigDict({key: plain(inner) for key, inner in sorted(value.items())})
        return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

    return parts.text(plain(value))


def _digest(values: Mapping[str, str | None]) -> str:
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:12]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The entries that both have and that differ; what a config has gained since is no change."""
    return [entry for entry, value in before.items() if now.get(entry, value) != value]
