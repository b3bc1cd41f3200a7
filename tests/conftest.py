"""Eight forced CPU devices, strict shapes, and one way to run a body in every runtime.

Programs are compiled with little optimisation, as most tests run theirs for less time than it takes
to compile it, and kept for the whole session, as half of them are another test's too. With none at
all LLVM of JAX 0.12 merges a product and a sum in some programs and not in others, and pairs of
workers and their replay, which are equal as users compile them, differ. Launches in processes of
their own compile as users' do, but for those that are given `tests.warm.COMPILING`.
"""

import ctypes
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from importlib.metadata import version

import pytest

# Before jax is imported anywhere: XLA reads its flags once.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        f"--xla_backend_optimization_level={int(not version('jax').startswith('0.10.'))}",
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=20",
        "--xla_cpu_collective_call_terminate_timeout_seconds=60",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# In the background of a shell ctrl-C is ignored, which what tests start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
from jax.sharding import AxisType, PartitionSpec

jax.config.update("jax_numpy_rank_promotion", "raise")

HERE = pathlib.Path(__file__).parent
KEPT = "JAX_COMPILATION_CACHE_DIR"
RESIDENT = 3 << 28  # bytes of a process above which it gives back what programs hold


def pytest_configure(config):
    """Keep compiled programs in one folder, which the processes that are started from here inherit.

    The process that has made the folder removes it.
    """
    if KEPT not in os.environ:
        os.environ[KEPT] = tempfile.mkdtemp(prefix="programs-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ[KEPT], ignore_errors=True))
    jax.config.update("jax_compilation_cache_dir", os.environ[KEPT])


@pytest.hookimpl(tryfirst=True)  # before those that are slow are left out
def pytest_collection_modifyitems(items):
    """Mark as slow all but n evenly spaced rows of each test that is marked `few(n)`.

    Whole programs, which take longest, come first: a process of tests that has nothing left to do
    takes from the end of another one's queue, where only short ones are then.
    """
    items.sort(key=lambda item: item.path.parent != HERE)
    rows = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            rows.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for chosen in rows.values():
        few = min(chosen[0].get_closest_marker("few").args[0], len(chosen))
        quick = {place * len(chosen) // few for place in range(few)}
        for place, item in enumerate(chosen):
            if place not in quick:
                item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Give back what compiled programs hold once it is much, or a process grows to gigabytes.

    The programs have to be dropped, and the C library has to return what is free then. Not after
    every module, as those that follow would read the same small ones again.
    """
    yield
    if sys.platform != "linux" or _resident() < RESIDENT:
        return
    jax.clear_caches()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others may not
    if trim is not None:
        trim(0)


def _resident() -> int:
    """Return the bytes of this process in memory."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_mesh(workers: int) -> jax.sharding.Mesh:
    devices = jax.devices()[:workers]
    return jax.make_mesh((workers,), ("workers",), axis_types=(AxisType.Auto,), devices=devices)


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    """Return all eight devices along the axis "workers"."""
    return make_mesh(8)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a directory with config.py and some broken inputs, in which the test works."""
    from tests import launcher  # after the flags above: it imports all that is launched

    return launcher.directory(tmp_path, monkeypatch)


@pytest.fixture
def call(here, monkeypatch, capsys):
    """Return a launcher in this process: flags -> (exit code, stdout, stderr)."""
    from tests import launcher

    return launcher.caller(monkeypatch, capsys)


def _vmap(body):
    return jax.jit(jax.vmap(body, axis_name="workers"))


def _shard_map(body):
    def shard_body(*args):
        out = body(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], out)

    def run(*args):
        workers = jax.tree.leaves(args)[0].shape[0]
        stacked = PartitionSpec("workers")
        sharded = jax.shard_map(
            shard_body, mesh=make_mesh(workers), in_specs=stacked, out_specs=stacked
        )
        return jax.jit(sharded)(*args)

    return run


SPMD = {"vmap": _vmap, "shard_map": _shard_map}


@pytest.fixture(params=SPMD)
def spmd(request):
    """Return a function that runs `body(*args)` on every worker, stacked over the leading axis.

    Blocks on the result: many queued collective programmes would wait for each other for ever.
    """

    def run(body, *args):
        return jax.block_until_ready(SPMD[request.param](body)(*args))

    return run
