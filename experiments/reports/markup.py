"""Pieces of a page in HTML, which needs no network, and runs no script but those it is given."""

import base64
import html
import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from experiments import files, texts

TEMPLATE = Path(__file__).with_name("page.html.in")


def page(
    title: str,
    subtitle: str,
    again: str,
    sections: Iterable[str],
    scripts: Sequence = (),
    served: str = "",
) -> str:
    """A whole page; again: how to repeat it, which is HTML as the sections are.

    scripts: `live.Script`s, the only ones that a browser runs there. served: of a page that is
    served while runs are under way, the element that says how far they are, in HTML.
    """
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"]
    if scripts:
        digests = " ".join(f"'sha256-{script.digest}'" for script in scripts)
        policy = [*policy[:-1], "img-src data: blob:", f"script-src {digests}"]
    if served:
        policy.append("connect-src 'self'")
    return string.Template(files.read_text(TEMPLATE)).substitute(
        title=text(title),
        subtitle=text(subtitle),
        policy="; ".join(policy),
        again=again,
        served=served,
        sections="\n".join(sections),
        scripts="\n".join(f"<script>{script.text}</script>" for script in scripts),
    )


def still(sections: Iterable[str], beside_live: bool) -> Iterator[str]:
    """Figures that need no script; beside live ones in an element that closes."""
    if beside_live:
        yield '<details class="still" open><summary>the same without scripts, for print</summary>'
    yield from sections
    if beside_live:
        yield "</details>"


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
