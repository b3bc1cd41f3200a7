"""One run on several processes: how they find each other, agree, and end when one of them does.

`initialize` comes before any other use of JAX, and `connect` once JAX's devices are there. Every
process then runs the same program; the first one alone writes. JAX's coordination service, in
process 0, notices a process that has died or does not answer any more and ends all others; this
module adds one sentence that says so and exit code 3. A process that leaves by itself, refused,
failed or asked by a signal, first gives its reason through the service; the others end within a
second and repeat the reason. Shared texts and counters are keys of the service. JAX has no public
name for the service yet: only this module uses private names of JAX.

JAX's own preemption service is switched off: it takes SIGTERM for itself, and tells only processes
that ask for its sync point. Here the run asks at every evaluation, see `asked_to_end`.
"""

import atexit
import contextlib
import ctypes
import errno
import itertools
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from experiments import endings
from runtimes import phases

try:  # the source of jax.process_index(), but it starts no backend
    from jax._src.distributed import global_state
except ImportError as error:
    raise ImportError(
        f"distributed: JAX {jax.__version__} has moved jax._src.distributed.global_state, with "
        "which processes share texts; install jax==0.12.0.1, or import it in "
        "experiments/distributed.py from where it is now"
    ) from error

BIND = "JAX_COORDINATOR_BIND_ADDRESS"  # where process 0 listens, if the others use another address
JOINING = 60  # s that a process waits for the others, one of which may have been refused
HEARTBEAT = 30  # s without a heartbeat after which a process counts as dead
FAREWELL = 30  # s that an ending process waits for the others to end
LISTENING = 0.5  # s of one wait for the news that a process has left
OWN_WORDS = 0.7  # s after such news in which a process may leave for a reason of its own
HEARING = 2.0  # s that a leaving process waits for the others to hear its reason
HOURS = 1e5  # s of a wait without a limit, as the death of a process ends it
REFUSED, DEAD = 2, 3  # exit codes: the input was at fault; another process has gone
LEFT, ASKED, ROUNDS = "gossax/left", "gossax/asked", "gossax/rounds"  # keys of the service

_kept: list = []  # the handler of SIGABRT, which C does not keep alive
_joining: list[str] = []  # the sentence of a process that still looks for the others
_seen: list[int] = []  # signals that this process was sent, even while it is busy in C
_agreed, _starts = itertools.count(), itertools.count()  # counters of exchanges, of tallies
_leaving = threading.Lock()  # its first holder decides how this process leaves
_said = threading.Lock()  # its first holder alone prints why this process ends
_over = threading.Event()  # nobody needs to listen any more


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Join the other processes of this run; without any, do nothing.

    coordinator_address: "host:port" at which process 0 listens. Without arguments JAX finds the
    processes by the environment of Slurm, Open MPI up to 4, a Kubernetes job or a TPU pod.
    Raises ValueError for incomplete or wrong arguments or environments, and if processes do not
    find each other.
    """
    given = (coordinator_address, num_processes, process_id)
    options: dict[str, Any] = {
        "initialization_timeout": JOINING,
        "heartbeat_timeout_seconds": HEARTBEAT,
        "shutdown_timeout_seconds": FAREWELL,
    }
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
        if BIND not in os.environ:
            options["coordinator_bind_address"] = coordinator_address  # else on all interfaces
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            options["cluster_detection_method"] = "deactivate"  # the arguments already say all
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    _end_by_a_sentence()  # JAX aborts where it cannot reach process 0, too
    watch_signals()
    endings.raising()
    where = coordinator_address or "the address that the environment names"
    not_found = (
        f"several processes: they have not found each other at {where} ({{}}); check that all of "
        "them have started and reach the host and port of process 0"
    )
    _joining.append(f"error: {not_found.format(f'within {JOINING} s')}\n")
    words = f"waiting up to {JOINING} s for all {num_processes or 'other'} processes at {where}"
    reminder = threading.Timer(10, print, [words], {"file": sys.stderr})
    reminder.daemon = True
    reminder.start()
    try:
        jax.distributed.initialize(*given, **options)
    except ValueError:
        if given != (None, None, None) or "JAX_COORDINATOR_ADDRESS" in os.environ:
            raise
        return  # JAX has found nobody
    except RuntimeError as error:
        raise ValueError(not_found.format(" ".join(str(error).split())[:200])) from error
    finally:
        reminder.cancel()
        _joining.clear()
    thread = threading.Thread(target=_hear_of_who_leaves, daemon=True)
    thread.start()

    def over() -> None:
        _over.set()
        thread.join(2)

    atexit.register(over)  # before JAX takes leave of the service


def connect() -> None:
    """Connect all devices by a first collective, if they are CPUs of several processes.

    All processes call this once their devices are there: JAX gives a process 30 s to reach its
    first collective, and one process may compile for longer than another.
    """
    if processes() == 1 or jax.default_backend() != "cpu":
        return
    devices = jax.make_mesh((jax.device_count(),), ("all",), (jax.sharding.AxisType.Auto,))
    each = jax.NamedSharding(devices, jax.P("all"))
    ones = jax.make_array_from_callback((devices.size,), each, lambda _: np.ones(1, np.float32))
    added = jax.shard_map(
        lambda one: jax.lax.psum(one, "all"), mesh=devices, in_specs=jax.P("all"),
        out_specs=jax.P("all"),
    )  # fmt: skip
    with phases.within(phases.OTHERS):
        jax.block_until_ready(jax.jit(added)(ones))


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of an address; ValueError if one of them is missing."""
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 2**16:
        raise ValueError(
            f"several processes: coordinator_address={address!r} names no host or no port; give "
            "host:port"
        )
    return host.strip("[]"), int(port)


