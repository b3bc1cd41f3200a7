"""The advisor: from durations that were measured to a page with a waiting rule, in one call."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from experiments import config_files, files, locks, manifest, parts, provenance, records
from experiments.advice import page, sources, trained, verdict
from experiments.advice.durations import Measured
from experiments.advice.weigh import Advice, to_train, weigh

ADVICE = "advice.json"


def launch(
    text: str,
    config: str | None,
    entries: Mapping[str, str | bool],
    workdir: str | None,
    **how: Any,
) -> None:
    """Advise on what a text names and print it; the other arguments as on the command line.

    how: as of `advise`. Raises ValueError, with nothing written, for what cannot be weighed.
    """
    if entries and not config:
        raise ValueError("--config.ENTRY changes a config, and --config is missing; give it, too")
    given, start = None, []
    if config:
        given = config_files.read(config, entries).config
        kept = [f"--config.{name}={value}" for name, value in entries.items() if name != "wait"]
        start = ["python", "launch.py", f"--config={config}", *kept]
    place = workdir or f"{text.rstrip('/')}-advice"
    manifest.check_path(place, "workdir")
    show(advise(sources.read(text, given, start), place, **how), place)


def check(workdir: str, measured: Measured, overwrite: bool) -> None:
    """Raise ValueError for a workdir that holds anything but an advice on the same durations."""
    root = Path(workdir)
    there = root / ADVICE
    if not there.is_file() and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(
            f"workdir {root} holds something else than an advice; choose another --workdir"
        )
    if overwrite or not there.is_file():
        return
    if records.read_json(there).get("digest") != measured.digest:
        raise ValueError(
            f"workdir {root} holds an advice on other durations; choose another --workdir, or "
            "--overwrite it"
        )


def advise(
    source: sources.Source,
    workdir: str,
    *,
    named: Sequence[parts.Part] = (),
    training: bool = True,
    overwrite: bool = False,
    command: str = "",
) -> Advice:
    """Weigh all rules, train those that are not dominated, write and print what came out.

    named: rules to weigh beside the registry's. Raises ValueError, with nothing written,
    for what cannot be weighed.
    """
    check(workdir, source.measured, overwrite)
    advice, config = weigh(source, named)
    root = Path(workdir)
    files.make(root)
    with locks.held(root / locks.LAUNCH):
        if overwrite:
            _forget(root)
        records.write_json(root / ADVICE, page.as_json(advice))
        provenance.begin(root, command)
        if training:
            began = time.monotonic()
            results = trained.train(
                to_train(advice), advice.reference, config, source.measured, advice.ratio, root
            )
            advice = advice._replace(
                results=results,
                verdict=verdict.trained(advice.order, results, advice.reference),
                seconds={**advice.seconds, "trained": time.monotonic() - began},
            )
            records.write_json(root / ADVICE, page.as_json(advice))
        page.write(advice, root)
    return advice


def _forget(root: Path) -> None:
    """Remove what was trained, and the durations that it was trained with."""
    for repeat in range(trained.SEEDS):
        files.remove(root / trained.place(repeat))
    files.remove_tree(root / trained.ARMS)


def show(advice: Advice, workdir: str) -> None:
    """Print the table of rules, the verdict, the command that follows from it and the page."""
    if advice.source.measured.read:
        print(f"durations: {advice.source.measured.read}")
    console = Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=120)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"yours: {advice.reference.name}")
    for heading in page.HEADINGS:
        shown.add_column(heading, justify="left" if heading == page.HEADINGS[0] else "right")
    for row in page.rows(advice):
        shown.add_row(*row)
    console.print(shown, markup=False)
    print(f"advice: {advice.verdict.reason}")
    print(f"command: {shlex.join(page.command(advice))}")
    print(f"page: {Path(workdir) / page.PAGE}")
