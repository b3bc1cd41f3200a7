"""The page of a workdir: what it holds, what its scripts are, what it says of damaged records."""

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
from PIL import Image

from experiments import aggregates, figures, provenance, records, report, tables
from experiments.timeline import TIMELINE
from stragglers import delays, processes
from stragglers.rule import whole
from stragglers.schedule import Event, load
from tests import planned

P = 5
DELAY = delays.jitter(mean=0.1, sigma=0.3)
NASTY = "a/<script>&\"'"
VOID = {"meta", "img", "br", "input"}


class Page(html.parser.HTMLParser):
    """The elements and words of a page, which must be well-formed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.words.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def schedule_of(wait):
    knobs = {"mini_batches": 1, "communication": 0.02}
    if wait == "random_pairs":
        knobs |= {"graph": nx.cycle_graph(P), "width": 2}
    if wait == "k_async":
        knobs |= {"k": 2}
    mini_batches = knobs.pop("mini_batches")
    return whole(planned.rule(wait, DELAY, P, mini_batches, 0, **knobs), 30)


def leave(place, name, wait="barrier", seed=0, finished=True, distance=0.0, **summary):
    """Records of a run, as training leaves them."""
    place.mkdir(parents=True)
    config = {
        "name": name,
        "seed": seed,
        "wait": wait,
        "delay": "jitter",
        "optimizer": {"rate": 0.1, "name": "sgd"},
    }
    records.write_json(place / records.CONFIG, config)
    metrics = [
        {
            "update": 10 * i,
            "samples": 80 * i,
            "seconds": float(i),
            "train_loss": float(np.exp(-i * (1 + 0.1 * seed))),
            "test_accuracy": 0.2 * i,
            "consensus_distance": distance * i,
            "bytes_per_worker": 1000.0 * i,
        }
        for i in range(4)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in metrics)
    (place / records.METRICS).write_text(lines)
    if finished:
        schedule_of(wait).save(place / records.SCHEDULE)
        written = {
            "name": name,
            "baseline": None,
            "wait": wait,
            "workers": P,
            "seed": seed,
            "clock": "virtual",
            "target_loss": 0.1,
            "seconds_to_target": 2.3,
            "updates": 30,
            "idle_fraction": 0.25,
            "stopped": None,
        }
        written |= {k: v for k, v in metrics[-1].items() if k != "update"} | summary
        records.write_json(place / records.SUMMARY, written)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A workdir with all that a report can have to show, and its page."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in (0, 1):
        leave(root / f"sync/seed_{seed}", "sync", seed=seed, baseline="sync")
    stopped = "training loss is not finite at update 12"
    leave(root / "nasty", NASTY, "k_async", stopped=stopped, seconds_to_target=1.0, baseline="sync")
    leave(root / "pairs", "pairs", "random_pairs", distance=0.5, nodes=P - 1.0)
    leave(root / "cut", "cut", finished=False)
    leave(root / "broken", "broken", finished=False)
    (root / "broken/error.txt").write_text("ValueError: <bad> luck\nTraceback ...")
    names = ["pairs", NASTY, "sync"]
    records.write_json(root / records.SUMMARY, {"arms": [{"name": name} for name in names]})
    provenance.begin(root, "python launch.py </script><script>", "Of <b> and `code`.\n\nMore.")
    provenance.claim(root, [("of an older launch", "1x")])
    provenance.claim(root, [("it is <fast>", "yes:\n2x")])
    return root, report.write(root).read_text()


def data_of(text):
    """The packed data of a page."""
    (packed,) = re.findall(r'<script type="application/gzip" id="data">(.*?)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_the_page_needs_nothing_but_itself_and_runs_its_own_scripts_alone(sweep):
    _, text = sweep
    for tag, attributes in Page(text).elements:
        assert tag not in ("link", "iframe", "object")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))
    (own,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    (packed,) = re.findall(r'<script type="application/gzip" id="plotly">(.*?)</script>', text)
    contents = (own.encode(), gzip.decompress(base64.b64decode(packed)))
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    assert re.search("script-src ([^;]*)", policy)[1].split() == [f"'sha256-{d}'" for d in digests]
    assert policy.startswith("default-src 'none'") and "connect-src" not in policy
    assert text.count("<script") == 3


def test_a_page_says_what_came_out_and_how_to_repeat_it(sweep):
    root, text = sweep
    page, written = Page(text), json.loads((root / "report.json").read_text())
    assert written["claims"] == [["it is <fast>", "yes:\n2x"]]
    assert {"python", *provenance.LIBRARIES} <= set(written["versions"])
    words = page.text
    assert (
        f"{NASTY} reaches loss 0.1 2.3 times sooner than sync, after 1 s instead of 2.3 s" in words
    )
    assert written["command"] in page.words and f"jax {written['versions']['jax']}" in words
    assert "Of <b> and code . More." in words and "<code>code</code>" in text
    assert "training loss is not finite at update 12" in words and "it is <fast>" in page.words
    assert "ended with 4 of 5 nodes" in words and "failed: ValueError: <bad> luck" in page.words
    assert "cut not finished: 30 updates until 3 s" in words
    rows = [name for name in page.words if name in ("pairs", NASTY, "sync")]
    assert rows[:3] == ["pairs", NASTY, "sync"]  # in the order of the sweep
    shown = tables.of_arms([aggregates.aggregate([records.read_summary(root / "pairs")])])
    assert {str(column.header) for column in shown.columns} <= set(page.words)
    assert {next(iter(column.cells)) for column in shown.columns} <= set(page.words)
    settings, _, common = text.partition("<h2>Settings</h2>")[2].partition("<details>")
    assert ">wait<" in settings and ">0, 1<" in settings and "optimizer.rate" not in settings
    assert "optimizer.rate" in common and ">wait<" not in common


def test_live_figures_have_the_numbers_of_the_records(sweep):
    _, text = sweep
    data = data_of(text)
    assert data["names"] == data["shown"] == ["pairs", NASTY, "sync"]
    assert list(data["axes"]) == [
        "training loss", "test accuracy [%]", "consensus distance", "gradients [%]", "idle [%]",
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
    assert across["updates"]["layout"]["shapes"][0]["label"]["text"] == "target loss 0.1"
    names = [strip["name"] for strip in data["strips"]]
    assert names == [NASTY, "sync", "pairs"]  # the first at the target beside its baseline
    assert {trace["name"] for trace in data["traces"]} >= {"a/&lt;script&gt;&amp;&quot;&#x27;"}


def test_pictures_and_timelines_are_there_for_readers_without_scripts(sweep):
    root, text = sweep
    captions = [a["alt"].split()[0] for tag, a in Page(text).elements if tag == "img"]
    assert captions == ["training"] * 3 + ["test", "consensus", "gradients", "idle", "The"]
    with Image.open(root / "strip.png") as image:
        assert image.format == "PNG" and image.width == 1160
    finished = {path.parent for path in root.rglob(records.SCHEDULE)}
    assert {path.parent for path in root.rglob(TIMELINE)} == finished and len(finished) == 4
    written = json.loads((root / "sync/seed_1" / TIMELINE).read_text())
    assert written["otherData"]["run"] == "sync, seed 1"


@pytest.mark.slow
def test_figures_for_a_paper_are_text_in_pdf_and_svg(sweep, tmp_path):
    root, _ = sweep
    report.write(root, paper=True)
    files = sorted(path.name for path in (root / "figures").iterdir())
    assert len(files) == 16 and {"loss_time.pdf", "loss_time.svg", "strips.pdf"} <= set(files)
    assert (root / "figures/loss_time.pdf").read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in (root / "figures/loss_time.pdf").read_bytes()
    svg = (root / "figures/loss_time.svg").read_text()
    assert "training loss</text>" in svg and "&lt;script&gt;" in svg and "<script" not in svg
    leave(tmp_path / "a", "a", finished=False)
    with pytest.raises(ValueError, match=r"no run below .* has finished; leave out --paper"):
        report.write(tmp_path, paper=True)


def test_a_run_alone_without_schedule_target_or_note_has_a_small_page(tmp_path):
    run = {"test_accuracy": None, "target_loss": None, "seconds_to_target": None}
    leave(tmp_path / "run", "run", **run)
    (tmp_path / "run" / records.SCHEDULE).unlink()
    leave(tmp_path / "cut", "cut", finished=False)
    text = report.write(tmp_path).read_text()
    assert "1 arm · 1 not finished" in text and "run ends with a training loss of 0.0498." in text
    assert "<script" not in text and len(text) < 1 << 19 and not list(tmp_path.glob("strip.png"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no records of runs; give"):
        report.write(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    ("slowness", "words"),
    [({3: 4.0}, "Worker 3 is slow: a mini-batch takes it "), ({}, "No worker is always slow, but")],
)
def test_a_page_says_who_is_slow(slowness, words):
    law = delays.jitter(mean=0.1, sigma=0.3)
    slow = processes.persistent(law, slowness) if slowness else law
    done = whole(planned.rule("barrier", slow, P, 1, 0), 200)
    summary = {"baseline": "a", "name": "a"}
    arm = report.Arm("a", [], {}, summary, [], [])
    said = report.slow([arm], {"a": figures.look(done, P)})
    assert said.startswith(words)
    if slowness:
        assert re.search(r"(3\.[5-9]|4\.[0-5]) times the median", said) and "Under a others" in said
    none = whole(planned.rule("anytime", slow, P, 1, 0, seconds=1e-9), 3)
    said = report.slow([arm], {"a": figures.look(none, P)})
    assert said == "No worker of a has finished a mini-batch."


HEADLINES = {
    "b reaches loss 0.1 2.0 times sooner than a, after 1 s instead of 2 s.": (
        (2.0, "a"), (1.0, "a"),
    ),
    "a reaches loss 0.1 1.2 times sooner than b, after 1 s instead of 1.2 s.": (
        (1.0, "a"), (1.2, "a"),
    ),
    "b reaches loss 0.1 after 1 s, and no other arm does.": ((None, "a"), (1.0, "a")),
    "b reaches loss 0.1 after 0 s.": ((2.0, "a"), (0.0, "a")),
    "No arm reaches loss 0.1 with every seed. a ends with a training loss of 0.05, the lowest.": (
        (None, "a"), (None, "a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", HEADLINES)
def test_the_headline_is_about_the_first_arm_at_the_target(said):
    arms = []
    for name, (seconds, baseline) in zip("ab", HEADLINES[said], strict=True):
        summary = {"name": name, "seconds_to_target": seconds, "baseline": baseline}
        summary |= {"target_loss": 0.1, "clock": "virtual", "train_loss": 0.05}
        run = [{"seconds": 0.0, "train_loss": 1.0}, {"seconds": 9.0, "train_loss": 0.5}]
        arms.append(report.Arm(name, [], {}, summary, [], [run]))
    assert report.headline(arms) == said


def test_seeds_that_differ_more_than_arms_leave_the_headline_inconclusive(tmp_path):
    for name, of_seeds in {"a": (2.0, 4.0), "b": (3.9, 2.3)}.items():
        for seed, seconds in enumerate(of_seeds):
            more = {"baseline": "b", "seconds_to_target": seconds, "seed": seed}
            leave(tmp_path / f"{name}/seed_{seed}", name, **more)
    arms, _ = report.gather(tmp_path)
    assert report.headline(arms).endswith("; the spread of the seeds leaves that inconclusive.")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (records.SUMMARY, '{"name": ', "summary.json cannot be read .*; remove it, and the same"),
        (records.SUMMARY, '{"name": "a", "seed": 0}', "summary.json cannot be read .its "),
        (records.CONFIG, "", "config.json cannot be read .*; give another --workdir, or remove it"),
        (records.METRICS, "{}}\n", "metrics.jsonl cannot be read .*; remove the summary.json and"),
    ],
)
def test_a_record_that_is_damaged_is_named(tmp_path, file, text, words):
    leave(tmp_path / "a", "a")
    (tmp_path / "a" / file).write_text(text)
    with pytest.raises(ValueError, match=words):
        report.write(tmp_path)


@pytest.mark.parametrize("changes", [{"seed": 0}, {"seed": 1, "wait": "k_async"}])
def test_runs_of_two_launches_are_told_apart_by_their_folders(tmp_path, changes):
    leave(tmp_path / "x/a", "a")
    leave(tmp_path / "y/a", "a", **changes)
    arms, _ = report.gather(tmp_path)
    assert [arm.name for arm in arms] == ["x/a", "y/a"]
    assert [arm.summary["name"] for arm in arms] == ["x/a", "y/a"]


def test_runs_of_one_folder_have_to_be_seeds_of_one_arm(tmp_path):
    leave(tmp_path / "a/seed_0", "a")
    leave(tmp_path / "a/seed_1", "a", seed=1, wait="k_async")
    with pytest.raises(ValueError, match="are both runs of 'a', with other settings; give"):
        report.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_look_counts_what_the_schedule_says_and_events_are_shown(tmp_path):
    schedule = schedule_of("k_async")
    look = figures.look(schedule, P)
    ages = np.arange(look.staleness.size)
    np.testing.assert_allclose((ages * look.staleness).sum(), schedule.mean_staleness)
    used = schedule.busy.sum() + schedule.communication.sum()
    np.testing.assert_allclose(1 - look.idle.mean(), used / (P * schedule.time[-1]))
    leave(tmp_path / "a", "a")
    path = tmp_path / "a" / records.SCHEDULE
    provenance.begin(tmp_path, "python launch.py")
    replace(load(path), events=(Event(0.1, 2, "lost"),)).save(path)
    (strip,) = data_of(report.write(tmp_path).read_text())["strips"]
    assert strip["traces"][1]["text"] == ["worker 2 is lost"] and strip["traces"][1]["y"] == [2]
    shown = json.loads((tmp_path / "a" / TIMELINE).read_text())["traceEvents"]
    assert [event["name"] for event in shown if event["ph"] == "i"] == ["lost"]


@pytest.mark.slow
def test_a_page_of_500_arms_lists_all_and_is_no_larger_than_before(tmp_path):
    leave(tmp_path / "0", "m/0")
    for place in range(1, 500):
        (tmp_path / f"{place}").mkdir()
        for path in (tmp_path / "0").iterdir():
            (tmp_path / f"{place}" / path.name).write_bytes(
                path.read_bytes().replace(b'"m/0"', b'"m/%d"' % place)
            )
        values = np.random.default_rng(place).random((100, 4))
        (tmp_path / f"{place}" / records.METRICS).write_text(
            "".join(
                json.dumps({"update": i, "samples": 8 * i, "seconds": i + a, "train_loss": b,
                            "test_accuracy": c, "consensus_distance": d,
                            "bytes_per_worker": 1e3 * i}) + "\n"
                for i, (a, b, c, d) in enumerate(values.tolist())
            )
        )  # fmt: skip
    provenance.begin(tmp_path, "python launch.py")
    text = report.write(tmp_path).read_text()
    print(f"{len(text):,} bytes")
    assert len(text) < 10.6e6
    boxes = [a["data-arm"] for tag, a in Page(text).elements if "data-arm" in a]
    assert boxes == [f"{i}" for i in range(500)]
    data = data_of(text)
    assert len(data["shown"]) == figures.MOST_ARMS and len(data["names"]) == 500
    assert all(data["axes"]["training loss"]["virtual time [s]"]["columns"])
