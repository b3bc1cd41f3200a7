"""Packed documents: nothing is lost, nothing is cut that fits, and neighbours do not matter."""

import numpy as np
import pytest

from experiments.tasks import text
from experiments.tasks.text import END, Documents


def documents(*lengths):
    """Documents of distinct words from 2 on, each with END after its own number of words."""
    words, starts, word = [], [0], 2
    for length in lengths:
        words += [*range(word, word + length), END]
        starts.append(len(words))
        word += length
    names = tuple(f"folder/{i}" for i in range(len(lengths)))
    return Documents(names, np.array(words, np.int32), np.array(starts))


def targets(tokens):
    """(word, the one before it) of every target of the sequences."""
    pairs = np.stack([tokens[:, 1:], tokens[:, :-1]], -1).reshape(-1, 2)
    return sorted(map(tuple, pairs[pairs[:, 1] != END].tolist()))


def test_short_documents_share_sequences_and_stay_whole():
    packed = text.pack(documents(3, 2, 1), 6)
    assert packed.tokens.tolist() == [[2, 3, 4, END, 5, 6, END], [7, END, END, END, END, END, END]]
    assert packed.document.tolist() == [0, 2]


@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_every_word_but_first_ones_is_a_target_once(length):
    lengths = np.random.default_rng(0).integers(0, 40, 50)
    part = documents(*lengths)
    packed = text.pack(part, length)
    alone = [part.tokens[a:b] for a, b in zip(part.starts[:-1], part.starts[1:], strict=True)]
    expected = sorted(pair for words in alone for pair in zip(words[1:], words[:-1], strict=True))
    assert targets(packed.tokens) == expected
    assert (np.diff(packed.document) >= 0).all() and len(packed.document) == len(packed.tokens)


def test_best_fit_leaves_little_room():
    lengths = np.random.default_rng(1).integers(1, 20, 400)
    packed = text.pack(documents(*lengths), 63)
    assert len(packed.tokens) <= 1.03 * (lengths + 1).sum() / 64


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="length must be at least 1 word, got 0"):
        text.pack(documents(3), 0)
    with pytest.raises(ValueError, match="none of 2 documents has two words"):
        text.pack(documents(0, 0), 4)
