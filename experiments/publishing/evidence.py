"""Everything that is published, repeated by one command.

python -m experiments.publishing.evidence                 # make evidence
python -m experiments.publishing.evidence matcha adasync  # make evidence ONLY="matcha adasync"
python -m experiments.publishing.evidence --list          # only say what there is, and what is left

What is left, with the hours that it is expected to take, is printed first. A sweep that has been
published from its workdir in runs/evidence is skipped, unless its config has changed since; one
that was cut off goes on where it was. A finished one is taken into docs/results, and the pages are
written anew, before the next begins.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments import config_files, formats, provenance, texts
from experiments.publishing import gallery, published, quoted, settings
from experiments.sweep import expand

ROOT = published.FOLDER.parents[1]
WORKDIRS = ROOT / "runs" / "evidence"


class Sweep(NamedTuple):
    """A record of docs/results and how it is made."""

    name: str  # of the record and of its workdir
    arguments: str  # of launch.py, all but the workdir
    hours: float  # expected, on two slow cores of a CPU


_DELAYS = ("jitter", "slow2", "slow4", "shifted_exponential", "pause", "pareto", "markov")
SWEEPS = (
    Sweep("demo", "--config=configs/demo.py --sweep", 0.02),
    *(
        Sweep(
            f"nonblocking_{delay}",
            f"--config=configs/nonblocking.py:delay={delay} --sweep --seeds=3 --together",
            0.07,
        )
        for delay in _DELAYS
    ),
    Sweep(
        "nonblocking_dirichlet",
        "--config=configs/nonblocking.py:delay=slow4 --config.split='dirichlet(alpha=0.1)' "
        "--sweep --seeds=3 --together",
        0.05,
    ),
    Sweep(
        "nonblocking_tuned",
        "--config=configs/nonblocking_tuned.py:communication=0.25 --sweep --seeds=3 --together",
        0.4,
    ),
    *(
        Sweep(
            f"nonblocking_tuned_{task}",
            f"--config=configs/nonblocking_tuned_{task}.py --sweep --seeds=3 --together",
            hours,
        )
        for task, hours in (("images", 1.5), ("text", 0.9))
    ),
    Sweep(
        "nonblocking_weightings",
        "--config=configs/nonblocking_weightings.py --sweep --seeds=10 --together",
        0.3,
    ),
    Sweep("nonblocking_analysis", "--config=configs/nonblocking_analysis.py", 0.02),
    *(
        Sweep(
            "matcha" + (f"_graph_{graph}" if graph else ""),
            f"--config=configs/matcha.py:graph={graph} --sweep --seeds=5 --together",
            0.25 if graph in (0, 5) else 0.5,
        )
        for graph in range(6)
    ),
    Sweep("heterogeneous", "--config=configs/heterogeneous.py --sweep --seeds=3 --together", 0.1),
    *(
        Sweep(
            f"heterogeneous_workers_{workers}",
            f"--config=configs/heterogeneous.py:workers={workers} --sweep --seeds=3 --together",
            hours,
        )
        for workers, hours in ((64, 0.15), (256, 0.6))
    ),
    Sweep(
        "heterogeneous_text",
        "--config=configs/heterogeneous.py:task=text --sweep --seeds=3 --together",
        0.5,
    ),
    Sweep(
        "local_training",
        "--config=configs/local_training.py:size=140k,steps=1500 --sweep --seeds=3 --together",
        3.0,
    ),
    Sweep(
        "small_messages",
        "--config=configs/small_messages.py:size=140k,steps=750 --sweep --seeds=3 --together",
        0.8,
    ),
    Sweep("frontier_async", "--config=configs/frontier_async.py --sweep --seeds=3 --together", 0.7),
    Sweep("slow_and_stale", "--config=configs/slow_and_stale.py --sweep --seeds=5 --together", 0.3),
    Sweep("runtime_analysis", "--config=configs/runtime_analysis.py", 0.02),
    Sweep("goodput", "--config=configs/goodput.py", 0.07),
    Sweep("goodput_real", "--config=configs/goodput_real.py", 0.12),
    Sweep("slow_and_stale_real", "--config=configs/slow_and_stale_real.py --sweep --seeds=3", 0.7),
    Sweep("adasync", "--config=configs/adasync.py --sweep --seeds=15 --together", 0.6),
    Sweep(
        "async_baselines", "--config=configs/async_baselines.py --sweep --seeds=5 --together", 0.3
    ),
    Sweep("swarm", "--config=configs/swarm.py:delay=equal --sweep --seeds=3 --together", 0.3),
    Sweep("swarm_slow4", "--config=configs/swarm.py:delay=slow4 --sweep --seeds=3 --together", 0.3),
    Sweep(
        "swarm_dirichlet",
        "--config=configs/swarm.py:split=dirichlet --sweep --seeds=3 --together",
        0.3,
    ),
    Sweep(
        "swarm_gaussians",
        "--config=configs/swarm.py:task=gaussians --sweep --seeds=3 --together",
        0.15,
    ),
    Sweep("swarm_epochs", "--config=configs/swarm_epochs.py --sweep --seeds=5 --together", 0.2),
    Sweep("swarm_tuned", "--config=configs/swarm_tuned.py --sweep --seeds=10 --together", 0.4),
    *(
        Sweep(
            f"swarm_{graph}",
            f"--config=configs/swarm.py:graph={graph} --sweep --seeds=3 --together",
            0.3,
        )
        for graph in ("ring", "hypercube")
    ),
    *(
        Sweep(
            f"swarm_nodes_{nodes}",
            f"--config=configs/swarm.py:nodes={nodes} --sweep --seeds=3 --together",
            hours,
        )
        for nodes, hours in ((8, 0.2), (64, 0.2), (256, 0.8))
    ),
    Sweep("swarm_scale", "--config=configs/swarm_scale.py", 0.05),
    Sweep("swarm_real", "--config=configs/swarm_real.py --sweep --seeds=5", 0.4),
    Sweep("mg_wfbp", "--config=configs/mg_wfbp.py --sweep", 0.1),
    Sweep("mg_wfbp_paper", "--config=configs/mg_wfbp_paper.py", 0.01),
    Sweep("mg_wfbp_scale", "--config=configs/mg_wfbp_scale.py", 0.02),
    *(
        Sweep(
            f"s2_{task}",
            f"--config=configs/s2_reducer.py:task={task} --sweep --seeds={seeds}",
            hours,
        )
        for task, seeds, hours in (
            ("hashed_logistic", 3, 0.3),
            # With three seeds the losses of these two were in the noise.
            ("ncf", 5, 0.7),
            ("transformer", 10, 0.5),
            ("lstm", 3, 0.5),
            ("skip_gram", 3, 0.5),
        )
    ),
    *(
        Sweep(
            f"s2_ncf_ratio_{percent}",
            # A quarter of the updates: bytes and what falls back against the ratio.
            f"--config=configs/s2_reducer.py:task=ncf,ratio={percent / 100:g},updates=375 --sweep "
            "--seeds=3",
            0.15,
        )
        for percent in (1, 2, 5, 10, 18, 30, 50)
    ),
    *(
        Sweep(
            f"s2_ncf_workers_{workers}",
            # Samples as with four workers: bytes and the time of a step against the workers.
            f"--config=configs/s2_reducer.py:task=ncf,workers={workers},updates={6000 // workers} "
            "--sweep --seeds=3",
            0.5,
        )
        for workers in (16, 64)
    ),
    Sweep(
        "language_model_10M",
        "--config=configs/language_model.py:size=10M,steps=200,batch=1 --sweep",
        0.8,
    ),
)


def chosen(sweeps: Sequence[Sweep], names: Sequence[str]) -> list[Sweep]:
    """The sweeps of these names, all where there are none; ValueError for one that is not known."""
    by_name = {sweep.name: sweep for sweep in sweeps}
    for name in names:
        if name not in by_name:
            raise ValueError(f"evidence: {name!r} is not published; choose of {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)] or list(sweeps)


def is_published(sweep: Sweep, workdirs: Path, folder: Path) -> bool:
    """Whether the record is the one of the sweep's workdir, which ran these arguments and arms."""
    path = folder / f"{sweep.name}.json"
    try:
        note = provenance.read(workdirs / sweep.name)
        record = formats.read(path, formats.QUOTED) if path.exists() else {}
    except formats.Damaged:
        return False
    if not note or note["date"] != record.get("date"):
        return False
    return repeats(sweep, record)


