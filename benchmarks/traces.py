"""What a profiler's trace says of how a device's communication and computation lie in time."""

import gzip
import json
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

COLLECTIVE = re.compile(r"all-?reduce|nccl|collective|permute", re.IGNORECASE)
# Rows of a device's timeline that only frame its operations.
FRAMES = re.compile(r"xla modules|steps|framework|source|tensorflow|name scope", re.IGNORECASE)


def taken(run: Callable, calls: int = 3) -> list[dict]:
    """The events of a trace, in Chrome's format, of some calls of a compiled candidate."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            for _ in range(calls):
                jax.block_until_ready(run())
        (path,) = pathlib.Path(folder).rglob("perfetto_trace.json.gz")
        return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def beside(events: Iterable[dict]) -> float | None:
    """The share of the time of collectives in which the same device also computed.

    None where the trace has no timeline of a device, or no collective on any.
    """
    events = list(events)
    devices = {e["pid"] for e in events if _named(e, "process_name", "/device:")}
    framing = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and FRAMES.search(e["args"]["name"])
    }
    shared = whole = 0.0
    for device in devices:
        spans = {True: [], False: []}
        for e in events:
            if e.get("ph") != "X" or e["pid"] != device or (device, e.get("tid")) in framing:
                continue
            collective = COLLECTIVE.search(e["name"]) is not None
            spans[collective].append((e["ts"], e["ts"] + e["dur"]))
        sent, both = _shared(spans[True], spans[False])
        whole, shared = whole + sent, shared + both
    return shared / whole if whole else None


def _named(event: dict, kind: str, start: str) -> bool:
    return event.get("name") == kind and event["args"]["name"].startswith(start)


def _shared(sending: Sequence, computing: Sequence) -> tuple[float, float]:
    """How long any of the first spans lasts, and how long one of the second ones does as well."""
    ticks = np.unique([tick for span in [*sending, *computing] for tick in span])
    middle, lasts = (ticks[1:] + ticks[:-1]) / 2, np.diff(ticks)

    def covered(spans):
        inside = np.zeros(len(middle), bool)
        for begin, end in spans:
            inside |= (begin < middle) & (middle < end)
        return inside

    sends = covered(sending)
    return float(lasts[sends].sum()), float(lasts[sends & covered(computing)].sum())
