"""Texts that somebody else has written, in sentences of ours."""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

MOST = 200  # characters of a text that are repeated
LISTED = 100  # characters of a list of names
CLOSE = 0.7  # share of the characters that a mistyped name has in common with the one that is meant
_LONGEST = 1000  # characters of a sentence, whatever it repeats
_QUOTED = re.compile(r"'[^']{200,}'|\"[^\"]{200,}\"|\S{200,}")


def brief(text: str) -> str:
    """A text on one line, without control characters, of at most 200 characters."""
    text = visible(" ".join(str(text).split()))
    return text if len(text) <= MOST else f"{text[:MOST]} ... ({len(text)} characters)"


def sentence(error: Exception | str) -> str:
    """What an error says on one line, in which no text is repeated beyond 200 characters."""
    text = visible(" ".join(str(error).split()))
    text = _QUOTED.sub(lambda match: brief(match[0]), text)
    if len(text) <= _LONGEST:
        return text
    head, tail = text[: _LONGEST * 7 // 10], text[-_LONGEST // 4 :]
    return f"{head} ... {tail}"


def meant(name: Any, known: Iterable[str]) -> str:
    """Return the question for the known name that is closest to a mistyped one, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), 1, CLOSE)
    return f"did you mean {close[0]!r}? " if close else ""


def listed(names: Iterable[str]) -> str:
    """Return names with commas; of those that take more than a line the first ones and a count."""
    names, shown, width = list(names), [], 0
    for name in names:
        width += len(name) + 2
        if shown and width > LISTED:
            break
        shown.append(name)
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def visible(text: str) -> str:
    """The text with escapes for what would move a terminal or can be no part of a file."""
    return "".join(
        character if is_visible(character) else ascii(character)[1:-1] for character in text
    )


def is_visible(text: str) -> bool:
    """Whether a text is free of control characters, line breaks, surrogates and the like."""
    return not any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _DIRECTIONS
        for character in text
    )


# Characters that change the order in which others are shown.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
