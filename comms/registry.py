"""Registries of factories by name; a factory's module is imported on the first use."""

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


class Registry(MutableMapping):
    """Factories by the names that configs use.

    places: name -> "module:factory", or the factory itself.
    """

    def __init__(self, places: Mapping[str, str | Callable]):
        self._places = dict(places)

    def __getitem__(self, name: str) -> Callable:
        place = self._places[name]
        if isinstance(place, str):
            module, _, attribute = place.partition(":")
            place = self._places[name] = getattr(importlib.import_module(module), attribute)
        return place

    def __setitem__(self, name: str, factory: Callable) -> None:
        self._places[name] = factory

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __contains__(self, name: Any) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def as_attributes_of(self, package: str) -> None:
        """Let a package have the factories as attributes, also beside a file of the same name."""
        registry = self

        class Package(types.ModuleType):
            """Package that imports a factory on its first use."""

            def __getattribute__(self, name: str) -> Any:
                return registry[name] if name in registry else super().__getattribute__(name)

        sys.modules[package].__class__ = Package
