"""Whether compressing gradients pays: how long what is sent takes, and the codec's own time."""

from typing import NamedTuple


class Gain(NamedTuple):
    """Seconds of an update's exchange, without and with compression."""

    dense: float
    compressed: float  # the codec's own time included
    codec: float

    @property
    def factor(self) -> float:
        """How many times faster the exchange is; below 1 compression loses."""
        return self.dense / self.compressed if self.compressed else float(self.dense == 0)


def verdict(gained: Gain) -> str:
    """One line that says what was found: by how much it is faster, or not to compress."""
    compared = (
        f"{1e3 * gained.dense:.2f} ms dense, {1e3 * gained.compressed:.2f} ms compressed, of them "
        f"{1e3 * gained.codec:.2f} ms to encode and decode"
    )
    if gained.factor > 1:
        return f"{gained.factor:.2f}x faster: {compared}"
    return f"do not compress: {compared}"
