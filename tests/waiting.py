"""Waits for what other threads and processes do."""

import time

PATIENCE = 300.0  # s, for a machine that has other things to do


def until(happens, what="it takes too long", seconds=PATIENCE):
    """Return what `happens()` gives once that is true."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.02)
    return found
