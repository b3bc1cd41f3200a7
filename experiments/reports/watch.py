"""The page of a workdir while its records arrive, served on this machine alone until they end."""

import os
import time
from pathlib import Path

from experiments import provenance, records, texts
from experiments.reports import (
    beginnings,
    following,
    live,
    markup,
    page,
    served,
    settings,
    telling,
    workdirs,
)

PORT = 8600
PAUSE = 1.0  # s between two looks at the records, at least
SHARE = 0.2  # of the time, at most, that goes into making pages
QUIET = 3.0  # s without a new record and without anybody at work after which all has ended


def watch(root: str | os.PathLike, port: int = PORT) -> str | None:
    """Serve the page of a workdir until nobody works on it; why runs are unfinished then, or None.

    Raises ValueError where there is no such workdir, where nobody works on it and runs are left,
    and where the port is taken. Nothing is written.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(
            f"there is no workdir {root}; give the --workdir of a launch that has begun"
        )
    attended, state = following.Attendance(root), following.state(root)
    if not attended:
        if not sum((state.finished, state.failed, len(state.left))):
            raise ValueError(
                f"workdir {root} holds no records of runs, and nobody is at work there; give the "
                "--workdir of a launch that has begun"
            )
        if state.left:
            raise ValueError(_abandoned(root, state))
        print(f"{state}; the report of {root} is {root / page.REPORT}")
        return None
    with served.Server(port) as server:
        print(f"watching {root} at http://{served.HOST}:{server.port}/", flush=True)
        _follow(root, attended, server)
        server.wait_for_browsers()
    state = following.state(root)
    if state.left:
        return _abandoned(root, state)
    print(f"{state}; the report of {root} is {root / page.REPORT}")
    return None


def _abandoned(root: Path, state: following.State) -> str:
    """That nobody is left who would finish the runs."""
    return (
        f"nobody works on {root} any more, and {len(state.left)} of its runs are not finished, "
        f"such as {state.left[0]}; the command that began them goes on with them"
    )


def _follow(root: Path, attended: following.Attendance, server: served.Server) -> None:
    """Show records as they arrive, until nobody works on the workdir and nothing is new."""
    looks, stamp, changed = following.Looks(), None, time.monotonic()
    while True:
        began = time.monotonic()
        new = following.stamp(root)
        if new != stamp or stamp is None:
            changed = began
            stamp = new
            _show(root, looks, server)
        over = not attended and time.monotonic() - changed > QUIET
        if over:
            server.shown = server.shown._replace(
                state=f"{following.state(root)}; nobody is at work any more", ended=True
            )
            return
        taken = time.monotonic() - began
        time.sleep(max(PAUSE, taken * (1 / SHARE - 1)))


def _show(root: Path, looks: following.Looks, server: served.Server) -> None:
    """Show what is there now; records that cannot be read in this moment leave the last page."""
    try:
        text, main = pages(root, looks, server.shown.version + 1)
    except (ValueError, OSError) as error:
        server.shown = server.shown._replace(state=texts.sentence(error))
        return
    server.show(text, main, str(following.state(root)))


def pages(root: Path, looks: following.Looks, version: int) -> tuple[str, str]:
    """The whole page of what is there now, and its content alone."""
    if any((place / records.METRICS).exists() for place in following.places(root)):
        arms, unfinished = workdirs.gather(root)
    else:
        arms, unfinished = [], []
    begun = {one.place for one in unfinished}
    waiting = [
        workdirs.Unfinished(place, "not begun")
        for left in following.state(root).left
        if (place := str(left.relative_to(root))) not in begun
    ]
    lines = following.lines(root, arms)
    curves = [(line.name, line.runs) for line in lines]
    target = arms[0].summary["target_loss"] if arms else None
    clock = arms[0].summary["clock"] if arms else ""
    sections = list(page.results(arms))
    if lines:
        shown = [name for name, _ in telling.chosen(curves, target)]
        sections += ["<h2>Figures</h2>", *live.of_curves(live.curves(lines, target, clock, shown))]
    seen = looks.of(arms)
    strips = beginnings.ranked(arms, seen)
    if strips:
        sections += ["<h2>The first rounds</h2>", *live.of_strips(live.strips(strips))]
        sections += beginnings.remarks(strips)
    sections += page.not_finished([*unfinished, *waiting])
    sections += [*page.schedules(seen), *settings.sections(arms)]
    note = provenance.known(root)
    state = markup.text(following.state(root))
    text = markup.page(
        root.resolve().name,
        page.subtitle(arms, [*unfinished, *waiting], note),
        page.again(note),
        sections,
        live.scripts(),
        served=f'<p id="watched" data-version="{version}"><strong>{state}</strong></p>\n',
    )
    return text, "\n".join(sections)
