"""How the axes of a study's figure look."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    ScalarFormatter,
)


def linear(axes: Axes) -> None:
    """Draw few round numbers along y, a faint grid and no frame above and to the right."""
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    _faint(axes)
    axes.xaxis.label.set_size(9)
    axes.yaxis.label.set_size(9)


def logarithmic(axes: Axes) -> None:
    """Draw plain numbers along a logarithmic y, the powers of ten alone where it is long."""
    bottom, top = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if top > 30 * bottom else range(1, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _faint(axes)


def ticks(axes: Axes, places: Sequence[float]) -> None:
    """Number these places along x, and no others."""
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(places))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())


def _faint(axes: Axes) -> None:
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
