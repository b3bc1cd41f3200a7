"""JAX's coordination service: texts and counters that all processes of a run share.

Process 0 runs the service. JAX uses it to find devices and to notice deaths; a store of keys comes
with it, for which JAX has no public name yet. What is private in JAX stands in this module alone.
A service that is gone, or a key that is not there in time, raises `jax.errors.JaxRuntimeError`.
"""

import jax

try:  # what jax.process_index() knows, without a backend
    from jax._src.distributed import global_state
except ImportError as error:
    raise ImportError(
        f"coordination: JAX {jax.__version__} has moved jax._src.distributed.global_state, with "
        "which processes share texts; install jax==0.12.0.1, or import it in "
        "experiments/coordination.py from where it is now"
    ) from error

# What this module takes of JAX's state, and the methods of its client.
OF_STATE = ("client", "num_processes", "process_id")
RELIED_ON = (
    "blocking_key_value_get", "key_value_delete", "key_value_dir_get", "key_value_increment",
    "key_value_set", "key_value_try_get",
)  # fmt: skip


def processes() -> int:
    """How many processes there are; unlike `jax.process_count` it starts no backend."""
    return global_state.num_processes


def process_id() -> int:
    """Which process this is, from 0."""
    return global_state.process_id


def put(key: str, text: str, again: bool = False) -> None:
    """Set a key; one that is set already raises, unless it may be set again."""
    global_state.client.key_value_set(key, text, allow_overwrite=again)


def get(key: str, seconds: float) -> str:
    """The text of a key; waits for it, at most this long."""
    return global_state.client.blocking_key_value_get(key, round(1000 * seconds))


def get_now(key: str) -> str | None:
    """The text of a key, or None if it is not set."""
    try:
        return global_state.client.key_value_try_get(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise


def is_late(error: jax.errors.JaxRuntimeError) -> bool:
    """Whether a key was not there in time, while the service is."""
    return "DEADLINE_EXCEEDED" in str(error)


def add(key: str, number: int) -> int:
    """Add to a counter, which begins at 0, and return the sum; nobody else gets the same one."""
    return global_state.client.key_value_increment(key, number)


def texts(folder: str) -> dict[str, str]:
    """The keys below a folder, with their texts."""
    return dict(global_state.client.key_value_dir_get(folder))


def keys(folder: str) -> list[str]:
    """The keys below a folder."""
    return list(texts(folder))


def remove(folder: str) -> None:
    """Delete a key, or all keys below a folder."""
    global_state.client.key_value_delete(folder)
