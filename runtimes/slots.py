"""Where stale parameters live: a slot for every version that somebody still has to read.

An asynchronous update reads the parameters of old versions. Keeping them by worker is ambiguous
when one worker delivers twice in an update, keeping the whole history is unbounded. The schedule
is known before the run, so every version gets a slot from its birth until its last reader.
"""

from typing import NamedTuple

import numpy as np


class Slots(NamedTuple):
    """Occupied slots after the last planned update: `version[s]` lives in slot s, -1 is free."""

    version: np.ndarray  # [slots] int64


def init(slots: int) -> Slots:
    """Version 0, the initial parameters, in slot 0."""
    version = np.full(slots, -1, np.int64)
    version[0] = 0
    return Slots(version)


def allocate(slots: Slots, schedule) -> tuple[Slots, np.ndarray, np.ndarray, np.ndarray]:
    """Plan the slots of a segment: (slots, read [T, k], write [T], current [T]), all int32.

    schedule: the next segment; `schedule.held` lists the versions that are read after it (None:
        none but the newest).
    Update t reads its contributors' versions and its own, t, and writes t + 1. All reads come
    before the write, so the slot of a version may be overwritten in the update that reads it last.
    The first updates of a segment get the same slots when the segment ends after them: a run may be
    planned anew from where it stands.
    """
    first_update, updates = schedule.offset, schedule.updates
    end = first_update + updates
    reads = schedule.version.tolist()
    last_read = {first_update + t: first_update + t for t in range(updates)}
    for t in range(updates):
        last_read.update(dict.fromkeys(reads[t], first_update + t))
    held = [] if schedule.held is None else np.unique(schedule.held).tolist()
    last_read.update(dict.fromkeys([*held, end], end))

    slot_of = {v: s for s, v in enumerate(slots.version.tolist()) if v >= 0}
    expiring = [[] for _ in range(updates + 1)]
    # In order, as that in which slots become free says which one is written next.
    for version in sorted({*slot_of, *range(first_update, end + 1)}):
        expiring[max(last_read.get(version, first_update) - first_update, 0)].append(version)
    free = np.flatnonzero(slots.version < 0).tolist()
    read = np.empty(schedule.version.shape, np.int32)
    write, current = np.empty(updates, np.int32), np.empty(updates, np.int32)
    for t in range(updates):
        missing = [version for version in reads[t] if version not in slot_of]
        if missing:
            raise ValueError(
                f"update {first_update + t} reads version {missing[0]}, which is not born yet or "
                "was not announced in `held` of an earlier segment; check the schedule's versions"
            )
        read[t] = [slot_of[version] for version in reads[t]]
        current[t] = slot_of[first_update + t]
        free.extend(slot_of.pop(version) for version in expiring[t])
        if not free:
            raise ValueError(
                f"update {first_update + t} needs more than {len(slots.version)} live versions of "
                "the parameters; a schedule of n workers may keep at most n + 1 alive"
            )
        write[t] = slot_of[first_update + t + 1] = free.pop()
    version = np.full(len(slots.version), -1, np.int64)
    for v, s in slot_of.items():
        version[s] = v
    return Slots(version), read, write, current
