"""Words and who uses them: the text of Python's own library, and text and ratings through tfds."""

import functools
import hashlib
import keyword
import os
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.tasks.sources import tfds_source

UNKNOWN, END = 0, 1  # the ids of a word outside the vocabulary and of the end of a document
SPECIAL = ("<unk>", "<end>")

# Tests repeat what they test; the rest is not the library's, or differs between computers.
_SKIPPED = re.compile(r"tests?|idle_test|site-packages|dist-packages|__pycache__|config-.*")
_MACHINES_OWN = re.compile(r"_sysconfigdata.*|sitecustomize\.py|usercustomize\.py")
_WORD = re.compile(r"[^\W\d]\w*|\d\w*(?:\.\d\w*)*|[^\w\s]")


class Documents(NamedTuple):
    """Texts as word ids, one after the other; each ends with END."""

    names: tuple[str, ...]  # [documents]; a path, whose first part is its group
    tokens: np.ndarray  # [tokens] int32
    starts: np.ndarray  # [documents + 1] int64: document i is tokens[starts[i] : starts[i + 1]]


class Corpus(NamedTuple):
    """words: by falling frequency in the training part, after SPECIAL; ids are positions in it."""

    words: tuple[str, ...]
    train: Documents
    test: Documents


class Interactions(NamedTuple):
    """Which user took which item, every user's in the order of time and no item twice."""

    user: np.ndarray  # [n] int32 in 0 .. users - 1, ascending
    item: np.ndarray  # [n] int32 in 0 .. items - 1
    group: np.ndarray  # [users] int32, for splits that go by label


def tokenise(text: str) -> list[str]:
    """Words, numbers and single punctuation marks of a text, in order, case kept.

    A number stands as its shape, so that numbers share words: 3.14 is 0.00, 0xFF is 0x00.
    """
    found = _WORD.findall(text)
    return [_shape(word) if word[0].isdigit() else word for word in found]


@functools.lru_cache(maxsize=100_000)
def _shape(number: str) -> str:
    if number[:2] in ("0x", "0X"):
        return "0x" + "0" * (len(number) - 2)
    return re.sub(r"\d", "0", number)


# --- corpora ---


def standard_library(files: int | None = None, test_fraction: float = 0.1) -> Corpus:
    """The sources of the running Python's own library, split by file; about 2.5 million words.

    A hash of its relative path says whether a file is in the test part, and in which order
    `files` of them (None: all) are taken. A function of the Python version alone.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(
            f"python: test_fraction must lie between 0 and 1, got {test_fraction}; try 0.1"
        )
    return _standard_library(files, test_fraction)  # all ways to write a call share one cache


@functools.lru_cache(maxsize=2)
def _standard_library(files, test_fraction) -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    paths = {path.relative_to(root).as_posix(): path for path in _sources(root)}
    if not paths:
        raise ValueError(
            f"python: no library sources in {root}, as in an embedded Python; "
            "use a Python that was installed with them, or the corpus lm1b or wiki40b"
        )
    chosen = sorted(sorted(paths, key=lambda name: _hash(name)[1])[:files])
    held_out = [name for name in chosen if _hash(name)[0] < test_fraction]
    trained = [name for name in chosen if _hash(name)[0] >= test_fraction]
    if not (trained and held_out):
        raise ValueError(
            f"python: files={files} leaves {len(trained)} files to train on and "
            f"{len(held_out)} to test on; raise files"
        )

    def read(names):
        return [(name, paths[name].read_text(encoding="utf-8", errors="replace")) for name in names]

    return corpus(read(trained), read(held_out))


def _sources(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not _SKIPPED.fullmatch(name)]
        for name in names:
            if name.endswith(".py") and not _MACHINES_OWN.fullmatch(name):
                yield Path(folder, name)


def _hash(name: str) -> tuple[float, float]:
    """Two independent numbers in 0..1."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8]) / 2**64, int.from_bytes(digest[8:]) / 2**64


# The data set, and its splits to train and to test on.
TFDS_TEXT = {
    "lm1b": ("lm1b", {"train": "train", "test": "test"}),
    "wiki40b": ("wiki40b/en", {"train": "train", "test": "test"}),
    "c4": ("c4/en", {"train": "train", "test": "validation"}),
}


@functools.lru_cache(maxsize=2)
def tfds_text(
    name: str, documents: int = 20_000, test_documents: int = 2_000, data_dir: str | None = None
) -> Corpus:
    """The first documents of a text data set of TensorFlow Datasets; see `tfds_source`.

    name: a key of TFDS_TEXT. lm1b (arXiv 1312.3005) has sentences, wiki40b whole articles and
    c4 (arXiv 1910.10683) web pages.
    """
    data_set, splits = TFDS_TEXT[name]

    def read(split: str, limit: int):
        source = tfds_source(data_set, splits[split], data_dir)
        for i in range(min(limit, len(source))):
            yield f"{name}/{i}", source[i]["text"].decode("utf-8", errors="replace")

    return corpus(read("train", documents), read("test", test_documents))


def corpus(train: Iterable[tuple[str, str]], test: Iterable[tuple[str, str]]) -> Corpus:
    """Number the words of (name, text) pairs; words of the test part alone come last."""
    train, test = ([(name, tokenise(text)) for name, text in part] for part in (train, test))
    counts = Counter()
    for _, words in train:
        counts.update(words)
    for _, words in test:
        counts.update(dict.fromkeys(words, 0))
    ranked = (*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word)))
    ids = {word: i for i, word in enumerate(ranked)}
    return Corpus(ranked, _number(train, ids), _number(test, ids))


