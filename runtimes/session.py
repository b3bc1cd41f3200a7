"""Ray as this process uses it: a cluster of its own on this machine, or one that is there already.

Ray brings processes and carries arrays between them. It is loaded by the first session and never
before.
"""

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from runtimes import freed_memory

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHARED_MEMORY = "/dev/shm"  # where Ray keeps its store
_SHARED = (  # settings of JAX
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
_LEAST_STORE = 80 * 2**20  # bytes, less than which Ray refuses
_FOLDER = "gossax_"  # of a session of our own; what follows is random
# Ray's longest socket in it, and what that leaves of the 107 bytes that the name of one may have.
_SOCKET = "/gossax_12345678/r/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store"
_LONGEST = 107 - len(_SOCKET)
LOOK = 1.0  # s between two looks at Ray's control service
# Seconds of refused connections after which it has gone; on a cluster it may be restarted, and Ray
# itself waits for a minute.
REFUSED, REFUSED_BY_CLUSTER = 5.0, 45.0


class Resources(NamedTuple):
    """What a process takes of its machine."""

    cpus: float = 1.0
    gpus: float = 0.0  # a share below 1 is a part of one, its memory as well


class Session:
    """Ray, as this process uses it: a cluster of its own on this machine, or one that is there."""

    def __init__(self):
        """A cluster of its own, until `join` names another one."""
        self.address: str | None = None
        self.leave: Callable[[], None] = lambda: None  # of a program, without waiting for anything
        self._folder: _Folder | None = None  # of the files of a cluster of its own
        self._store, self._cpus = 0, 0  # bytes of its store, processors that Ray counts there
        self._ended = threading.Event()  # of the thread that watches the services

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
        self._watch()

    def check_room(self, members: int, store_bytes: int) -> None:
        """Raise ValueError where a cluster of our own, yet to be started, has too little memory."""
        if self.address is not None or self._folder is not None:
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
        """Start Ray, again if a cluster of our own is too small; ValueError if a joined one is."""
        ray = self._loaded()
        cpus = int(np.ceil(members * resources.cpus))
        if self._folder is not None and (store_bytes > self._store or cpus > self._cpus):
            self.close()  # what does not fit into its store would go through the disk
        if not ray.is_initialized():
            self.check_room(members, store_bytes)
            self._folder, self._store = _Folder(), max(_LEAST_STORE, store_bytes)
            self._cpus = max(os.cpu_count() or 1, cpus)
            with warnings.catch_warnings(), _own_signals():
                # JAX warns of every fork; the process that Ray forks becomes another program.
                warnings.filterwarnings("ignore", message="os.fork")
                try:
                    ray.init(
                        address="local",
                        num_cpus=self._cpus,
                        object_store_memory=self._store,
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level="ERROR",
                        _temp_dir=str(self._folder.path / "r"),
                    )
                except Exception as error:  # as above
                    self.close()
                    raise ValueError(
                        f"actors: Ray does not start ({' '.join(str(error).split())[:160]}); free "
                        f"memory, {tempfile.gettempdir()} or processors of this machine"
                    ) from error
            self._watch()
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
        from ray._private import node
        from ray._private import worker as private

        # A process that dies is news, about which Ray prints a page that nothing switches off.
        private.print_to_stdstream = lambda *arguments, **options: None
        # It adds machines to a cluster, and answers everybody on all interfaces without a token.
        node.Node.start_monitor = lambda self: None
        atexit.register(self.close)
        return ray

    def _watch(self) -> None:
        """Watch Ray's services from now on, in a thread of its own."""
        from ray._private import worker as private

        node, self._ended = private._global_node, threading.Event()
        if self._folder is not None:
            self._folder.outlive(_children(node.all_processes["raylet"][0].process.pid))
        threading.Thread(target=self._end_with, args=(node, self._ended), daemon=True).start()

    def _end_with(self, node: Any, ended: threading.Event) -> None:
        """Say when a service of Ray's has gone, and let a program leave.

        Ray itself ends this process without a word, at the next array that it is handed, or after
        a minute of waiting. No other thread may get so far, so nothing is waited for here.
        """
        patience = REFUSED if self.address is None else REFUSED_BY_CLUSTER
        gone = _gone(node.raylet_socket_name, node.gcs_address, patience, ended)
        if ended.is_set():
            return
        sentence = f"Ray's {gone} has gone, and its workers with it; the same command goes on"
        os.write(2, f"\nerror: {sentence} from the last checkpoint\n".encode())
        self.leave()

    def close(self) -> None:
        """End Ray's processes of this session, or leave a cluster that goes on."""
        self._ended.set()
        if "ray" in sys.modules:
            import ray

            ray.shutdown()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


class _Folder:
    """A folder that is this user's alone, with Ray's, which Ray opens to everybody, inside.

    It is locked as long as its process lives. Folders whose processes have gone are removed.
    """

    def __init__(self):
        place = Path(tempfile.gettempdir())
        if len(os.fsencode(place)) > _LONGEST:
            place = Path("/tmp")
        for old in place.glob(f"{_FOLDER}*"):
            with contextlib.suppress(OSError):
                lock = _locked(old)
                shutil.rmtree(old, ignore_errors=True)
                os.close(lock)
        made = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}", dir=place))
        self._heir: subprocess.Popen | None = None
        self._lock = _locked(made)  # before others know it by its name
        self.path = made.rename(made.with_name(made.name[1:]))

    def outlive(self, agents: list[int]) -> None:
        """Let a process remove it, and kill Ray's agents, when this one has ended in whatever way.

        Ray's services end with this process, and the workers with them; the agents wait for them.
        """
        kill = f'kill -9 {" ".join(map(str, agents))} 2>/dev/null; sleep 1; rm -rf "$0"'
        self._heir = subprocess.Popen(
            ["sh", "-c", f"read _; {kill}", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def remove(self) -> None:
        """Remove it with all that is in it."""
        if self._heir is not None:
            self._heir.kill()
            self._heir.communicate()
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked(folder: Path) -> int:
    """Lock a folder; OSError where another process has."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _gone(raylet: str, control: str, patience: float, ended: threading.Event) -> str | None:
    """Wait until one of Ray's services has gone, and name it; None once `ended` is set.

    raylet: its socket, which closes with it. control: host:port, which then refuses connections.
    """
    host, _, port = control.rpartition(":")
    refused_since = None
    with socket.socket(socket.AF_UNIX) as held:
        held.settimeout(LOOK)
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
                socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK).close()
                refused_since = None
            except ConnectionRefusedError:
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since > patience:
                    return "control service"
            except OSError:
                pass  # Ray itself waits for a network that comes back
    return None


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still live."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


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


def store_bytes(params: Any, workers: int, copies: int) -> int:
    """Return the bytes of shared memory that `copies` of the parameters per worker take.

    params: arrays, or their shapes.
    """
    size = sum(np.dtype(leaf.dtype).itemsize * leaf.size for leaf in jax.tree.leaves(params))
    return int(1.2 * size * (copies * workers + 2)) + 2**24


def environment(resources: Resources) -> dict[str, str]:
    """The variables of a process: where our code is, and which devices JAX shall use."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "host_platform_device_count" not in flag]
    found = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path)),
        "XLA_FLAGS": " ".join(kept),
        **freed_memory.VARIABLES,
    }
    for name in _SHARED:  # so that a program is compiled by one of them
        value = getattr(jax.config, name)
        found |= {} if value is None else {name.upper(): str(value)}
    if resources.gpus:
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * min(1.0, resources.gpus):.3f}"
    else:
        found["JAX_PLATFORMS"] = "cpu"
    return found