def listening(address: str) -> socket.socket:
    """Return a socket that listens where process 0 does; OSError if it cannot."""
    place = place_of(os.environ.get(BIND, address))
    (family, *_, found), *_ = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    # A port of closed connections in TIME_WAIT counts as free, as for JAX.
    return socket.create_server(found, family=family)


def check_address(address: str, listens: bool) -> None:
    """Raise ValueError for no host or port, or with `listens` if process 0 cannot listen there."""
    place_of(address)
    if not listens or BIND in os.environ:
        return
    try:
        listening(address).close()
    except OSError as error:
        reason = (
            f"process 0 cannot listen there ({error}); give an address of its machine, or say in "
            f"{BIND} where it listens"
        )
        if error.errno == errno.EADDRINUSE:
            reason = "another process listens there; give a free port, and --process_id=0 only once"
        raise ValueError(f"several processes: coordinator_address={address!r}: {reason}") from error


def is_alone(environment: Mapping[str, str]) -> bool:
    """Return whether the environment names this process as the only one; False if it says nothing.

    JAX itself would look for others in any pod, and give a single task only one of its GPUs.
    """
    by_mpi = "OMPI_COMM_WORLD_SIZE" in environment
    if not by_mpi and "SLURM_STEP_NODELIST" not in environment:
        in_a_job = {"JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES"} & environment.keys()
        return "KUBERNETES_SERVICE_HOST" in environment and not in_a_job
    by = "OMPI_COMM_WORLD_SIZE" if by_mpi else "SLURM_NTASKS"
    count = environment.get(by, "1")
    if not by_mpi:  # the shell of salloc is a step of one task
        count = environment.get("SLURM_STEP_NUM_TASKS", count)
    if not re.fullmatch(r"[1-9]\d{0,8}", count):
        raise ValueError(
            f"several processes: {by}={count!r} in the environment is no number of processes; "
            "correct or unset it"
        )
    if by_mpi and count != "1" and "OMPI_MCA_orte_hnp_uri" not in environment:
        raise ValueError(
            f"several processes: this Open MPI has started {count} but names no coordinator; give "
            "--coordinator_address=HOST:PORT --num_processes=$OMPI_COMM_WORLD_SIZE "
            "--process_id=$OMPI_COMM_WORLD_RANK"
        )
    return count == "1"