def _number(documents: list[tuple[str, list[str]]], ids: dict[str, int]) -> Documents:
    starts = np.cumsum([0, *(len(words) + 1 for _, words in documents)])
    tokens = np.full(starts[-1], END, np.int32)
    for (_, words), start in zip(documents, starts[:-1], strict=True):
        tokens[start : start + len(words)] = [ids[word] for word in words]
    return Documents(tuple(name for name, _ in documents), tokens, starts)


def limit(text: Corpus, vocabulary: int) -> Corpus:
    """Keep the first `vocabulary` words, SPECIAL included; all others become UNKNOWN."""
    for part in (text.train, text.test):
        if not 0 <= part.tokens.min(initial=0) <= part.tokens.max(initial=0) < len(text.words):
            raise ValueError(
                f"corpus: has word ids from {part.tokens.min()} to {part.tokens.max()} for "
                f"{len(text.words)} words; number them from 0 on"
            )
    known = len(np.unique(text.train.tokens)) + 1  # UNKNOWN is a word of it, too
    if not len(SPECIAL) < vocabulary <= known:
        raise ValueError(
            f"vocabulary must be at least {len(SPECIAL) + 1} and at most the {known} words that "
            f"the training part has, got {vocabulary}; change vocabulary or read more text"
        )

    def cut(part: Documents) -> Documents:
        return part._replace(tokens=np.where(part.tokens < vocabulary, part.tokens, UNKNOWN))

    return Corpus(text.words[:vocabulary], cut(text.train), cut(text.test))


# --- samples ---


def windows(part: Documents, size: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """([n, size] int32 words from every `step`-th place on, [n] the document each begins in).

    Documents follow each other without a gap. Raises ValueError where none is long enough.
    """
    if min(size, step) < 1 or len(part.tokens) < size:
        raise ValueError(
            f"windows: {len(part.tokens)} words give no window of {size} words every {step}; "
            "use shorter windows, at least one word long, or read more text"
        )
    view = np.lib.stride_tricks.sliding_window_view(part.tokens, size)[::step]
    begins = np.arange(len(view)) * step
    return np.ascontiguousarray(view), np.searchsorted(part.starts, begins, side="right") - 1


def groups(names: Sequence[str], largest: int | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """([n] int32 group of every document, the groups): its top-level folder, or "modules".

    largest: keep that many groups by number of documents; the rest form one more, "others".
    """
    tops = [name.partition("/")[0] if "/" in name else "modules" for name in names]
    counts = Counter(tops)
    ranked = sorted(counts, key=lambda top: (-counts[top], top))
    kept = ranked[:largest]
    labels = [kept.index(top) if top in kept else len(kept) for top in tops]
    return np.array(labels, np.int32), (*kept, *(["others"] if len(kept) < len(ranked) else []))


def hashes(words: Sequence[str], buckets: int) -> np.ndarray:
    """[words] int32: twice the bucket of a word, plus 1 where its sign is negative.

    The hashing trick (arXiv 0902.2206 Sec. 2), by CRC-32; needs no vocabulary.
    """
    if not 1 <= buckets <= 2**30:
        raise ValueError(f"buckets must be between 1 and 2^30, got {buckets}; try 65536")
    code = np.array([zlib.crc32(word.encode()) for word in words], np.uint32)
    return np.int32((code >> 1) % buckets * 2 + (code & 1))


# --- interactions ---


@functools.lru_cache(maxsize=2)
def identifiers(files: int | None = None, at_least: int = 5) -> Interactions:
    """Files of Python's library as users, their identifiers as items, in order of appearance.

    at_least: in how many files an identifier must be and how many such a file must have.
    """
    text = standard_library(files)
    usable = np.array([word.isidentifier() and not keyword.iskeyword(word) for word in text.words])
    label, _ = groups(text.train.names + text.test.names)
    taken = []
    for part in (text.train, text.test):
        for document in np.split(part.tokens, part.starts[1:-1]):
            words, first = np.unique(document, return_index=True)
            ordered = words[np.argsort(first)]
            taken.append(ordered[usable[ordered]])
    uses = np.bincount(np.concatenate(taken), minlength=len(text.words))
    taken = [words[uses[words] >= at_least] for words in taken]
    kept = [i for i, words in enumerate(taken) if len(words) >= max(at_least, 2)]
    if not kept:
        raise ValueError(
            f"identifiers: no file has {at_least} identifiers that are in {at_least} files; "
            "lower at_least or raise files"
        )
    return _interactions([taken[i] for i in kept], label[kept])


@functools.lru_cache(maxsize=2)
def movielens(variant: str = "100k", data_dir: str | None = None) -> Interactions:
    """Who rated which film, whatever the rating, as in arXiv 1708.05031; see `tfds_source`.

    variant: 100k, 1m, 20m, 25m or latest-small.
    """
    source = tfds_source(f"movielens/{variant}-ratings", "train", data_dir)
    rows = [source[i] for i in range(len(source))]
    rows.sort(key=lambda row: (row["timestamp"], row["movie_id"]))
    taken: dict[bytes, dict[bytes, None]] = {}
    for row in rows:
        taken.setdefault(row["user_id"], {})[row["movie_id"]] = None
    several = [np.array(list(taken[user])) for user in sorted(taken) if len(taken[user]) > 1]
    return _interactions(several, np.zeros(len(several), np.int32))


def _interactions(taken: list[np.ndarray], group: np.ndarray) -> Interactions:
    user = np.repeat(np.arange(len(taken), dtype=np.int32), [len(items) for items in taken])
    _, item = np.unique(np.concatenate(taken), return_inverse=True)
    return Interactions(user, np.int32(item), group)


CORPORA = {
    "python": standard_library,
    **{name: functools.partial(tfds_text, name) for name in TFDS_TEXT},
}
INTERACTIONS = {"identifiers": identifiers, "movielens": movielens}
