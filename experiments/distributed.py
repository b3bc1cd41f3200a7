"""One run on several processes: how they find each other, and how they end when one of them does.

`initialize` comes before anything else that JAX does. Every process then runs the same program; the
first one alone writes. JAX's coordination service, in process 0, notices a process that has died or
does not answer any more and ends all others; what is added here is one sentence that says so and
exit code 3. A process that leaves by itself, refused, failed or asked by a signal, first says why
through the service, so that the others end within a second and repeat it.

JAX's own preemption service is switched off: it takes SIGTERM for itself and only tells those that
ask for its sync point. Here the run asks at every evaluation anyway, see `asked_to_end`, and what
announces a preemption is a SIGTERM.
"""

import atexit
import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from experiments import coordination, endings
from experiments.coordination import process_id, processes
from experiments.joining import BIND, check_address, is_alone
from runtimes import phases

JOINING = 60  # s that a process waits for the others, one of which may have been refused
HEARTBEAT = 30  # s without one after which a process counts as dead
FAREWELL = 30  # s that a process which ends waits for the others to end
LISTENING = 0.5  # s of one question whether somebody has left
OWN_WORDS = 0.7  # s in which a process that hears of it may leave for a reason of its own
HEARING = 2.0  # s that a process which leaves waits for the others to hear why
REFUSED, DEAD = 2, 3  # exit codes: the input was at fault; another process has gone
LEFT, HEARD, ASKED = "gossax/left", "gossax/heard", "gossax/asked"  # keys of the service
DONE = "gossax/done"  # one more

