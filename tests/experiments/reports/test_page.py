import html.parser
import json
import re
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments import aggregates, provenance, records
from experiments.reports import live, page, panels, strip_chart, table
from experiments.reports.timeline import TIMELINE, stretches
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
        leave(root / f"sync/seed_{seed}", "sync", seed=seed)
    leave(root / "nasty", NASTY, "k_async", stopped="training loss is not finite at update 12")
    leave(root / "pairs", "pairs", "random_pairs", distance=0.5)
    leave(root / "cut", "cut", finished=False)
    leave(root / "broken", "broken", finished=False)
    (root / "broken/error.txt").write_text("ValueError: <bad> luck\nTraceback ...")
    names = ["pairs", NASTY, "sync"]
    records.write_json(root / records.SUMMARY, {"arms": [{"name": name} for name in names]})
    provenance.begin(root, "python launch.py --config='a b'")
    provenance.claim(root, [("of an older launch", "1x")])
    provenance.claim(root, [("it is <fast>", "yes:\n2x")])
    path = page.write(root)
    assert path == root / "report.html"
    return root, path.read_text()


def test_the_page_needs_nothing_but_itself(sweep):
    _, text = sweep
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))


def test_ids_are_unique_and_every_reference_has_its_target(sweep):
    _, text = sweep
    elements = Page(text).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids) > 0
    links = [value for _, a in elements for name, value in a.items() if name.endswith("href")]
    clips = [a["clip-path"][4:-1] for _, a in elements if "clip-path" in a]
    assert clips and {link.removeprefix("#") for link in links + clips} <= set(ids)


def test_words_of_others_are_escaped(sweep):
    _, text = sweep
    page = Page(text)
    assert text.count("<script>") == len(live.scripts()) and NASTY in page.words
    assert "it is <fast>" in page.words and "failed: ValueError: <bad> luck" in page.words


def test_the_page_says_how_to_repeat_it_and_what_came_out(sweep):
    root, text = sweep
    page = Page(text)
    written = json.loads((root / "report.json").read_text())
    assert written["claims"] == [["it is <fast>", "yes:\n2x"]]
    assert {"python", *provenance.LIBRARIES} <= set(written["versions"])
    assert written["command"] in page.words and f"jax {written['versions']['jax']}" in page.text
    assert "training loss is not finite at update 12" in page.text
    assert "cut not finished: 30 updates until 3 s" in page.text
    rows = [name for name in page.words if name in ("pairs", NASTY, "sync")]
    assert rows[:3] == ["pairs", NASTY, "sync"]  # in the order of the sweep


def test_the_table_is_that_of_the_terminal(sweep):
    _, text = sweep
    shown = table.of_arms([aggregates.aggregate([records.read_summary(sweep[0] / "pairs")])])
    page = Page(text)
    for column in shown.columns:
        assert str(column.header) in page.words
        assert next(iter(column.cells)) in page.words


def test_settings_that_differ_are_told_apart_from_common_ones(sweep):
    _, text = sweep
    before, _, after = text.partition("<details>")
    settings = before.rpartition("<h2>Settings</h2>")[2]
    assert ">wait<" in settings and "optimizer.rate" not in settings
    assert "optimizer.rate" in after and ">wait<" not in after
    assert ">0, 1<" in settings  # the seeds of one arm


def test_figures_are_those_that_the_records_can_fill(sweep):
    _, text = sweep
    captions = [a["aria-label"] for tag, a in Page(text).elements if "aria-label" in a]
    assert [caption.split()[0] for caption in captions] == (
        ["Training"] * 3 + ["Test", "Consensus", "Staleness", "Share"]
    )


def test_strip_and_timelines_lie_beside_the_records(sweep):
    root, _ = sweep
    with Image.open(root / "strip.png") as image:
        assert image.format == "PNG" and image.width == 1160
    finished = {path.parent for path in root.rglob(records.SCHEDULE)}
    assert {path.parent for path in root.rglob(TIMELINE)} == finished and len(finished) == 4
    written = json.loads((root / "sync/seed_1" / TIMELINE).read_text())
    assert written["otherData"]["run"] == "sync, seed 1"
    assert not list(root.rglob("*.tmp"))


def test_one_run_without_schedule_or_note_has_a_report(tmp_path):
    leave(tmp_path / "run", "run", test_accuracy=None)
    (tmp_path / "run" / records.SCHEDULE).unlink()
    text = page.write(tmp_path / "run").read_text()
    assert "1 arm" in text and "<h2>Settings</h2>" in text and "first rounds" not in text
    assert not (tmp_path / "run/strip.png").exists()


def test_arms_that_are_all_unfinished_are_listed(tmp_path):
    leave(tmp_path / "a", "a", finished=False)
    assert "not finished: 30 updates" in page.write(tmp_path).read_text()


