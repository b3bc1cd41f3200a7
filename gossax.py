"""Straggler-tolerant, communication-efficient distributed SGD, as a library.

The methods are optax transforms over the axis "workers", by the names that configs use. All else
is a module below this package: gossax.comms.topology, gossax.stragglers.delays.
"""

if "__path__" not in globals():  # in a checkout; a wheel is a package
    import gossax_checkout

    __path__ = []
    gossax_checkout.begin()

from algorithms import *  # noqa: F403
from algorithms import __all__ as _methods

__version__ = "0.2.0"
__all__ = [*_methods, "__version__"]