_kept: list = []  # the handler of SIGABRT, which C does not keep alive
_agreed = 0  # values exchanged so far
_joining: list[str] = []  # the sentence of a process that still looks for the others
_leaving = threading.Lock()  # whoever leaves first decides how
_said = threading.Lock()  # whoever says first why this process ends is the only one
_over = threading.Event()  # nobody needs to listen any more
_seen: list[int] = []  # signals that this process was sent, even while it is busy in C


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Join the other processes of this run; without any, do nothing.

    coordinator_address: "host:port" at which process 0 listens. Without arguments the environment
    says who is there: Slurm, Open MPI up to 4, a Kubernetes job or a TPU pod, as JAX knows them.
    Raises ValueError for arguments or an environment that leave something open.
    """
    given = (coordinator_address, num_processes, process_id)
    if given == (None, None, None):
        if is_alone(os.environ):
            return
    elif None in given:
        raise ValueError(
            f"several processes: got coordinator_address={coordinator_address}, "
            f"num_processes={num_processes}, process_id={process_id}; give all three or, where "
            "the environment knows them, none"
        )
    elif process_id >= num_processes:
        raise ValueError(
            f"several processes: process_id={process_id} of num_processes={num_processes}; they "
            f"count from 0 to {num_processes - 1}"
        )
    else:
        check_address(coordinator_address, listens=process_id == 0)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    how = {
        "initialization_timeout": JOINING,
        "heartbeat_timeout_seconds": HEARTBEAT,
        "shutdown_timeout_seconds": FAREWELL,
    }
    if None not in given and BIND not in os.environ:
        how["coordinator_bind_address"] = coordinator_address  # else on all interfaces
    if None not in given and "KUBERNETES_SERVICE_HOST" in os.environ:
        how["cluster_detection_method"] = "deactivate"  # nothing is left to ask the cluster for
    _end_by_a_sentence()  # JAX aborts where it cannot reach process 0, too
    watch_signals()
    endings.raising()
    where = coordinator_address or "the address that the environment names"
    try:
        with _waiting_for_others(where, num_processes):
            jax.distributed.initialize(*given, **how)
    except ValueError:
        if given != (None, None, None) or "JAX_COORDINATOR_ADDRESS" in os.environ:
            raise
        return  # JAX has found nobody
    except RuntimeError as error:
        raise ValueError(_not_found(where, " ".join(str(error).split())[:200])) from error
    thread = threading.Thread(target=_hear, daemon=True)
    thread.start()

    def over() -> None:
        _over.set()
        thread.join(2)

    atexit.register(over)  # before JAX takes leave of the service


def _not_found(where: str, reason: str) -> str:
    return (
        f"several processes: they have not found each other at {where} ({reason}); check that all "
        "of them have started and reach the host and port of process 0"
    )


@contextlib.contextmanager
def _waiting_for_others(where: str, count: int | None) -> Iterator[None]:
    """Say who is waited for if that takes long, and, should JAX abort, that nobody has come."""
    _joining.append(f"error: {_not_found(where, f'within {JOINING} s')}\n")
    others = "the other processes" if count is None else f"all {count} processes"
    reminder = threading.Timer(
        10, print, [f"waiting up to {JOINING} s for {others} at {where}"], {"file": sys.stderr}
    )
    reminder.daemon = True
    reminder.start()
    try:
        yield
    finally:
        reminder.cancel()
        _joining.clear()


def is_joining() -> bool:
    """Return whether this process still looks for the others."""
    return bool(_joining)


def is_writer() -> bool:
    """Whether this process prints and writes: process 0."""
    return process_id() == 0


def say(name: str, text: str) -> None:
    """Put a text where every process can `hear` it."""
    coordination.put(name, text)


def hear(name: str) -> str:
    """The text that a process says under this name; waits for it."""
    with phases.within(phases.OTHERS):
        return coordination.get(name, seconds=3600)  # a process that dies ends this one before


def agreed(value: Any) -> Any:
    """What process 0 passes, a JSON value, on every process; all of them call it and wait."""
    global _agreed
    if processes() == 1:
        return value
    name, _agreed = f"gossax/{_agreed}", _agreed + 1
    if is_writer():
        say(name, json.dumps(value))
        return value
    return json.loads(hear(name))


def asked_to_end() -> int | None:
    """The signal that any of the processes was sent while it trains; None: none.

    The same on all processes, which call it together.
    """
    number = endings.asked()
    if processes() == 1:
        return number
    if is_writer() and number is None:
        noted = coordination.get_now(ASKED)
        number = None if noted is None else int(noted)
    return agreed(number)


def is_lost(error: BaseException | type) -> bool:
    """Whether an error means that another process has gone; any other is this process's own."""
    if processes() == 1 or not isinstance(error, jax.errors.JaxRuntimeError):
        return False
    return not str(error).startswith("RESOURCE_EXHAUSTED")


def leave(code: int, why: str = "") -> None:
    """Exit: after 0 when the first process has ended too, else at once.

    why: what the others are to hear. The usual end would wait for the others, while they wait for
    this process.
    """
    if processes() > 1:
        if code == 0:
            if is_writer():
                say(DONE, "")
            else:
                coordination.get(DONE, seconds=3600)  # the first process may still be writing
            _over.set()
        else:
            _leaving.acquire()  # never given back: who comes second waits for the end
            sys.stdout.flush()
            sys.stderr.flush()
            _tell({"process": process_id(), "code": code, "why": why})
            os._exit(code)
    sys.exit(code)


def give_up(code: int, why: str) -> None:
    """End this process at once, from any thread, as its main thread does not go on.

    code: `DEAD`, or that of a signal. why: a sentence, which the others hear and repeat.
    """
    for reader in multiprocessing.active_children():
        reader.kill()  # one that is stopped would stay behind
    if code == DEAD:
        _last_words(f"as {why}")
    else:
        os.write(2, f"{why}\n".encode())
    if processes() > 1:
        leave(code, why)
    sys.stdout.flush()
    os._exit(code)


def signalled() -> int | None:
    """The signal that this process or, as far as is known, another one was sent; None: none."""
    if number := endings.asked():
        return number
    if _seen:
        return _seen[-1]
    noted = coordination.get_now(ASKED) if processes() > 1 else None
    return None if noted is None else int(noted)


