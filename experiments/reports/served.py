"""One page on the loopback address: a server that reads no file and takes nothing.

It answers GET of two addresses from memory. The header Host must name the loopback address, so that
no page of another site, whose name may lead here, can read the answers.
"""

import contextlib
import errno
import http.server
import json
import socket
import threading
import time
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
MOST_AT_ONCE = 16  # connections; for another one the oldest is closed
PATIENCE = 10.0  # s for all that a connection asks and gets
RECENT = 5.0  # s after which a browser that asks no more is gone


class Shown(NamedTuple):
    """What is served at present."""

    version: int
    page: bytes
    main: str  # the page's content, in HTML
    state: str
    ended: bool


class Server(http.server.ThreadingHTTPServer):
    """Serves what `show` was given last, from threads of its own between `with` and its end."""

    daemon_threads = True
    request_queue_size = MOST_AT_ONCE

    def __init__(self, port: int):
        """Raises ValueError where the port is taken; 0 takes any that is free."""
        self._since: dict[socket.socket, float] = {}  # connections, the oldest first
        self.asked = -float("inf")  # when a browser asked last
        self.has_heard = threading.Event()  # a browser, that all has ended
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "is taken" if taken else f"cannot be used ({error.strerror})"
            raise ValueError(f"port {port} of {HOST} {reason}; give another --port") from error
        self.port = self.server_address[1]
        self.names = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self.shown = Shown(0, b"", "", "", False)

    def server_bind(self) -> None:
        """As the usual one, which would ask a network for this machine's name."""
        http.server.socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def show(self, page: str, main: str, state: str, ended: bool = False) -> None:
        """Serve this from now on."""
        version = self.shown.version + (main != self.shown.main)
        self.shown = Shown(version, page.encode(), main, state, ended)

    def wait_for_browsers(self) -> None:
        """Return when a browser that still asks has heard that all has ended."""
        if time.monotonic() - self.asked < RECENT:
            self.has_heard.wait(RECENT)

    def process_request(self, request, client_address) -> None:
        self._since[request] = time.monotonic()
        if len(self._since) > MOST_AT_ONCE:
            self._cut(next(iter(self._since)))
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._since.pop(request, None)

    def service_actions(self) -> None:
        """Cut connections that last too long; called many times a second."""
        for request, since in list(self._since.items()):
            if time.monotonic() - since > PATIENCE:
                self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        """End what a connection waits for, whose thread then closes it."""
        self._since.pop(request, None)
        with contextlib.suppress(OSError):  # it may have ended by itself
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address) -> None:
        """A browser that goes away in the middle of an answer is no fault."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def version_string(self) -> str:
        return "gossax"

    def do_GET(self) -> None:
        if self.headers.get_all("Host") not in [[name] for name in self.server.names]:
            self._answer(403, "text/plain", b"Only this machine's own address is served here.\n")
            return
        asked, shown = urlsplit(self.path), self.server.shown
        if asked.path == "/":
            self.server.asked = time.monotonic()
            self._answer(200, "text/html", shown.page)
        elif asked.path == "/records":
            self.server.asked = time.monotonic()
            known = parse_qs(asked.query).get("after", [""])[0]
            answer = {"version": shown.version, "state": shown.state, "ended": shown.ended}
            if known != str(shown.version):
                answer["main"] = shown.main
            self._answer(200, "application/json", json.dumps(answer).encode())
            if shown.ended:
                self.server.has_heard.set()
        else:
            self._answer(404, "text/plain", b"There is one page here, at /.\n")

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Nobody reads it."""
