"""Texts and tokens: corpora, sequences in memory or in memory maps, users' interactions.

A task's corpus is held in memory; tokens are ids in a vocabulary of its own. Text of any size is
packed once by `python -m experiments.pack_text` into a folder of token files: `train_tokens.npy`
and `test_tokens.npy`, [n, length + 1] uint16 or int32, and the vocabulary in `words.json`.
Consecutive sequences overlap by a token, so that every token but the first is a target once. A
folder may have `train.bin` and `val.bin` instead, flat uint16 tokens as nanoGPT writes them.
"""

import functools
import glob as glob_module
import hashlib
import itertools
import json
import keyword
import os
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import registry
from experiments.registry import Kind
from experiments.tasks import sources
from experiments.tasks.data import Dataset, at_least, check_fraction

UNKNOWN, END = 0, 1  # the ids of a word outside the vocabulary and of the end of a document
SPECIAL = ("<unk>", "<end>")
SPLITS = ("train", "test")
WORDS = "words.json"
PACKED_AT_ONCE = 1 << 20  # tokens
GENERATED = 10_000  # documents
MOST_WORDS = 50_000  # different ones in generated documents

# Tests repeat the tested code; the rest is not the library's, or differs between installations.
_SKIPPED = re.compile(r"tests?|idle_test|site-packages|dist-packages|__pycache__|config-.*")
_MACHINES_OWN = re.compile(r"_sysconfigdata.*|sitecustomize\.py|usercustomize\.py")
_WORD = re.compile(r"[^\W\d]\w*|\d\w*(?:\.\d\w*)*|[^\w\s]")


class Documents(NamedTuple):
    """Texts as word ids, one after the other; each ends with END."""

    names: tuple[str, ...]  # [documents] paths; the first part of a path is the document's group
    tokens: np.ndarray  # [tokens] int32
    starts: np.ndarray  # [documents + 1] int64: document i is tokens[starts[i] : starts[i + 1]]


class Corpus(NamedTuple):
    """Training and test documents as ids, which are positions in `words`."""

    words: tuple[str, ...]  # SPECIAL, then words by falling frequency in training
    train: Documents
    test: Documents


class Sequences(NamedTuple):
    """Tokens of a mini-batch; END closes a document."""

    tokens: np.ndarray  # [n, length + 1] int32


class Tokeniser(NamedTuple):
    """Vocabulary, and the encoding of texts by its ids."""

    words: Sequence[str]  # by id, SPECIAL first
    encode: Callable[[str], np.ndarray]  # a text -> [tokens] ids, without END


class Interactions(NamedTuple):
    """Pairs of a user and an item; a user's pairs are in order of time, each item at most once."""

    user: np.ndarray  # [n] int32 in 0 .. users - 1, ascending
    item: np.ndarray  # [n] int32 in 0 .. items - 1
    group: np.ndarray  # [users] int32, for splits that go by label


# --- texts ---

# The data set, and its parts to train and to test on.
TFDS_TEXT = {
    "lm1b": ("lm1b", "train", "test"),
    "wiki40b": ("wiki40b/en", "train", "test"),
    "c4": ("c4/en", "train", "validation"),
}


def prepared(
    corpus: str, split: str, most: int | None = None, data_dir: str | None = None
) -> Iterator[str]:
    """Yield the first `most` texts of a part, "train" or "test", of a data set in TFDS_TEXT.

    lm1b (arXiv 1312.3005) has sentences, wiki40b whole articles and c4 (arXiv 1910.10683) pages.
    """
    name, *parts = TFDS_TEXT[corpus]
    source = sources.tfds_source(name, parts[SPLITS.index(split)], data_dir)
    for i in range(len(source) if most is None else min(most, len(source))):
        yield source[i]["text"].decode("utf-8", errors="replace")


