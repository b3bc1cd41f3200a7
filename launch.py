"""The command line of experiments: an arm or a sweep, with its table, figure and report.

python launch.py --config=configs/nonblocking.py --workdir=runs/x
python launch.py --config=configs/nonblocking.py --sweep --seeds=3 --jobs=4 --workdir=runs/y
python launch.py --watch=runs/y
python launch.py --report=runs/y --paper
python launch.py --advise=runs/x
python launch.py --config=configs/language_model.py:size=1B --dry_run
python launch.py --list
python launch.py --version

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

from absl import app, flags

from experiments import config_files, records

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
    flags.DEFINE_string(_name, "" if _name in ("slurm", "ray", "pods") else None, _words)
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
# Flags about arms; reports and analyses have no arms.
_ABOUT_ARMS = (
    "sweep", "grid", "seeds", "together", "loggers", "jobs", "executor", "slurm", "ray", "arm",
    "cluster", "dry_run", "jobset", "pods",
)  # fmt: skip

FIRST = """\
The five commands that one needs first:

python launch.py --list                       # what configs can name, and the configs
python launch.py --config=configs/demo.py --sweep --workdir=runs/demo      # all arms of a config
python launch.py --config=configs/nonblocking.py --config.wait=barrier --workdir=runs/x  # one arm
python launch.py --watch=runs/demo            # the page of a launch while it goes on
python launch.py --report=runs/demo           # its table, figures and strips, written again

docs/running.md has the others, python launch.py --help all flags.\
"""

_ENTRIES: dict[str, str | bool] = {}  # entries of the config that the command line gives


def refuse(error: Exception | str) -> NoReturn:
    """Exit with code 2 and one sentence, without a traceback, as the user's input is wrong."""
    sentence = registry.sentence(error)
    print(f"error: {sentence}", file=sys.stderr)
    if "experiments.distributed" in sys.modules:  # there may be other processes
        from experiments import distributed

        distributed.leave(2, sentence)
    sys.exit(2)


def given(*names: str) -> str:
    """Return the given flags whose value differs from the default, as text."""
    changed = (name for name in names if FLAGS[name].value != FLAGS[name].default)
    return ", ".join(f"--{name}" for name in changed)


def given_entries() -> str:
    """Return the entries of a config that the command line gives, as text."""
    return ", ".join(f"--config.{entry}" for entry in _ENTRIES)


def is_elsewhere() -> bool:
    """Return whether arms run in other processes than this one."""
    return FLAGS.jobs > 1 or FLAGS.executor != "local"


def missing() -> str:
    """Return the first flag that a run needs and the command lacks, or "" if there is none."""
    if FLAGS.report or FLAGS.list or FLAGS.advise or FLAGS.watch:
        return ""
    needed = {"config": FLAGS.config, "workdir": FLAGS.dry_run or FLAGS.workdir}
    return next((name for name, value in needed.items() if not value), "")


