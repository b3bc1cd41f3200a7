"""Pages of the reference: one per public module, and an index, for `make docs`."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "gossax.py", "algorithms/*.py", "comms/*.py", "stragglers/*.py", "stragglers/rules/*.py",
    "runtimes/*.py", "experiments/__init__.py", "experiments/loading.py", "experiments/stats.py",
    "experiments/train.py", "experiments/publish.py", "experiments/timeline.py",
    "experiments/figures.py", "experiments/advice/compression.py", "configs/base.py",
)  # fmt: skip
GREEK = {name: chr(code) for name, code in zip(
    ("alpha", "beta", "gamma", "delta", "eta", "lambda", "mu", "rho", "sigma", "tau"),
    (0x3B1, 0x3B2, 0x3B3, 0x3B4, 0x3B7, 0x3BB, 0x3BC, 0x3C1, 0x3C3, 0x3C4), strict=True,
)}  # fmt: skip
SIGNS = GREEK | {"sum": "&sum;", "sqrt": "&radic;"}
INDENTED = re.compile(
    r'<div class="highlight"><pre><span></span><code>(.*?)</code></pre></div>', re.DOTALL
)
DOCTEST = re.compile(r"^ *>>> .*\n(?:.*\S.*\n)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Examples of docstrings as blocks of code."""

    def on_instance(self, *, obj: griffe.Object, **_) -> None:
        """Fence the lines from `>>>` to the next empty one."""
        if obj.docstring:
            text = obj.docstring.value + "\n"
            fenced = DOCTEST.sub(lambda m: f"```pycon\n{textwrap.dedent(m[0])}```\n", text)
            obj.docstring.value = fenced


def modules() -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of every public module that has one."""
    for pattern in PUBLIC:
        for path in sorted(ROOT.glob(pattern)):
            parts = path.relative_to(ROOT).with_suffix("").parts
            text = ast.get_docstring(ast.parse(path.read_text()))
            if text and not re.match("_(?!_init)", parts[-1]):
                yield ".".join(part for part in parts if part != "__init__"), text


def on_files(files: Files, config) -> Files:
    """Add the pages of the reference."""
    rows = []
    for name, text in modules():
        page = f"# {name}\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=page))
        rows.append(f"- [{name}]({name}.md): {' '.join(text.split(chr(10) * 2)[0].split())}\n")
    index = (
        "# Reference\n\nThis page is for those who call Gossax from Python: all public modules.\n"
        "In an installed package names begin with `gossax.`, as in `gossax.comms.mixing`.\n\n"
    )
    index += "".join(rows) + "\nNext: [the library](../library.md), which has examples.\n"
    files.append(File.generated(config, "reference/index.md", content=index))
    return files


def on_page_markdown(markdown: str, **_) -> str:
    """Name files outside of docs/ instead of linking them."""
    return re.sub(r"\[([^\]]*)\]\(\.\./(?!library)[^)]*\)", r"\1", markdown)


def formula(match: re.Match) -> str:
    """Return an indented block of a docstring with its subscripts, arrows and Greek letters."""
    text = re.sub(r"<[^>]*>", "", match[1])
    if "&lt;-" not in text:
        return match[0]
    text = re.sub(r"[a-z]+(?![a-z])", lambda m: SIGNS.get(m[0], m[0]), text)
    text = re.sub(r"(?<![^\W_]{2})_(\w{1,3})\b", r"<sub>\1</sub>", text)
    text = re.sub(r"(?<=[\w)&gt;])\^(\w+)", r"<sup>\1</sup>", text).replace("&lt;-", "&larr;")
    return f'<pre style="overflow: auto hidden">{text}</pre>'


def on_page_content(html: str, page, **_) -> str:
    """Render the equations of docstrings, and indices in their sentences."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    pieces = re.split(
        r"(<pre.*?</pre>|<code.*?</code>|<[^>]*>)", INDENTED.sub(formula, html), flags=re.DOTALL
    )
    pieces[::2] = (
        re.sub(r"\b([A-Za-z])_([ijkt]{1,2})\b", r"\1<sub>\2</sub>", p) for p in pieces[::2]
    )
    return "".join(pieces)