def generated(split: str, most: int | None = None) -> Iterator[str]:
    """Yield random texts with the lengths of web pages, for runs without prepared data.

    most: number of texts, by default 10,000. Words follow Zipf's law; lengths are lognormal, median
    250 words, mean 410. A model can learn nothing from them but the frequencies of words.
    """
    rng = np.random.default_rng([SPLITS.index(split)])
    for _ in range(GENERATED if most is None else most):
        count = max(1, round(rng.lognormal(np.log(250), 1.0)))
        ranks = np.minimum(rng.zipf(1.2, count), MOST_WORDS)
        yield " ".join(f"w{rank}" for rank in ranks)


def files(
    split: str, glob: str, test_fraction: float = 0.1, most: int | None = None
) -> Iterator[str]:
    """Return the texts of UTF-8 files, a document each, in the order of their paths.

    The test part has the last `test_fraction` of each file's characters, from the end of a line on,
    or from the end of a word if no line ends there.
    """
    check_fraction("files", test_fraction)
    at_least("files", 1, most=1 if most is None else most)
    found = glob_module.glob(os.path.expanduser(glob), recursive=True)
    paths = sorted(path for path in found if os.path.isfile(path))[:most]
    if not paths:
        raise ValueError(f"files: no file is called {glob!r}; give a path, or one with * in it")

    def part(path: str) -> str:
        try:
            whole = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"files: {path} cannot be read as text in UTF-8 ({error}); convert it, or leave it "
                "out"
            ) from error
        places = (whole.find(mark, int(len(whole) * (1 - test_fraction)), -1) for mark in "\n ")
        cut = next((place + 1 for place in places if place >= 0), len(whole))
        return {"train": whole[:cut], "test": whole[cut:]}[split]

    return filter(None, map(part, paths))


DOCUMENTS = {
    **{name: functools.partial(prepared, name) for name in TFDS_TEXT},
    "generated": generated,
    "files": files,
}
DOCUMENT = Kind("corpus", DOCUMENTS, Iterable, ("split", "most", "data_dir"))


def documents(corpus: registry.Part, split: str, **offered: Any) -> Iterator[str]:
    """Return the texts of a part, "train" or "test", of a corpus, or of files by their path.

    offered: `most` and `data_dir`, for corpora that take them. ValueError if a document is no str.
    """
    if isinstance(corpus, str) and re.fullmatch(r"[^(:]*[./][^(:]*", corpus):
        there = os.path.isfile(os.path.expanduser(corpus))
        corpus = registry.part("files", glob=glob_module.escape(corpus) if there else corpus)

    def checked(number: int, document: Any) -> str:
        if isinstance(document, str):
            return document
        raise ValueError(
            f"corpus {registry.text(corpus)!r}: document {number} of the {split} part is "
            f"{type(document).__name__}; let the corpus give texts"
        )

    return map(checked, itertools.count(), DOCUMENT.build(corpus, split=split, **offered))


# --- tokens ---


def tokenise(text: str) -> list[str]:
    """Return words, numbers and single punctuation marks of a text, in order, case kept.

    Digits of a number become 0, so that numbers share words: 3.14 is 0.00, 0xFF is 0x00.
    """
    found = _WORD.findall(text)
    return [_shape(word) if word[0].isdigit() else word for word in found]


@functools.lru_cache(maxsize=100_000)
def _shape(number: str) -> str:
    prefix = "0x" if number[:2] in ("0x", "0X") else ""
    return prefix + ("0" * (len(number) - 2) if prefix else re.sub(r"\d", "0", number))


def _ranked(counts: Counter, most: int | None = None) -> tuple[str, ...]:
    """Return SPECIAL and the words by falling frequency."""
    return (*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))[:most])


def of_bytes() -> Tokeniser:
    """Return the tokeniser of single bytes of a text in UTF-8: 258 words, no byte is unknown."""

    def encode(document: str) -> np.ndarray:
        return np.frombuffer(document.encode(), np.uint8) + np.int32(len(SPECIAL))

    return Tokeniser((*SPECIAL, *(f"byte {value}" for value in range(256))), encode)


