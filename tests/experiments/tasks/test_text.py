"""Words, corpora, packed documents, and sequences on the disk that are read back as they were."""

import importlib.util
import pickle
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from experiments import pack_text
from experiments.tasks import text
from experiments.tasks.text import END, Documents

TINY = text.corpus(
    train=[("a/x.py", "b b b c"), ("m.py", "c b 1")], test=[("a/y.py", "new c b"), ("z.py", "b")]
)
LIBRARY = {
    "a.py": "x = y", "os.py": "import x", "pack/b.py": "def x(): y", "pack/deep/c.py": "x y x1",
    "pack/test/d.py": "secret", "site-packages/e.py": "secret", "idlelib/idle_test/f.py": "secret",
    "_sysconfigdata__linux.py": "secret", "pack/readme.txt": "secret",
}  # fmt: skip


@pytest.fixture
def library(tmp_path, monkeypatch):
    for name, words in LIBRARY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(words)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    caches = text.standard_library, text.identifiers
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


# --- words ---


def test_tokens_are_words_shapes_of_numbers_and_marks():
    words = text.tokenise("def f_1(x):  # é\n\treturn 3.14*x+0xFF-1e5 != 'A b.'")
    assert " ".join(words) == "def f_1 ( x ) : # é return 0.00 * x + 0x00 - 0e0 ! = ' A b . '"
    assert text.tokenise(" \n") == []


def test_words_are_numbered_by_frequency_in_the_training_part():
    # b four times, c twice, 0 once; `new` is in the test part alone.
    assert TINY.words == ("<unk>", "<end>", "b", "c", "0", "new")
    np.testing.assert_array_equal(TINY.train.tokens, [2, 2, 2, 3, 1, 3, 2, 4, 1])
    np.testing.assert_array_equal(TINY.train.starts, [0, 5, 9])
    np.testing.assert_array_equal(TINY.test.tokens, [5, 3, 2, 1, 2, 1])
    assert TINY.test.names == ("a/y.py", "z.py") and TINY.test.tokens.dtype == np.int32


def test_a_limited_vocabulary_leaves_the_rest_unknown():
    cut = text.limit(TINY, 4)
    np.testing.assert_array_equal(cut.train.tokens, [2, 2, 2, 3, 1, 3, 2, 0, 1])
    with pytest.raises(ValueError, match=r"at least 3 and at most the 5 .* got 6"):
        text.limit(TINY, 6)


def test_windows_overlap_by_size_minus_step_and_know_their_document():
    windows, document = text.windows(TINY.train, size=3, step=2)
    np.testing.assert_array_equal(windows, [[2, 2, 2], [2, 3, 1], [1, 3, 2], [2, 4, 1]])
    np.testing.assert_array_equal(document, [0, 0, 0, 1])


# --- Python's library ---


@pytest.mark.usefixtures("library")
def test_the_library_is_split_by_file_without_its_tests():
    corpus = text.standard_library(test_fraction=0.5)
    kept = {"a.py", "os.py", "pack/b.py", "pack/deep/c.py"}
    assert {*corpus.train.names, *corpus.test.names} == kept and "secret" not in corpus.words
    text.standard_library.cache_clear()
    again = text.standard_library(test_fraction=0.5)
    assert again.words == corpus.words and again.train.names == corpus.train.names
    np.testing.assert_array_equal(again.train.tokens, corpus.train.tokens)


def test_a_file_is_on_one_side_however_many_are_read():
    few, many = text.standard_library(40), text.standard_library(80)
    for part, whole in zip(few[1:], many[1:], strict=True):
        assert set(part.names) <= set(whole.names)
    assert len(few.train.names) + len(few.test.names) == 40
    with pytest.raises(ValueError, match=r"files=1 leaves . files to train on and . to test on"):
        text.standard_library(1)


# --- interactions ---


@pytest.mark.usefixtures("library")
def test_identifiers_come_in_the_order_of_their_appearance(monkeypatch):
    library = text.standard_library
    monkeypatch.setattr(text, "standard_library", lambda files: library(files, 0.5))
    found = text.identifiers(at_least=2)
    # Only x and y are in two files; os.py has x alone; `def` and `import` are no identifiers.
    np.testing.assert_array_equal(found.user, [0, 0, 1, 1, 2, 2])
    x, y = found.item[:2]
    assert {x, y} == {0, 1}
    np.testing.assert_array_equal(found.item, [x, y] * 3)
    assert len(found.group) == 3
    with pytest.raises(ValueError, match="no file has 4 identifiers that are in 4 files"):
        text.identifiers(at_least=4)


