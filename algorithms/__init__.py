"""The methods, by the names that configs use."""

from algorithms.all_reduce import all_reduce
from algorithms.base import Algorithm
from algorithms.dpsgd import dpsgd
from algorithms.local_sgd import local_sgd
from algorithms.matcha import matcha, periodic
from algorithms.stale import (
    compensated_rate,
    dc_asgd,
    delay_adaptive,
    hinge_staleness,
    inverse_staleness,
    polynomial_staleness,
)

ALGORITHMS = {
    method.__name__: method
    for method in (
        all_reduce,
        compensated_rate,
        dc_asgd,
        delay_adaptive,
        dpsgd,
        hinge_staleness,
        inverse_staleness,
        local_sgd,
        matcha,
        periodic,
        polynomial_staleness,
    )
}

__all__ = ["ALGORITHMS", "Algorithm", *ALGORITHMS]
