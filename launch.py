"""The command line of experiments, with the five commands that one needs first.

python launch.py --list                       # what configs can name, and the configs
python launch.py --config=configs/demo.py --sweep --workdir=runs/demo      # all arms of a config
python launch.py --config=configs/nonblocking.py --config.wait=barrier --workdir=runs/x  # one arm
python launch.py --watch=runs/demo            # the page of a launch while it goes on
python launch.py --report=runs/demo           # its table, figures and strips, written again

docs/running.md has the others, python launch.py --help all flags.

Exit codes: 0 all is done, 1 an arm has failed, 2 the command or its input is wrong, 3 another
process of this run has gone or the run stands still, 130 interrupted, 143 ended by SIGTERM.
"""

import sys

try:
    from experiments import config_files, endings, registry
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed; run pip install 'gossax[run]', or make")

if __name__ == "__main__":
    endings.begin()  # before the other imports, which take a while

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

import jax
from absl import app, flags
from rich.console import Console

from experiments import (
    distributed,
    executors,
    loggers,
    prepare,
    provenance,
    records,
    restarts,
    sweep,
    watchdog,
)
from experiments.papers import Judged
from runtimes.asynchronous import pool
from runtimes.base import WorkersLost

FLAGS = flags.FLAGS
NUMBER = "give a number of seconds"
# Flags by kind. A command that starts a single arm lacks the flags on how arms are started.
TEXTS = {
    "config": "file.py, file.py:argument or a run's config.json; --config.ENTRY=VALUE changes it.",
    "workdir": "Directory of the records; made if need be.",
    "report": "Only write the report of this workdir again.",
    "watch": "Only serve the page of this workdir to this machine while its runs go on.",
    "advise": "Advise on a waiting rule from a run's workdir, a schedule, a trace or a law.",
    "slurm": "As in partition=gpu,timeout_min=60,gpus_per_node=1.",
    "ray": "What an arm takes of --executor=ray: cpus=1,gpus=0.25.",
    "jobset": "Only write this file: a JobSet of Kubernetes per arm, for kubectl apply.",
    "pods": "Of --jobset: image=IMAGE,processes=4,gpus=8,claim=VOLUME,mount=/gossax/runs.",
    "cluster": "Ray cluster of runtime=actors: auto, or host:port; else one of its own here.",
    # For several processes of one run on a mesh; by default the environment has the values.
    "coordinator_address": "host:port of process 0.",
}
SWITCHES = {
    "sweep": "Run all arms of the config's sweep().",
    "together": "Run arms that differ only in data as one program.",
    "overwrite": "Run finished arms again.",
    "list": "Only print what configs can name, and the configs.",
    "version": "Only print the versions of Gossax, Python and JAX.",
    "paper": "Of --report: write every figure as PDF and SVG, too.",
    "no_training": "Of --advise: play rules, train nothing.",
    "explain_compression": "Say whether compressing pays for the config, and train nothing.",
    "dry_run": "Only say what every arm would take: parameters, bytes, memory, time.",
    "print_commands": "Only print a command per arm, for another scheduler.",
}
LISTS = {
    "grid": "Run every arm with each of these values, ENTRY=VALUE,VALUE; several multiply.",
    "rule": "Of --advise: weigh this rule, too.",
    "arm": "Run this arm alone, without table and report.",
}
NUMBERS = {  # default, the least and the most
    "seeds": (1, 1, None, "How many seeds repeat every arm."),
    "jobs": (1, 1, None, "How many arms run at once."),
    "port": (8600, 0, 65535, "Of --watch: where the page is; 0 takes any that is free."),
    "num_processes": (None, 1, None, "How many processes the run has."),
    "process_id": (None, 0, None, "Which of them this is."),
    "restarts": (0, 0, None, "How often to start again when a process of the run has gone."),
}
for _name, _words in TEXTS.items():
    flags.DEFINE_string(_name, "", _words)
for _name, _words in SWITCHES.items():
    flags.DEFINE_bool(_name, False, _words)
for _name, _words in LISTS.items():
    flags.DEFINE_multi_string(_name, [], _words)
for _name, (_default, _least, _most, _words) in NUMBERS.items():
    flags.DEFINE_integer(_name, _default, _words, _least, _most)
flags.DEFINE_float("checkpoint_seconds", 30.0, "Between two checkpoints of a run.", 0)
flags.DEFINE_float("stuck_seconds", 600.0, "Without progress, then exit code 3; 0: never.", 0, 1e9)
for _name in ("checkpoint_seconds", "stuck_seconds"):
    flags.register_validator(_name, lambda seconds: not math.isnan(seconds), NUMBER)
