"""Compiled programs that outlive the run which needed them."""

import os

import jax


def keep_programs() -> None:
    """Let runs find the programs that earlier ones compiled; JAX_COMPILATION_CACHE_DIR moves them.

    Seeds, learning rates and delays are data to a program, so the arms of a sweep share many.
    """
    home = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", os.path.join(home, "gossax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