# --- TensorFlow Datasets ---


def test_what_is_not_prepared_says_how_to_get_it(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tensorflow" else found(name)
    )
    with pytest.raises(ValueError) as caught:
        text.CORPORA["wiki40b"](data_dir=str(tmp_path))
    message = str(caught.value)
    assert str(tmp_path) in message and "tensorflow is not installed" in message
    assert "tfds build wiki40b/en --file_format=array_record" in message and "\n" not in message


# --- packed documents ---


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
    lengths = np.random.default_rng(1).integers(1, 20, 400)  # best fit leaves little room
    assert len(text.pack(documents(*lengths), 63).tokens) <= 1.03 * (lengths + 1).sum() / 64


@pytest.mark.parametrize("length", [1, 7, 30])
def test_every_word_but_first_ones_is_a_target_once(length):
    lengths = np.random.default_rng(0).integers(0, 40, 50)
    part = documents(*lengths)
    packed = text.pack(part, length)
    alone = [part.tokens[a:b] for a, b in zip(part.starts[:-1], part.starts[1:], strict=True)]
    expected = sorted(pair for words in alone for pair in zip(words[1:], words[:-1], strict=True))
    assert targets(packed.tokens) == expected
    assert (np.diff(packed.document) >= 0).all() and len(packed.document) == len(packed.tokens)


# --- token files ---


TEXTS = ["one two two.", "two", "a longer text of more words than a sequence has", "end"]


def as_text(tokens):
    return (tokens - len(text.SPECIAL)).astype(np.uint8).tobytes().decode()


@pytest.mark.parametrize(("at_once", "length"), [(1, 3), (1 << 20, 16)])
def test_sequences_are_the_text_and_overlap_by_a_token(monkeypatch, at_once, length):
    monkeypatch.setattr(text, "PACKED_AT_ONCE", at_once)
    tokeniser = text.of_bytes()
    parts = list(text.packed(TEXTS, tokeniser, length, "train"))
    found = np.concatenate(parts)
    # All tokens one after the other, as plain Python does it.
    expected = [token for one in TEXTS for token in (*tokeniser.encode(one).tolist(), text.END)]
    assert len(found) == (len(expected) - 1) // length
    for i, sequence in enumerate(found):
        assert sequence.tolist() == expected[i * length : (i + 1) * length + 1]


def test_bytes_and_words_say_what_was_written():
    every = text.of_bytes()
    assert as_text(every.encode("é ")) == "é " and len(every.words) == 258
    words = text.of_words(TEXTS, vocabulary=5)
    assert words.words == (*text.SPECIAL, "two", "a", ".")[:5]
    assert words.encode("two three").tolist() == [2, text.UNKNOWN]
    with pytest.raises(ValueError, match="vocabulary must be from 3 to the 15 words"):
        text.of_words(TEXTS, vocabulary=2)


LINES = "".join(f"line {number} of a play\n" for number in range(40))


def odd(split):
    return iter([b"bytes"])


