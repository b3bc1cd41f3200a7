"""Links, anchors and widths of the built pages, for `make docs`.

    python docs/check.py build/site

Every internal link and anchor leads somewhere. Where there is Chromium no page is wider than a
phone's 390 pixels, and none asks for anything that is not in the folder.
"""

import re
import sys
import tempfile
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests import browser

PHONE = 390  # pixels
ATTRIBUTE = re.compile(r'\b(href|src|id|name)="?([^"\s>]*)')


def dead(site: Path) -> list[str]:
    """Return the links of all pages that lead nowhere."""
    found = {
        page: [(kind, unescape(value)) for kind, value in ATTRIBUTE.findall(page.read_text())]
        for page in site.rglob("*.html") if page.name != "404.html"
    }  # fmt: skip
    anchors = {page: {v for k, v in rows if k in ("id", "name")} for page, rows in found.items()}
    faults = []
    for page, rows in found.items():
        for kind, value in rows:
            link = urlsplit(value)
            if kind in ("id", "name") or link.scheme or link.netloc:
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            there = target.exists() and (target.suffix == ".html" or not link.fragment)
            if not there or (link.fragment and unquote(link.fragment) not in anchors[target]):
                faults.append(f"{page.relative_to(site)}: {value}")
    return faults


def wide(site: Path) -> list[str]:
    """Return the pages that do not fit a phone, or that the browser complains about."""
    faults = []
    with tempfile.TemporaryDirectory() as profile, browser.browser(profile) as tab:
        for page in sorted(site.rglob("*.html")):
            tab.open(page.as_uri(), PHONE)
            width = tab.value("document.documentElement.scrollWidth")
            asked = tab.value("performance.getEntriesByType('resource').map(entry => entry.name)")
            outside = [address for address in asked if not address.startswith("file:")]
            if width > PHONE or outside:
                faults.append(f"{page.relative_to(site)}: {width} pixels, asks for {outside}")
    return faults


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    faults = dead(folder) + (wide(folder) if browser.PROGRAM else [])
    print("\n".join(faults) or f"{len(list(folder.rglob('*.html')))} pages, no fault")
    sys.exit(bool(faults))
