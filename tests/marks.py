"""Rows of a test's table that `make test` leaves to `make test-slow`."""

from collections.abc import Container, Iterable

import pytest


def slow(*values):
    """Return a row that is slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(quick: Container, values: Iterable) -> list:
    """Return rows of one value each, of which only those in `quick` are not slow."""
    return [value if value in quick else slow(value) for value in values]
