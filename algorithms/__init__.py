"""The methods, by the names that configs use."""

from algorithms.all_reduce import all_reduce
from algorithms.base import Algorithm
from algorithms.dpsgd import dpsgd
from algorithms.local_sgd import local_sgd
from algorithms.matcha import matcha, periodic

ALGORITHMS = {
    "all_reduce": all_reduce,
    "dpsgd": dpsgd,
    "local_sgd": local_sgd,
    "matcha": matcha,
    "periodic": periodic,
}

__all__ = ["ALGORITHMS", "Algorithm", "all_reduce", "dpsgd", "local_sgd", "matcha", "periodic"]
