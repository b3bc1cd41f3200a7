"""Text of any size as sequences of tokens in memory maps, packed once and then streamed.

A folder has `train_tokens.npy` and `test_tokens.npy`, [n, length + 1] uint16 or int32, and the
vocabulary in `words.json`. Documents follow each other, each closed by END; a sequence begins with
the last token of the one before, so that every token but the first is a target once.
`python -m experiments.pack_text` writes such a folder.
"""

import functools
import glob as glob_module
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import registry
from experiments.registry import Kind
from experiments.tasks import sources, text
from experiments.tasks.data import Dataset

WORDS = "words.json"
SPLITS = ("train", "test")
PACKED_AT_ONCE = 1 << 20  # tokens
GENERATED = 10_000  # documents
MOST_WORDS = 50_000  # different ones in generated documents


class Sequences(NamedTuple):
    tokens: np.ndarray  # [n, length + 1] int32; END closes a document


class Tokeniser(NamedTuple):
    """words: by their ids, after `text.SPECIAL`. encode: a text -> [tokens] ids, without END."""

    words: Sequence[str]
    encode: Callable[[str], np.ndarray]


def of_bytes() -> Tokeniser:
    """Every byte of a text in UTF-8 is a token: 258 words, nothing is unknown."""

    def encode(document: str) -> np.ndarray:
        return np.frombuffer(document.encode(), np.uint8) + np.int32(len(text.SPECIAL))

    return Tokeniser((*text.SPECIAL, *(f"byte {value}" for value in range(256))), encode)


def of_words(texts: Iterable[str], vocabulary: int = 32_768) -> Tokeniser:
    """The most frequent words of `texts` as `text.tokenise` finds them; all others are UNKNOWN."""
    counts = Counter()
    for document in texts:
        counts.update(text.tokenise(document))
    most = vocabulary - len(text.SPECIAL)
    if not 0 < most <= len(counts):
        raise ValueError(
            f"words: vocabulary must be from {len(text.SPECIAL) + 1} to the "
            f"{len(counts) + len(text.SPECIAL)} words that the text has, got {vocabulary}; "
            "change vocabulary or read more text"
        )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    words = (*text.SPECIAL, *ranked)
    ids = {word: i for i, word in enumerate(words)}

    def encode(document: str) -> np.ndarray:
        return np.array([ids.get(word, text.UNKNOWN) for word in text.tokenise(document)], np.int32)

    return Tokeniser(words, encode)


TOKENISERS = {"bytes": of_bytes, "words": of_words}
TOKENISER = Kind("tokeniser", TOKENISERS, Tokeniser, ("texts",))


def prepared(
    corpus: str, split: str, most: int | None = None, data_dir: str | None = None
) -> Iterator[str]:
    """The first `most` texts of a part, "train" or "test", of a data set in `text.TFDS_TEXT`."""
    name, splits = text.TFDS_TEXT[corpus]
    source = text.tfds_source(name, splits[split], data_dir)
    for i in range(len(source) if most is None else min(most, len(source))):
        yield source[i]["text"].decode("utf-8", errors="replace")


def generated(split: str, most: int | None = None) -> Iterator[str]:
    """Texts of the shape of web pages, where nothing has been prepared; 10,000 unless said.

    Words follow Zipf's law, and lengths a lognormal one with a median of 250 words and a mean of
    410. Nothing can be learnt from them but how frequent a word is.
    """
    rng = np.random.default_rng([SPLITS.index(split)])
    for _ in range(GENERATED if most is None else most):
        count = max(1, round(rng.lognormal(np.log(250), 1.0)))
        ranks = np.minimum(rng.zipf(1.2, count), MOST_WORDS)
        yield " ".join(f"w{rank}" for rank in ranks)


