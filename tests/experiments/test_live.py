"""The page that is served while records arrive: to this machine alone, and until they end."""

import fcntl
import http.client
import json
import shutil
import socket
import threading

import pytest

from experiments import files, live, provenance, records
from tests.experiments.test_report import NASTY, data_of, leave
from tests.waiting import until


def ask(port, path="/", method="GET", host=None):
    """Return (status, headers, text) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.fixture
def server():
    with live.Server(0) as running:
        assert "http-equiv" in ask(running.port)[2]  # asks again until there is a page
        running.show("<p>page", "1 of 2")
        yield running


def test_one_page_is_served_to_this_machine_and_nothing_is_taken(server):
    status, headers, text = ask(server.port)
    assert (status, text) == (200, "<p>page") and server.server_address[0] == "127.0.0.1"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Frame-Options"] == "DENY" and "Access-Control-Allow-Origin" not in headers
    assert ask(server.port, host=f"localhost:{server.port}")[0] == 200
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", ""):
        assert ask(server.port, host=host)[0] == ask(server.port, "/state", host=host)[0] == 403
    for path in ("/../etc/passwd", "/report.json", "//etc/passwd", "/%2e%2e/x", "/state/../x"):
        assert ask(server.port, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(server.port, method=method)[0] == 501
    assert json.loads(ask(server.port, "/state")[2]) == {
        "version": 1, "state": "1 of 2", "ended": False,
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"port {server.port} of 127.0.0.1 is taken; give"):
        live.Server(server.port)


def test_a_silent_connection_keeps_nobody_out_and_ends(server, monkeypatch):
    monkeypatch.setattr(live._Handler, "timeout", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as silent:
        silent.sendall(b"G")
        assert ask(server.port)[0] == 200
        assert silent.recv(1) == b""


class Watched:
    """A workdir that is watched in a thread, and whose launch is this test."""

    def __init__(self, root, monkeypatch):
        self.root, self.server, self.answer = root, None, ...
        begun = threading.Event()

        class Server(live.Server):
            def show(its, *page):
                super().show(*page)
                self.server = its
                begun.set()

        settings = {"Server": Server, "PAUSE": 0.05, "SHARE": 0.9, "QUIET": 0.2, "RECENT": 2.0}
        for name, value in settings.items():
            monkeypatch.setattr(live, name, value)
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        assert begun.wait(300)

    def _watch(self):
        self.answer = live.watch(self.root, 0)

    def until(self, words, path="/"):
        """Return the page as soon as it holds these words."""
        return until(lambda: words in (text := ask(self.server.port, path)[2]) and text, words)

    def ended(self):
        self.thread.join(300)
        return self.answer


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "out"
    leave(root / "a", "a")
    leave(root / "b", NASTY, finished=False)
    leave(root / "c", "c", finished=False)
    (root / "c" / records.METRICS).unlink()
    provenance.begin(root, "python launch.py")
    return root


def test_records_are_shown_as_they_arrive_and_the_end_too(root, monkeypatch, capsys):
    with files.held(root / files.LAUNCH_LOCK):
        watched = Watched(root, monkeypatch)
        page = watched.until("1 of 3 runs have finished")
        assert "connect-src 'self'" in page and "1 arm · 2 not finished" in page
        assert "not begun" in page and "(under way)" in page and "/&lt;script&gt;&amp;" in page
        assert data_of(page)["names"] == ["a", NASTY]
        shutil.rmtree(root / "c")
        leave(root / "c", "c")
        watched.until("2 arms · 1 not finished")  # the header, too, is new
        shutil.rmtree(root / "b")
        leave(root / "b", NASTY)
        text = watched.until("3 of 3 runs have finished", "/state")
        assert (
            json.loads(text)["ended"] is False and "not finished" not in ask(watched.server.port)[2]
        )
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    watched.until("nobody is at work any more", "/state")
    assert watched.ended() is None
    printed = capsys.readouterr().out
    assert f"watching {root} at http://127.0.0.1:" in printed
    assert f"3 of 3 runs have finished; --report={root} writes one" in printed
    del before[root / files.LAUNCH_LOCK]
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing was written


def test_a_run_without_a_name_is_called_as_its_folder(root):
    records.write_json(root / "b" / records.CONFIG, {})
    assert data_of(live.page(root, 1, {})[0])["names"] == ["a", "b"]


def test_a_launch_that_was_killed_is_named_and_one_that_is_done_has_its_report(
    root, monkeypatch, call
):
    made, failures = live.page, [ValueError("a file is being written")]

    def page(*given):
        if failures:
            raise failures.pop()
        return made(*given)

    monkeypatch.setattr(live, "page", page)  # which is made again though no record is new
    with open(root / "b" / files.RUN_LOCK, "w") as killed:
        fcntl.flock(killed, fcntl.LOCK_EX)  # as training does until it is killed
        watched = Watched(root, monkeypatch)
        monkeypatch.setattr(live, "RECENT", 0.7)  # nobody asks how it has ended
        watched.until("1 of 3 runs have finished")
        whole = (root / "b" / records.METRICS).read_text()
        (root / "b" / records.METRICS).write_text("}\n")
        watched.until("metrics.jsonl cannot be read", "/state")
        assert "Results" in ask(watched.server.port)[2]  # the last page stays
        (root / "b" / records.METRICS).write_text(whole)
        watched.until("1 of 3 runs", "/state")
    said = (
        f"nobody works on {root} any more, and 2 of its runs are not finished, such as {root}/b; "
    )
    assert watched.ended() == said + "the command that began them goes on with them"
    with pytest.raises(ValueError, match="nobody works on"):
        live.watch(root, 0)
    shutil.rmtree(root / "b")
    shutil.rmtree(root / "c")
    (root / "report.html").touch()
    code, shown, _ = call(f"--watch={root}", "--port=0")
    assert code == 0 and f"the report of {root} is {root}/report.html" in shown


def test_jobs_of_slurm_are_at_work_whether_or_not_it_answers(root, monkeypatch):
    def silent(_):
        raise ValueError("squeue does not answer")

    assert not live.Attendance(root)
    (root / live.slurm.FOLDER).mkdir()
    for answer, expected in (
        (lambda _: {"b": "12_0"}, True),
        (lambda _: {}, False),
        (silent, True),
    ):
        monkeypatch.setattr(live.slurm, "under_way", answer)
        attended = live.Attendance(root)
        assert bool(attended) is expected
    monkeypatch.setattr(live, "state", lambda _: live.State(3, 0, []))
    assert not live.Attendance(root)  # nothing is left that jobs could do
    monkeypatch.setattr(live.slurm, "under_way", lambda _: {})
    assert attended  # it is asked every half minute only
