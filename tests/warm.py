"""Programs in processes of their own that have loaded JAX before they begin.

As of `subprocess.Popen`, but forked from a process that has imported what launches import, which
takes seconds, and has started no backend: XLA reads its flags in the new process. A module that a
program forgets to import is there all the same, and all forks iterate sets in one order: neither
fault shows here.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
LOADED = (
    "configs.nonblocking", "experiments.distributed", "experiments.dry_run", "experiments.loggers",
    "experiments.report", "experiments.sweep", "experiments.train", "experiments.watchdog",
    "flax.linen", "gossax", "runtimes.mesh", "runtimes.simulate",
)  # fmt: skip
PATIENCE = 300.0  # s for the first process to load all of these
LOOK = 0.02  # s between two looks at who has ended
MESSAGE = 1 << 20  # bytes at most
# Flags of a program that divides its processor itself.
COMPILING = " ".join(
    flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag
)


class Process:
    """A program that runs; the part of `subprocess.Popen` that tests use."""

    def __init__(self, args, *, cwd, env, stdout, stderr):
        """Start a file, or -m and a module, with what they are given; stdout, stderr: files."""
        loaded, forker = _forker()
        settings = {name for name in {**loaded, **env} if name.startswith("JAX_")}
        changed = {name for name in settings if env.get(name) != loaded.get(name)}
        assert not changed, f"JAX has read {changed} when it was loaded"
        self.args, self.returncode = [str(word) for word in args], None
        self._line, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._line.settimeout(PATIENCE)
        with theirs:
            files = [theirs.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(forker, [b"."], files)
        self._line.sendall(json.dumps([self.args, str(cwd), dict(env)]).encode())
        self.pid = self._number()

    def _number(self):
        """Return the next number that the process which forks says."""
        said = self._line.recv(MESSAGE)
        if not said:
            raise ConnectionResetError("the process that forks has ended; see its stderr")
        return int(said)

    def wait(self, timeout=None):
        """Return how it has ended; subprocess.TimeoutExpired if it has not in so long."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._line.close()
        return self.returncode

    def poll(self):
        """Return how it has ended, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)

    def send_signal(self, number):
        ended = None
        with contextlib.suppress(ConnectionError):  # nobody says whether it has
            ended = self.poll()
        if ended is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def run(args, *, cwd, env, timeout):
    """Run a program to its end and return what it has printed, as `subprocess.run` does."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = Process(args, cwd=cwd, env=env, stdout=output, stderr=errors)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        texts = [file.seek(0) or file.read() for file in (output, errors)]
    return subprocess.CompletedProcess(args, code, *texts)


@functools.cache
def _forker():
    """(environment, line) of the one that forks, which ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        number, environment = theirs.fileno(), dict(os.environ)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(number)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # the first of the two, so that it ends
    return environment, ours


def serve(control):
    """Fork for every request, and say how each fork has ended; return the request in a fork.

    None once nobody asks any more. No other thread of Python's runs, and no backend of JAX, so that
    a fork finds no lock taken.
    """
    lines = {}  # by process
    while True:
        ready, _, _ = select.select([control], [], [], LOOK if lines else None)
        for pid in list(lines):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with lines.pop(pid) as line:
                    _say(line, os.waitstatus_to_exitcode(status))
        if not ready:
            continue
        _, files, _, _ = socket.recv_fds(control, 1, 3)
        if not files:
            return None
        line, (output, errors) = socket.socket(fileno=files[0]), files[1:]
        request = json.loads(line.recv(MESSAGE))
        pid = os.fork()
        if not pid:
            os.dup2(output, 1)
            os.dup2(errors, 2)
            for other in (control, line, *lines.values()):
                other.close()
        os.close(output)
        os.close(errors)
        if not pid:
            return request
        _say(line, pid)
        lines[pid] = line


def _say(line, number):
    with contextlib.suppress(OSError):  # whoever has asked may have gone
        line.sendall(str(number).encode())


def main(number):
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # pages of what is loaded stay shared
    request = serve(socket.socket(fileno=number))
    if request is None:
        return
    (program, *given), folder, environment = request
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if program == "-m":
        module, *given = given
        sys.path[:1], sys.argv = [folder, *paths], [module, *given]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[:1], sys.argv = [os.path.dirname(program), *paths], [program, *given]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