def repeats(sweep: Sweep, record: dict) -> bool:
    """Whether the sweep's arguments, and its config of today, are what the record came from."""
    if shlex.split(sweep.arguments) != _arguments(record["command"]):
        return False
    if "arms" not in record:
        return True
    today = arms(sweep)
    same = set(quoted.arms(record)) == set(today)
    return same and not settings.changed(record["settings"], settings.of(today))


def arms(sweep: Sweep) -> dict[str, ConfigDict]:
    """The arms that the config has today, by name."""
    words, flags = config_files.overrides(shlex.split(sweep.arguments))
    file = config_files.read(str(ROOT / words[0].removeprefix("--config=")), flags)
    return {arm.path: arm.config for arm in expand(file.config, file.module, file.values, seeds=1)}


def _arguments(command: str) -> list[str]:
    """What a noted command gave to launch.py, all but the workdir."""
    return [word for word in shlex.split(command)[2:] if not word.startswith("--workdir=")]


def launched(sweep: Sweep, workdir: Path) -> int:
    """The exit code of the launcher, in a process of its own, which prints what it does."""
    place = workdir.relative_to(ROOT)  # the command is published
    words = [sys.executable, "launch.py", *shlex.split(sweep.arguments), f"--workdir={place}"]
    return subprocess.run(words, cwd=ROOT, check=False).returncode


