"""The page of a workdir: its contents, its scripts, its words on damaged records."""

import base64
import gzip
import hashlib
import html.parser
import json
import re
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from experiments import figures, provenance, records, report
from experiments.advice import durations
from experiments.timeline import TIMELINE
from stragglers import delays, processes
from stragglers.schedule import Event, load
from tests import planned

P = 5
DELAY = delays.jitter(mean=0.1, sigma=0.3)
NASTY = "a/<script>&\"'"
KNOBS = {"random_pairs": {"graph": nx.cycle_graph(P), "width": 2}, "k_async": {"k": 2}}


class Page(html.parser.HTMLParser):
    """The elements and words of a page, which must be well-formed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.words.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def schedule_of(wait):
    return planned.plan(wait, DELAY, P, 30, communication=0.02, **KNOBS.get(wait, {}))


def leave(place, name, wait="barrier", seed=0, finished=True, distance=0.0, **summary):
    """Write the records of a run, as training leaves them."""
    place.mkdir(parents=True)
    config = {"name": name, "seed": seed, "wait": wait, "delay": "jitter",
              "optimizer": {"rate": 0.1, "name": "sgd"}}  # fmt: skip
    records.write_json(place / records.CONFIG, config)
    metrics = [
        {"update": 10 * i, "samples": 80 * i, "seconds": float(i),
         "train_loss": float(np.exp(-i * (1 + 0.1 * seed))), "test_accuracy": 0.2 * i,
         "consensus_distance": distance * i, "bytes_per_worker": 1000.0 * i}
        for i in range(4)
    ]  # fmt: skip
    lines = "".join(json.dumps(record) + "\n" for record in metrics)
    (place / records.METRICS).write_text(lines)
    if finished:
        schedule_of(wait).save(place / records.SCHEDULE)
        written = {"name": name, "baseline": None, "wait": wait, "workers": P, "seed": seed,
                   "clock": "virtual", "target_loss": 0.1, "seconds_to_target": 2.3,
                   "idle_fraction": 0.25, "stopped": None}  # fmt: skip
        written |= metrics[-1] | {"updates": 30} | summary
        del written["update"]
        records.write_json(place / records.SUMMARY, written)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Return a workdir with all that a report can have to show, and its page."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in (0, 1):
        leave(root / f"sync/seed_{seed}", "sync", seed=seed, baseline="sync")
    stopped = "training loss is not finite at update 12"
    leave(root / "nasty", NASTY, "k_async", stopped=stopped, seconds_to_target=1.0, baseline="sync")
    leave(root / "pairs", "pairs", "random_pairs", distance=0.5, nodes=P - 1.0)
    leave(root / "cut", "cut", finished=False)
    leave(root / "waits", "waits", finished=False)
    (root / "waits" / records.METRICS).unlink()
    leave(root / "broken", "broken", finished=False)
    (root / "broken/error.txt").write_text("ValueError: <bad> luck\nTraceback ...")
    names = ["pairs", NASTY, "sync"]
    records.write_json(root / records.SUMMARY, {"arms": [{"name": name} for name in names]})
    provenance.begin(root, "python launch.py </script><script>", "Of <b> and `code`.\n\nMore.")
    provenance.claim(root, [("of an older launch", "1x")])
    provenance.claim(root, [("it is <fast>", "yes:\n2x")])
    return root, report.write(root).read_text()


def packed(text, name):
    """Return what a page holds packed under this name."""
    (data,) = re.findall(rf'<script type="application/gzip" id="{name}">(.*?)</script>', text)
    return gzip.decompress(base64.b64decode(data))


def data_of(text):
    return json.loads(packed(text, "data"))


def test_the_page_needs_nothing_but_itself_and_runs_its_own_scripts_alone(sweep):
    _, text = sweep
    for tag, attributes in Page(text).elements:
        assert tag not in ("link", "iframe", "object")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))
    (own,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    contents = own.encode(), packed(text, "plotly")
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    assert re.search("script-src ([^;]*)", policy)[1].split() == [f"'sha256-{d}'" for d in digests]
    assert policy.startswith("default-src 'none'") and "connect-src" not in policy
    assert text.count("<script") == 3


def test_a_page_says_what_came_out_and_how_to_repeat_it_without_scripts_too(sweep):
    root, text = sweep
    captions = [a["alt"].split()[0] for tag, a in Page(text).elements if tag == "img"]
    assert captions == ["training"] * 3 + ["test", "consensus", "gradients", "idle", "The"]
    with Image.open(root / "strip.png") as image:
        assert image.format == "PNG" and image.width == 1160
    finished = {path.parent for path in root.rglob(records.SCHEDULE)}
    assert {path.parent for path in root.rglob(TIMELINE)} == finished and len(finished) == 4
    page, written = Page(text), json.loads((root / "report.json").read_text())
    assert written["claims"] == [["it is <fast>", "yes:\n2x"]]
    assert {"python", *provenance.LIBRARIES} <= set(written["versions"])
    for words in (
        f"{NASTY} reaches loss 0.1 2.3 times sooner than sync, after 1 s instead of 2.3 s",
        written["command"], f"jax {written['versions']['jax']}", "Of <b> and code . More.",
        "training loss is not finite at update 12", "it is <fast>", "ended with 4 of 5 nodes",
        "failed: ValueError: <bad> luck", "cut not finished: 30 updates until 3 s",
        "waits not begun",
    ):  # fmt: skip
        assert words in page.text
    rows = [name for name in page.words if name in ("pairs", NASTY, "sync")]
    assert rows[:3] == ["pairs", NASTY, "sync"]  # in the order of the sweep
    settings, _, common = text.partition("<h2>Settings</h2>")[2].partition("<details>")
    assert ">wait<" in settings and ">0, 1<" in settings and ">optimizer<" not in settings
    assert ">optimizer<" in common and "sgd(rate=0.1)" in common and ">wait<" not in common


def test_live_figures_have_the_numbers_of_the_records(sweep):
    data = data_of(sweep[1])
    assert data["names"] == data["shown"] == ["pairs", NASTY, "sync"]
    assert list(data["axes"]) == [
        "training loss", "test accuracy [%]", "consensus distance, squared", "gradients [%]",
        "idle [%]",
    ]  # fmt: skip
    across = data["axes"]["training loss"]
    assert list(across) == [
        "virtual time [s]", "samples seen by all workers", "bytes sent per worker [B]", "updates",
    ]  # fmt: skip
    one, _, both = across["updates"]["columns"]
    assert one[0] == [0, 10, 20, 30]
    np.testing.assert_allclose(one[1], np.exp([0.0, -1, -2, -3]), rtol=1e-4)
    x, mean, low, high = both  # of two seeds
    np.testing.assert_allclose(mean, np.exp(-1.05 * np.array(x) / 10), rtol=1e-4)
    np.testing.assert_allclose(np.multiply(low, high), np.square(mean), rtol=1e-3)
    assert across["updates"]["label"] == "target loss 0.1"
    names = [strip["name"] for strip in data["strips"]]
    assert names == [NASTY, "sync", "pairs"]  # the first at the target beside its baseline
    assert {trace["name"] for trace in data["traces"]} >= {"a/&lt;script&gt;&amp;\"'"}


@pytest.mark.slow
def test_figures_for_a_paper_are_text_in_pdf_and_svg(sweep):
    root, _ = sweep
    report.write(root, paper=True)
    files = sorted(path.name for path in (root / "figures").iterdir())
    assert len(files) == 16 and {"loss_time.pdf", "loss_time.svg", "strips.pdf"} <= set(files)
    pdf = (root / "figures/loss_time.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf
    svg = (root / "figures/loss_time.svg").read_text()
    assert "training loss</text>" in svg and "&lt;script&gt;" in svg and "<script" not in svg


def test_a_run_alone_without_schedule_target_or_note_has_a_small_page(tmp_path):
    run = {"test_accuracy": None, "target_loss": None, "seconds_to_target": None}
    leave(tmp_path / "run", "run", **run)
    (tmp_path / "run" / records.SCHEDULE).unlink()
    text = report.write(tmp_path).read_text()
    assert "1 arm" in text and "run ends with a training loss of 0.0498." in text
    assert "<script" not in text and len(text) < 1 << 19 and not list(tmp_path.glob("strip.png"))


def test_a_page_says_who_is_slow():
    arm = report.Arm("a", [], {}, {"baseline": "a", "name": "a"}, [], [])
    for delay, words in (
        (processes.persistent(DELAY, {3: 4.0}), r"Worker 3 is slow: .* (3\.[5-9]|4\.[0-5]) times"),
        (DELAY, "No worker is always slow, but"),
    ):
        look = figures.look(planned.plan("barrier", delay, P, 200), P)
        assert re.match(words, report.slow([arm], {"a": look}))
    none = figures.look(planned.plan("anytime", DELAY, P, 3, seconds=1e-9), P)
    assert report.slow([arm], {"a": none}) == "No worker of a has finished a mini-batch."


HEADLINES = {
    "b reaches loss 0.1 2.0 times sooner than a, after 1 s instead of 2 s.": (2.0, 1.0),
    "a reaches loss 0.1 1.2 times sooner than b, after 1 s instead of 1.2 s.": (1.0, 1.2),
    "b reaches loss 0.1 after 1 s, and no other arm does with every seed.": (None, 1.0),
    "b reaches loss 0.1 after 0 s.": (2.0, 0.0),
    "No arm reaches loss 0.1 with every seed. a ends with a training loss of 0.05, the lowest.": (
        None, None,
    ),
}  # fmt: skip


def test_the_headline_is_about_the_first_arm_at_the_target(tmp_path):
    run = [{"seconds": 0.0, "train_loss": 1.0}, {"seconds": 9.0, "train_loss": 0.5}]
    common = {"baseline": "a", "target_loss": 0.1, "clock": "virtual", "train_loss": 0.05}
    for said, times in HEADLINES.items():
        summaries = [common | {"name": name, "seconds_to_target": seconds}
                     for name, seconds in zip("ab", times, strict=True)]  # fmt: skip
        assert report.headline([report.Arm(s["name"], [], {}, s, [], [run]) for s in summaries]) \
            == said  # fmt: skip
    # The lowest mean, whose worst seed may be another arm's best; and what cannot be compared.
    summaries = [common | {"name": name, "seconds_to_target": None, "train_loss": loss}
                 for name, loss in (("a", 0.5), ("b", 0.35))]  # fmt: skip
    runs = {"a": [0.5, 0.5], "b": [0.1, 0.6]}

    def arms_of(summaries):
        return [report.Arm(s["name"], [], {}, s, [], [[{"seconds": 0.0, "train_loss": loss}]
                for loss in runs[s["name"]]]) for s in summaries]  # fmt: skip

    assert report.headline(arms_of(summaries)).endswith("b ends with a training loss of 0.35, "
                                                        "the lowest.")  # fmt: skip
    for field, other in (("clock", "wall"), ("target_loss", 0.2)):
        mixed = [summaries[0], summaries[1] | {field: other}]
        assert "none is sooner" in report.headline(arms_of(mixed))
    for name, of_seeds in {"a": (2.0, 4.0), "b": (3.9, 2.3)}.items():
        for seed, seconds in enumerate(of_seeds):
            leave(tmp_path / f"{name}/seed_{seed}", name, seed=seed, baseline="b",
                  seconds_to_target=seconds)  # fmt: skip
    arms, _ = report.gather(tmp_path)
    assert report.headline(arms).endswith("; the spread of the seeds leaves that inconclusive.")


def test_damaged_records_and_runs_that_are_no_seeds_of_one_arm_are_named(tmp_path):
    leave(tmp_path / "two/x/a", "a")
    leave(tmp_path / "two/y/a", "a", seed=1, wait="k_async")  # of two launches
    arms, _ = report.gather(tmp_path / "two")
    assert [arm.summary["name"] for arm in arms] == [a.name for a in arms] == ["x/a", "y/a"]
    leave(tmp_path / "b/a/seed_0", "a")
    leave(tmp_path / "b/a/seed_1", "a", seed=1, wait="k_async")
    for file, content, words in (
        (None, "", "are both runs of 'a', with other settings; give"),
        (records.SUMMARY, '{"name": "a", "seed": 0}', "summary.json cannot be read .its "),
        (records.METRICS, "{}}\n", "metrics.jsonl cannot be read .*; remove the summary.json and"),
    ):
        root = tmp_path / (file or "b")
        if file:
            leave(root / "a", "a")
            (root / "a" / file).write_text(content)
        with pytest.raises(ValueError, match=words):
            report.write(root)
        assert not (root / "report.html").exists()


def test_arms_of_two_launches_have_the_baselines_of_their_launch(tmp_path):
    for wait in ("barrier", "k_async"):
        leave(tmp_path / wait / "a", "a", wait)
        leave(tmp_path / wait / "b/c", "b/c", wait, baseline="a")
    leave(tmp_path / "barrier/only", "only")
    for wait in ("barrier", "k_async"):
        leave(tmp_path / wait / "d", "d", wait, baseline="only")
    found = {arm.name: arm.summary["baseline"] for arm in report.gather(tmp_path)[0]}
    assert found.pop("only") is found.pop("barrier/a") is found.pop("k_async/a") is None
    assert found == {"barrier/b/c": "barrier/a", "k_async/b/c": "k_async/a",
                     "barrier/d": "only", "k_async/d": "only"}  # fmt: skip


def test_a_schedule_of_another_run_is_refused(tmp_path):
    leave(tmp_path / "a", "a")
    place = tmp_path / "a" / records.SCHEDULE
    records.seal(tmp_path / "a", (tmp_path / "a" / records.SUMMARY).read_text())
    report.write(tmp_path)
    schedule_of("k_async").save(place)
    config = ConfigDict({"workers": P})
    for read in (report.write, lambda _: durations.read(f"{place}", config, ())):
        with pytest.raises(ValueError, match=r"schedule.npz cannot be read .its SHA-256 is not in"):
            read(tmp_path)


def test_seeds_that_are_trained_longer_already_stand_for_their_arm(tmp_path):
    for seed in range(3):
        leave(tmp_path / f"a/seed_{seed}", "a", seed=seed)
        if seed < 2:
            path = tmp_path / f"a/seed_{seed}" / records.CONFIG
            records.write_json(path, json.loads(path.read_text()) | {"updates": 60})
    (arm,), unfinished = report.gather(tmp_path)
    assert [place.name for place in arm.places] == ["seed_0", "seed_1"]
    assert unfinished == [report.Unfinished("a/seed_2", "as long as before")]
    for name, updates in (("short", 30), ("long", 60)):  # two launches of one seed
        leave(tmp_path / "two" / name, "a")
        path = tmp_path / "two" / name / records.CONFIG
        records.write_json(path, json.loads(path.read_text()) | {"updates": updates})
    arms, unfinished = report.gather(tmp_path / "two")
    assert ({arm.name for arm in arms}, unfinished) == ({"short", "long"}, [])


def test_a_config_whose_seed_or_length_is_damaged_gives_no_traceback(tmp_path):
    for seed in range(2):
        leave(tmp_path / f"a/seed_{seed}", "a", seed=seed)
    path = tmp_path / "a/seed_1" / records.CONFIG
    given = json.loads(path.read_text())
    records.write_json(path, given | {"seed": {}})
    assert [arm.name for arm in report.gather(tmp_path)[0]] == ["a"]
    records.write_json(path, given | {"updates": "x"})
    with pytest.raises(ValueError, match="are both runs of 'a', with other settings"):
        report.gather(tmp_path)


def test_a_look_counts_what_the_schedule_says_and_events_are_shown(tmp_path):
    schedule = schedule_of("k_async")
    look = figures.look(schedule, P)
    ages = np.arange(look.staleness.size)
    np.testing.assert_allclose((ages * look.staleness).sum(), schedule.mean_staleness)
    np.testing.assert_allclose(look.idle.mean(), schedule.idle.sum() / (P * schedule.time[-1]))
    leave(tmp_path / "a", "a")
    path = tmp_path / "a" / records.SCHEDULE
    replace(load(path), events=(Event(0.1, 2, "lost"),)).save(path)
    arms, _ = report.gather(tmp_path)
    (strip,) = report.strips_of(arms, report.looks_of(arms))
    made = report._strip(strip)
    assert made["events"] == [(0.1, 2, "lost")] and made["lanes"] == [0, 1, 2, 3, 4]
    begin, seconds, kind, worker, *_ = made["bars"][0]
    assert (begin, kind) == (0.0, "compute") and seconds > 0 and worker in range(P)
    shown = json.loads((tmp_path / "a" / TIMELINE).read_text())["traceEvents"]
    assert [event["name"] for event in shown if event["ph"] == "i"] == ["lost"]


def test_a_strip_is_shown_as_far_as_its_bars_go(monkeypatch):
    strip = figures.Strip("a", figures.look(schedule_of("k_async"), P).first, P)
    assert report._strip(strip)["known"] is None
    for limit, known in ((20, 20), (10_000, -1)):
        monkeypatch.setattr(report, "MOST_SPANS", limit)
        assert report._strip(strip)["known"] == strip.first.begin[known] / 1e9
        monkeypatch.setattr(report.timeline, "MOST_STRETCHES", strip.first.begin.size)