flags.DEFINE_list("loggers", [], "Beside metrics.jsonl: tensorboard, wandb.")
flags.DEFINE_list("trust", [], "Of --advise or a config.json: modules of yours that it may name.")
flags.DEFINE_enum("executor", "local", ["local", "slurm", "ray"], "Where arms run.")

_ENTRIES: dict[str, str | bool] = {}  # entries of the config that the command line gives


def refuse(error: Exception | str) -> NoReturn:
    """Exit with code 2 and one sentence, without a traceback, as the user's input is wrong."""
    sentence = registry.sentence(error)
    print(f"error: {sentence}", file=sys.stderr)
    distributed.leave(2, sentence)


def given(*names: str) -> str:
    """Return the given flags whose value differs from the default, as text."""
    changed = [f"--{name}" for name in names if FLAGS[name].value != FLAGS[name].default]
    return ", ".join(changed)


# --- which flags go together ---

PROCESSES = restarts.NAMED  # flags of several processes
WRITTEN = ("workdir", "report", "watch", "advise", "jobset")  # paths that are written or read
# Flags about arms; reports and analyses have no arms.
ABOUT_ARMS = (
    "sweep", "grid", "seeds", "together", "loggers", "jobs", "executor", "slurm", "ray", "arm",
    "cluster", "dry_run", "jobset", "pods",
)  # fmt: skip
RUNS = (
    "config", "workdir", "overwrite", "print_commands", "explain_compression", "restarts",
    *ABOUT_ARMS, *PROCESSES,
)  # fmt: skip
ELSEWHERE = ("jobs", "executor")  # arms run in other processes than this one
# (flag, flags that do not go with it, reason).
APART = (
    ("report", (*RUNS, "advise"), "only writes the report again"),
    ("watch", (*RUNS, "report", "advise"), "only shows a page"),
    ("advise", ("print_commands", "explain_compression", "restarts", *PROCESSES, *ABOUT_ARMS),
     "trains arms of its own"),
    ("jobset", ("overwrite", "num_processes", "restarts", "dry_run", "print_commands", *ELSEWHERE),
     "only writes a file, whose Pods start and go on by themselves"),
    ("dry_run", ("num_processes", "print_commands"),
     "looks at a device of each arm in one process, and runs nothing"),
    ("arm", ELSEWHERE, "runs arms in this process"),
    ("restarts", ELSEWHERE, "is for the processes of one run"),
    ("num_processes", ELSEWHERE, "is for one arm on many machines"),
)  # fmt: skip
# (flag, flag to which it belongs, whether that is given).
TOGETHER: tuple[tuple[str, str, Callable], ...] = (
    ("paper", "--report", lambda: FLAGS.report),
    ("port", "--watch", lambda: FLAGS.watch),
    ("rule", "--advise", lambda: FLAGS.advise),
    ("no_training", "--advise", lambda: FLAGS.advise),
    ("trust", "--advise or a config.json",
     lambda: FLAGS.advise or FLAGS.config.endswith(".json")),
    ("slurm", "--executor=slurm", lambda: FLAGS.executor == "slurm"),
    ("ray", "--executor=ray", lambda: FLAGS.executor == "ray"),
    ("pods", "--jobset", lambda: FLAGS.jobset),
)  # fmt: skip


def check_flags() -> None:
    """Refuse flags that do not go together, and a command without what it needs."""
    for flag, others, reason in APART:
        wrong = given(*others)
        if "config" in others and _ENTRIES:
            wrong = ", ".join(filter(None, (wrong, *(f"--config.{entry}" for entry in _ENTRIES))))
        if given(flag) and wrong:
            refuse(f"--{flag} {reason}; leave out {wrong}")
    for flag, owner, is_given in TOGETHER:
        if given(flag) and not is_given():
            refuse(f"--{flag} belongs to {owner}; give both or neither")
    if not given("report", "list", "advise", "watch"):
        for flag in ("config",) if FLAGS.dry_run else ("config", "workdir"):
            if not FLAGS[flag].value:
                refuse(f"--{flag} is missing; see the examples in README.md")


