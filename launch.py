"""Run experiments: one arm, or a sweep of arms, then the table and the figure.

python launch.py --config=configs/nonblocking.py --workdir=runs/x
python launch.py --config=configs/nonblocking.py --sweep --seeds=3 --workdir=runs/y
"""

import importlib.util
import logging
import os
import sys

from absl import app, flags
from ml_collections import ConfigDict, config_flags

_CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the records; made if need be.")
_SWEEP = flags.DEFINE_bool("sweep", False, "Run all arms of the config's sweep().")
_SEEDS = flags.DEFINE_integer("seeds", 1, "Repeat every arm with so many seeds.", lower_bound=1)
_TOGETHER = flags.DEFINE_bool(
    "together", False, "Run arms that differ only in data as one program."
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Run finished arms again.")


class ConfigFile(flags.ArgumentParser):
    """Reads `file.py` or `file.py:argument`; whatever is wrong with it, the flag is."""

    def parse(self, path: str) -> ConfigDict:
        file, colon, argument = path.partition(":")
        if not os.path.isfile(file):
            raise ValueError(f"there is no file {file!r}; give the path of a config")
        try:
            spec = importlib.util.spec_from_file_location("_config", file)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            config = module.get_config(*[argument] if colon else [])
        except ValueError:
            raise
        except Exception as error:  # the file is code and can raise anything
            raise ValueError(f"{type(error).__name__}: {error}; correct {file}") from error
        if not isinstance(config, ConfigDict):
            raise ValueError(f"get_config() gave {type(config).__name__}; return a ConfigDict")
        return config.lock()


flags.FLAGS["config"].parser = ConfigFile()


def refuse(error: Exception | str):
    """One sentence instead of a traceback: the input was at fault, not the program."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


def parse(argv: list[str]) -> list[str]:
    """Read the flags; what cannot be read is refused in a sentence."""
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        refuse(error)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        while error.args and isinstance(error.args[0], Exception):  # as config_flags wraps them
            error = error.args[0]
        refuse(f"a flag --config.NAME=VALUE names no entry of the config: {' '.join(error.args)}")
    for name, value in (("config", _CONFIG.value), ("workdir", _WORKDIR.value)):
        if not value:
            refuse(f"--{name} is missing; see the examples in README.md")
    if rest[1:]:
        refuse(f"unexpected argument {rest[1]!r}; flags start with --")
    return rest


def keep_compiled_programs() -> None:
    """Let runs find the programs that earlier ones compiled; JAX_COMPILATION_CACHE_DIR moves them.

    Seeds, learning rates and delays are data to a program, so the arms of a sweep share many.
    """
    import jax

    home = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", os.path.join(home, "gossax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def main(_) -> None:
    # JAX reports every accelerator that it did not find.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    # Imported late: a wrong flag is answered at once.
    from rich.console import Console

    from experiments import sweep

    keep_compiled_programs()

    flag = flags.FLAGS["config"]
    config, place = _CONFIG.value, _WORKDIR.value
    path = config_flags.get_config_filename(flag).partition(":")[0]
    module = sweep.load(path)
    try:
        if hasattr(module, "analyse"):
            sweep.check_analysis(path, config, place, _SWEEP.value, _SEEDS.value, _OVERWRITE.value)
            module.analyse(config, place, Console())
            return
        arms = sweep.expand(
            config,
            path if _SWEEP.value else None,
            config_flags.get_override_values(flag),
            _SEEDS.value,
        )
        sweep.provide_cpu_devices(arms)
        sweep.check(arms, place, _OVERWRITE.value)
    except ValueError as error:
        refuse(error)
    told = {name: getattr(module, name, None) for name in ("claims", "figures")}
    told = told if _SWEEP.value else {}
    sweep.launch(arms, place, _OVERWRITE.value, **told, together=_TOGETHER.value)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