def files(
    split: str, glob: str, test_fraction: float = 0.1, most: int | None = None
) -> Iterator[str]:
    """Texts in UTF-8, a document each, in the order of their paths.

    The test part has the last `test_fraction` of the characters of each, from the end of a line on.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(
            f"files: test_fraction must be above 0 and below 1, got {test_fraction}; try 0.1"
        )
    found = glob_module.glob(os.path.expanduser(glob), recursive=True)
    paths = sorted(path for path in found if os.path.isfile(path))[:most]
    if not paths:
        raise ValueError(f"files: no file is called {glob!r}; give a path, or one with * in it")

    def texts():
        for path in paths:
            try:
                whole = Path(path).read_text(encoding="utf-8-sig")
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"files: {path} cannot be read as text in UTF-8 ({error}); convert it, or "
                    "leave it out"
                ) from error
            cut = whole.find("\n", int(len(whole) * (1 - test_fraction))) + 1 or len(whole)
            part = whole[:cut] if split == "train" else whole[cut:]
            if part:
                yield part

    return texts()


DOCUMENTS = {
    **{name: functools.partial(prepared, name) for name in text.TFDS_TEXT},
    "generated": generated,
    "files": files,
}
CORPUS = Kind("corpus", DOCUMENTS, Iterable, ("split", "most", "data_dir"))


def documents(corpus: registry.Part, split: str, **offered: Any) -> Iterator[str]:
    """The texts of a part, "train" or "test", of a corpus, or of files by their path.

    offered: `most` and `data_dir`, for what has them. Raises ValueError for what is no text.
    """
    if isinstance(corpus, str) and re.fullmatch(r"[^(:]*[./][^(:]*", corpus):
        there = os.path.isfile(os.path.expanduser(corpus))
        corpus = registry.part("files", glob=glob_module.escape(corpus) if there else corpus)
    texts = CORPUS.build(corpus, split=split, **offered)

    def checked():
        for number, document in enumerate(texts):
            if not isinstance(document, str):
                raise ValueError(
                    f"corpus {registry.text(corpus)!r}: document {number} of the {split} part is "
                    f"{type(document).__name__}; let the corpus give texts"
                )
            yield document

    return checked()


def packed(
    texts: Iterable[str], tokeniser: Tokeniser, length: int, split: str
) -> Iterator[np.ndarray]:
    """The sequences of texts one after the other, [n, length + 1] at a time; the rest is left out.

    Raises ValueError for a text without tokens, and where all of them do not fill a sequence.
    """
    if length < 1:
        raise ValueError(f"pack_text: length must be at least 1 token, got {length}; raise length")
    size, sequences = length + 1, 0
    held, waiting = [], 0
    for number, document in enumerate(texts):
        tokens = tokeniser.encode(document)
        if not len(tokens):
            raise ValueError(
                f"pack_text: document {number} of the {split} part is empty; leave empty "
                "documents out"
            )
        held += [tokens, np.array([text.END], np.int32)]
        waiting += len(tokens) + 1
        if waiting >= max(size, PACKED_AT_ONCE):
            whole, left = _cut(np.concatenate(held), length)
            yield whole
            held, waiting, sequences = [left], len(left), sequences + len(whole)
    if waiting >= size:
        whole, _ = _cut(np.concatenate(held), length)
        yield whole
        sequences += len(whole)
    if not sequences:
        raise ValueError(
            f"pack_text: all of the {split} part has {waiting} tokens, which fill no sequence of "
            f"{size}; lower length or read more documents"
        )


def _cut(stream: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """([n, length + 1] sequences that overlap by a token, what is left for the next one)."""
    sequences = np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length]
    return sequences, stream[len(sequences) * length :]


def write(file, sequences: Iterable[np.ndarray], vocabulary: int) -> int:
    """Write sequences into a binary file as one `.npy` array; returns how many there are."""
    dtype = np.dtype(np.uint16 if vocabulary <= 2**16 else np.int32)
    count = 0
    for part in sequences:
        if not count:
            _header(file, dtype, (0, part.shape[1]))
        file.write(np.ascontiguousarray(part, dtype).tobytes())
        count, width = count + len(part), part.shape[1]
    file.seek(0)
    _header(file, dtype, (count, width))
    return count


def _header(file, dtype: np.dtype, shape: tuple[int, int]) -> None:
    # NumPy leaves room for the first axis to grow, so that this can be written again.
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)


def token_files(folder: str) -> Dataset:
    """What `python -m experiments.pack_text` has written: `Sequences`, and words as classes."""
    place = Path(folder).expanduser()
    maps = [sources.mapped(place / f"{split}_tokens.npy", "sequences, tokens") for split in SPLITS]
    try:
        words = json.loads((place / WORDS).read_text(encoding="utf-8"))["words"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place / WORDS} cannot be read as a vocabulary ({error}); run python -m "
            "experiments.pack_text again"
        ) from error
    for split, tokens in zip(SPLITS, maps, strict=True):
        seen = sources.some(tokens)
        if tokens.dtype.kind not in "iu" or not 0 <= seen.min() <= seen.max() < len(words):
            raise ValueError(
                f"{place / split}_tokens.npy has {tokens.dtype} tokens from {seen.min()} to "
                f"{seen.max()} for the {len(words)} words of {WORDS}, numbered from 0; run python "
                "-m experiments.pack_text again"
            )
    return Dataset(*(sources.Arrays(Sequences(tokens)) for tokens in maps), classes=len(words))