def parse(argv: list[str]) -> list[str]:
    """Read the flags; refuse an unreadable flag or a wrong combination in a sentence."""
    if not argv[1:]:
        print(__doc__)
        sys.exit(0)
    try:
        sys.argv = FLAGS.read_flags_from_files(argv)  # commands of single arms are made of it
        argv, entries = config_files.overrides(sys.argv)
        rest = FLAGS(argv)
        for name in ("config", *WRITTEN):  # a shell leaves the ~ of --workdir=~/x
            FLAGS[name].value = os.path.expanduser(FLAGS[name].value)
        for name in () if FLAGS.version else WRITTEN:
            records.refuse_remote(FLAGS[name].value, f"--{name}")
    except (flags.Error, OSError, ValueError) as error:
        refuse(error)
    _ENTRIES.clear()
    _ENTRIES.update(entries)
    if FLAGS.version:
        from gossax import __version__

        print(f"gossax {__version__}, Python {platform.python_version()}, JAX {jax.__version__}")
        sys.exit(0)
    if rest[1:]:
        refuse(f"unexpected argument {rest[1]!r}; flags start with --")
    check_flags()
    return rest


# --- what a command does ---


def run() -> int:
    """Run the arms or the analysis of a config, or print their commands; return an exit code.

    Raises ValueError, with nothing written, for an impossible request.
    """
    file = config_files.read(FLAGS.config, _ENTRIES, FLAGS.trust)
    address, count, number = (FLAGS[name].value for name in PROCESSES)
    distributed.initialize(address or None, count, number)
    if distributed.processes() > 1 and given(*ELSEWHERE):
        raise ValueError(
            f"--jobs and --executor start arms from one process, and this is one of "
            f"{distributed.processes()}, as the environment says; start the command once"
        )
    sweep.keep_programs()
    endings.raising()
    if __name__ == "__main__" and distributed.processes() == 1:
        distributed.watch_signals()  # several processes do so already
    if FLAGS.explain_compression:
        from experiments.advice import compression

        return analyse(file, compression.explain, "--explain_compression")
    if hasattr(file.module, "analyse"):
        return analyse(file, file.module.analyse, file.path)
    return run_arms(file)


def analyse(file: config_files.ConfigFile, analysis: Callable, name: str) -> int:
    """Run an analysis of a config and write its records, or print its command."""
    from experiments import analysis as findings

    if others := given(*ABOUT_ARMS):
        raise ValueError(
            f"{name} is an analysis, without arms and without training; leave out {others}"
        )
    findings.check(FLAGS.workdir, file.config, FLAGS.overwrite)
    if FLAGS.print_commands:
        print(shlex.join(executors.command(sys.argv, [])))
        return 0
    claims = findings.write(analysis(file.config), file.config, FLAGS.workdir, Console())
    provenance.begin(FLAGS.workdir, shlex.join(["python", *sys.argv]))
    provenance.claim(FLAGS.workdir, claims)
    return 0


def run_arms(file: config_files.ConfigFile) -> int:
    """Check the arms of a config, and run them or print their commands."""
    pool.SESSION.leave = functools.partial(os._exit, distributed.DEAD)
    place, grids = FLAGS.workdir, config_files.read_grids(FLAGS.grid)
    swept = file.module if FLAGS.sweep else None
    arms = sweep.expand(file.config, swept, file.values, FLAGS.seeds, grids, FLAGS.arm)
    if distributed.processes() > 1:
        same = ("overwrite", "print_commands", "num_processes", *ABOUT_ARMS)
        sweep.check_same(sweep.plans(arms, {name: FLAGS[name].value for name in same}))
        sweep.check_workdir(place)
    loggers.check(FLAGS.loggers)
    sweep.provide_cpu_devices(arms)
    shared = prepare.LastTask()
    arms = sweep.to_the_end(arms, shared)
    if FLAGS.dry_run:
        from experiments import dry_run

        dry_run.show([(arm.path or arm.config.name, arm.config) for arm in arms])
        return 0
    if FLAGS.cluster:
        used = any(prepare.place_of(arm.config).cluster for arm in arms)
        if FLAGS.executor != "ray" and not used:
            raise ValueError(
                "--cluster is for runtime=actors and --executor=ray, and there is neither; leave "
                "it out"
            )
        pool.SESSION.join(FLAGS.cluster)
    sweep.check(arms, place, FLAGS.overwrite, not FLAGS.jobset, bool(FLAGS.arm), shared)
    grouped = sweep.groups(arms, FLAGS.together)
    if FLAGS.jobset:  # a Pod has another home for the ~ of --workdir=~/x
        argv = [*restarts.without(sys.argv, ["workdir"]), f"--workdir={place}"]
        command = functools.partial(executors.command, argv)
        executors.write_jobsets(FLAGS.jobset, grouped, pathlib.Path(place), command, FLAGS.pods)
        return 0
    if FLAGS.print_commands:
        print("\n".join(shlex.join(executors.command(sys.argv, group)) for group in grouped))
        return 0
    how = (FLAGS.overwrite, FLAGS.together, executor(arms, shared))
    if FLAGS.arm:
        return 1 if sweep.run(arms, place, *how) else 0
    followed = {}
    if FLAGS.executor == "slurm":
        from experiments import slurm

        followed = slurm.under_way(pathlib.Path(place))
    ends = {}
    if FLAGS.sweep and not grids:  # these functions know the arms of sweep() alone
        names = ("claims", "numbers", "figures")
        ends = {name: getattr(file.module, name, None) for name in names}
        if isinstance(ends["claims"], Judged):
            asked = [f"--config={os.path.normpath(FLAGS.config)}"]
            asked += [f"--config.{name}={value}" for name, value in _ENTRIES.items()]
            ends["claims"] = ends["claims"]._replace(flags=frozenset(asked))
    note = {"command": shlex.join(["python", *sys.argv]), "about": file.module.__doc__}
    with sweep.alone([arm for arm in arms if arm.path not in followed], place):
        return 1 if sweep.launch(arms, place, *how, **note, **ends) else 0