def test_a_directory_without_records_is_refused_and_left_alone(tmp_path):
    with pytest.raises(ValueError, match="holds no records of runs; give"):
        page.write(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (
            records.SUMMARY,
            '{"name": ',
            "summary.json cannot be read .*; remove it, and the same command",
        ),
        (
            records.SUMMARY,
            '{"name": "a", "seed": 0}',
            "summary.json cannot be read .it has no .*or give another --workdir",
        ),
        (
            records.CONFIG,
            "",
            "config.json cannot be read .*; give another --workdir, or remove it together",
        ),
        (records.METRICS, "{}}\n", "metrics.jsonl cannot be read .*; remove the summary.json and"),
    ],
)
def test_a_record_that_is_damaged_is_named(tmp_path, file, text, words):
    leave(tmp_path / "a", "a")
    (tmp_path / "a" / file).write_text(text)
    with pytest.raises(ValueError, match=words):
        page.write(tmp_path)


def test_a_look_counts_what_the_schedule_says():
    schedule = schedule_of("k_async")
    look = panels.look(schedule, P, 1000)
    ages = np.arange(look.staleness.size)
    np.testing.assert_allclose((ages * look.staleness).sum(), schedule.mean_staleness)
    used = schedule.busy.sum() + schedule.communication.sum()
    np.testing.assert_allclose(1 - look.idle.mean(), used / (P * schedule.time[-1]))
    assert not strip_chart.has_gaps(look.first)


def test_cancelled_work_leaves_gaps_and_the_slowest_worker_is_shown():
    slow = processes.persistent(DELAY, {37: 5.0})
    schedule = whole(planned.rule("k_sync", slow, 40, 1, 0, k=20), 10)
    assert strip_chart.has_gaps(stretches(schedule))
    schedule = whole(planned.rule("barrier", slow, 40, 1, 0), 3)
    lanes = strip_chart.lanes_of(stretches(schedule), 40)
    assert 37 in lanes and lanes.size <= strip_chart.MOST_LANES


def test_a_strip_marks_the_events_of_the_workers_and_the_time_that_it_shows():
    schedule = whole(planned.rule("barrier", DELAY, P, 1, 0), 30)
    first = stretches(schedule)
    events = (Event(0.1, 2, "lost"), Event(0.2, 2, "restored", 0), Event(99.0, 1, "lost"))
    axes = Figure().subplots()
    lines = strip_chart._mark(axes, (*events, Event(0.1, P, "joined")), np.arange(P), 5.0)
    marks = {line.get_label(): line.get_xydata().tolist() for line in lines}
    assert marks == {"lost": [[0.1, 2]], "restored": [[0.2, 2]]}
    plain, marked = (
        strip_chart.draw([strip_chart.Strip("a", first, P, shown)]) for shown in ((), events)
    )
    assert marked != plain and strip_chart.draw([strip_chart.Strip("a", first, P)]) == plain


def test_a_report_shows_the_events_of_a_schedule(tmp_path):
    leave(tmp_path / "a", "a")
    path = tmp_path / "a" / records.SCHEDULE
    before = page.write(tmp_path).read_text()
    replace(load(path), events=(Event(0.1, 2, "lost"),)).save(path)
    after = page.write(tmp_path).read_text()
    shown = json.loads((tmp_path / "a" / TIMELINE).read_text())["traceEvents"]
    assert [event["name"] for event in shown if event["ph"] == "i"] == ["lost"]
    assert after != before  # the strip is part of the page


def test_a_report_says_how_many_nodes_are_in_the_average(tmp_path):
    leave(tmp_path / "a", "a", nodes=P - 1.0)
    leave(tmp_path / "b", "b", nodes=float(P))
    words = re.findall(r"<strong>(\w)</strong> ended with (.*?),", page.write(tmp_path).read_text())
    assert words == [("a", f"{P - 1} of {P} nodes")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"seed": 0}, "with the same seed"), ({"seed": 1, "wait": "k_async"}, "with other settings")],
)
def test_two_sweeps_are_not_taken_for_seeds_of_one(tmp_path, changes, words):
    leave(tmp_path / "x/a", "a")
    leave(tmp_path / "y/a", "a", **changes)
    with pytest.raises(ValueError, match=f"x/a and .*y/a are both runs of 'a', {words}; give"):
        page.write(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_strip_shows_some_rounds_of_the_slowest_and_counts_whole_updates():
    slow, quick = (
        stretches(whole(planned.rule("barrier", law, 2, 1, 0, communication=0.5), 20))
        for law in (
            processes.persistent(delays.deterministic(1.0), {0: 4.0}),  # a round takes 4.5 s
            delays.deterministic(1.0),  # 1.5 s
        )
    )
    assert strip_chart.window([slow, quick]) == strip_chart.CYCLES * 4.5
    landed = [strip_chart._landed(slow, until) for until in (4.4, 4.5, 9.1)]
    assert landed == [0, 1, 2]
