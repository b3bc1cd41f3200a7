"""Demo: blocking against non-blocking SGD with one worker that is four times slower.

Eight workers on a ring; the arms use Ring All-Reduce and D-PSGD. See
`configs/nonblocking.py` for all values and for more mixers, delays and rivals.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import nonblocking
from experiments.registry import part


def get_config(arg: str | None = None) -> ConfigDict:
    """Return one arm, with the arguments of `configs/nonblocking.py`."""
    c = nonblocking.get_config(arg)
    c.graph = part("ring")
    return c


def sweep() -> Iterator[tuple[str, dict]]:
    """Yield equal samples per round, blocking and not, and small batches."""
    ring = {"algorithm": part("all_reduce", collective="ring")}
    gossip = {"algorithm": part("dpsgd"), "baseline": "dpsgd/blocking"}
    yield "all_reduce/blocking", ring | {"wait": part("barrier")}
    yield "all_reduce/nonblocking", ring | {"wait": part("first_finisher")}
    yield "all_reduce/small_batch", ring | {"wait": part("barrier"), "mini_batches": 1}
    yield "dpsgd/blocking", gossip | {"wait": part("neighbour_barrier")}
    yield "dpsgd/nonblocking", gossip | {"wait": part("first_finisher")}