WRITTEN = ("workdir", "report", "watch", "advise", "jobset")  # paths that are written or read
RUNS = (
    "config", "workdir", "overwrite", "print_commands", "explain_compression", *_ABOUT_ARMS,
)  # fmt: skip
# (flag is given, conflict in the command line, sentence about it).
COMBINATIONS: tuple[tuple[Callable, Callable, str], ...] = (
    (lambda: FLAGS.report, lambda: given(*RUNS, "advise") or given_entries(),
     "--report only writes the report again; leave out {}"),
    (lambda: FLAGS.watch, lambda: given(*RUNS, "report", "advise") or given_entries(),
     "--watch only shows a page; leave out {}"),
    (lambda: given("paper"), lambda: not FLAGS.report,
     "--paper belongs to --report; give it, too"),
    (lambda: given("port"), lambda: not FLAGS.watch,
     "--port belongs to --watch; give it, too"),
    (lambda: FLAGS.advise,
     lambda: given("print_commands", "explain_compression", "num_processes", "process_id",
                   *_ABOUT_ARMS),
     "--advise trains arms of its own; leave out {}"),
    (lambda: not FLAGS.advise, lambda: given("rule", "no_training"),
     "{} belongs to --advise; give it, too"),
    (lambda: given("trust"), lambda: not (FLAGS.advise or (FLAGS.config or "").endswith(".json")),
     "--trust belongs to --advise or a config.json; give one of them, too"),
    (lambda: True, missing, "--{} is missing; see the examples in README.md"),
    (lambda: FLAGS.slurm, lambda: FLAGS.executor != "slurm",
     "--slurm has settings for --executor=slurm; give both or neither"),
    (lambda: FLAGS.ray, lambda: FLAGS.executor != "ray",
     "--ray says what an arm takes of --executor=ray; give both or neither"),
    (lambda: FLAGS.pods, lambda: not FLAGS.jobset,
     "--pods has settings for --jobset; give both or neither"),
    (lambda: FLAGS.jobset,
     lambda: given("overwrite", "jobs", "executor", "num_processes", "restarts", "dry_run",
                   "print_commands"),
     "--jobset only writes a file, whose Pods start and go on by themselves; leave out {}"),
    (lambda: FLAGS.dry_run, lambda: given("num_processes", "print_commands"),
     "--dry_run looks at a device of each arm in one process, and runs nothing; leave out {}"),
    (lambda: FLAGS.arm, is_elsewhere,
     "--arm runs arms in this process; leave out --jobs and --executor"),
    (lambda: FLAGS.restarts, lambda: given("report", "watch", "advise"),
     "--restarts starts runs again; leave out {}"),
    (lambda: FLAGS.restarts, is_elsewhere,
     "--restarts is for the processes of one run; leave out --jobs and --executor"),
    (lambda: FLAGS.num_processes is not None, is_elsewhere,
     "--num_processes is for one arm on many machines; leave out --jobs and --executor"),
    (lambda: FLAGS.report or FLAGS.watch,
     lambda: given("coordinator_address", "num_processes", "process_id"),
     "--report and --watch are of one process; leave out {}"),
)  # fmt: skip


def parse(argv: list[str]) -> list[str]:
    """Read the flags; refuse an unreadable flag or a wrong combination in a sentence."""
    if not argv[1:]:
        print(FIRST)
        sys.exit(0)
    try:
        sys.argv = FLAGS.read_flags_from_files(argv)  # commands of single arms are made of it
        argv, entries = config_files.overrides(sys.argv)
        rest = FLAGS(argv)
        for name in ("config", *WRITTEN):  # a shell leaves the ~ of --workdir=~/x
            FLAGS[name].value = os.path.expanduser(FLAGS[name].value or "") or None
        for name in () if FLAGS.version else WRITTEN:
            records.refuse_remote(FLAGS[name].value or "", f"--{name}")
    except (flags.Error, OSError, ValueError) as error:
        refuse(error)
    _ENTRIES.clear()
    _ENTRIES.update(entries)
    if FLAGS.version:
        import jax

        from gossax import __version__

        print(f"gossax {__version__}, Python {platform.python_version()}, JAX {jax.__version__}")
        sys.exit(0)
    if rest[1:]:
        refuse(f"unexpected argument {rest[1]!r}; flags start with --")
    for is_asked, wrong, sentence in COMBINATIONS:
        found = is_asked() and wrong()
        if found:
            refuse(sentence.format(found))
    return rest


def executor(arms, shared=None) -> Callable:
    """Return the executor that the flags name; ValueError if it cannot run the arms.

    shared: the `prepare.LastTask` of the check, for arms in this process.
    """
    from experiments import executors, restarts

    # Commands of single arms only resume runs: this process removes the runs to overwrite before.
    argv = restarts.without(sys.argv, (), ["overwrite"])
    many = {"command": functools.partial(executors.command, argv)}
    if FLAGS.executor == "slurm":
        from experiments import slurm

        slurm.check(FLAGS.slurm, [arm.config for arm in arms])
        if FLAGS.overwrite:
            slurm.refuse_to_overwrite(pathlib.Path(FLAGS.workdir))
        return functools.partial(slurm.run, settings=FLAGS.slurm, at_once=FLAGS.jobs, **many)
    if FLAGS.executor == "ray":
        executors.ray_resources(FLAGS.ray)
        return functools.partial(executors.on_ray, settings=FLAGS.ray, at_once=FLAGS.jobs, **many)
    if FLAGS.jobs > 1:
        return functools.partial(executors.local, jobs=FLAGS.jobs, **many)
    return functools.partial(
        executors.here,
        log_to=FLAGS.loggers,
        checkpoint_seconds=FLAGS.checkpoint_seconds,
        shared=shared,
    )


