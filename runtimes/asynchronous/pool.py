"""Sessions of Ray, actors on it, and runtimes that start, supervise and replace these actors.

Ray starts processes and carries arrays between them. It is imported when a session first needs it,
and not before. The cluster is a private one on this machine, or an existing one.

An actor answers its calls in order, and calls of its group `ASIDE` beside them, at any time. One
queue delivers all news: answers, deaths, and processes that are ready to work.
"""

import atexit
import concurrent.futures
import contextlib
import ctypes
import os
import queue
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes.base import WorkersLost

_LARGEST_BLOCK = 2**25  # bytes of a block, the largest threshold that glibc accepts
_KEPT_BYTES = 2**31 - 1  # bytes of all freed blocks together
# Of a started process. With one arena a thread can reuse memory that another thread has freed.
MALLOC_VARIABLES = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(_LARGEST_BLOCK),
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    "MALLOC_TOP_PAD_": str(2**27),
}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)


def keep_freed_memory() -> None:
    """Keep up to 2 GiB of memory that this process frees; do nothing without glibc.

    Parameters and gradients of tens of megabytes are allocated anew with every update. By default
    the C library returns freed blocks of this size to the system, which clears their pages again.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


# --- Ray as this process uses it

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHARED_MEMORY = "/dev/shm"  # where Ray keeps its store
_SHARED = (  # settings of JAX that a started process inherits
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
_LEAST_STORE = 80 * 2**20  # bytes, the smallest store that Ray accepts
# The longest path of a socket of Ray, and the bytes that it leaves of 107 for the folder above.
_SOCKET = "/gossax_12345678/r/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store"
_LONGEST = 107 - len(_SOCKET)
SERVICE_LOOK = 1.0  # s between two looks at Ray's control service
# Seconds of refused connections after which the service counts as gone. A cluster may restart it,
# and Ray itself waits for a minute.
REFUSED, REFUSED_BY_CLUSTER = 5.0, 45.0


class Resources(NamedTuple):
    """Share of a machine that a process takes."""

    cpus: float = 1.0
    gpus: float = 0.0  # below 1: this share of a GPU and of its memory


class Session:
    """Session of this process on Ray: a private cluster on this machine, or another cluster."""

    def __init__(self):
        """Use a private cluster, unless `join` names another one."""
        self.address: str | None = None
        self.leave: Callable[[], None] = lambda: None  # ends the program without waiting
        # Of a private cluster: its files, which only this user can reach, and their last process.
        self._folder: Path | None = None
        self._heir: subprocess.Popen | None = None
        self._store, self._cpus = 0, 0  # bytes of its store, processors that Ray counts there
        self._ended = threading.Event()  # ends the thread that watches the services
        self.pools: weakref.WeakSet[ActorPool] = weakref.WeakSet()  # of all runs of this process

    def join(self, address: str) -> None:
        """Join the cluster at this address and use it; raise ValueError if none answers."""
        self.address = address
        ray = self._loaded()
        try:
            if ":" in address:  # Ray itself would try for half a minute
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=5).close()
            with _own_signals():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # the errors of Ray here have no common base class
            raise ValueError(
                f"actors: no Ray cluster answers at {address!r} "
                f"({' '.join(str(error).split())[:160]}); start one with `ray start --head`, "
                "or leave out --cluster"
            ) from error
        self._watch()

    def check_room(self, members: int, store_bytes: int) -> None:
        """Raise ValueError if a private cluster still to be started would lack shared memory."""
        elsewhere = not os.path.isdir(_SHARED_MEMORY)  # as on macOS, in a file
        if self.address is not None or self._folder is not None or elsewhere:
            return
        room, store = shutil.disk_usage(_SHARED_MEMORY).free, max(_LEAST_STORE, store_bytes)
        if store <= room:
            return
        least = f"Ray takes {_LEAST_STORE / 1e6:.0f} MB of shared memory at least"
        needed = (
            f"{members} workers need {store / 1e6:.0f} MB of shared memory for their parameters "
            "and gradients"
        )
        fewer = "set fewer workers or a smaller model, or " if room >= _LEAST_STORE else ""
        raise ValueError(
            f"actors: {needed if fewer else least} and {_SHARED_MEMORY} has {room / 1e6:.0f} MB "
            f"free; {fewer}make it larger, as `docker run --shm-size=1g` does for a container"
        )

    def provide(self, members: int, resources: Resources, store_bytes: int) -> None:
        """Start Ray, or restart a small unused cluster; raise ValueError if resources are short."""
        ray = self._loaded()
        cpus = int(np.ceil(members * resources.cpus))
        small = store_bytes > self._store or cpus > self._cpus
        if self._folder is not None and small and all(pool.closed for pool in self.pools):
            self.close()  # arrays that do not fit into its store would go through the disk
        if not ray.is_initialized():
            self.check_room(members, store_bytes)
            self._start(ray, max(_LEAST_STORE, store_bytes), max(os.cpu_count() or 1, cpus))
        there = ray.cluster_resources()
        for what, share in (("GPU", resources.gpus), ("CPU", resources.cpus)):
            if members * share > there.get(what, 0.0) + 1e-9:
                raise ValueError(
                    f"actors: {members} workers want {members * share:g} {what}s and the cluster "
                    f"has {there.get(what, 0.0):g}; set fewer workers or a smaller share in "
                    f"config.actors.{what.lower()}s"
                )

    def _start(self, ray: Any, store: int, cpus: int) -> None:
        """Start a private cluster with a store of these bytes."""
        place = tempfile.gettempdir()
        place = place if len(os.fsencode(place)) <= _LONGEST else "/tmp"
        self._folder = Path(tempfile.mkdtemp(prefix="gossax_", dir=place))
        self._store, self._cpus = store, cpus
        with warnings.catch_warnings(), _own_signals():
            # JAX warns of every fork; the process that Ray forks becomes another program.
            warnings.filterwarnings("ignore", message="os.fork")
            try:
                ray.init(
                    address="local", num_cpus=cpus, object_store_memory=store,
                    include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                    _temp_dir=str(self._folder / "r"),
                )  # fmt: skip
            except Exception as error:  # of any class
                self.close()
                raise ValueError(
                    f"actors: Ray does not start ({' '.join(str(error).split())[:160]}); free "
                    f"memory, {tempfile.gettempdir()} or processors of this machine"
                ) from error
        self._watch()

    def _loaded(self) -> Any:
        """Return the module of Ray, imported with the settings that it reads at its import."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self.address is None and "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ.setdefault("RAY_worker_niceness", "0")  # the same priority as the server
        import ray
        from ray._private import node
        from ray._private import worker as private

        # Ray prints a page about every process that dies, and has no setting against it.
        private.print_to_stdstream = lambda *arguments, **options: None
        # The monitor adds machines to a cluster, and answers requests on all interfaces without a
        # token. The other two take seconds to start, and serve pages and logs that are not used.
        for service in ("start_monitor", "start_api_server", "start_log_monitor"):
            setattr(node.Node, service, lambda self, **options: None)
        atexit.register(self.close)
        return ray

    def _watch(self) -> None:
        """Watch Ray's services in a thread, and let a private cluster end after this process.

        Ray's services and workers end together with this process, but its agents wait for them.
        """
        from ray._private import worker as private

        node, self._ended = private._global_node, threading.Event()
        if self._folder is not None:
            agents = _children(node.all_processes["raylet"][0].process.pid)
            self._heir = subprocess.Popen(
                ["sh", "-c", f'read _; kill -9 {agents} 2>/dev/null; sleep 1; rm -rf "$0"',
                 self._folder],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._end_with, args=(node, self._ended), daemon=True).start()

    def _end_with(self, node: Any, ended: threading.Event) -> None:
        """Report that one of Ray's services has gone, and end the program by `leave`.

        Ray itself would end this process without a message, at the next array that it gets, or
        after a minute. To come first, this function waits for nothing.
        """
        patience = REFUSED if self.address is None else REFUSED_BY_CLUSTER
        gone = _gone(node.raylet_socket_name, node.gcs_address, patience, ended)
        if ended.is_set():
            return
        sentence = f"Ray's {gone} has gone, and its workers with it; the same command goes on"
        os.write(2, f"\nerror: {sentence} from the last checkpoint\n".encode())
        self.leave()

    def close(self) -> None:
        """End the processes of a private cluster, or disconnect from another cluster."""
        self._ended.set()
        if "ray" in sys.modules:
            import ray

            ray.shutdown()
        if self._heir is not None:
            self._heir.kill()
            self._heir.communicate()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._heir = None


