"""Whether this machine can have hosts of its own, as `benchmarks.namespaces` makes them."""

import functools
import subprocess

from benchmarks import namespaces


@functools.cache
def unable() -> str | None:
    """Why there can be no hosts here."""
    reason = namespaces.unmet()
    if reason is None:
        try:
            with namespaces.switch(1, "1gbit"):
                pass
        except (subprocess.CalledProcessError, OSError) as error:
            reason = f"the kernel makes no hosts: {getattr(error, 'stderr', error)}"
    return reason
