"""Documents packed into sequences of one length, whole where they fit.

A document longer than a sequence is cut into sequences, and what is left of it is packed as short
documents are: the longest first, each where the least room stays free (best-fit packing, H. Ding et
al., *Fewer Truncations Improve Language Modeling*, arXiv 2404.10830). A word is then predicted from
its own document alone, from all of it that its sequence can hold.
"""

import itertools
from typing import NamedTuple

import numpy as np

from experiments.tasks.text import END, Documents


class Packed(NamedTuple):
    """Sequences, by the first document in each."""

    tokens: np.ndarray  # [n, length + 1] int32; after its last document a sequence repeats END
    document: np.ndarray  # [n] the first document in it


def pack(part: Documents, length: int) -> Packed:
    """Sequences of `length` words and the word after each; every word but a first one is a target.

    What is cut overlaps by a word, the last target of a sequence being the first word of the next.
    Raises ValueError for a length below 1, and where no document has two words.
    """
    if length < 1:
        raise ValueError(f"packing: length must be at least 1 word, got {length}; raise length")
    size = length + 1
    begins, ends, documents = _pieces(part.starts, length)
    if not len(begins):
        raise ValueError(
            f"packing: none of {len(part.names)} documents has two words; read more text"
        )
    order = np.argsort(begins - ends, kind="stable")  # the longest first
    rows: list[list[int]] = []  # pieces of a sequence
    with_room: list[list[int]] = [[] for _ in range(size + 1)]  # sequences by the words left free
    for piece in order:
        needed = ends[piece] - begins[piece]
        fitting = next((room for room in range(needed, size + 1) if with_room[room]), None)
        if fitting is None:
            row, fitting = len(rows), size
            rows.append([])
        else:
            row = with_room[fitting].pop()
        rows[row].append(piece)
        if fitting - needed > 1:  # one word alone has no target
            with_room[fitting - needed].append(row)
    first = np.array([min(documents[row]) for row in rows])
    by_document = np.argsort(first, kind="stable")
    tokens = np.full((len(rows), size), END, np.int32)
    for place, row in enumerate(by_document):
        words = np.concatenate([part.tokens[begins[i] : ends[i]] for i in sorted(rows[row])])
        tokens[place, : len(words)] = words
    return Packed(tokens, first[by_document])


def _pieces(starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(begin, end, document) of all pieces of two words or more, none longer than length + 1."""
    cut = [
        (begin, min(begin + length + 1, stop), document)
        for document, (start, stop) in enumerate(itertools.pairwise(starts))
        for begin in range(start, stop - 1, length)
    ]
    return tuple(np.array(cut, np.int64).reshape(-1, 3).T)