def _children(pid: int) -> str:
    """Return the ids of the processes that a process has started and that still live."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.append(path.read_text())
    return " ".join(found)


def _gone(raylet: str, control: str, patience: float, ended: threading.Event) -> str | None:
    """Wait until one of Ray's services has gone, and return its name; None once `ended` is set.

    raylet: its socket, closed when it ends. control: host:port, refused when the service has ended.
    """
    host, _, port = control.rpartition(":")
    address, refused_since = (host.strip("[]"), int(port)), None
    with socket.socket(socket.AF_UNIX) as held:
        held.settimeout(SERVICE_LOOK)
        try:
            held.connect(raylet)
        except OSError:
            return "raylet"
        while not ended.is_set():
            try:
                if not held.recv(1):
                    return "raylet"
            except TimeoutError:
                pass  # it lives
            except OSError:
                return "raylet"
            try:
                socket.create_connection(address, timeout=SERVICE_LOOK).close()
                refused_since = None
            except ConnectionRefusedError:
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since > patience:
                    return "control service"
            except OSError:
                pass  # Ray itself waits for a network that comes back
    return None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the handlers of signals after a block in which Ray replaces them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


SESSION = Session()  # of this process


def environment(resources: Resources) -> dict[str, str]:
    """Return the environment of a process: its import path, JAX's devices, its allocator."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "host_platform_device_count" not in flag]
    found = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path)),
        "XLA_FLAGS": " ".join(kept),
        **MALLOC_VARIABLES,
    }
    for name in _SHARED:  # so that only one process compiles a program
        value = getattr(jax.config, name)
        found |= {} if value is None else {name.upper(): str(value)}
    if resources.gpus:
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * min(1.0, resources.gpus):.3f}"
    else:
        found["JAX_PLATFORMS"] = "cpu"
    return found


