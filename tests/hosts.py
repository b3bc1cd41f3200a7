"""Hosts in namespaces of a machine's own, as `benchmarks.namespaces` makes them."""

import functools
import subprocess

from benchmarks import namespaces


@functools.cache
def unable() -> str | None:
    """Return the reason for which there can be no hosts here."""
    reason = namespaces.unmet()
    if reason is None:
        try:
            with namespaces.switch(1, "1gbit"):
                pass
        except (subprocess.CalledProcessError, OSError) as error:
            reason = f"the kernel makes no hosts: {getattr(error, 'stderr', error)}"
    return reason
