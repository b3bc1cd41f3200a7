"""Pieces of a page in HTML, which needs neither a network nor JavaScript."""

import base64
import html
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments import files, texts

TEMPLATE = Path(__file__).with_name("page.html.in")


def page(title: str, subtitle: str, again: str, sections: Iterable[str]) -> str:
    """A whole page; again: how to repeat it, which is HTML as the sections are."""
    return string.Template(files.read_text(TEMPLATE)).substitute(
        title=text(title),
        subtitle=text(subtitle),
        again=again,
        sections="\n".join(sections),
    )


def table(
    kind: str, headings: Sequence[str], bodies: Sequence[Sequence], caption: str | None = None
) -> str:
    """A table in a box of its own to scroll in; the first cell of a row is its heading."""
    below = f"<caption>{text(caption)}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{text(heading)}</th>' for heading in headings)
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{below}'
        f"<thead><tr>{head}</tr></thead>\n"
        + "\n".join(f"<tbody>{''.join(map(_row, rows))}</tbody>" for rows in bodies if rows)
        + "</table></div>"
    )


def _row(cells: Sequence[str]) -> str:
    first, *rest = map(text, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'


def image(kind: str, png: bytes, caption: str) -> str:
    """A figure with a picture in it; kind: a class of the page's style."""
    data = base64.b64encode(png).decode()
    return (
        f'<figure class="{kind}"><img src="data:image/png;base64,{data}" alt="{text(caption)}">'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def text(raw: str) -> str:
    """Text as it stands in a page, whatever it holds; line breaks of headings are not kept."""
    lines = str(raw).split("\n")
    return html.escape("\n".join(texts.visible(line) for line in lines))