# --- actors

ASIDE = "aside"  # the group of calls that an actor answers while it works
NEWS = "news"  # the group and the tag of the calls that return a sign of life
_WATCH = "watch"  # the group of the one call that never returns while the process lives


class News(NamedTuple):
    """Event of a process."""

    member: int
    kind: str  # "ready" | "answer" | "failed" | "lost"
    value: Any = None  # the answer, or the exception
    tag: Any = None  # of the call


class Place(NamedTuple):
    """Process id and node of a process."""

    pid: int
    node: str


class Member:
    """Object in a process of a pool; `ready(*arguments)` of a subclass prepares its work."""

    _computing_since: float | None = None

    def begin_member(self, *arguments: Any) -> Place:
        """Prepare the work; return where the process lives."""
        import ray

        self.ready(*arguments)
        return Place(os.getpid(), ray.get_runtime_context().get_node_id())

    def watch_member(self) -> None:
        """Wait until the process ends."""
        threading.Event().wait()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        self._computing_since = time.monotonic()
        try:
            yield
        finally:
            self._computing_since = None

    def _computing_for(self) -> float:
        """Return the seconds since the present program began; 0 without one, as in a delay."""
        since = self._computing_since
        return 0.0 if since is None else time.monotonic() - since


class ActorPool:
    """Processes of one run, one per member, each with an object `target(recipe, member)`."""

    def __init__(
        self,
        target: type[Member],
        recipe: Callable[[], Any],
        members: int,
        resources: Resources,
        groups: Sequence[str] = (),
    ):
        self.news: queue.Queue[News] = queue.Queue()
        self._target, self._recipe, self._resources = target, recipe, resources
        self._groups = dict.fromkeys((ASIDE, NEWS, *groups, _WATCH), 1)
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Place] = {}
        self._lock = threading.Lock()
        self.closed = False
        self.members = members

    def start(self, member: int, *ready: Any) -> Any:
        """Start a process of a member; news "ready" follows when its `ready(*ready)` has returned.

        Reference arguments are resolved first. Returns a reference that is ready with the news.
        """
        import ray

        actor = (
            ray.remote(concurrency_groups=self._groups)(self._target)
            .options(
                num_cpus=self._resources.cpus,
                num_gpus=self._resources.gpus,
                max_restarts=0,  # the run itself starts new processes
                max_task_retries=0,
                runtime_env={"env_vars": environment(self._resources)},
            )
            .remote(self._recipe, member)
        )
        with self._lock:
            self._actors[member] = actor
            if self.closed:
                ray.kill(actor)
        begun = actor.begin_member.remote(*ready)
        lives = actor.watch_member.options(concurrency_group=_WATCH).remote()
        self._follow(member, actor, "ready", begun)
        self._follow(member, actor, "lost", lives)
        return begun

    def call(
        self,
        member: int,
        method: str,
        *arguments: Any,
        tag: Any = None,
        group: str | None = None,
        process: Any = None,
    ) -> Any:
        """Call a method of a member; the answer comes as news, and by the returned reference.

        tag: of the news. group: of calls that the member answers one after the other. process: an
        earlier `handle`, of which no news follows once the member has another process; None: the
        present one.
        """
        actor = self.handle(member) if process is None else process
        bound = getattr(actor, method)
        if group is not None:
            bound = bound.options(concurrency_group=group)
        reference = bound.remote(*arguments)
        self._follow(member, actor, "answer", reference, tag)
        return reference

    def handle(self, member: int) -> Any:
        """Return the actor of a member, for another member that talks to it."""
        with self._lock:
            return self._actors[member]

    def place(self, member: int) -> Place | None:
        """Return the place of the member's process, or None before the process is ready."""
        with self._lock:
            return self._places.get(member)

    def wait_until_ready(self, seconds: float, again: Callable[[int], Any]) -> None:
        """Wait for news "ready" of all members; ValueError if one fails, or after `seconds`.

        again: starts a new process of a member whose process has been killed.
        """
        until, alive = time.monotonic() + seconds, set()
        while len(alive) < self.members:
            with contextlib.suppress(queue.Empty):
                news = self.news.get(timeout=1.0)
                if news.kind == "ready":
                    alive.add(news.member)
                elif news.kind == "lost" and not news.value.actor_init_failed:
                    alive.discard(news.member)
                    again(news.member)
                else:
                    raise ValueError(
                        f"actors: the process of worker {news.member} cannot start "
                        f"({reason(news.value)}); correct the config"
                    )
            if time.monotonic() > until:
                raise ValueError(
                    f"actors: only {len(alive)} of {self.members} processes have started within "
                    f"{seconds:g} s; set fewer workers, or see what the cluster is busy with"
                )

    def kill(self, member: int) -> None:
        """End the process of a member, even a stopped process; news "lost" follows."""
        import ray

        ray.kill(self.handle(member))
        place = self.place(member)
        if place is not None and place.node == ray.get_runtime_context().get_node_id():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.pid, signal.SIGKILL)  # a stopped process does not react to Ray

    def close(self) -> None:
        """End all processes; no news follows."""
        with self._lock:
            self.closed, members = True, list(self._actors)
        for member in members:
            with contextlib.suppress(Exception):  # it may be gone already, with Ray or without
                self.kill(member)

    def _follow(self, member: int, actor: Any, kind: str, reference: Any, tag: Any = None) -> None:
        def done(future) -> None:
            import ray

            with self._lock:
                if self.closed or self._actors.get(member) is not actor:
                    return  # of a process that has been replaced
                error = future.exception()
                if error is None and kind == "ready":
                    self._places[member] = future.result()
                elif kind == "lost":  # another process may get the same process id
                    self._places.pop(member, None)
            if error is None:
                self.news.put(News(member, kind, future.result(), tag))
            elif not isinstance(error, ray.exceptions.RayActorError):
                self.news.put(News(member, "failed", error, tag))
            elif kind == "lost":  # only the call that watches the process reports it
                self.news.put(News(member, "lost", error))

        reference.future().add_done_callback(done)


