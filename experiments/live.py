"""The page of a workdir while records arrive, served to this machine alone until its runs end.

Locks are looked at and records are read; nothing is written. The server answers GET of two
addresses from memory. The header Host must name the loopback address, so that no page of another
site, whose name may lead here, can read the answers.
"""

import contextlib
import errno
import http.server
import json
import os
import socketserver
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from experiments import figures, files, formats, records, registry, report, slurm

HOST = "127.0.0.1"
PATIENCE = 10.0  # s for what a connection says next
RECENT = 5.0  # s after which a browser that asks no more is gone
PAUSE = 1.0  # s between two looks at the records, at least
SHARE = 0.2  # the largest share of time that goes into making pages
QUIET = 3.0  # s without a new record and without anybody at work after which all has ended
BETWEEN_QUEUES = 30.0  # s between two questions to Slurm
_FOLLOWED = (records.CONFIG, records.METRICS, records.SUMMARY, records.ERROR)


class State(NamedTuple):
    """Progress of the runs of a workdir."""

    finished: int
    failed: int
    left: Sequence  # runs that have neither finished nor failed, begun or not

    def __str__(self):
        failed = f", {self.failed} failed" if self.failed else ""
        total = self.finished + self.failed + len(self.left)
        return f"{self.finished} of {total} runs have finished{failed}"


def state(root: Path) -> State:
    """Return the progress of the runs below a workdir."""
    every = list(report.places(root))
    rest = [place for place in every if not (place / records.SUMMARY).exists()]
    left = [place for place in rest if not (place / records.ERROR).exists()]
    return State(len(every) - len(rest), len(rest) - len(left), left)


class Attendance:
    """An object that is true while a process or a job of Slurm works on a workdir."""

    def __init__(self, root: Path):
        self._root, self._asked, self._queued = root, -BETWEEN_QUEUES, False

    def __bool__(self) -> bool:
        own = (place / files.RUN_LOCK for place in report.places(self._root))
        for path in (self._root / files.LAUNCH_LOCK, *own):
            with contextlib.suppress(OSError, ValueError):  # no lock of ours
                try:
                    files.check_lock(path)
                except files.InUse:
                    return True
        if not (self._root / slurm.FOLDER).is_dir():
            return False
        if time.monotonic() - self._asked >= BETWEEN_QUEUES:
            self._asked = time.monotonic()
            try:
                self._queued = bool(slurm.under_way(self._root))
            except ValueError:  # Slurm does not answer, and its jobs go on, if any are left
                self._queued = bool(state(self._root).left)
        return self._queued


def page(root: Path, version: int, looks: dict[tuple, figures.Look | None]) -> tuple[str, str]:
    """Return the page of the records so far, and the progress of its runs in a sentence.

    looks: paths and times of change of an arm's schedules -> facts about them; new ones are added.
    """
    arms, unfinished = report.gather(root)
    failed = sum(one.state.startswith("failed") for one in unfinished)
    now = str(State(sum(len(arm.places) for arm in arms), failed, unfinished[failed:]))
    lines = {arm.name: arm.runs for arm in arms}
    for one in unfinished:
        place = root / one.place
        begun = records.read_metrics(place) if (place / records.METRICS).exists() else []
        metrics = [line for line in begun if formats.fits(line, formats.WHOLE_LINE)]
        if metrics:
            name = records.read_config(place / records.CONFIG).get("name", one.place)
            lines[f"{name}, {one.place}" if name in lines else name] = [metrics]
    seen = {}
    for arm in arms:
        paths = [place / records.SCHEDULE for place in arm.places]
        key = tuple((path, path.stat().st_mtime_ns) for path in paths if path.exists())
        if key not in looks:
            looks[key] = report.looks_of([arm], writes=False).get(arm.name)
        if looks[key] is not None:
            seen[arm.name] = looks[key]
    page = report.whole(root, arms, unfinished, seen, [*lines.items()], state=now, version=version)
    return page, now