def executor(arms: list[executors.Arm], shared: prepare.LastTask) -> executors.Executor:
    """Return the executor that the flags name; ValueError if it cannot run the arms.

    shared: the holder of the task that the check has built, for arms in this process.
    """
    # Commands of single arms only resume runs: this process removes the runs to overwrite before.
    argv = restarts.without(sys.argv, (), ["overwrite"])
    many = {"command": functools.partial(executors.command, argv), "at_once": FLAGS.jobs}
    if FLAGS.executor == "slurm":
        from experiments import slurm

        slurm.check(FLAGS.slurm, arms, pathlib.Path(FLAGS.workdir) if FLAGS.overwrite else None)
        return functools.partial(slurm.run, settings=FLAGS.slurm, **many)
    if FLAGS.executor == "ray":
        return functools.partial(executors.on_ray, executors.ray_resources(FLAGS.ray), **many)
    if FLAGS.jobs > 1:
        return functools.partial(executors.local, **many)
    return functools.partial(
        executors.here,
        log_to=FLAGS.loggers,
        checkpoint_seconds=FLAGS.checkpoint_seconds,
        shared=shared,
    )


def work() -> int:
    """Do what the flags ask for; return the exit code."""
    if FLAGS.list:
        config_files.show_names(Console())
    elif FLAGS.report:
        from experiments import figures, report

        path = report.write(FLAGS.report, FLAGS.paper)
        print(f"report: {path}")
        if FLAGS.paper:
            print(f"figures: {path.with_name(figures.FOLDER)}")
    elif FLAGS.advise:
        from experiments.advice import page

        sweep.keep_programs()
        endings.raising()
        page.launch(
            FLAGS.advise,
            FLAGS.config or None,
            _ENTRIES,
            FLAGS.workdir or None,
            FLAGS.trust,
            named=FLAGS.rule,
            training=not FLAGS.no_training,
            overwrite=FLAGS.overwrite,
            command=shlex.join(["python", *sys.argv]),
        )
    elif FLAGS.watch:
        from experiments import live

        endings.raising()
        if (abandoned := live.watch(FLAGS.watch, FLAGS.port)) is not None:
            print(f"error: {abandoned}", file=sys.stderr)
            return 1
    else:
        with watchdog.watching(FLAGS.stuck_seconds):
            return run()
    return 0


def main(_) -> None:
    if FLAGS.restarts and not FLAGS.print_commands:
        # This process only starts and restarts the process that does the work.
        where = tuple(FLAGS[name].value for name in PROCESSES)
        where = () if None in where or not FLAGS.coordinator_address else where
        sys.exit(restarts.run(sys.argv, FLAGS.restarts, *where))
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows less than UTF-8 gets escapes
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # JAX reports every accelerator that it did not find.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    why = "it was done, and arms have failed"
    try:
        code = work()
    except (ValueError, OSError) as error:
        refuse(error)
    except WorkersLost as error:
        print(f"error: {error}", file=sys.stderr)
        code = distributed.DEAD
    except (KeyboardInterrupt, endings.Asked) as asked:
        number = asked.number if isinstance(asked, endings.Asked) else signal.SIGINT
        why = endings.sentence(number, starts_over=FLAGS.overwrite)
        print(why, file=sys.stderr)
        code = endings.code(number)
    distributed.leave(code, why)


if __name__ == "__main__":
    try:
        app.run(main, flags_parser=parse)
    except SystemExit as leaving:
        endings.out_at_once(leaving.code)
        raise
