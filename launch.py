"""Run experiments: one arm, or a sweep of arms, then the table and the figure.

python launch.py --config=configs/nonblocking.py --workdir=runs/x
python launch.py --config=configs/nonblocking.py --sweep --seeds=3 --workdir=runs/y
"""

import logging
import sys

from absl import app, flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the records; made if need be.")
_SWEEP = flags.DEFINE_bool("sweep", False, "Run all arms of the config's sweep().")
_SEEDS = flags.DEFINE_integer("seeds", 1, "Repeat every arm with so many seeds.", lower_bound=1)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Run finished arms again.")


def refuse(error: Exception):
    """One sentence instead of a traceback: the input was at fault, not the program."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


def parse(argv: list[str]) -> list[str]:
    """Read the flags; a config file that cannot be read or overridden is refused in a sentence."""
    try:
        rest = flags.FLAGS(argv)
        for name, value in (("config", _CONFIG.value), ("workdir", _WORKDIR.value)):
            if value is None:
                raise ValueError(f"--{name} is missing; see the examples in README.md")
        if rest[1:]:
            raise ValueError(f"unexpected argument {rest[1]!r}; flags start with --")
        return rest
    except (flags.Error, ValueError, AttributeError, KeyError, TypeError, OSError) as error:
        refuse(error)


def main(_) -> None:
    # JAX reports every accelerator that it did not find.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    # Imported late: a wrong flag is answered at once.
    from experiments import sweep

    flag = flags.FLAGS["config"]
    path = config_flags.get_config_filename(flag) if _SWEEP.value else None
    try:
        arms = sweep.expand(
            _CONFIG.value, path, config_flags.get_override_values(flag), _SEEDS.value
        )
        sweep.provide_cpu_devices(arms)
        sweep.check(arms, _WORKDIR.value, _OVERWRITE.value)
    except ValueError as error:
        refuse(error)
    sweep.launch(arms, _WORKDIR.value, _OVERWRITE.value)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
