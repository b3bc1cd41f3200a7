"""One dialect in all files, as far as ruff does not see it."""

import re

from tests.launcher import ROOT
from tests.test_architecture import FILES

# What makes a sentence be read twice, or a local be named after the sentence it stands in.
WORDS = {
    "a number that is not named": re.compile(r"\bso (?:many|often)\b"),
    "a noun that is not named": re.compile(r"\b[Tt]hose\s+of\b"),
    "an inversion": re.compile(r"\bbe it\b"),
    "a name that says nothing": re.compile(r"(?<!cannot be )\btold\b"),
}
PYTHON = {
    # Three make a block, as in Markdown.
    "double backticks": re.compile(r"(?<!`)``(?!`)"),
    "two spaces after a full stop": re.compile(r"\w[)\"`']?[.!?] {2,}[A-Z`\"(]"),
    "a docstring that asks": re.compile(
        r'^ *"""(?:What|Who|Whom|Whose|Where|Which|When|Whether|How|Why)\b', re.MULTILINE
    ),
}
CODE = {  # docstrings aside; tests name the axis as a user would
    "postponed annotations": re.compile(r"^from __future__", re.MULTILINE),
    "the axis as text": re.compile(r"(?:\baxis(?:_name)?(?:: str)?\s*=\s*|\bP\()\"workers\""),
}


def test_one_dialect():
    ours = [*FILES, *(ROOT / "tests").rglob("*.py"), ROOT / "README.md"]
    faults = []
    for path in [*ours, *(ROOT / "docs").rglob("*.md")]:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        if name == "tests/test_style.py":
            continue
        searched = [(text, WORDS)]
        if path.suffix == ".py":
            searched.append((text, PYTHON))
        if path in FILES:
            searched.append((re.sub(r'""".*?"""', "", text, flags=re.DOTALL), CODE))
        for source, rules in searched:
            for rule, pattern in rules.items():
                faults += [f"{name}: {rule}: {found[0]!r}" for found in pattern.finditer(source)]
    assert faults == []
