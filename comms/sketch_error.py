"""Errors of a count-sketch, from its size and from the number of its entries, on the host.

The load of a sketch is the number of its entries over that of its buckets, rows x columns. Hashes
are taken to be independent and uniform, values to be independent and normal of equal variance.
"""

import functools
import math

import numpy as np
import scipy


@functools.cache
def estimate_error(entries: int, rows: int, columns: int) -> float:
    """Return the root mean square error of `sketch.decode_at`, relative to that of estimates of 0.

    The noise in a bucket is the sum of the K other entries in it, K binomial: for one row the
    error is sqrt((entries - 1) / columns), for any values (Charikar, Chen, Farach-Colton, ICALP
    2002). The median of an odd number r of rows exceeds t where more than half of their noises do;
    the mean of its square is the integral of 2 t P(|median| > t). An even number of rows gets the
    error of one row fewer, which is too large.
    """
    rows -= rows % 2 == 0
    if entries <= 1:
        return 0.0
    if rows == 1:
        return math.sqrt((entries - 1) / columns)
    mean = (entries - 1) / columns
    most = int(mean + 12 * math.sqrt(mean) + 12)
    others = np.arange(1, min(most, entries - 1) + 1)
    share = _binomial(others, entries - 1, 1 / columns)  # of buckets with that many others
    t = np.linspace(0, 12 * math.sqrt(most), 4001)
    above = (share[:, None] * scipy.special.ndtr(-t[None] / np.sqrt(others)[:, None])).sum(0)
    tail = 2 * scipy.special.bdtrc(rows // 2, rows, above)  # probability of both signs
    return math.sqrt(np.trapezoid(2 * t * tail, t))


def _binomial(k: np.ndarray, n: int, share: float) -> np.ndarray:
    """Return P(K = k) for K binomial of n, 1 <= k <= n.

    As scipy.stats does it, whose import takes a second.
    """
    ways = -np.log(n + 1.0) - scipy.special.betaln(n - k + 1.0, k + 1.0)
    return np.exp(ways + scipy.special.xlogy(k, share) + scipy.special.xlog1py(n - k, -share))


@functools.cache
def peeling_load(rows: int) -> float:
    """Return the load up to which peeling nearly always finds all entries; 0.818 for 3 rows.

    The largest load a for which no share x > 0 of the buckets stays occupied: the minimum over x
    of x / (r (1 - exp(-x))^(r - 1)) for r rows of buckets. Threshold of the 2-core of random
    r-uniform hypergraphs, M. Molloy, "Cores in random hypergraphs", 2005; M. Goodrich, M.
    Mitzenmacher, arXiv 1101.2245, Table 1, has its reciprocals. One row resolves no two entries
    for sure: 0.
    """
    if rows == 1:
        return 0.0
    found = scipy.optimize.minimize_scalar(
        lambda x: x / (rows * (-math.expm1(-x)) ** (rows - 1)), bounds=(1e-9, 20), method="bounded"
    )
    return float(found.fun)


@functools.cache
def entries_within(error: float, rows: int, columns: int) -> int:
    """Return the largest number of entries of which `estimate_error` is at most `error`."""
    low, high = 1, 2
    while estimate_error(high, rows, columns) <= error:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if estimate_error(middle, rows, columns) <= error else (low, middle)
        )
    return low
