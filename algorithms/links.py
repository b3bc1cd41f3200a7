"""Links of gossip: the matchings of a graph, and functions that choose them in every update."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from comms.rounds import Round

BLOCK = 1024  # updates that are drawn together: another block size would draw other matchings


class Links(NamedTuple):
    """Matchings of a graph, and a function that activates them; equal on all workers."""

    partners: np.ndarray  # [M, n] sender that every worker hears in each matching, or itself
    active: Callable[[int, int], np.ndarray]  # (first update, count) -> [count, M] bool
    directed: bool = False  # a worker need not hear from its receiver
    weights: np.ndarray | None = None  # [M, n] of the senders in each matching; a worker's own
    # weight is one minus the sum over active matchings; None: weights of the method's matrix
    period: int | None = None  # updates after which `active` begins again; None: never
    fixed: int = 0  # updates before this one may have set matchings; from it on all are drawn


def given(active: Any) -> Any:
    """Return the extra argument `active` of a method with links, or raise ValueError without it.

    There is no default: with all links active, weights made for a few links let models diverge.
    """
    if active is None:
        raise ValueError(
            "the links of this method change from update to update, but `active` is missing; give "
            "active=method.links.active(update, 1)[0], or use as_optax(method), which counts"
        )
    return active


def drawn_in_blocks(
    draw: Callable[[int, int], np.ndarray], block: int = BLOCK
) -> Callable[[int, int], np.ndarray]:
    """Return a function (first, count) -> [count, M], consecutive rows of one fixed sequence.

    draw: (index of a block, rows) -> [rows, M]; every call asks for `block` rows.
    """
    of_block = functools.lru_cache(maxsize=8)(lambda index: draw(index, block))

    def rows(first: int, count: int) -> np.ndarray:
        blocks = range(first // block, (first + max(count, 1) - 1) // block + 1)
        whole = np.concatenate([of_block(index) for index in blocks])
        skipped = first - blocks[0] * block
        return whole[skipped : skipped + count]

    return rows


def one_at_a_time(matchings: int, seed: int) -> Callable[[int, int], np.ndarray]:
    """Return a Links.active that switches on one matching per update, drawn uniformly."""

    def draw(block: int, rows: int) -> np.ndarray:
        chosen = np.random.default_rng((seed, block)).integers(matchings, size=rows)
        return np.arange(matchings) == chosen[:, None]

    return drawn_in_blocks(draw)


def in_turn(matchings: int) -> Callable[[int, int], np.ndarray]:
    """Return a Links.active that switches on one matching per update, in turn."""

    def rows(first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count)[:, None] % matchings == np.arange(matchings)

    return rows


def of_rounds(turn: Sequence[Round]) -> Links:
    """Return links that mix by one round per update, in the order of `turn`, which repeats."""
    round_of = np.repeat(np.arange(len(turn)), [len(one.partners) for one in turn])

    def active(first: int, count: int) -> np.ndarray:
        return np.arange(first, first + count)[:, None] % len(turn) == round_of

    return Links(
        np.concatenate([one.partners for one in turn]),
        active,
        any(one.directed for one in turn),
        np.concatenate([one.weights for one in turn]),
        len(turn),
    )
