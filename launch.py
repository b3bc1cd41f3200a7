"""Run experiments: one arm, or a sweep of arms, then the table, the figure and the report.

python launch.py --config=configs/nonblocking.py --workdir=runs/x
python launch.py --config=configs/nonblocking.py --sweep --seeds=3 --jobs=4 --workdir=runs/y
python launch.py --watch=runs/y
python launch.py --report=runs/y --paper
python launch.py --advise=runs/x
python launch.py --config=configs/language_model.py:size=1B --dry_run
python launch.py --list
python launch.py --version

Exit codes: 0 all is done, 1 an arm has failed, 2 the command makes no sense, 3 another process of
this run has gone or the run stands still, 130 interrupted, 143 ended by SIGTERM.
"""

import sys

try:
    from experiments import config_files, endings, registry, runtime_builders
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed; run pip install 'gossax[run]', or make")

if __name__ == "__main__":
    endings.begin()  # before the rest is loaded, which takes a while

import functools
import logging
import math
import os
import pathlib
import platform
import shlex
import signal
from collections.abc import Callable
from typing import NoReturn

from absl import app, flags

from experiments import config_files, manifest

_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "file.py, file.py:argument or a run's config.json; --config.ENTRY=VALUE changes an entry.",
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the records; made if need be.")
_SWEEP = flags.DEFINE_bool("sweep", False, "Run all arms of the config's sweep().")
_GRID = flags.DEFINE_multi_string(
    "grid", [], "Run every arm with each of these values, ENTRY=VALUE,VALUE; several multiply."
)
_SEEDS = flags.DEFINE_integer("seeds", 1, "How many seeds repeat every arm.", lower_bound=1)
_TOGETHER = flags.DEFINE_bool(
    "together", False, "Run arms that differ only in data as one program."
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Run finished arms again.")
_CHECKPOINT_SECONDS = flags.DEFINE_float(
    "checkpoint_seconds", 30.0, "Between two checkpoints of a run.", lower_bound=0
)
flags.register_validator(
    _CHECKPOINT_SECONDS, lambda seconds: not math.isnan(seconds), "give a number of seconds"
)
_STUCK_SECONDS = flags.DEFINE_float(
    "stuck_seconds", 600.0, "Without progress, then a run ends with code 3; 0: never.", 0, 1e9
)
flags.register_validator(
    _STUCK_SECONDS, lambda seconds: not math.isnan(seconds), "give a number of seconds"
)
_LOGGERS = flags.DEFINE_list("loggers", [], "Beside metrics.jsonl: tensorboard, wandb.")
_LIST = flags.DEFINE_bool("list", False, "Only print what configs can name, and the configs.")
_VERSION = flags.DEFINE_bool("version", False, "Only print the versions of Gossax, Python and JAX.")
_REPORT = flags.DEFINE_string("report", None, "Only write the report of this workdir again.")
_PAPER = flags.DEFINE_bool("paper", False, "Of --report: write every figure as PDF and SVG, too.")
_WATCH = flags.DEFINE_string(
    "watch", None, "Only serve the page of this workdir to this machine while its runs go on."
)
_PORT = flags.DEFINE_integer(
    "port", 8600, "Of --watch: where the page is; 0 takes any that is free.", 0, 65535
)
_ADVISE = flags.DEFINE_string(
    "advise", None, "Advise on a waiting rule from a run's workdir, a schedule, a trace or a law."
)
_RULE = flags.DEFINE_multi_string("rule", [], "Of --advise: weigh this rule, too.")
_TRUST = flags.DEFINE_list(
    "trust", [], "Of --advise and a config.json: modules of your own that the record may name."
)
_NO_TRAINING = flags.DEFINE_bool("no_training", False, "Of --advise: play rules, train nothing.")
_EXPLAIN = flags.DEFINE_bool(
    "explain_compression", False, "Say whether compressing pays for the config, and train nothing."
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Only say what every arm would take: parameters, bytes, memory, time."
)
# How arms are started; a command that starts one of them has none of these.
_JOBS = flags.DEFINE_integer("jobs", 1, "How many arms run at once.", lower_bound=1)
_EXECUTOR = flags.DEFINE_enum("executor", "local", ["local", "slurm", "ray"], "Where arms run.")
_SLURM = flags.DEFINE_string("slurm", "", "As in partition=gpu,timeout_min=60,gpus_per_node=1.")
_RAY = flags.DEFINE_string("ray", "", "What an arm takes of --executor=ray: cpus=1,gpus=0.25.")
_PRINT_COMMANDS = flags.DEFINE_bool(
    "print_commands", False, "Only print a command per arm, for another scheduler."
)
_ARM = flags.DEFINE_multi_string("arm", [], "Run this arm alone, without table and report.")
_CLUSTER = flags.DEFINE_string(
    "cluster", None, "Ray cluster of runtime=actors: auto, or host:port; else one of its own here."
)
# About arms, which neither a report nor an analysis has.
_ABOUT_ARMS = [
    "sweep", "grid", "seeds", "together", "loggers", "jobs", "executor", "slurm", "ray", "arm",
    "cluster", "dry_run",
]  # fmt: skip
# Several processes of one run on a mesh; found in the environment of Slurm, Open MPI, GKE, TPUs.
_COORDINATOR = flags.DEFINE_string("coordinator_address", None, "host:port of process 0.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many there are.", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which one this is.", lower_bound=0)
_RESTARTS = flags.DEFINE_integer(
    "restarts", 0, "How often to start again when a process of the run has gone.", lower_bound=0
)


FIRST = """\
The five commands that one needs first:

python launch.py --list                       # what configs can name, and the configs
python launch.py --config=configs/demo.py --sweep --workdir=runs/demo      # all arms of a config
python launch.py --config=configs/nonblocking.py --config.wait=barrier --workdir=runs/x  # one arm
python launch.py --watch=runs/demo            # the page of a launch while it goes on
python launch.py --report=runs/demo           # its table, figures and strips, written again

docs/commands.md has the others, python launch.py --help all flags.\
"""

_ENTRIES: dict[str, str | bool] = {}  # of the config, that the command line gives


def refuse(error: Exception | str) -> NoReturn:
    """One sentence instead of a traceback: the input was at fault, not the program."""
    pass

    sentence = registry.sentence(error)
    print(f"error: {sentence}", file=sys.stderr)
    if "experiments.distributed" in sys.modules:  # there may be others
        from experiments import distributed

        distributed.leave(2, sentence)
    sys.exit(2)


def given(*names: str) -> str:
    """The given flags whose value differs from the default, as text."""
    known = flags.FLAGS
    return ", ".join(f"--{name}" for name in names if known[name].value != known[name].default)


def is_elsewhere() -> bool:
    """Return whether arms run in other processes than this one."""
    return _JOBS.value > 1 or _EXECUTOR.value != "local"


def missing() -> str:
    """Return the first flag that a run needs and the command lacks."""
    if _REPORT.value or _LIST.value or _ADVISE.value or _WATCH.value:
        return ""
    needed = {"config": _CONFIG.value, "workdir": _DRY_RUN.value or _WORKDIR.value}
    return next((name for name, value in needed.items() if not value), "")


RUNS = ("config", "workdir", "overwrite", "print_commands", *_ABOUT_ARMS)
# Whether something is asked for, what of the command line is wrong then, and the sentence on it.
COMBINATIONS: tuple[tuple[Callable, Callable, str], ...] = (
    (lambda: _REPORT.value, lambda: given(*RUNS),
     "--report only writes the report again; leave out {}"),
    (lambda: _WATCH.value, lambda: given(*RUNS) or given("report", "advise"),
     "--watch only shows a page; leave out {}"),
    (lambda: given("paper"), lambda: not _REPORT.value,
     "--paper belongs to --report; give it, too"),
    (lambda: given("port"), lambda: not _WATCH.value,
     "--port belongs to --watch; give it, too"),
    (lambda: _ADVISE.value, lambda: given(*_ABOUT_ARMS),
     "--advise trains arms of its own; leave out {}"),
    (lambda: not _ADVISE.value, lambda: given("rule", "no_training"),
     "{} belongs to --advise; give it, too"),
    (lambda: given("trust"), lambda: not (_ADVISE.value or (_CONFIG.value or "").endswith(".json")),
     "--trust belongs to --advise or a config.json; give one of them, too"),
    (lambda: True, missing, "--{} is missing; see the examples in README.md"),
    (lambda: _SLURM.value, lambda: _EXECUTOR.value != "slurm",
     "--slurm has settings for --executor=slurm; give both or neither"),
    (lambda: _RAY.value, lambda: _EXECUTOR.value != "ray",
     "--ray says what an arm takes of --executor=ray; give both or neither"),
    (lambda: _DRY_RUN.value, lambda: _NUM_PROCESSES.value is not None,
     "--dry_run looks at a device of each arm in one process; leave out --num_processes"),
    (lambda: _ARM.value, is_elsewhere,
     "--arm runs arms in this process; leave out --jobs and --executor"),
    (lambda: _RESTARTS.value, is_elsewhere,
     "--restarts is for the processes of one run; leave out --jobs and --executor"),
    (lambda: _NUM_PROCESSES.value is not None, is_elsewhere,
     "--num_processes is for one arm on many machines; leave out --jobs and --executor"),
)  # fmt: skip


def parse(argv: list[str]) -> list[str]:
    """Read the flags; what cannot be read is refused in a sentence."""
    if not argv[1:]:
        print(FIRST)
        sys.exit(0)
    try:
        argv, entries = config_files.overrides(flags.FLAGS.read_flags_from_files(argv))
        rest = flags.FLAGS(argv)
    except (flags.Error, OSError) as error:
        refuse(error)
    _ENTRIES.clear()
    _ENTRIES.update(entries)
    if _VERSION.value:
        import jax

        from gossax import __version__

        print(f"gossax {__version__}, Python {platform.python_version()}, JAX {jax.__version__}")
        sys.exit(0)
    if rest[1:]:
        refuse(f"unexpected argument {rest[1]!r}; flags start with --")
    for name in ("workdir", "report", "watch", "advise"):
        try:
            manifest.refuse_remote(flags.FLAGS[name].value or "", f"--{name}")
        except ValueError as error:
            refuse(error)
    for is_asked, wrong, sentence in COMBINATIONS:
        found = is_asked() and wrong()
        if found:
            refuse(sentence.format(found))
    return rest


def executor() -> Callable:
    """Where the arms run, as the flags say."""
    from experiments import executors, ray_tasks, slurm

    command = functools.partial(executors.command, sys.argv)
    if _EXECUTOR.value == "slurm":
        slurm.check(_SLURM.value, _JOBS.value)
        if _OVERWRITE.value:
            slurm.refuse_to_overwrite(pathlib.Path(_WORKDIR.value))
        settings = {"settings": _SLURM.value, "at_once": _JOBS.value}
        return functools.partial(slurm.run, command=command, **settings)
    if _EXECUTOR.value == "ray":
        ray_tasks.read(_RAY.value)
        settings = {"settings": _RAY.value, "at_once": _JOBS.value}
        return functools.partial(ray_tasks.run, command=command, **settings)
    if _JOBS.value > 1:
        return functools.partial(executors.local, command=command, jobs=_JOBS.value)
    return functools.partial(
        executors.here, log_to=_LOGGERS.value, checkpoint_seconds=_CHECKPOINT_SECONDS.value
    )


def analyse(file: config_files.ConfigFile, analysis: Callable, name: str) -> None:
    """Run an analysis of a config, or print the command; its workdir is that of a run."""
    from rich.console import Console

    from experiments import analysis as findings
    from experiments import executors, provenance

    others = given(*_ABOUT_ARMS)
    if others:
        raise ValueError(
            f"{name} is an analysis, without arms and without training; leave out {others}"
        )
    findings.check(_WORKDIR.value, file.config, _OVERWRITE.value)
    if _PRINT_COMMANDS.value:
        print(shlex.join(executors.command(sys.argv, [])))
    else:
        found = analysis(file.config)
        claims = findings.write(found, file.config, _WORKDIR.value, Console())
        provenance.begin(_WORKDIR.value, shlex.join(["python", *sys.argv]))
        provenance.claim(_WORKDIR.value, claims)


def advise() -> None:
    """Weigh waiting rules for what --advise names; write a page and print the advice."""
    from experiments import compiled
    from experiments.advice import page

    compiled.keep_programs()
    endings.raising()
    page.launch(
        _ADVISE.value,
        _CONFIG.value,
        _ENTRIES,
        _WORKDIR.value,
        _TRUST.value,
        named=_RULE.value,
        training=not _NO_TRAINING.value,
        overwrite=_OVERWRITE.value,
        command=shlex.join(["python", *sys.argv]),
    )


def plan() -> Callable[[], int] | None:
    """Check what the flags ask for; what is left to do, which gives an exit code.

    Raises ValueError, with nothing written, for what cannot be done.
    """
    file, place = config_files.read(_CONFIG.value, _ENTRIES, _TRUST.value), _WORKDIR.value
    from experiments import compiled, distributed

    distributed.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    compiled.keep_programs()
    from experiments import agreement, dry_run, executors, loggers, slurm, sweep
    from runtimes.asynchronous import pool

    pool.SESSION.leave = functools.partial(os._exit, distributed.DEAD)
    endings.raising()
    if __name__ == "__main__" and distributed.processes() == 1:
        distributed.watch_signals()  # others do already
    if _EXPLAIN.value:
        from experiments.advice import compression

        return analyse(file, compression.explain, "--explain_compression")
    if hasattr(file.module, "analyse"):
        return analyse(file, file.module.analyse, file.path)
    swept = file.module if _SWEEP.value else None
    grids = config_files.read_grids(_GRID.value)
    arms = sweep.expand(file.config, swept, file.values, _SEEDS.value, grids)
    if _ARM.value:
        arms = sweep.choose(arms, _ARM.value)
    if distributed.processes() > 1:
        same = ("overwrite", "print_commands", "num_processes", *_ABOUT_ARMS)
        flagged = {name: flags.FLAGS[name].value for name in same}
        agreement.check(agreement.entries(arms, flagged))
        agreement.check_workdir(place)
    loggers.check(_LOGGERS.value)
    sweep.provide_cpu_devices(arms)
    arms = sweep.to_the_end(arms)
    if _DRY_RUN.value:
        return dry_run.show([(arm.path or arm.config.name, arm.config) for arm in arms])
    if _CLUSTER.value:
        used = any(runtime_builders.RUNTIMES[arm.config.runtime].cluster for arm in arms)
        if _EXECUTOR.value != "ray" and not used:
            raise ValueError(
                "--cluster is for runtime=actors and --executor=ray, and there is neither; leave "
                "it out"
            )
        pool.SESSION.join(_CLUSTER.value)
    sweep.check(arms, place, _OVERWRITE.value)
    if _PRINT_COMMANDS.value:
        for group in sweep.groups(arms, _TOGETHER.value):
            print(shlex.join(executors.command(sys.argv, group)))
        return None
    how = {"together": _TOGETHER.value, "execute": executor()}
    if _ARM.value:
        return lambda: 1 if sweep.run(arms, place, _OVERWRITE.value, **how) else 0
    if _SWEEP.value and not grids:  # what they say is of the arms of sweep() alone
        ends = ("claims", "numbers", "figures")
        how |= {name: getattr(file.module, name, None) for name in ends}
    followed = slurm.under_way(pathlib.Path(place)) if _EXECUTOR.value == "slurm" else {}
    held = sweep.alone([arm for arm in arms if arm.path not in followed], place)

    def work() -> int:
        with held:
            left = sweep.unfinished(arms, place, _OVERWRITE.value)
            begin(arms, left, file.module.__doc__)
            return compare(sweep.launch(arms, place, _OVERWRITE.value, **how))

    return work


def begin(arms, left, about: str | None) -> None:
    """Note what runs, for reports; where no arms are left to run, what was noted when they ran."""
    from experiments import distributed, provenance, sweep

    if not distributed.is_writer():
        return
    sweep.claim([arm for arm in arms if not arm.path], _WORKDIR.value)  # before any other file
    if left or not provenance.known(_WORKDIR.value):
        provenance.begin(_WORKDIR.value, shlex.join(["python", *sys.argv]), about)


def compare(outcome) -> int:
    """Write the report of arms that have run; 1 if some have failed, even without a report."""
    from experiments import distributed, files, provenance, report

    if distributed.is_writer():
        try:
            provenance.claim(_WORKDIR.value, outcome.claims, outcome.numbers)
            print(f"report: {report.write(_WORKDIR.value)}")
        except files.NotWritten as error:
            if not outcome.failures:
                raise
            print(f"error: {error}", file=sys.stderr)
    return 1 if outcome.failures else 0


def list_parts() -> None:
    """Print what configs can name."""
    from rich.console import Console

    config_files.show_names(Console())


def report_again() -> None:
    """Write the report of records that are there, for a paper with its figures as files."""
    from experiments import figures, report

    try:
        path = report.write(_REPORT.value, _PAPER.value)
    except (ValueError, OSError) as error:
        refuse(error)
    print(f"report: {path}")
    if _PAPER.value:
        print(f"figures: {path.with_name(figures.FOLDER)}")


def watch() -> int:
    """Serve a page while records arrive; 1 if nobody is left to finish the runs."""
    endings.raising()
    from experiments import live

    abandoned = live.watch(_WATCH.value, _PORT.value)
    if abandoned is not None:
        print(f"error: {abandoned}", file=sys.stderr)
    return 0 if abandoned is None else 1


def main(_) -> None:
    if _RESTARTS.value:  # this process only watches over the one that does the work
        from experiments import restarts

        given_place = (_PROCESS_ID.value, _NUM_PROCESSES.value, _COORDINATOR.value)
        place = None if None in given_place else restarts.Place(_WORKDIR.value, *given_place)
        sys.exit(restarts.run_again(sys.argv, _RESTARTS.value, place))
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows less than UTF-8 gets escapes
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # JAX reports every accelerator that it did not find.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    why = "it was done, and arms have failed"
    from experiments import distributed, watchdog
    from runtimes.base import WorkersLost

    try:
        if _LIST.value:
            return list_parts()
        if _REPORT.value:
            return report_again()
        if _ADVISE.value:
            return advise()
        if _WATCH.value:
            sys.exit(watch())
        with watchdog.watching(_STUCK_SECONDS.value):
            rest = plan()
            code = rest() if rest else 0
    except (ValueError, OSError) as error:
        refuse(error)
    except WorkersLost as error:
        print(f"error: {error}", file=sys.stderr)
        code = distributed.DEAD
    except (KeyboardInterrupt, endings.Asked) as asked:
        number = asked.number if isinstance(asked, endings.Asked) else signal.SIGINT
        why = endings.sentence(number, starts_over=_OVERWRITE.value)
        print(why, file=sys.stderr)
        code = endings.code(number)
    distributed.leave(code, why)


if __name__ == "__main__":
    try:
        app.run(main, flags_parser=parse)
    except SystemExit as leaving:
        endings.out_at_once(leaving.code)
        raise