def is_queued_again(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm has restarted the job of this process."""
    return environment.get("SLURM_RESTART_COUNT", "0") != "0"


def is_joining() -> bool:
    """Return whether this process still looks for the others."""
    return bool(_joining)


# --- what all processes share ---


def processes() -> int:
    """Return how many processes there are; unlike `jax.process_count` it starts no backend."""
    return global_state.num_processes


def process_id() -> int:
    """Return the number of this process, from 0."""
    return global_state.process_id


def is_writer() -> bool:
    """Return whether this process prints and writes: process 0."""
    return process_id() == 0


def say(name: str, text: str, again: bool = False) -> None:
    """Put a text where every process can `hear` it; again: the text may replace an earlier one."""
    global_state.client.key_value_set(name, text, allow_overwrite=again)


def hear(name: str, seconds: float = HOURS) -> str:
    """Return the text that a process says under this name; wait for it, at most this long."""
    with phases.within(phases.OTHERS):
        return global_state.client.blocking_key_value_get(name, round(1000 * seconds))


def meet(name: str, seconds: float) -> None:
    """Wait for all processes at the barrier of this name, at most this long."""
    global_state.client.wait_at_barrier(name, round(1000 * seconds))


def texts(folder: str) -> dict[str, str]:
    """Return the texts that were said below a folder, by their names."""
    return dict(global_state.client.key_value_dir_get(folder))


def agreed(value: Any) -> Any:
    """Return the JSON value that process 0 passes; all processes call this function and wait."""
    if processes() == 1:
        return value
    name = f"gossax/{next(_agreed)}"
    if not is_writer():
        return json.loads(hear(name))
    say(name, json.dumps(value))
    return value


def gathered(value: Any) -> list[Any]:
    """Return the JSON values of all processes, in their order; all call this function and wait."""
    name, others = f"gossax/{next(_agreed)}", range(1, processes())
    if not is_writer():
        say(f"{name}/{process_id()}", json.dumps(value))
        return agreed(None)
    return agreed([value, *(json.loads(hear(f"{name}/{other}")) for other in others)])


class SharedTally:
    """A `stragglers.inject.Tally` that all processes share; all begin and close the same rounds.

    A counter per round holds its points. The process that completes the points sets another key; in
    every process that calls `over`, a thread waits for this key. No collective is used, as busy
    processes could not join it. A round costs a message per addition and one per process. The last
    process that closes a round deletes the keys of the round.
    """

    def __init__(self):
        self._needed, self._place = 0, ""
        self._over: set[int] = set()
        self._threads: dict[int, threading.Thread] = {}

    def begin(self, needed: int) -> None:
        """Forget all rounds; from now on `needed` points end a round."""
        self._needed, self._place = needed, f"{ROUNDS}/{next(_starts)}"
        self._over, self._threads = set(), {}

    def add(self, round_index: int, points: int) -> bool:
        """Add points to a round, which ends with enough points; return True if it was not over."""
        total = self._needed
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 has gone: all soon end
            counter = f"{self._place}/{round_index}/points"
            total = global_state.client.key_value_increment(counter, points)
            if total - points < self._needed <= total:
                say(f"{self._place}/{round_index}/over", "over")
        if total >= self._needed:
            self._over.add(round_index)
        return total - points < self._needed

    def over(self, round_index: int) -> bool:
        """Return whether a round is known to be over; the first call starts to listen."""
        if round_index not in self._threads:
            thread = threading.Thread(
                target=self._listen, args=(round_index, self._place), daemon=True
            )
            if self._threads.setdefault(round_index, thread) is thread:
                thread.start()
        return round_index in self._over

    def close(self, rounds: Iterable[int]) -> None:
        """Forget rounds in which nobody works any more, here or elsewhere."""
        rounds = list(rounds)
        for round_index in rounds:
            thread = self._threads.pop(round_index, None)
            if thread is not None and thread.is_alive():
                say(f"{self._place}/{round_index}/over", "closed", again=True)
                thread.join()
            self._over.discard(round_index)
        closed, client = f"closed/{rounds[0]}", global_state.client
        if client.key_value_increment(f"{self._place}/{closed}", 1) == processes():
            for place in (*rounds, closed):
                client.key_value_delete(f"{self._place}/{place}")

    def _listen(self, round_index: int, place: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service is gone, as JAX says
            hear(f"{place}/{round_index}/over")
            self._over.add(round_index)


# --- how they end ---


def asked_to_end() -> int | None:
    """Return a signal to end that any process has received in training, or None.

    All processes call this function together and get the same answer.
    """
    return agreed(endings.asked() or (_noted() if is_writer() else None))


def signalled() -> int | None:
    """Return a signal that this process or, by the service, another one has received, or None."""
    return endings.asked() or (_seen[-1] if _seen else _noted())


def _noted() -> int | None:
    """Return a signal that a process has noted in the service, or None."""
    return next(map(int, texts(ASKED).values()), None) if processes() > 1 else None


def is_lost(error: BaseException | type) -> bool:
    """Return whether an error means that another process has gone, not a fault of this process."""
    if processes() == 1 or not isinstance(error, jax.errors.JaxRuntimeError):
        return False
    return not str(error).startswith("RESOURCE_EXHAUSTED")


def leave(code: int, why: str = "") -> None:
    """Exit: with code 0 once all processes are done, with another code within a few seconds.

    why: the reason, for the others to hear. With a plain `sys.exit`, this process and the others
    would wait for each other.
    """
    if processes() > 1:
        if threading.current_thread() is threading.main_thread():
            endings.handle(signal.SIG_IGN)  # how this process leaves is decided
        if code:
            _leaving.acquire()  # never released: a second thread waits for the end
            sys.stdout.flush()
            sys.stderr.flush()
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was quicker
                say(LEFT, json.dumps({"process": process_id(), "code": code, "why": why}))
            _part(code)
        # The first process may still be writing; when it is done, no loss matters to it.
        with contextlib.suppress(*[jax.errors.JaxRuntimeError] * is_writer()):
            meet("gossax/done", HOURS)
        _over.set()
    sys.exit(code)


def give_up(code: int, why: str) -> None:
    """End this process at once, from any thread, for a main thread that stands still.

    code: `DEAD`, or a signal's exit code. why: a sentence, which the others hear and repeat.
    """
    for reader in multiprocessing.active_children():
        reader.kill()  # a stopped reader would otherwise stay behind
    if code == DEAD:
        _last_words(f"as {why}")
    else:
        os.write(2, f"{why}\n".encode())
    if processes() > 1:
        leave(code, why)
    sys.stdout.flush()
    os._exit(code)


def _part(code: int) -> NoReturn:
    """Exit when all processes know that one leaves, within HEARING s; process 0 exits last."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        meet("gossax/parting", HEARING)
    time.sleep(0.1 * is_writer())
    os._exit(code)


def _hear_of_who_leaves() -> None:
    while not _over.is_set():
        try:
            message = json.loads(hear(LEFT, LISTENING))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):  # nobody has left, and the service is there
                continue
            return  # the service is gone, as JAX will say
        if message["process"] == process_id() or _over.is_set():
            return
        time.sleep(OWN_WORDS)  # often all processes are refused or asked to end
        _leaving.acquire()
        sys.stdout.flush()
        _last_words(f"as process {message['process']} has left ({message['why']})")
        _part(message["code"] if message["code"] > 128 else DEAD)  # a signal is meant for all


