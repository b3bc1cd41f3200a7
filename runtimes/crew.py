"""Processes that work for one run, each an actor on Ray: started, watched, replaced, ended.

Ray brings the processes, on this machine or on a cluster, and carries arrays between them. Calls of
one actor are answered in order, those of its group `ASIDE` beside them, at any time. Whatever
happens comes out of one queue: answers, deaths, and processes that are ready to work.

Ray is loaded by the first session and never before.
"""

import atexit
import contextlib
import os
import queue
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

ASIDE = "aside"  # the group of calls that an actor answers while it works
_WATCH = "watch"  # the group of the one call that never returns while the process lives
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHARED_MEMORY = "/dev/shm"  # where Ray keeps its store
_SHARED = (  # settings of JAX
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
_LEAST_STORE = 80 * 2**20  # bytes, less than which Ray refuses


class Resources(NamedTuple):
    """What a process takes of its machine."""

    cpus: float = 1.0
    gpus: float = 0.0  # a share below 1 is a part of one, its memory as well


class News(NamedTuple):
    """Something that has happened to a process."""

    member: int
    kind: str  # "ready" | "answer" | "failed" | "lost"
    value: Any = None  # what was answered, or the exception
    tag: Any = None  # of the call


class Place(NamedTuple):
    """Where a process runs."""

    pid: int
    node: str


class Session:
    """Ray, as this process uses it: a cluster of its own on this machine, or one that is there."""

    def __init__(self):
        """A cluster of its own, until `join` names another one."""
        self.address: str | None = None
        self._folder: str | None = None  # of the files of a cluster of its own
        self._store = 0  # bytes of its store

    def join(self, address: str) -> None:
        """Use the cluster at this address, which is joined at once; ValueError if none answers."""
        self.address = address
        ray = self._loaded()
        try:
            if ":" in address:  # Ray itself asks for half a minute
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), timeout=5).close()
            with _own_signals():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray has no common ancestor of what goes wrong here
            raise ValueError(
                f"actors: no Ray cluster answers at {address!r} "
                f"({' '.join(str(error).split())[:160]}); start one with `ray start --head`, "
                "or leave out --cluster"
            ) from error

    def provide(self, members: int, resources: Resources, store_bytes: int) -> None:
        """Start Ray if need be; ValueError where the cluster is too small."""
        ray = self._loaded()
        if self._folder is not None and store_bytes > self._store:
            self.close()  # what does not fit into its store would go through the disk
        if not ray.is_initialized():
            self._folder = tempfile.mkdtemp(prefix="gossax-")
            self._store = max(_LEAST_STORE, store_bytes)
            if self._store > (room := shutil.disk_usage(_SHARED_MEMORY).free):
                self.close()
                raise ValueError(
                    f"actors: {members} workers need {self._store / 1e6:.0f} MB of shared memory "
                    f"for their parameters and gradients and {_SHARED_MEMORY} has "
                    f"{room / 1e6:.0f} MB free; set fewer workers or a smaller model"
                )
            with warnings.catch_warnings(), _own_signals():
                # JAX warns of every fork; the process that Ray forks becomes another program.
                warnings.filterwarnings("ignore", message="os.fork")
                try:
                    ray.init(
                        address="local",
                        num_cpus=max(os.cpu_count() or 1, int(np.ceil(members * resources.cpus))),
                        object_store_memory=self._store,
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level="ERROR",
                        _temp_dir=self._folder,
                    )
                except Exception as error:  # as above
                    self.close()
                    raise ValueError(
                        f"actors: Ray does not start ({' '.join(str(error).split())[:160]}); free "
                        f"memory, {tempfile.gettempdir()} or processors of this machine"
                    ) from error
        there = ray.cluster_resources()
        for what, share in (("GPU", resources.gpus), ("CPU", resources.cpus)):
            if members * share > there.get(what, 0.0) + 1e-9:
                raise ValueError(
                    f"actors: {members} workers want {members * share:g} {what}s and the cluster "
                    f"has {there.get(what, 0.0):g}; set fewer workers or a smaller share in "
                    f"config.actors.{what.lower()}s"
                )

    def _loaded(self) -> Any:
        """Ray, with the settings that it reads when it is loaded."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self.address is None and "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ.setdefault("RAY_worker_niceness", "0")  # else the server alone is quick
        import ray
        from ray._private import worker as private

        # A process that dies is news, about which Ray prints a page that nothing switches off.
        private.print_to_stdstream = lambda *arguments, **options: None
        atexit.register(self.close)
        return ray

    def close(self) -> None:
        """End Ray's processes of this session, or leave a cluster that goes on."""
        if "ray" in sys.modules:
            import ray

            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of signals, which Ray would replace by its own."""
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


class Crew:
    """The processes of one run, a member each.

    member_of: (member) -> the picklable arguments of `target`, whose object lives in the process.
    """

    def __init__(
        self,
        target: type,
        member_of: Callable[[int], tuple],
        members: int,
        resources: Resources,
        groups: Sequence[str] = (ASIDE,),
    ):
        self.news: queue.Queue[News] = queue.Queue()
        self._target, self._member_of, self._resources = target, member_of, resources
        self._groups = dict.fromkeys((*groups, _WATCH), 1)
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Place] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.members = members

    def start(self, member: int, *ready: Any) -> Any:
        """Start the process of a member, or a new one; news "ready" when `ready(*ready)` is done.

        References among the arguments are resolved before; that of its end is returned.
        """
        import ray

        actor = (
            ray.remote(concurrency_groups=self._groups)(_alive(self._target))
            .options(
                num_cpus=self._resources.cpus,
                num_gpus=self._resources.gpus,
                max_restarts=0,  # a new process begins as its run says, not as Ray does
                max_task_retries=0,
                runtime_env={"env_vars": environment(self._resources)},
            )
            .remote(*self._member_of(member))
        )
        with self._lock:
            self._actors[member] = actor
        begun = actor.begin_member.remote(*ready)
        self._follow(member, actor, "ready", begun, None)
        self._follow(
            member,
            actor,
            "lost",
            actor.watch_member.options(concurrency_group=_WATCH).remote(),
            None,
        )
        return begun

    def call(
        self, member: int, method: str, *arguments: Any, tag: Any = None, aside: bool | str = False
    ) -> Any:
        """Ask a member for something; the answer comes as news, and as the reference returned.

        aside: the group of calls that answers; True: `ASIDE`.
        """
        with self._lock:
            actor = self._actors[member]
        bound = getattr(actor, method)
        if aside:
            bound = bound.options(concurrency_group=ASIDE if aside is True else aside)
        reference = bound.remote(*arguments)
        self._follow(member, actor, "answer", reference, tag)
        return reference

    def handle(self, member: int) -> Any:
        """The actor of a member, for another member that talks to it."""
        with self._lock:
            return self._actors[member]

    def place(self, member: int) -> Place | None:
        """Where the member's process runs, once it was ready."""
        with self._lock:
            return self._places.get(member)

    def wait_until_ready(self, seconds: float) -> None:
        """Wait for news "ready" of all; ValueError if one fails, or is not ready by then."""
        until, alive = time.monotonic() + seconds, set()
        while len(alive) < self.members:
            with contextlib.suppress(queue.Empty):
                news = self.news.get(timeout=1.0)
                if news.kind != "ready":
                    raise ValueError(
                        f"actors: the process of worker {news.member} cannot start "
                        f"({reason(news.value)}); correct the config"
                    )
                alive.add(news.member)
            if time.monotonic() > until:
                raise ValueError(
                    f"actors: only {len(alive)} of {self.members} processes have started within "
                    f"{seconds:g} s; set fewer workers, or see what the cluster is busy with"
                )

    def kill(self, member: int) -> None:
        """End the process of a member, also one that is stopped; news "lost" follows."""
        import ray

        with self._lock:
            actor, place = self._actors[member], self._places.get(member)
        ray.kill(actor)
        if place is not None and place.node == ray.get_runtime_context().get_node_id():
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    place.pid, signal.SIGKILL
                )  # Ray asks first, and a stopped one never answers

    def close(self) -> None:
        """End all processes; nothing is news any more."""
        with self._lock:
            self._closed, members = True, list(self._actors)
        for member in members:
            with contextlib.suppress(Exception):  # it may be gone already, with Ray or without
                self.kill(member)

    def _follow(self, member: int, actor, kind: str, reference, tag) -> None:
        def done(future) -> None:
            import ray

            with self._lock:
                if self._closed or self._actors.get(member) is not actor:
                    return  # of a process that has been replaced
            error = future.exception()
            if error is None:
                value = future.result()
                if kind == "ready":
                    value, place = value
                    with self._lock:
                        self._places[member] = place
                self.news.put(News(member, kind, value, tag))
            elif isinstance(error, ray.exceptions.RayActorError):
                if kind == "lost":  # the call that watches the process says so once
                    self.news.put(News(member, "lost", error))
            else:
                self.news.put(News(member, "failed", error, tag))

        reference.future().add_done_callback(done)


def _alive(target: type) -> type:
    """`target` with what a crew asks of every member."""

    class Member(target):
        def begin_member(self, *arguments):
            import ray

            value = self.ready(*arguments)
            return value, Place(os.getpid(), ray.get_runtime_context().get_node_id())

        def watch_member(self) -> None:
            threading.Event().wait()  # until the process ends

    Member.__name__ = target.__name__
    return Member


def reason(error: BaseException) -> str:
    """Why a call has failed, on one line; what Ray passes on ends with what a worker has raised."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:200]


def environment(resources: Resources) -> dict[str, str]:
    """The variables of a process: where our code is, and which devices JAX shall use."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "host_platform_device_count" not in flag]
    found = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path)),
        "XLA_FLAGS": " ".join(kept),
    }
    for name in _SHARED:  # so that a program is compiled by one of them
        value = getattr(jax.config, name)
        found |= {} if value is None else {name.upper(): str(value)}
    if resources.gpus:
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * min(1.0, resources.gpus):.3f}"
    else:
        found["JAX_PLATFORMS"] = "cpu"
    return found
