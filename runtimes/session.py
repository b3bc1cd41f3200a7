"""Ray as this process uses it: a cluster of its own on this machine, or one that is there already.

Ray brings processes and carries arrays between them. It is loaded by the first session and never
before.
"""

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
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


class Resources(NamedTuple):
    """What a process takes of its machine."""

    cpus: float = 1.0
    gpus: float = 0.0  # a share below 1 is a part of one, its memory as well


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
