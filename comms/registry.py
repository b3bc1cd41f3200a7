"""Registries of factories by name; a factory's module is imported on the first use."""

import importlib
import sys
import types
from collections import UserDict
from collections.abc import Callable
from typing import Any


class Registry(UserDict):
    """Factories by the names that configs use: name -> "module:factory", or the factory itself."""

    def __getitem__(self, name: str) -> Callable:
        place = self.data[name]
        if isinstance(place, str):
            module, _, attribute = place.partition(":")
            place = self.data[name] = getattr(importlib.import_module(module), attribute)
        return place

    def as_attributes_of(self, package: str) -> None:
        """Make factories attributes of a package, even if a file has the same name."""
        registry = self

        class Package(types.ModuleType):
            """Package that imports a factory on its first use."""

            def __getattribute__(self, name: str) -> Any:
                return registry[name] if name in registry else super().__getattribute__(name)

        sys.modules[package].__class__ = Package