def of_words(texts: Iterable[str], vocabulary: int = 32_768) -> Tokeniser:
    """Return the tokeniser of the most frequent words of `texts`; all others are UNKNOWN."""
    counts = Counter(itertools.chain.from_iterable(map(tokenise, texts)))
    most = vocabulary - len(SPECIAL)
    if not 0 < most <= len(counts):
        raise ValueError(
            f"words: vocabulary must be from {len(SPECIAL) + 1} to the "
            f"{len(counts) + len(SPECIAL)} words that the text has, got {vocabulary}; "
            "change vocabulary or read more text"
        )
    words = _ranked(counts, most)
    ids = {word: i for i, word in enumerate(words)}

    def encode(document: str) -> np.ndarray:
        return np.array([ids.get(word, UNKNOWN) for word in tokenise(document)], np.int32)

    return Tokeniser(words, encode)


TOKENISERS = {"bytes": of_bytes, "words": of_words}
TOKENISER = Kind("tokeniser", TOKENISERS, Tokeniser, ("texts",))


# --- corpora ---


def corpus(train: Iterable[tuple[str, str]], test: Iterable[tuple[str, str]]) -> Corpus:
    """Return a corpus of (name, text) pairs; words that only the test part has come last."""
    split = [[(name, tokenise(text)) for name, text in part] for part in (train, test)]
    counts = Counter(itertools.chain.from_iterable(words for _, words in split[0]))
    counts.update(dict.fromkeys(itertools.chain.from_iterable(words for _, words in split[1]), 0))
    ranked = _ranked(counts)
    ids = {word: i for i, word in enumerate(ranked)}
    numbered = []
    for part in split:
        tokens = [ids[word] for _, words in part for word in (*words, SPECIAL[END])]
        starts = np.cumsum([0, *(len(words) + 1 for _, words in part)])
        names = tuple(name for name, _ in part)
        numbered.append(Documents(names, np.array(tokens, np.int32), starts))
    return Corpus(ranked, *numbered)


@functools.lru_cache(maxsize=2)
def standard_library(files: int | None = None, test_fraction: float = 0.1) -> Corpus:
    """Return the running Python's library sources, a document per file; about 2.5 million words.

    A hash of a file's relative path decides its part, training or test. The hash also orders files;
    the first `files` of them (None: all) are taken. The result depends on the Python version alone.
    """
    check_fraction("python", test_fraction)
    at_least("python", 1, files=1 if files is None else files)
    root = Path(sysconfig.get_path("stdlib"))
    paths = {path.relative_to(root).as_posix(): path for path in _sources(root)}
    if not paths:
        raise ValueError(
            f"python: no library sources in {root}, as in an embedded Python; "
            "use a Python that was installed with them, or the corpus lm1b or wiki40b"
        )
    hashed = {name: _hash(name) for name in paths}
    chosen = sorted(sorted(hashed, key=lambda name: hashed[name][1])[:files])
    test = {name for name in chosen if hashed[name][0] < test_fraction}
    if not 0 < len(test) < len(chosen):
        raise ValueError(
            f"python: files={files} leaves {len(chosen) - len(test)} files to train on and "
            f"{len(test)} to test on; raise files"
        )
    texts = [(n, paths[n].read_text(encoding="utf-8", errors="replace")) for n in chosen]
    return corpus(*([one for one in texts if (one[0] in test) == tested] for tested in (0, 1)))


def _sources(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not _SKIPPED.fullmatch(name)]
        for name in names:
            if name.endswith(".py") and not _MACHINES_OWN.fullmatch(name):
                yield Path(folder, name)


