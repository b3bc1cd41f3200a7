"""The place from which config files have always imported `part`, beside `experiments.registry`."""

from experiments.registry import as_part, part

__all__ = ["as_part", "part"]