def write_pages() -> None:
    """All pages that records are shown on, with their pictures."""
    published.write_pages()
    gallery.write()


def repeat(
    sweeps: Sequence[Sweep],
    workdirs: Path = WORKDIRS,
    folder: Path = published.FOLDER,
    write: Callable[[], None] = write_pages,
    launch: Callable[[Sweep, Path], int] = launched,
) -> list[str]:
    """Run what is not yet published, publish each when it ends; what went wrong, a line each.

    write: writes the pages anew. launch: runs a sweep into a workdir, and has its exit code.
    """
    wrong = []
    for sweep in sweeps:
        if is_published(sweep, workdirs, folder):
            continue
        begin = time.monotonic()
        print(f"evidence: {sweep.name}, {sweep.hours:g} h expected", flush=True)
        code = launch(sweep, workdirs / sweep.name)
        if code:
            wrong.append(f"{sweep.name}: launch.py ended with exit code {code}")
            continue
        try:
            print(published.take_in(workdirs / sweep.name, folder))
            write()
        except (ValueError, OSError) as error:
            wrong.append(f"{sweep.name}: {texts.sentence(error)}")
        print(f"evidence: {sweep.name} took {(time.monotonic() - begin) / 3600:.2f} h", flush=True)
    return wrong


def plan(
    sweeps: Sequence[Sweep], workdirs: Path = WORKDIRS, folder: Path = published.FOLDER
) -> None:
    """Print a line per sweep with its expected hours, then the hours that are left."""
    left = 0.0
    for sweep in sweeps:
        done = is_published(sweep, workdirs, folder)
        left += 0.0 if done else sweep.hours
        print(f"{'published' if done else f'{sweep.hours:7.2f} h':>9}  {sweep.name}")
    print(f"{left:7.2f} h  are left", flush=True)


def main(words: Sequence[str]) -> None:
    """Say what is left, then run it; `--list` runs nothing."""
    try:
        sweeps = chosen(SWEEPS, [word for word in words if not word.startswith("--")])
    except ValueError as error:
        sys.exit(f"error: {texts.sentence(error)}")
    plan(sweeps)
    if "--list" in words:
        return
    wrong = repeat(sweeps)
    if wrong:
        sys.exit("\n".join(f"error: {line}" for line in wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
