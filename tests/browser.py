"""A page in headless Chromium, driven over a pipe by the DevTools protocol."""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time

import pytest

from tests.waiting import PATIENCE, until

# Debian's and Ubuntu's names, and the one of the vendor.
PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needed = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here; install chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads commands from descriptor 3 and writes answers to 4.
STARTER = (
    "import os, sys; r, w = (os.dup(os.dup(os.dup(int(fd)))) for fd in sys.argv[1:3]);"
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Page:
    """A tab: what it complains about is in `complaints`."""

    def __init__(self, commands, answers):
        self._commands, self._answers, self._rest = commands, answers, b""
        self._numbers, self._session = itertools.count(1), {}
        self.complaints, self._events = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Return the result of a command."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _read(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], end - time.monotonic())
            assert ready, "the browser does not answer"
            self._rest += os.read(self._answers, 1 << 20)
        text, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(text)
        method, about = answer.get("method"), answer.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(about["exceptionDetails"])
        if method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(about["args"])
        if method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"])
        return answer

    def open(self, address, width):
        """Load a page into a window of this width, in pixels, and wait until it is there."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 640}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self._events.clear()
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            self._read()

    def value(self, expression):
        """Return the value of a JavaScript expression, after its promise."""
        options = {"awaitPromise": True, "returnByValue": True}
        result = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression):
        """Ask until an expression is true."""
        until(lambda: self.value(expression), expression)

    def point(self, x, y):
        """Move the mouse there, in pixels of the window."""
        for step in (3, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y - step)


@contextlib.contextmanager
def browser(profile):
    """Give a `Page` of a browser whose files are in `profile`."""
    theirs_in, commands = os.pipe()
    answers, theirs_out = os.pipe()
    arguments = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    starter = [sys.executable, "-c", STARTER, str(theirs_in), str(theirs_out), *arguments]
    quiet, theirs = subprocess.DEVNULL, (theirs_in, theirs_out)
    process = subprocess.Popen(starter, pass_fds=theirs, stdout=quiet, stderr=quiet)
    for descriptor in theirs:
        os.close(descriptor)
    try:
        yield Page(commands, answers)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(commands)
        os.close(answers)