def watch_signals() -> None:
    """Start a thread that notes signals, and tells the others, while the main thread is in C."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def see(number: int) -> None:
        first = number not in _seen
        _seen.append(number)
        if processes() == 1 and not _joining:
            return
        if endings.is_deferred() and first:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                say(f"{ASKED}/signal", str(number), again=True)
            return
        if not _joining:
            time.sleep(HEARING)  # in which the main thread may tidy up
        os.write(2, f"{endings.sentence(number)}\n".encode())
        if _joining:
            os._exit(endings.code(number))
        leave(endings.code(number), endings.sentence(number))

    def work() -> None:
        while True:
            if (number := os.read(read, 1)[0]) in (signal.SIGINT, *endings.OTHERS):
                see(number)

    threading.Thread(target=work, daemon=True).start()


def _last_words(
    why: str = "most likely because another one of this run has died, left or cannot be reached "
    "(what JAX knows is above)",
) -> None:
    """Print why this process ends, unless another of its threads has printed it."""
    if not _said.acquire(blocking=False):
        return
    who = f"process {process_id()} of {processes()}"
    again = "start all of them again with the same command, and"
    if processes() == 1 and why.startswith("as this"):
        who, again = "this run", "start it again with the same command, and"
    sentence = f"\nerror: {who} ends, {why}; {again} the run goes on from its last checkpoint\n"
    os.write(2, sentence.encode())


def _end_by_a_sentence() -> None:
    """Let an abort of JAX, and an uncaught error, end this process at once from now on."""

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
        os.write(2, f"JAX: {' '.join(str(error).split())[:500]}\n".encode())
        time.sleep(4 * LISTENING)  # by now any reason of the lost process has arrived
        _last_words()
        leave(DEAD, "it has lost another one")

    sys.excepthook = uncaught
