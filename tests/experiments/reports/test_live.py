"""The part of a page that answers: what it carries, what its policy lets run, whom it shows."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from experiments import provenance, records
from experiments.reports import beginnings, live, multiples, page, panels, paper, telling, workdirs
from tests.experiments.reports.test_page import NASTY, Page, leave


def run(rate, losses=5):
    return [
        {"update": i, "seconds": float(i), "samples": 8 * i, "train_loss": float(np.exp(-rate * i))}
        for i in range(losses)
    ]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A workdir with the note of its launch, and its page."""
    root = tmp_path_factory.mktemp("launched")
    leave(root / "sync", "sync", baseline="sync")
    leave(root / "nasty", NASTY, "k_async", seconds_to_target=1.0)
    provenance.begin(root, "python launch.py </script><script>alert(1)</script>")
    return root, page.write(root).read_text()


def scripts(text):
    """The scripts of a page as (attributes, content); a browser ends them at the first end tag."""
    return re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)


def test_a_page_of_a_launch_lets_only_its_own_scripts_run(launched):
    _, text = launched
    running = [content for attributes, content in scripts(text) if not attributes]
    assert running == [script.text for script in live.scripts()] and len(running) == 2
    policy = re.search(r'http-equiv="Content-Security-Policy"\s+content="([^"]*)"', text)[1]
    allowed = re.search("script-src ([^;]*)", policy)[1].split()
    digests = [hashlib.sha256(content.encode()).digest() for content in running]
    assert allowed == [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    assert "unsafe-eval" not in policy and "connect-src" not in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_of_an_arm_alone_stays_without_scripts(tmp_path):
    leave(tmp_path / "a", "a")
    text = page.write(tmp_path / "a").read_text()
    assert not scripts(text) and 'class="live"' not in text and len(text) < 1 << 20


def test_words_of_others_end_no_element(launched):
    _, text = launched
    assert "alert(1)</script>" not in text.replace("&lt;", "<").split("<pre>")[0]
    found = dict(re.findall(r'<script type="application/json" id="(\S+)">(.*?)</script>', text))
    curves, strips = (json.loads(found[f"{name}-data"]) for name in ("curves", "strips"))
    assert {arm["name"] for arm in curves["arms"]} == {"sync", NASTY}
    assert [arm["name"] for arm in strips["arms"]] == [NASTY, "sync"]  # the first at the target


def test_without_scripts_all_is_there(launched):
    _, text = launched
    without = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    elements = Page(without).elements
    hidden = [a for tag, a in elements if tag == "div" and "hidden" in a]
    still = [a for tag, a in elements if a.get("class") == "still"]
    assert len(hidden) == 2 and len(still) == 2 and all("open" in a for a in still)


def test_curves_are_those_of_the_records():
    lines = [
        live.Line("m/a", [run(0.5), run(1.5)], True),
        live.Line("m/b", [run(1.0)[:1]], False),
    ]
    found = live.curves(lines, 0.1, "wall", ["m/a"])
    first, second = found["arms"]
    x, mean, low, high = first["curves"]["train_loss"]["seconds"]
    np.testing.assert_allclose(mean, np.exp(-np.array(x)), rtol=1e-4)
    np.testing.assert_allclose(np.multiply(low, high), np.square(mean), rtol=1e-4)
    assert second["curves"]["train_loss"]["seconds"] == [[0.0], [1.0]]
    assert [arm["shown"] for arm in (first, second)] == [True, False]
    assert [arm["finished"] for arm in (first, second)] == [True, False]
    assert found["across"]["seconds"] == "wall time [s]" and set(found["up"]) == {"train_loss"}
    assert first["curves"]["train_loss"]["bytes_per_worker"] is None
    assert first["dash"] != second["dash"] and first["colour"] == second["colour"]


def test_long_curves_are_thinned_to_their_ends():
    line = live.Line("a", [run(0.001, 3000)], True)
    curve = drawn([line])
    assert len(curve[0]) == live.MOST_POINTS and (curve[0][0], curve[0][-1]) == (0, 2999)


MANY = [*(f"swarm/{i}" for i in range(11)), "sgp", "all_reduce", "k/1", "k/2"]


def test_of_many_arms_the_first_of_every_method_tell_most():
    curves = [(name, [run(0.1 * (1 + place))]) for place, name in enumerate(MANY)]
    names = telling.ranked(curves, 0.5)
    assert names[:4] == ["k/2", "all_reduce", "sgp", "swarm/10"]
    assert names[4:6] == ["k/1", "swarm/9"] and sorted(names) == sorted(MANY)
    chosen = [name for name, _ in telling.chosen(curves, 0.5)]
    assert chosen == [name for name in MANY if name in names[: telling.MOST_ARMS]]
    missed = [("late", [run(0.01)]), ("never", [run(0.001)]), ("nan", [[{**run(1)[0]}]])]
    missed[-1][1][0][-1]["train_loss"] = None
    assert telling.ranked(missed, 0.5) == ["late", "never", "nan"]


def test_groups_hold_every_arm_once_and_no_more_than_a_reader_can_tell_apart():
    found = telling.groups(MANY)
    assert [name for names in found.values() for name in names] == [
        *MANY[:11], "k/1", "k/2", "sgp", "all_reduce",
    ]  # fmt: skip
    assert list(found) == ["swarm, 1 of 2", "swarm, 2 of 2", "k", "methods with one arm"]
    assert max(map(len, found.values())) <= telling.MOST_ARMS


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([0.1, 0.5], [0.1, 0.5]),
        ([0.5, 0.5, 0.5], [0.5, 0.6, 0.7]),
        ([0.95, 0.99, 2.0], [0.8, 0.9, 1.0]),
        ([-1.0, 0.0], [0.0, 0.1]),
        ([0.5] * 21, np.linspace(0, 1, 21)),
    ],
)
def test_names_beside_curves_lie_apart(wanted, places):
    np.testing.assert_allclose(multiples.apart(np.array(wanted), 0.1), places, atol=1e-12)


