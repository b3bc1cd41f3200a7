"""Which of a graph's matchings every update uses: as types, draws and turns that methods share."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np

from comms import matching

BLOCK = 1024  # updates that are drawn together: another number would draw other matchings


class Links(NamedTuple):
    """A graph's matchings, and which of them each update uses; equal on all workers."""

    partners: np.ndarray  # [M, n] whom every worker hears from in each matching, itself if nobody
    active: Callable[[int, int], np.ndarray]  # (first update, count) -> [count, M] bool
    directed: bool = False  # whom a worker hears from need not hear from it
    weights: np.ndarray | None = None  # [M, n] of what every worker hears in each matching; its own
    # weight is one minus the sum over the active ones; None: the method's matrix


def drawn_in_blocks(
    draw: Callable[[int, int], np.ndarray], block: int = BLOCK
) -> Callable[[int, int], np.ndarray]:
    """(first, count) -> [count, M], rows of an endless sequence, however it is cut.

    draw: (index of a block, rows) -> [rows, M]; it is asked for `block` rows each time.
    """
    of_block = functools.lru_cache(maxsize=8)(lambda index: draw(index, block))

    def rows(first: int, count: int) -> np.ndarray:
        blocks = range(first // block, (first + count - 1) // block + 1)
        whole = np.concatenate([of_block(index) for index in blocks])
        skipped = first - blocks[0] * block
        return whole[skipped : skipped + count]

    return rows


def one_at_a_time(matchings: int, seed: int) -> Callable[[int, int], np.ndarray]:
    """Links.active that switches exactly one of the matchings on, each as often."""

    def draw(block: int, rows: int) -> np.ndarray:
        chosen = np.random.default_rng((seed, block)).integers(matchings, size=rows)
        return np.arange(matchings) == chosen[:, None]

    return drawn_in_blocks(draw)


def in_turn(matchings: int) -> Callable[[int, int], np.ndarray]:
    """Links.active that switches the matchings on one after the other."""

    def rows(first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count)[:, None] % matchings == np.arange(matchings)

    return rows


def of_rounds(rounds: Sequence[np.ndarray]) -> Links:
    """Links that mix by these matrices [n, n], one after the other, again and again.

    A symmetric matrix is taken apart into matchings of pairs, any other into rings of workers that
    are equally far apart, of which each is a permutation.
    """
    partners, weights, round_of = [], [], []
    everyone = np.arange(len(rounds[0]))
    for index, W in enumerate(rounds):
        for partner in _permutations(W):
            partners.append(partner)
            weights.append(np.where(partner == everyone, 0, W[everyone, partner]))
            round_of.append(index)

    def active(first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count)[:, None] % len(rounds) == np.array(round_of)

    directed = any(not np.array_equal(W, W.T) for W in rounds)
    shape = (-1, len(everyone))
    return Links(
        np.array(partners, np.int32).reshape(shape),
        active,
        directed,
        np.array(weights, float).reshape(shape),
    )


def _permutations(W: np.ndarray) -> list[np.ndarray]:
    """[n] whom every worker hears from, itself if nobody, until all non-zero entries are heard."""
    workers = len(W)
    linked = (W != 0) & ~np.eye(workers, dtype=bool)
    if np.array_equal(W, W.T):
        graph = nx.from_numpy_array(linked)
        return [matching.partners(edges, workers) for edges in matching.decompose(graph)]
    receivers = np.arange(workers)
    hops = [(receivers - hop) % workers for hop in range(1, workers)]
    return [source for source in hops if linked[receivers, source].any()]