@pytest.mark.parametrize("corpus", ["play.txt", "files(glob='pl?y.txt', test_fraction=0.1)"])
def test_text_of_ones_own_is_packed(tmp_path, monkeypatch, corpus):
    """The last tenth of a file, from the end of a line on, is the test part."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text("\ufeff" + LINES, encoding="utf-8")
    pack_text.pack("packed", corpus, 8)
    train, test = (np.load(f"packed/{split}_tokens.npy").astype(int) for split in text.SPLITS)
    flat = (np.r_[one[0, :1], one[:, 1:].ravel()] for one in (train, test))
    said, held_out = (as_text(tokens[tokens > text.END]) for tokens in flat)
    assert LINES.startswith(said) and 0.8 < len(said) / len(LINES) < 0.95
    assert held_out.startswith("line 37 of") and held_out in LINES


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_text_in_one_line_is_cut_between_words(tmp_path, end):
    (tmp_path / "one").write_text("word " * 100 + "last" + end)
    train, test = ("".join(text.files(part, f"{tmp_path}/one")) for part in text.SPLITS)
    assert (train, test) == ("word " * 91, "word " * 9 + "last" + end)


@pytest.mark.parametrize(
    ("corpus", "words"),
    [
        ("no_such.txt", "files: no file is called 'no_such.txt'"),
        ("latin.txt", "latin.txt cannot be read as text in UTF-8"),
        ("files(glob='latin.txt', test_fraction=2)", "test_fraction must lie between 0 and 1"),
        (f"{__name__}:odd", "document 0 of the train part is bytes; let the corpus give texts"),
    ],
)
def test_a_corpus_that_is_none_is_one_sentence(tmp_path, monkeypatch, corpus, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 30)
    with pytest.raises(ValueError, match=words):
        pack_text.pack("packed", corpus, 8)


def test_a_packing_that_fails_leaves_the_older_one(tmp_path, monkeypatch):
    """A test part of fewer tokens than a sequence is found when the training part is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text(LINES)
    (tmp_path / "line.txt").write_text("one long line " * 4)
    pack_text.pack("packed", "play.txt", 8)
    before = {path.name: path.read_bytes() for path in Path("packed").iterdir()}
    with pytest.raises(ValueError, match="all of the test part has 6 tokens"):
        pack_text.pack("packed", "line.txt", 8)
    assert {path.name: path.read_bytes() for path in Path("packed").iterdir()} == before


def test_token_files_of_others_are_one_sentence(tmp_path):
    def write(train=(3, 5), test=(2, 5), words='{"words": ["a", "b"]}'):
        for split, shape in (("train", train), ("test", test)):
            np.save(tmp_path / f"{split}_tokens.npy", np.ones(shape, np.uint16))
        (tmp_path / text.WORDS).write_text(words)

    write()
    assert text.token_files(str(tmp_path)).classes == 2
    for given, words in (
        ({"train": (3, 1), "test": (2, 1)}, "have 1 tokens to train on and 1 to test on"),
        ({"test": (2, 4)}, "have 5 tokens to train on and 4 to test on, where one number from 2"),
        ({"words": '{"words": 5}'}, "cannot be read as a vocabulary .its words are no list"),
        ({"words": "[" * 200_000}, "cannot be read as a vocabulary .maximum recursion depth"),
        ({"words": '{"words": ["a"]}'}, "tokens from 1 to 1 for the 1 words"),
    ):
        write(**given)
        with pytest.raises(ValueError, match=words):
            text.token_files(str(tmp_path))


def test_flat_tokens_of_nanogpt_are_mapped_with_their_end_as_ours(tmp_path):
    """train.bin and val.bin of uint16, where token 7 closes a document, or none does."""
    tokens = np.array([3, 1, 7, 2, 1, 0, 7, 5], np.uint16)
    for split in ("train", "val"):
        tokens.tofile(tmp_path / f"{split}.bin")
    dataset = text.token_files(str(tmp_path), length=3, vocabulary=8, end=7)
    again = pickle.loads(pickle.dumps(dataset.train))
    assert dataset.classes == 8 and len(again) == 2
    read = again.read(np.array([1, 0])).tokens
    assert read.tolist() == [[2, 7, 0, text.END], [3, 7, text.END, 2]]
    dataset = text.token_files(str(tmp_path), length=7, vocabulary=8)
    assert dataset.classes == 9 and text.END not in dataset.test.read(np.array([0])).tokens
    for given, words in (
        ({}, "give vocabulary"),
        ({"vocabulary": 7}, "tokens up to 7"),
        ({"vocabulary": 8, "end": 8}, "end=8 is no token of vocabulary=8"),
    ):
        with pytest.raises(ValueError, match=words):
            text.token_files(str(tmp_path), **given)
    (tmp_path / "val.bin").unlink()
    with pytest.raises(ValueError, match=r"val.bin.*[Nn]o such file"):
        text.token_files(str(tmp_path), length=3, vocabulary=8)


def test_documents_alone_in_their_sequences():
    part = text.Documents(("a", "b", "c"), np.arange(10, 23), np.array([0, 6, 7, 13]))
    alone = text.pad(part, 4)
    np.testing.assert_array_equal(
        alone.tokens,
        [[10, 11, 12, 13, 14], [14, 15, *3 * [text.END]], [17, 18, 19, 20, 21],
         [21, 22, *3 * [text.END]]],
    )  # fmt: skip
    np.testing.assert_array_equal(alone.document, [0, 0, 2, 2])
