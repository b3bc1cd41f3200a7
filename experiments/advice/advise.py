"""The advisor: from durations that were measured to a page with a waiting rule, in one call."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments import config_files, files, kinds, locks, manifest, parts, provenance, records
from experiments.advice import durations, page, sources, trained, verdict
from experiments.advice.durations import Measured
from experiments.advice.weigh import Advice, to_train, weigh

ADVICE = "advice.json"
UNBOUNDED = 10_000  # columns of what is no terminal, so that no name is cut


def launch(
    text: str,
    config: str | None,
    entries: Mapping[str, str | bool],
    workdir: str | None,
    trust: Sequence[str] = (),
    **how: Any,
) -> None:
    """Advise on what a text names and print it; the other arguments as on the command line.

    trust: modules that the record of a run may name. how: as of `advise`. Raises ValueError, with
    nothing written, for what cannot be weighed.
    """
    if entries and not config:
        raise ValueError("--config.ENTRY changes a config, and --config is missing; give it, too")
    given, start = None, shlex.split(how.get("command", ""))[:2] or ["python", "launch.py"]
    trusted = {*trust, *kinds.named_modules([*how.get("named", ()), text])}
    if config:
        given = config_files.read(config, entries, trust).config
        kept = [name for name in entries if name.partition(".")[0] != "wait"]
        start += [f"--config={config}", *(f"--config.{name}={entries[name]}" for name in kept)]
        trusted |= kinds.named_modules(given)
    place = workdir or f"{text.rstrip('/')}-advice"
    manifest.check_path(place, "workdir")
    show(advise(sources.read(text, given, start, trusted), place, **how), place)


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
        kept = root / trained.DURATIONS
        if not kept.exists():
            durations.write(source.measured, kept)
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
        console = Console(file=console.file, width=UNBOUNDED)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"yours: {advice.reference.name}")
    headings, rows = page.columns(advice)
    for heading in headings:
        justify = "left" if heading == page.HEADINGS[0] else "right"
        shown.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        shown.add_row(*map(escape, row))
    console.print(shown, markup=False)
    print(f"advice: {advice.verdict.reason}")
    print(f"command: {shlex.join(page.command(advice, Path(workdir)))}")
    print(f"page: {Path(workdir) / page.PAGE}")