def analyse(file: config_files.ConfigFile, analysis: Callable, name: str) -> None:
    """Run an analysis of a config and write its records, or print its command."""
    from rich.console import Console

    from experiments import analysis as findings
    from experiments import executors, provenance

    if others := given(*_ABOUT_ARMS):
        raise ValueError(
            f"{name} is an analysis, without arms and without training; leave out {others}"
        )
    findings.check(FLAGS.workdir, file.config, FLAGS.overwrite)
    if FLAGS.print_commands:
        print(shlex.join(executors.command(sys.argv, [])))
        return
    found = analysis(file.config)
    claims = findings.write(found, file.config, FLAGS.workdir, Console())
    provenance.begin(FLAGS.workdir, shlex.join(["python", *sys.argv]))
    provenance.claim(FLAGS.workdir, claims)


def advise() -> None:
    """Weigh waiting rules for the argument of --advise; write a page and print the advice."""
    from experiments import sweep
    from experiments.advice import page

    sweep.keep_programs()
    endings.raising()
    page.launch(
        FLAGS.advise,
        FLAGS.config,
        _ENTRIES,
        FLAGS.workdir,
        FLAGS.trust,
        named=FLAGS.rule,
        training=not FLAGS.no_training,
        overwrite=FLAGS.overwrite,
        command=shlex.join(["python", *sys.argv]),
    )


def plan() -> Callable[[], int] | None:
    """Check the command; return a function that runs it and returns an exit code, or None.

    None: the command is done. Raises ValueError, with nothing written, for an impossible request.
    """
    file = config_files.read(FLAGS.config, _ENTRIES, FLAGS.trust)
    from experiments import distributed, sweep

    distributed.initialize(FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id)
    if distributed.processes() > 1 and is_elsewhere():
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
    return plan_arms(file)


def plan_arms(file: config_files.ConfigFile) -> Callable[[], int] | None:
    """Check the arms of a config; return a function that runs them, as `plan` does."""
    from experiments import distributed, dry_run, executors, loggers, prepare, restarts, sweep
    from experiments.papers import Judged
    from runtimes.asynchronous import pool

    pool.SESSION.leave = functools.partial(os._exit, distributed.DEAD)
    place, grids = FLAGS.workdir, config_files.read_grids(FLAGS.grid)
    swept = file.module if FLAGS.sweep else None
    arms = sweep.expand(file.config, swept, file.values, FLAGS.seeds, grids, FLAGS.arm)
    if FLAGS.arm:
        arms = sweep.choose(arms, FLAGS.arm)
    if distributed.processes() > 1:
        same = ("overwrite", "print_commands", "num_processes", *_ABOUT_ARMS)
        sweep.check_same(sweep.plans(arms, {name: FLAGS[name].value for name in same}))
        sweep.check_workdir(place)
    loggers.check(FLAGS.loggers)
    sweep.provide_cpu_devices(arms)
    shared = prepare.LastTask()
    arms = sweep.to_the_end(arms, shared)
    if FLAGS.dry_run:
        return dry_run.show([(arm.path or arm.config.name, arm.config) for arm in arms])
    if FLAGS.cluster:
        used = any(prepare.place_of(arm.config).cluster for arm in arms)
        if FLAGS.executor != "ray" and not used:
            raise ValueError(
                "--cluster is for runtime=actors and --executor=ray, and there is neither; leave "
                "it out"
            )
        pool.SESSION.join(FLAGS.cluster)
    part = bool(FLAGS.arm)
    sweep.check(arms, place, FLAGS.overwrite, not FLAGS.jobset, part, shared)
    if FLAGS.print_commands or FLAGS.jobset:
        grouped = sweep.groups(arms, FLAGS.together)
        command = functools.partial(executors.command, sys.argv)
        if FLAGS.jobset:  # a Pod has another home for the ~ of --workdir=~/x
            argv = [*restarts.without(sys.argv, ["workdir"]), f"--workdir={place}"]
            command = functools.partial(executors.command, argv)
            return executors.write_jobsets(
                FLAGS.jobset, grouped, pathlib.Path(place), command, FLAGS.pods
            )
        print("\n".join(shlex.join(command(group)) for group in grouped))
        return None
    how = {"together": FLAGS.together, "execute": executor(arms, shared)}
    if FLAGS.arm:
        return lambda: 1 if sweep.run(arms, place, FLAGS.overwrite, **how) else 0
    if FLAGS.sweep and not grids:  # these functions know the arms of sweep() alone
        ends = ("claims", "numbers", "figures")
        how |= {name: getattr(file.module, name, None) for name in ends}
        if isinstance(how["claims"], Judged):
            asked = [f"--config={os.path.normpath(FLAGS.config)}"]
            asked += [f"--config.{name}={value}" for name, value in _ENTRIES.items()]
            how["claims"] = how["claims"]._replace(flags=frozenset(asked))
    followed = {}
    if FLAGS.executor == "slurm":
        from experiments import slurm

        followed = slurm.under_way(pathlib.Path(place))
    held = sweep.alone([arm for arm in arms if arm.path not in followed], place)

    def work() -> int:
        with held:
            return run_arms(arms, file.module.__doc__, how)

    return work


