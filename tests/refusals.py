"""Refusals of one sentence each, by rows of a battery that have words of it."""

import contextlib
import re

import pytest


@contextlib.contextmanager
def sentence(words):
    """Check that the block ends with a ValueError of one line, which has the words or pattern."""
    with pytest.raises(ValueError) as caught:
        yield
    said = str(caught.value)
    assert words in said or re.search(words, said), said
    assert "\n" not in said


def refused(*rows, by=lambda call: call()):
    """Return a test of rows that end with words: the sentence in which `by` refuses the rest."""

    @pytest.mark.parametrize("row", rows)
    def test(row):
        *given, words = row
        with sentence(words):
            by(*given)

    return test