def reason(error: BaseException) -> str:
    """Return the cause of a failed call on one line, or else the last line of Ray's message."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:200]


# --- runtimes whose workers are actors

STARTING = 300.0  # s that the processes may take to start
MISSED = 60.0  # s with too few workers after which a run ends
DEATHS = 5  # deaths of one worker in a row, without a delivery between them, that end a run
LOOK = 0.5  # s between two looks at silent processes
SILENCE = 10.0  # s that a process may always be silent or compute
TIMES_MEDIAN = 5  # multiple of the median duration that local steps may take


class Options(NamedTuple):
    """Options of a run for its processes."""

    resources: Resources = Resources()
    least_workers: int = 1  # with fewer workers for MISSED s the run ends
    drops: bool = False  # leave out contributions that fail or are not finite; False: end the run
    own_model: bool = False  # a lost node restarts from its own model; False: from a neighbour's


DEFAULTS = Options()


class ProcessRuntime:
    """Common part of the runtimes whose workers are processes, see `runtimes.base.Runtime`.

    A thread supervises the processes of a run: a subclass starts them and reacts to their news, and
    a process that is silent or computes for too long is ended. `changed` guards the results of the
    processes, and is notified of every event. `error` is the first exception in a thread.
    """

    clock, replays = "wall", False
    copies: int  # of the parameters per worker, in shared memory
    process: type  # class of the object in each process
    groups: tuple[str, ...] = ()  # groups of its calls, beside the groups of every process
    fewest = 1  # least number of workers that can go on, whatever the options are

    def __init__(self, workers: int, recipe: Callable[[], Any], options: Options):
        """Take the options; the first `advance` starts the processes.

        recipe: picklable function that builds the parts of a worker in its process.
        """
        self._workers, self._recipe, self._options = workers, recipe, options
        self._least = max(self.fewest, options.least_workers)
        self._begin_run(None)

    def _begin_run(self, params: Any) -> None:
        """Prepare a run from these parameters, without processes so far."""
        self._params, self._pool = params, None
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.deaths = 0  # of processes, since the start
        self._closing = False
        self._durations: deque[float] = deque(maxlen=100)  # s, of local steps
        self._heard: dict[int, float] = {}  # monotonic time of a process's last sign of life
        self._alive: set[int] = set()
        self._died = dict.fromkeys(range(self._workers), 0)
        self._missed_since: float | None = None
        self._elapsed, self._resumed_at = 0.0, None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._aside = concurrent.futures.ThreadPoolExecutor(1)  # for all that may take long

    def check_room(self, params: Any) -> None:
        """Raise ValueError if this machine lacks shared memory; params: arrays, or shapes."""
        SESSION.check_room(self._workers, self._store_bytes(params))

    def pids(self) -> dict[int, int]:
        """Return the process ids of the workers that are ready, by worker."""
        places = {who: self._pool.place(who) for who in sorted(self._alive)}
        return {who: place.pid for who, place in places.items() if place is not None}

    def now(self) -> float:
        """Return the seconds of the run."""
        running = 0.0 if self._resumed_at is None else time.monotonic() - self._resumed_at
        return self._elapsed + running

    def wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Wait under `changed` until `seconds` or `enough()`; raise `error` if there is one."""
        while not (self.error or self._closing or self.now() >= seconds or enough()):
            self.changed.wait(min(0.2, max(0.0, seconds - self.now())))
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the threads and processes of the run."""
        with self.changed:
            self._closing = True
            self._alive.clear()
            self.changed.notify_all()
        if self._pool is not None:
            self._pool.close()
        if self._thread.is_alive():
            self._thread.join(10)
        self._aside.shutdown(wait=False, cancel_futures=True)

    def _store_bytes(self, params: Any) -> int:
        """Return the bytes of shared memory that a run takes; params: arrays, or their shapes."""
        size = sum(np.dtype(leaf.dtype).itemsize * leaf.size for leaf in jax.tree.leaves(params))
        return int(1.2 * size * (self.copies * self._workers + 2)) + 2**24

    def _run_processes(self) -> None:
        """Start the processes, and the clock once they have compiled, unless they run already."""
        if self._pool is not None:
            return
        keep_freed_memory()
        workers, resources = self._workers, self._options.resources
        SESSION.provide(workers, resources, self._store_bytes(self._params))
        self._pool = ActorPool(self.process, self._recipe, workers, resources, self.groups)
        SESSION.pools.add(self._pool)
        try:
            again = self._start_all()
            self._pool.wait_until_ready(STARTING, again)
            self._resumed_at = time.monotonic()
            self._open()
            self._thread.start()
        except BaseException:
            self.close()
            raise

    def _start_all(self) -> Callable[[int], Any]:
        """Start the processes of all workers; return a function that starts one anew."""
        raise NotImplementedError

    def _open(self) -> None:
        """Let the workers, which are ready, begin to work."""
        raise NotImplementedError

    def _react(self, news: News) -> None:
        """React to news of a process."""
        raise NotImplementedError

    def _rest(self) -> float:
        """Return the longest time to wait for news [s]."""
        return LOOK / 2

    def _wake(self) -> None:
        """Do everything that is due by now."""

    def _spares(self, gone: set[int]) -> bool:
        """Return whether the run can go on without these workers, whose processes keep dying."""
        del gone
        return False

    @property
    def long_steps(self) -> float:
        """Seconds beyond which local steps count as long, given the known durations."""
        return max(SILENCE, TIMES_MEDIAN * statistics.median(self._durations or [0.0]))

    @property
    def patience(self) -> float:
        """Seconds of computing after which a process is ended."""
        return self.long_steps if self._durations else STARTING  # no durations are known yet

    def _listen(self, who: int) -> None:
        """Ask a process for a sign of life, which comes within a moment even while it computes."""
        self._heard[who] = time.monotonic()
        self._pool.call(who, "news", tag=NEWS, group=NEWS)

    def _lives(self, who: int, computing: float) -> bool:
        """Listen to a process again, or end it if `computing` [s] exceeds `patience`.

        A delay, in which a process sleeps, may be long, and is no reason to end a process.
        """
        if computing > self.patience:
            self._pool.kill(who)
            return False
        self._listen(who)
        return True

    def _look(self, away: float) -> None:
        """End the processes that no longer answer; away: s in which this thread did not listen."""
        now = time.monotonic()
        for who in list(self._alive):
            self._heard[who] = min(now, self._heard.get(who, now) + away)
            # A process that computes gives signs of life, too.
            if now - self._heard[who] > SILENCE + self.long_steps:
                self._heard[who] = now
                self._pool.kill(who)

    def _watch(self) -> None:
        """React to news until the run is closed; in a thread of its own."""
        looked, events = time.monotonic(), self._pool.news
        while not self._closing and self.error is None:
            with contextlib.suppress(queue.Empty):
                self._try(self._react, events.get(timeout=self._rest()))
            self._try(self._wake)
            since = time.monotonic() - looked
            if since > LOOK:
                looked = time.monotonic()
                self._try(self._look, max(0.0, since - 2 * LOOK))
                self._try(self._check_enough, looked)

    def _try(self, what: Callable, *arguments: Any) -> None:
        try:
            what(*arguments)
        except BaseException as error:  # `wait` raises it in the thread that waits
            self.error = self.error or error
        with self.changed:
            self.changed.notify_all()

    def _died_again(self, who: int, without: str) -> bool:
        """Count the loss of a process; return whether its worker gets a new one.

        Raises WorkersLost if a worker's processes keep dying and the run cannot spare the worker.
        """
        self._alive.discard(who)
        self.deaths += 1
        self._died[who] += 1
        dying = {one for one, died in self._died.items() if died >= DEATHS}
        if dying and not (self._workers - len(dying) >= self._least and self._spares(dying)):
            raise WorkersLost(
                f"the process of worker {who} has died {DEATHS} times in a row without {without}; "
                "see its memory, then give the same command again"
            )
        return self._died[who] < DEATHS

    def _check_enough(self, now: float) -> None:
        """Raise WorkersLost if there have been too few workers for more than MISSED s."""
        if len(self._alive) >= self._least:
            self._missed_since = None
        elif self._missed_since is None:
            self._missed_since = now
        elif now - self._missed_since > MISSED:
            raise WorkersLost(
                f"only {len(self._alive)} of {self._workers} workers are left and no more have "
                f"come for {MISSED:g} s; give the same command again where there are "
                f"{self._least} or more"
            )