def run_arms(arms, about: str | None, how: dict) -> int:
    """Run arms, write the note of the launch and the report; return 1 if an arm has failed, or 0.

    If no arms are left to run, the note of the launch that ran them stays.
    """
    from experiments import distributed, files, provenance, sweep

    place, overwrite = FLAGS.workdir, FLAGS.overwrite
    left = sweep.unfinished(arms, place, overwrite)
    if distributed.is_writer():
        sweep.claim([arm for arm in arms if not arm.path], place)  # before any other file
        if left or not provenance.known(place):
            provenance.begin(place, shlex.join(["python", *sys.argv]), about)
    outcome = sweep.launch(arms, place, overwrite, **how)
    # Late: drawing takes half a second to load, and arms can start before.
    from experiments import report

    if distributed.is_writer():
        try:
            provenance.claim(place, outcome.claims, outcome.numbers)
            print(f"report: {report.write(place)}")
        except files.NotWritten as error:
            if not outcome.failures:
                raise
            print(f"error: {error}", file=sys.stderr)
    return 1 if outcome.failures else 0


def watch() -> NoReturn:
    """Serve a page while records arrive; exit with code 1 if no process will finish the runs."""
    endings.raising()
    from experiments import live

    abandoned = live.watch(FLAGS.watch, FLAGS.port)
    if abandoned is not None:
        print(f"error: {abandoned}", file=sys.stderr)
    sys.exit(0 if abandoned is None else 1)


def main(_) -> None:
    if FLAGS.restarts and not FLAGS.print_commands:
        # This process only starts and restarts the process that does the work.
        from experiments import restarts

        where = (FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id)
        call = None if None in where else restarts.RollCall(FLAGS.workdir, *where)
        sys.exit(restarts.run(sys.argv, FLAGS.restarts, call))
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows less than UTF-8 gets escapes
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # JAX reports every accelerator that it did not find.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    why = "it was done, and arms have failed"
    from experiments import distributed, watchdog
    from runtimes.base import WorkersLost

    try:
        if FLAGS.list:
            from rich.console import Console

            config_files.show_names(Console())
            return
        if FLAGS.report:
            from experiments import figures, report

            path = report.write(FLAGS.report, FLAGS.paper)
            print(f"report: {path}")
            if FLAGS.paper:
                print(f"figures: {path.with_name(figures.FOLDER)}")
            return
        if FLAGS.advise:
            advise()
            return
        if FLAGS.watch:
            watch()
        with watchdog.watching(FLAGS.stuck_seconds):
            rest = plan()
            code = rest() if rest else 0
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