def _hash(name: str) -> tuple[float, float]:
    """Return two independent numbers in 0..1 that follow from a name."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8]) / 2**64, int.from_bytes(digest[8:]) / 2**64


@functools.lru_cache(maxsize=2)
def tfds_text(
    name: str, documents: int = 20_000, test_documents: int = 2_000, data_dir: str | None = None
) -> Corpus:
    """Return the first documents of a data set; see `prepared` and `sources.tfds_source`."""
    most = zip(SPLITS, (documents, test_documents), strict=True)
    split = ([*prepared(name, split, count, data_dir)] for split, count in most)
    return corpus(*([(f"{name}/{i}", text) for i, text in enumerate(part)] for part in split))


def limit(text: Corpus, vocabulary: int) -> Corpus:
    """Keep the first `vocabulary` words, SPECIAL included; all others become UNKNOWN."""
    for part in (text.train, text.test):
        if not 0 <= part.tokens.min(initial=0) <= part.tokens.max(initial=0) < len(text.words):
            raise ValueError(
                f"corpus: has word ids from {part.tokens.min()} to {part.tokens.max()} for "
                f"{len(text.words)} words; number them from 0 on"
            )
    known = len(np.unique(text.train.tokens)) + 1  # UNKNOWN counts, too
    if not len(SPECIAL) < vocabulary <= known:
        raise ValueError(
            f"vocabulary must be at least {len(SPECIAL) + 1} and at most the {known} words that "
            f"the training part has, got {vocabulary}; change vocabulary or read more text"
        )
    train, test = (
        part._replace(tokens=np.where(part.tokens < vocabulary, part.tokens, UNKNOWN))
        for part in (text.train, text.test)
    )
    return Corpus(text.words[:vocabulary], train, test)


def windows(part: Documents, size: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return windows [n, size] int32 from every `step`-th word on, and [n] their first documents.

    A window may span several documents. Raises ValueError if all words do not fill a window.
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
    """Return every document's group, [n] int32, and the groups: top folders, or "modules".

    largest: number of groups to keep, by number of documents; all others form one more, "others".
    """
    tops = [name.partition("/")[0] if "/" in name else "modules" for name in names]
    counts = Counter(tops)
    ranked = sorted(counts, key=lambda top: (-counts[top], top))
    kept = ranked[:largest]
    labels = [kept.index(top) if top in kept else len(kept) for top in tops]
    return np.array(labels, np.int32), (*kept, *(["others"] if len(kept) < len(ranked) else []))


def hashes(words: Sequence[str], buckets: int) -> np.ndarray:
    """Return [words] int32: twice the bucket of a word, plus 1 where its sign is negative.

    This is the hashing trick (arXiv 0902.2206 Sec. 2), by CRC-32; it needs no vocabulary.
    """
    if not 1 <= buckets <= 2**30:
        raise ValueError(f"buckets must be between 1 and 2^30, got {buckets}; try 65536")
    code = np.array([zlib.crc32(word.encode()) for word in words], np.uint32)
    return np.int32((code >> 1) % buckets * 2 + (code & 1))


# --- documents packed into sequences of one length, whole where they fit ---


class Packed(NamedTuple):
    """Sequences, ordered by the first document in each."""

    tokens: np.ndarray  # [n, length + 1] int32; after its last document a sequence repeats END
    document: np.ndarray  # [n] the first document in it


Piece = tuple[int, int, int]  # begin, end and document of a piece of a document


def pack(part: Documents, length: int) -> Packed:
    """Return sequences of `length` words and the word after each, packed by best fit.

    A document longer than a sequence is cut into pieces that overlap by a word. Pieces are packed
    like short documents: the longest first, each where the least room stays free (H. Ding et al.,
    *Fewer Truncations Improve Language Modeling*, arXiv 2404.10830). So a sequence ends within a
    document only if the document is longer than a sequence. Raises ValueError for a length below 1,
    and if no document has two words.
    """
    size, rows = length + 1, []
    with_room: list[list[list[Piece]]] = [[] for _ in range(size + 1)]  # rows by words left free
    for piece in sorted(_pieces(part, length), key=lambda piece: piece[0] - piece[1]):
        needed = piece[1] - piece[0]
        room = next((room for room in range(needed, size + 1) if with_room[room]), None)
        if room is None:
            rows.append([])
        row = rows[-1] if room is None else with_room[room].pop()
        row.append(piece)
        left = (size if room is None else room) - needed
        if left > 1:  # one word alone has no target
            with_room[left].append(row)
    rows = sorted((sorted(row) for row in rows), key=lambda row: row[0][2])
    return _filled(part, rows, size)


def pad(part: Documents, length: int) -> Packed:
    """Return sequences of `length` words and the word after each; none spans two documents.

    A longer document is cut as in `pack`. END fills the rest of a sequence.
    """
    return _filled(part, [[piece] for piece in _pieces(part, length)], length + 1)


def _filled(part: Documents, rows: Sequence[Sequence[Piece]], size: int) -> Packed:
    tokens = np.full((len(rows), size), END, np.int32)
    for place, row in zip(tokens, rows, strict=True):
        words = np.concatenate([part.tokens[begin:end] for begin, end, _ in row])
        place[: len(words)] = words
    return Packed(tokens, np.array([row[0][2] for row in rows]))


def _pieces(part: Documents, length: int) -> list[Piece]:
    """Return pieces of up to `length` + 1 words, overlapping by one."""
    at_least("packing", 1, length=length)
    pieces = [
        (begin, min(begin + length + 1, stop), document)
        for document, (start, stop) in enumerate(itertools.pairwise(part.starts.tolist()))
        for begin in range(start, stop - 1, length)
    ]
    if not pieces:
        raise ValueError(
            f"packing: none of {len(part.names)} documents has two words; read more text"
        )
    return pieces


# --- texts of any size as token files ---


def packed(
    texts: Iterable[str], tokeniser: Tokeniser, length: int, split: str
) -> Iterator[np.ndarray]:
    """Yield sequences of the concatenated texts, [n, length + 1] at a time, without the remainder.

    Raises ValueError for a text without tokens, and if all texts do not fill a sequence.
    """
    at_least("pack_text", 1, length=length)
    held, waiting, sequences = [], 0, 0
    for number, document in enumerate(itertools.chain(texts, [None])):  # None: the end
        if document is not None:
            tokens = tokeniser.encode(document)
            if not len(tokens):
                raise ValueError(
                    f"pack_text: document {number} of the {split} part is empty; leave empty "
                    "documents out"
                )
            held += [tokens, np.int32([END])]
            waiting += len(tokens) + 1
            if waiting < PACKED_AT_ONCE:
                continue
        if waiting > length:
            stream = np.concatenate(held)
            whole = np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length]
            yield whole
            sequences += len(whole)
            held = [stream[len(whole) * length :]]
            waiting = len(held[0])
    if not sequences:
        raise ValueError(
            f"pack_text: all of the {split} part has {waiting} tokens, which fill no sequence of "
            f"{length + 1}; lower length or read more documents"
        )


def write(file, sequences: Iterable[np.ndarray], vocabulary: int) -> int:
    """Write sequences into a binary file as one `.npy` array, and return their number."""
    described = {"descr": np.dtype(np.uint16 if vocabulary <= 2**16 else np.int32).str}
    count = 0
    for part in sequences:
        if not count:
            header = described | {"fortran_order": False, "shape": (0, part.shape[1])}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(part, described["descr"]).tobytes())
        count += len(part)
    file.seek(0)  # NumPy leaves room for the first axis to grow
    np.lib.format.write_array_header_1_0(file, header | {"shape": (count, header["shape"][1])})
    return count


class Stream:
    """Source of sequences from a flat file of uint16 tokens, such as nanoGPT's train.bin.

    end: the file's token that closes a document; its id and END are swapped.
    """

    def __init__(self, path: str, length: int, vocabulary: int, end: int):
        self._given = (path, length, vocabulary, end)
        try:
            tokens = np.memmap(path, np.uint16, "r")
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be mapped ({error}); write it again") from error
        self.example = Sequences(jax.ShapeDtypeStruct((length + 1,), np.int32))
        highest = sources.some(tokens).max()
        if highest >= vocabulary or len(tokens) <= length:
            raise ValueError(
                f"{path} has {len(tokens)} tokens up to {highest}, for sequences of {length + 1} "
                f"and vocabulary={vocabulary}; change length or vocabulary"
            )
        self._whole = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]

    def __len__(self) -> int:
        return len(self._whole)

    def read(self, indices: np.ndarray) -> Sequences:
        """Return the sequences at `indices`, see `runtimes.data_feed.Source`."""
        tokens, end = self._whole[indices].astype(np.int32), self._given[-1]
        return Sequences(np.where(tokens == end, END, np.where(tokens == END, end, tokens)))

    def __reduce__(self):
        return Stream, self._given  # another process maps the file again


def token_files(
    folder: str, length: int = 1024, vocabulary: int | None = None, end: int | None = None
) -> Dataset:
    """Return the `Sequences` of a folder of token files, with the number of words as classes.

    length, vocabulary, end: of `.bin` files, which do not store them; end: see `Stream`, None: no
    token closes a document.
    """
    place = Path(folder).expanduser()
    flat = [place / f"{split}.bin" for split in ("train", "val")]
    there = [path.exists() for path in flat]
    if all(there) or (any(there) and not (place / f"{SPLITS[0]}_tokens.npy").exists()):
        if vocabulary is None or length < 1:
            raise ValueError(
                f"{place}: .bin files do not say how many words there are and how long a sequence "
                "is; give vocabulary, as 50257 of GPT-2's, and a length from 1 on"
            )
        if end is not None and not 0 <= end < vocabulary:
            raise ValueError(f"{place}: end={end} is no token of vocabulary={vocabulary}; give one")
        words = vocabulary + (end is None)  # without `end`, END is a further word
        given = (length, vocabulary, vocabulary if end is None else end)
        return Dataset(*(Stream(str(path), *given) for path in flat), classes=words)
    maps = [sources.mapped(place / f"{split}_tokens.npy", "sequences, tokens") for split in SPLITS]
    try:
        words = json.loads((place / WORDS).read_text(encoding="utf-8"))["words"]
        if not isinstance(words, list):
            raise ValueError("its words are no list")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{place / WORDS} cannot be read as a vocabulary ({error}); run python -m "
            "experiments.pack_text again"
        ) from error
    train, test = (tokens.shape[1] for tokens in maps)
    if train != test or train < 2:
        raise ValueError(
            f"{place}: sequences have {train} tokens to train on and {test} to test on, where one "
            "number from 2 on is due; run python -m experiments.pack_text again"
        )
    for split, tokens in zip(SPLITS, maps, strict=True):
        seen = sources.some(tokens)
        if tokens.dtype.kind not in "iu" or not 0 <= seen.min() <= seen.max() < len(words):
            raise ValueError(
                f"{place / split}_tokens.npy has {tokens.dtype} tokens from {seen.min()} to "
                f"{seen.max()} for the {len(words)} words of {WORDS}, numbered from 0; run python "
                "-m experiments.pack_text again"
            )
    return Dataset(*(sources.Arrays(Sequences(tokens)) for tokens in maps), classes=len(words))


# --- interactions ---


@functools.lru_cache(maxsize=2)
def identifiers(files: int | None = None, at_least: int = 5) -> Interactions:
    """Return files of Python's library as users, and identifiers in order of appearance as items.

    at_least: least number of files with an identifier, and of identifiers in a file.
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
    """Return pairs of a user and a rated film, whatever the rating, as in arXiv 1708.05031.

    variant: 100k, 1m, 20m, 25m or latest-small. data_dir: see `sources.tfds_source`.
    """
    source = sources.tfds_source(f"movielens/{variant}-ratings", "train", data_dir)
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
CORPUS = Kind("corpus", CORPORA, Corpus)
INTERACTIONS = {"identifiers": identifiers, "movielens": movielens}
INTERACTION = Kind("interactions", INTERACTIONS, Interactions)