class Server(socketserver.ThreadingTCPServer):
    """A server of one page, which runs in threads of its own within a `with` block.

    Each connection has a thread, so that slow ones do not block others.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int):
        """Raise ValueError where the port is taken; 0 takes any that is free."""
        self.asked = -float("inf")  # when a browser asked last
        self.has_heard = threading.Event()  # whether a browser has got the news that all has ended
        self.page = b'<meta http-equiv="refresh" content="1">The first page is being made.'
        self.answer = {"version": 0, "state": "", "ended": False}
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "is taken" if taken else f"cannot be used ({error.strerror})"
            raise ValueError(f"port {port} of {HOST} {reason}; give another --port") from error
        self.port = self.server_address[1]
        self.names = {f"{name}:{self.port}" for name in (HOST, "localhost")}

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def show(self, page: str, state: str) -> None:
        """Serve this page, and this sentence on the progress, from now on."""
        self.page = page.encode()
        self.answer = {"version": self.answer["version"] + 1, "state": state, "ended": False}

    def handle_error(self, request, client_address) -> None:
        """Ignore a browser that goes away in the middle of an answer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE
    server_version, sys_version = "gossax", ""

    def do_GET(self) -> None:
        server, path = self.server, urlsplit(self.path).path
        if self.headers.get_all("Host") not in [[name] for name in server.names]:
            self._answer(403, "text/plain", b"Only this machine's own address is served here.\n")
        elif path == "/":
            server.asked = time.monotonic()
            self._answer(200, "text/html", server.page)
        elif path == "/state":
            server.asked, answer = time.monotonic(), server.answer
            self._answer(200, "application/json", json.dumps(answer).encode())
            if answer["ended"]:
                server.has_heard.set()
        else:
            self._answer(404, "text/plain", b"There is one page here, at /.\n")

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)),
            "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Write no log, which nobody would read."""


def watch(root: str | os.PathLike, port: int) -> str | None:
    """Serve a workdir's page until nobody works there; return why runs are unfinished, or None.

    Raises ValueError where there is no such workdir, where nobody works on it and runs are
    unfinished, and where the port is taken. Nothing is written.
    """
    root, again = Path(root), "give the --workdir of a launch that has begun"
    if not root.is_dir():
        raise ValueError(f"there is no workdir {root}; {again}")
    attended, now = Attendance(root), state(root)
    attends = bool(attended)
    if not attends and now == (0, 0, []):
        raise ValueError(
            f"workdir {root} holds no records of runs, and nobody is at work there; {again}"
        )
    if attends:
        with Server(port) as server:
            print(f"watching {root} at http://{HOST}:{server.port}/", flush=True)
            _follow(root, attended, server)
            if time.monotonic() - server.asked < RECENT:
                server.has_heard.wait(RECENT)
        now = state(root)
    if now.left:
        abandoned = (
            f"nobody works on {root} any more, and {len(now.left)} of its runs are not finished, "
            f"such as {now.left[0]}; the command that began them goes on with them"
        )
        if not attends:
            raise ValueError(abandoned)
        return abandoned
    path = root / report.REPORT
    where = f"the report of {root} is {path}" if path.exists() else f"--report={root} writes one"
    print(f"{now}; {where}")
    return None


def _follow(root: Path, attended: Attendance, server: Server) -> None:
    """Show records as they arrive, until nobody works on the workdir and nothing is new."""
    looks: dict[tuple, figures.Look | None] = {}
    stamp, changed, is_shown = None, time.monotonic(), False
    while True:
        began = time.monotonic()
        new = []  # changes when records arrive
        for path in (at / name for at in report.places(root) for name in _FOLLOWED):
            with contextlib.suppress(OSError):
                status = path.stat()
                new.append((path, status.st_mtime_ns, status.st_size))
        if new != stamp:
            stamp, changed, is_shown = new, began, False
        if not is_shown:
            try:
                server.show(*page(root, server.answer["version"] + 1, looks))
                is_shown = True
            except (ValueError, OSError) as error:  # the last page stays until the next try
                server.answer = server.answer | {"state": registry.sentence(error)}
        if not attended and time.monotonic() - changed > QUIET:
            end = f"{state(root)}; nobody is at work any more"
            server.answer = server.answer | {"state": end, "ended": True}
            return
        time.sleep(max(PAUSE, (time.monotonic() - began) * (1 / SHARE - 1)))