def _tell(message: dict) -> None:
    """Leave a message for the others and wait until they have heard it, but not for long."""
    try:
        coordination.put(LEFT, json.dumps(message))
    except jax.errors.JaxRuntimeError:  # another one was quicker, or the service is gone
        _has_heard()
        if not is_writer():
            return
    _wait_for_hearers()


def _wait_for_hearers() -> None:
    until = time.monotonic() + HEARING
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        while coordination.add(HEARD, 0) < processes() - 1 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.1 * is_writer())  # the service goes with this process, the others first


def _has_heard() -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        coordination.add(HEARD, 1)


def watch_signals() -> None:
    """See the signals of this process at once, in a thread, as the main one may be busy in C."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_see, args=(read,), daemon=True).start()


def _hear() -> None:
    me = process_id()
    while not _over.is_set():
        try:
            message = json.loads(coordination.get(LEFT, LISTENING))
        except jax.errors.JaxRuntimeError as error:
            if coordination.is_late(error):
                continue
            return  # the service is gone, as JAX will say
        if message["process"] == me or _over.is_set():
            return
        code = message["code"]
        time.sleep(OWN_WORDS)  # what is refused or asked to end is often all of them
        _leaving.acquire()
        sys.stdout.flush()
        _last_words(f"process {message['process']} has left ({message['why']})")
        _has_heard()
        if is_writer():
            _wait_for_hearers()  # as the service goes with this process
        os._exit(code if code > 128 else DEAD)  # a signal is meant for all of them


def _see(read: int) -> None:
    """Of the signals of this process: tell the others, even where the main thread is busy in C."""
    seen: set[int] = set()
    while True:
        number = os.read(read, 1)[0]
        if number not in (signal.SIGINT, *endings.OTHERS):
            continue
        _seen.append(number)
        if processes() == 1 and not _joining:
            continue
        if endings.is_deferred() and number not in seen:
            seen.add(number)
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                coordination.put(ASKED, str(number), again=True)
            continue
        if not _joining:
            time.sleep(HEARING)  # in which the main thread may tidy up
        os.write(2, f"{endings.sentence(number)}\n".encode())
        if _joining:
            os._exit(endings.code(number))
        leave(endings.code(number), endings.sentence(number))


def _last_words(
    why: str = "most likely because another one of this run has died, left or cannot be reached "
    "(what JAX knows is above)",
) -> None:
    """Say why this process ends, unless it has been said; the main thread may say it, or JAX's."""
    if not _said.acquire(blocking=False):
        return
    me, count = process_id(), processes()
    if why.startswith("process"):
        why = f"as {why}"
    who, again = f"process {me} of {count}", "start all of them again with the same command, and"
    if count == 1 and why.startswith("as this"):
        who, again = "this run", "start it again with the same command, and"
    sentence = f"\nerror: {who} ends, {why}; {again} the run goes on from its last checkpoint\n"
    os.write(2, sentence.encode())


def _end_by_a_sentence() -> None:
    """From now on an abort of JAX and an error that nobody catches end this process at once."""

    def aborted(_) -> None:
        if _joining:
            os.write(2, _joining[0].encode())
            os._exit(REFUSED)
        if processes() > 1:
            _last_words()
            os._exit(DEAD)

    # JAX aborts from a thread of its own, in which Python's own handlers never run.
    _kept.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted))
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
    set_handler.restype = ctypes.c_void_p
    set_handler(signal.SIGABRT, ctypes.cast(_kept[-1], ctypes.c_void_p))
    usual = sys.excepthook

    def uncaught(kind, error, trace) -> None:
        if not is_lost(error):
            usual(kind, error, trace)
            if processes() > 1:
                leave(1, f"{kind.__name__}: {' '.join(str(error).split())[:200]}")
            return
        time.sleep(4 * LISTENING)  # if it has said why it left, that is known by now
        _last_words()
        leave(DEAD, "it has lost another one")

    sys.excepthook = uncaught
