"""An older place of `part` and `as_part` for config files; `experiments.registry` has both."""

from experiments.registry import as_part, part

__all__ = ["as_part", "part"]