def test_a_long_name_beside_a_curve_keeps_both_of_its_ends():
    assert multiples._short("H=2/8 bits") == "H=2/8 bits"
    short = multiples._short("a_method_with_a_long_name/variant=3")
    assert len(short) <= multiples.LONGEST and short[:6] == "a_meth" and short[-9:] == "variant=3"


def test_many_arms_are_drawn_group_by_group_with_their_names():
    curves = [(name, [run(0.1 * (1 + place))]) for place, name in enumerate(MANY)]
    canvas = multiples.draw(curves, 0.5, "virtual")
    shown = [axes for axes in canvas.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == list(telling.groups(MANY))
    texts = [{text.get_text() for text in axes.texts} for axes in shown]
    assert texts[0] | texts[1] == {f"{i}" for i in range(11)}
    assert texts[3] == {"sgp", "all_reduce"}
    assert all(len(axes.lines) == len(MANY) + 1 for axes in shown)  # others pale, and the target


def test_a_page_of_many_arms_draws_all_of_them(tmp_path):
    for place, name in enumerate(MANY[:9]):
        leave(tmp_path / f"{place}", name)
    text = page.write(tmp_path).read_text()
    assert "Of 9 arms, 8 are drawn first" in text
    labels = [a["aria-label"] for _, a in Page(text).elements if "aria-label" in a]
    assert "swarm, 1 of 2: training loss against virtual time" in labels


@pytest.mark.slow
def test_more_arms_make_a_page_hardly_larger(tmp_path, monkeypatch):
    """Curves on demand have fewer points each, and still figures show those that tell most."""
    monkeypatch.setattr(telling, "MOST_DRAWN", 10)
    lines = [live.Line(f"a/{place}", [run(0.1, 3000)], True) for place in range(40)]
    assert len(drawn(lines)[0]) == live.MOST_POINTS // 4
    assert len(drawn(lines[:10])[0]) == live.MOST_POINTS
    for place, name in enumerate(MANY[:11]):
        leave(tmp_path / f"{place}", name)
    text = page.write(tmp_path).read_text()
    assert "The first 10 stand below" in text and all(name in text for name in MANY[:11])
    curves = [(line.name, line.runs) for line in lines]
    assert len(panels.by_group(curves, 0.5, "virtual")) == 2


def drawn(lines):
    """The columns of the first arm's curve."""
    return live.curves(lines, 0.5, "", [])["arms"][0]["curves"]["train_loss"]["seconds"]


def test_strips_that_tell_most_come_first(tmp_path):
    for place, (name, wait, seconds) in enumerate(
        [
            ("slow", "barrier", 9.0),
            ("base", "barrier", 3.0),
            ("twin", "barrier", 2.0),
            ("async", "k_async", 5.0),
            ("pairs", "random_pairs", 4.0),
        ]
    ):
        leave(tmp_path / f"{place}", name, wait, baseline="base", seed=int(seconds))
    arms, _ = workdirs.gather(tmp_path)
    looks = page.looks_of(arms)
    assert [strip.name for strip in beginnings.ranked(arms, looks)] == [
        "slow", "base", "async", "pairs", "twin",
    ]  # fmt: skip


@pytest.mark.slow
def test_figures_for_a_paper_are_text_in_pdf_and_svg(launched):
    root, _ = launched
    folder = paper.write(root)
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) % 2 == 0 and {"loss_time.pdf", "loss_time.svg", "strips.pdf"} <= set(files)
    assert (folder / "loss_time.pdf").read_bytes().startswith(b"%PDF")
    svg = (folder / "loss_time.svg").read_text()
    assert "training loss</text>" in svg and "&lt;script&gt;" in svg and "<script" not in svg
    assert b"CreationDate" not in (folder / "loss_time.pdf").read_bytes()


def test_a_paper_needs_a_finished_arm(tmp_path):
    leave(tmp_path / "a", "a", finished=False)
    with pytest.raises(ValueError, match=r"no run below .* has finished; leave out --paper"):
        paper.write(tmp_path)
    assert not (tmp_path / "figures").exists() and not list(tmp_path.rglob(records.SCHEDULE))
