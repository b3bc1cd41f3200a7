"""The page in a browser: switches, hover and dark mode work, words of others stay words."""

import json
import shutil

import pytest

from experiments import files, provenance, report
from tests import browser
from tests.experiments.test_live import Watched
from tests.experiments.test_report import leave

pytestmark = [pytest.mark.slow, browser.needed]

SCRIPT = "a/<script>window.caught = 1</script>"
MARKUP = "b/<b>bold</b> & <img src=x onerror='window.caught = 2'>"
CLAIM = "<script>window.caught = 3</script>"
CURVES, STRIPS = "document.getElementById('curves')", "document.getElementById('strips')"
BOXES = "[...document.querySelectorAll('#live .arms input')]"
DRAWN = f"{CURVES}.data.map((trace) => trace.meta)"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("launched")
    for place, name in enumerate((SCRIPT, MARKUP, *(f"swarm/{i}" for i in range(8)))):
        wait = ("barrier", "k_async", "random_pairs")[place % 3]
        leave(root / f"{place}", name, wait, distance=0.1)
    provenance.begin(root, f"python launch.py {CLAIM}", f"Of {CLAIM}")
    provenance.claim(root, [(CLAIM, CLAIM)])
    report.write(root)
    return root


def choose(tab, name, value):
    """Choose an option as a reader does."""
    tab.value(
        f"(() => {{ const select = document.getElementById('{name}'); select.value = '{value}';"
        "select.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def pointed(tab, plot, at):
    """Return the text that appears at a point; at: its x and y, in JavaScript."""
    place = tab.value(
        f"(() => {{ const plot = {plot}; plot.scrollIntoView(); const full = plot._fullLayout,"
        f"at = plot.getBoundingClientRect(), point = {at};"
        "return [at.left + full.xaxis._offset + full.xaxis.d2p(point[0]),"
        "at.top + full.yaxis._offset + full.yaxis.d2p(point[1])]; })()"
    )
    tab.point(*place)
    tab.wait(f"{plot}.querySelectorAll('.hoverlayer text').length > 0")
    return tab.value(f"{plot}.querySelector('.hoverlayer').textContent")


@pytest.mark.parametrize(("width", "mode"), [(1280, "light"), (390, "dark")])
def test_a_page_fits_its_window_and_its_arms_axes_and_strips_are_switched(tab, root, width, mode):
    tab.complaints.clear()
    shown = [{"name": "prefers-color-scheme", "value": mode}]
    tab.call("Emulation.setEmulatedMedia", features=shown)
    tab.open((root / report.REPORT).as_uri(), width)
    tab.wait("document.querySelectorAll('#strips .bars path').length > 0")
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert 0.8 * width < tab.value(f"{CURVES}.getBoundingClientRect().width") <= width
    assert tab.value("getComputedStyle(document.getElementById('stills')).display") == "none"
    ink = tab.value(f"{CURVES}._fullLayout.font.color")
    assert ink == {"light": "#1b1d21", "dark": "#e6e8ea"}[mode]
    assert tab.value(f"{CURVES}._fullLayout.plot_bgcolor") == "rgba(0,0,0,0)"
    bars = "[...document.querySelectorAll('#strips .bars path')]"
    fills = tab.value(f"{bars}.map((bar) => getComputedStyle(bar).fill)")
    assert ("rgb(217, 217, 217)" in fills) == (mode == "light")  # who waits
    heights = tab.value(
        "[...document.querySelectorAll('label, button, select, summary')].filter((part) => "
        "part.offsetParent).map((part) => part.getBoundingClientRect().height)"
    )
    assert len(heights) > 15 and min(heights) >= 24
    words = tab.value("document.body.innerText")
    assert words.count(CLAIM) == 4 and SCRIPT in words and MARKUP in words
    assert tab.value("document.querySelectorAll('main img[src=x], main b').length") == 0

    layout = f"{CURVES}.layout"
    choose(tab, "across", "samples seen by all workers")
    assert tab.value(f"{layout}.xaxis.title.text") == "samples seen by all workers"
    choose(tab, "up", "test accuracy [%]")
    assert tab.value(f"{layout}.yaxis.type") == "linear"
    tab.value("document.getElementById('logarithmic').click()")
    assert tab.value(f"{layout}.yaxis.type") == "log"
    choose(tab, "up", "training loss")
    choose(tab, "across", "virtual time [s]")
    assert len(tab.value(DRAWN)) == 8
    for place, name in enumerate((SCRIPT, MARKUP)):
        tab.value("document.getElementById('none').click()")
        assert tab.value(DRAWN) == []
        tab.value(f"{BOXES}[{place}].click()")
        assert tab.value(DRAWN) == [name]
        shown = pointed(tab, CURVES, "[plot.data[0].x[1], plot.data[0].y[1]]")
        assert name in shown
        assert "training loss: 0.3679" in shown and "virtual time [s]: 1" in shown
    tab.value("document.getElementById('all').click()")
    assert len(tab.value(DRAWN)) == 10

    assert tab.value(f"{STRIPS}.data.map((trace) => trace.yaxis)") == ["y", "y", "y2", "y2"]
    shown = pointed(tab, STRIPS, "[0.02, 0]")
    assert "worker 0: compute" in shown and "for update 0" in shown
    zoom = f"Plotly.relayout({STRIPS}, {{'xaxis.range': [0, 0.1]}})"
    assert tab.value(f"{zoom}.then(() => {STRIPS}._fullLayout.xaxis.range)") == [0, 0.1]
    choose(tab, "lower", "–")
    assert tab.value(f"{STRIPS}.data.map((trace) => trace.yaxis)") == ["y", "y"]
    assert tab.complaints == [] and tab.value("window.caught") is None


def test_without_scripts_pictures_show_the_same(tab, root):
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open((root / report.REPORT).as_uri(), 390)
        document = tab.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
        find = {"nodeId": document, "selector": "#stills img"}
        pictures = tab.call("DOM.querySelectorAll", **find)["nodeIds"]
        boxes = [tab.call("DOM.getBoxModel", nodeId=one)["model"] for one in pictures]
        assert len(boxes) == 8 and all(300 < box["width"] <= 390 for box in boxes)
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_watched_page_takes_what_is_new_and_keeps_what_was_switched(tab, root, monkeypatch):
    here = root.parent / "watched"
    shutil.copytree(root, here)
    leave(here / "later", "later", finished=False)
    tab.complaints.clear()
    with files.held(here / files.LAUNCH_LOCK):
        watched = Watched(here, monkeypatch)
        tab.open(f"http://127.0.0.1:{watched.server.port}", 1280)
        tab.wait("document.body.innerText.includes('later (under way)')")
        assert "10 arms · 1 not finished" in tab.value("document.body.innerText")
        choose(tab, "across", "updates")
        tab.value(f"Plotly.relayout({CURVES}, {{'xaxis.range': [3, 12]}}).then(() => null)")
        shutil.rmtree(here / "later")
        leave(here / "later", "later")
        tab.wait("document.getElementById('watched').innerText.includes('11 of 11 runs')")
        tab.wait("document.body.innerText.includes('11 arms · virtual time')")
        assert "(under way)" not in tab.value("document.body.innerText")
        tab.wait(f"{CURVES}.layout.xaxis.title.text === 'updates'")
        assert json.dumps(tab.value(f"{CURVES}._fullLayout.xaxis.range")) == "[3, 12]"
    tab.wait("document.getElementById('watched').innerText.includes('nobody is at work')")
    assert watched.ended() is None
    assert tab.complaints == [] and tab.value("window.caught") is None
