"""One dialect in all files, as far as ruff does not see it."""

import ast
import io
import re
import tokenize

from tests.launcher import ROOT
from tests.test_architecture import FILES

TEXT = {
    # Three make a block, as in Markdown.
    "double backticks": re.compile(r"(?<!`)``(?!`)"),
    "two spaces after a full stop": re.compile(r"\w[)\"`']?[.!?] {2,}[A-Z`\"(]"),
}
# What makes a sentence be read twice, or a local be named after the sentence it stands in.
WORDS = {
    "a number that is not named": re.compile(r"\bso (?:many|often)\b"),
    "a noun that is not named": re.compile(r"\b[Tt]hose\s+of\b"),
    "an inversion": re.compile(r"\bbe it\b"),
    "a name that says nothing": re.compile(r"(?<!cannot be )\btold\b"),
}
CODE = {
    "postponed annotations": re.compile(r"^from __future__", re.MULTILINE),
    "the axis as text": re.compile(r"(?:\baxis(?:_name)?(?:: str)?\s*=\s*|\bP\()\"workers\""),
}


def sources():
    """Name and text of every Python file."""
    paths = [*FILES, *(ROOT / "tests").rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def comments_and_strings(source):
    kinds = (tokenize.COMMENT, tokenize.STRING)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield token.string


def faults(name, source):
    """Return the breaches of rules in one file."""
    for text in comments_and_strings(source):
        for rule, pattern in TEXT.items():
            if name != "tests/test_style.py" and pattern.search(text):
                yield f"{name}: {rule}: {pattern.search(text)[0]!r}"
    if not name.startswith("tests/"):  # tests name the axis as a user would
        code = re.sub(r'""".*?"""', "", source, flags=re.DOTALL)
        for rule, pattern in CODE.items():
            if pattern.search(code):
                yield f"{name}: {rule}: {pattern.search(code)[0]!r}"


def pages():
    """Name and text of README and documentation, what their records quote included."""
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def wordy(name, text):
    """Yield the phrases of one file that a reader trips over."""
    for rule, pattern in WORDS.items():
        for found in pattern.finditer(text):
            yield f"{name}: {rule}: {found[0]!r}"


def test_plain_words():
    texts = {name: text for name, text in sources().items() if name != "tests/test_style.py"}
    found = [fault for name, text in (texts | pages()).items() for fault in wordy(name, text)]
    assert found == []


ASKS = re.compile(r"(?:What|Who|Whom|Whose|Where|Which|When|Whether|How|Why)\b")


def test_docstrings_open_with_a_noun_or_an_imperative():
    """One in a hundred may open with an interrogative."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    trees = [ast.walk(ast.parse(text)) for text in sources().values()]
    found = [ast.get_docstring(node) for tree in trees for node in tree if isinstance(node, kinds)]
    asking = [text for text in filter(None, found) if ASKS.match(text)]
    assert len(asking) <= len(found) / 100, asking


def test_one_dialect():
    assert [fault for name, source in sources().items() for fault in faults(name, source)] == []
