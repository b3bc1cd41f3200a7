"""The live page in a browser: switches and hover work, words of others stay words."""

import json
import os
import pathlib
import shutil

import pytest

from experiments import locks, provenance
from experiments.reports import page
from tests import browser
from tests.experiments.reports.test_page import leave
from tests.experiments.reports.test_watch import Watched

pytestmark = [pytest.mark.slow, browser.needed]

WIDTHS = (1280, 400)
SCRIPT = "a/<script>window.caught = 1</script>"
MARKUP = "b/<b>bold</b> & <img src=x onerror='window.caught = 2'>"
CLAIM = "<script>window.caught = 3</script>"
TRACES = "document.getElementById('curves-plot').data"
NAMES = f"{TRACES}.map((trace) => trace.text[0])"


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
    provenance.begin(root, f"python launch.py {CLAIM}")
    provenance.claim(root, [(CLAIM, CLAIM)])
    page.write(root)
    return root


@pytest.fixture(params=WIDTHS)
def opened(tab, root, request):
    """The page in a window of this width, with nothing to complain about afterwards."""
    tab.complaints.clear()
    tab.open((root / page.REPORT).as_uri(), request.param)
    tab.wait("document.querySelectorAll('#strips-plot .bars path').length > 0")
    kept = os.environ.get("SCREENSHOTS")  # a folder for whoever looks at them
    if kept:
        tab.picture(pathlib.Path(kept) / f"{request.param}.png")
    yield tab
    assert tab.complaints == []
    assert tab.value("window.caught") is None


def choose(tab, name, value):
    """Choose an option as a reader does; its text."""
    return tab.value(
        f"(() => {{ const select = document.getElementById('{name}'); select.value = '{value}';"
        "select.dispatchEvent(new Event('change'));"
        "return select.selectedOptions[0].textContent; })()"
    )


def test_the_page_fits_its_window_and_pictures_make_room(opened, request):
    width = request.node.callspec.params["opened"]
    assert opened.value("document.documentElement.scrollWidth") <= width
    plot = "document.getElementById('curves-plot').getBoundingClientRect()"
    assert 0.8 * width < opened.value(f"{plot}.width") <= width
    assert opened.value("document.querySelectorAll('details.still[open]').length") == 0
    assert opened.value("document.querySelectorAll('#curves-arms input:checked').length") == 8


def test_axes_are_switched(opened):
    layout = "document.getElementById('curves-plot').layout"
    assert choose(opened, "curves-across", "samples") == "samples seen by all workers"
    assert opened.value(f"{layout}.xaxis.title.text") == "samples seen by all workers"
    assert opened.value(f"{layout}.yaxis.type") == "log"
    assert choose(opened, "curves-up", "test_accuracy") == "test accuracy [%]"
    assert opened.value(f"{layout}.yaxis.title.text") == "test accuracy [%]"
    assert opened.value(f"{layout}.yaxis.type") == "linear"
    opened.value("document.getElementById('curves-logarithmic').click()")
    assert opened.value(f"{layout}.yaxis.type") == "log"


def test_arms_are_switched(opened):
    assert len(opened.value(NAMES)) == 8
    opened.value("document.getElementById('curves-none').click()")
    assert opened.value(NAMES) == []
    opened.value("document.querySelector('#curves-arms input').click()")
    assert len(opened.value(NAMES)) == 1
    opened.value("document.getElementById('curves-all').click()")
    assert len(opened.value(NAMES)) == 10


def test_words_of_others_are_text(opened):
    words = opened.value("document.body.innerText")
    assert words.count(CLAIM) == 3 and SCRIPT in words and MARKUP in words
    labels = opened.value(
        "[...document.querySelectorAll('#curves-arms label')].map((label) => label.innerText)"
    )
    assert {SCRIPT, MARKUP} <= set(labels)
    assert opened.value("document.querySelectorAll('main img[src=x], main b').length") == 0


@pytest.mark.parametrize("name", [SCRIPT, MARKUP], ids=["script", "markup"])
def test_hovering_shows_an_arm_and_its_values(opened, name):
    opened.value("document.getElementById('curves-none').click()")
    place = opened.value(
        "(() => { const box = [...document.querySelectorAll('#curves-arms label')].find("
        f"(label) => label.innerText === {json.dumps(name)}).firstChild; box.click();"
        "const plot = document.getElementById('curves-plot'); plot.scrollIntoView();"
        "const point = plot._fullLayout, at = plot.getBoundingClientRect(), data = plot.data[0];"
        "return [at.left + point.xaxis._offset + point.xaxis.d2p(data.x[1]),"
        "at.top + point.yaxis._offset + point.yaxis.d2p(data.y[1])]; })()"
    )
    opened.point(*place)
    opened.wait("document.querySelectorAll('#curves-plot .hoverlayer text').length > 0")
    shown = opened.value("document.querySelector('#curves-plot .hoverlayer').textContent")
    assert name in shown and "0.367" in shown and "at 1" in shown


def test_the_strip_is_switched_zoomed_and_tells_what_a_bar_is(opened):
    strip = "document.getElementById('strips-plot')"
    begun = opened.value(f"{strip}.layout.xaxis.range")
    assert choose(opened, "strips-arm", "1") != choose(opened, "strips-arm", "0")
    opened.value("document.getElementById('strips-whole').click()")
    whole = opened.value(f"{strip}._fullLayout.xaxis.range")
    assert whole[1] > begun[1]
    zoomed = opened.value(
        f"Plotly.relayout({strip}, {{'xaxis.range': [0, 0.1]}}).then("
        f"() => {strip}._fullLayout.xaxis.range)"
    )
    assert zoomed == [0, 0.1]
    place = opened.value(
        f"(() => {{ {strip}.scrollIntoView(); const layout = {strip}._fullLayout,"
        f"at = {strip}.getBoundingClientRect();"
        "return [at.left + layout.xaxis._offset + layout.xaxis.d2p(0.02),"
        "at.top + layout.yaxis._offset + layout.yaxis.d2p(0)]; })()"
    )
    opened.point(*place)
    opened.wait("document.querySelectorAll('#strips-plot .hoverlayer text').length > 0")
    shown = opened.value("document.querySelector('#strips-plot .hoverlayer').textContent")
    assert "worker 0: compute" in shown and "for update 0" in shown


def test_a_watched_page_takes_what_is_new_and_keeps_what_was_switched(tab, root, monkeypatch):
    here = root.parent / "watched"
    shutil.copytree(root, here)
    leave(here / "later", "later", finished=False)
    tab.complaints.clear()
    with locks.held(here / locks.LAUNCH):
        watched = Watched(here, monkeypatch)
        tab.open(f"http://127.0.0.1:{watched.server.port}", 1280)
        tab.wait("document.getElementById('watched').innerText.includes('10 of 11 runs')")
        tab.wait("document.body.innerText.includes('later (under way)')")
        choose(tab, "curves-across", "update")
        shutil.rmtree(here / "later")
        leave(here / "later", "later")
        tab.wait("document.getElementById('watched').innerText.includes('11 of 11 runs')")
        tab.wait("!document.body.innerText.includes('(under way)')")
        title = "document.getElementById('curves-plot').layout.xaxis.title.text"
        assert tab.value(title) == "updates"
    tab.wait("document.getElementById('watched').innerText.includes('nobody is at work')")
    assert watched.ended() is None
    assert tab.complaints == [] and tab.value("window.caught") is None
