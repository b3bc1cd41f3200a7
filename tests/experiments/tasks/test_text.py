"""Words, corpora and packed documents."""

import importlib.util
import sysconfig

import numpy as np
import pytest
import tensorflow_datasets as tfds

from experiments.tasks import text
from experiments.tasks.text import END, Documents

TINY = text.corpus(
    train=[("a/x.py", "b b b c"), ("m.py", "c b 1")], test=[("a/y.py", "new c b"), ("z.py", "b")]
)
LIBRARY = {
    "a.py": "x = y",
    "os.py": "import x",
    "pack/b.py": "def x(): y",
    "pack/deep/c.py": "x y x1",
    "pack/test/d.py": "secret",
    "site-packages/e.py": "secret",
    "idlelib/idle_test/f.py": "secret",
    "_sysconfigdata__linux.py": "secret",
    "pack/readme.txt": "secret",
}


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
    assert cut.words == ("<unk>", "<end>", "b", "c")
    np.testing.assert_array_equal(cut.train.tokens, [2, 2, 2, 3, 1, 3, 2, 0, 1])
    np.testing.assert_array_equal(cut.test.tokens, [0, 3, 2, 1, 2, 1])
    assert text.limit(TINY, 5).words[-1] == "0"  # what the training part has, not `new`


@pytest.mark.parametrize("vocabulary", [2, 6])
def test_a_vocabulary_without_words_or_beyond_them(vocabulary):
    with pytest.raises(ValueError, match=f"at least 3 and at most the 5 .* got {vocabulary}"):
        text.limit(TINY, vocabulary)


def test_windows_overlap_by_size_minus_step_and_know_their_document():
    windows, document = text.windows(TINY.train, size=3, step=2)
    np.testing.assert_array_equal(windows, [[2, 2, 2], [2, 3, 1], [1, 3, 2], [2, 4, 1]])
    np.testing.assert_array_equal(document, [0, 0, 0, 1])


def test_groups_are_top_folders_by_size():
    names = ["a.py", "p/a.py", "q/a.py", "p/q/a.py", "b.py", "c.py"]
    label, groups = text.groups(names)
    assert groups == ("modules", "p", "q")
    np.testing.assert_array_equal(label, [0, 1, 2, 1, 0, 0])
    label, groups = text.groups(names, largest=1)
    assert groups == ("modules", "others")
    np.testing.assert_array_equal(label, [0, 1, 1, 1, 0, 0])


def test_hashes_fill_buckets_and_both_signs_evenly():
    codes = text.hashes([f"word{i}" for i in range(20_000)], buckets=10)
    counts = np.bincount(codes, minlength=20)
    assert len(counts) == 20
    assert np.sum((counts - 1000) ** 2 / 1000) < 50  # chi-squared, 19 degrees of freedom
    np.testing.assert_array_equal(text.hashes(["word7"], 10), codes[7:8])
    with pytest.raises(ValueError, match="buckets must be between 1 and 2"):
        text.hashes(["a"], 0)


# --- Python's library ---


@pytest.mark.usefixtures("library")
def test_the_library_is_split_by_file_without_its_tests():
    corpus = text.standard_library(test_fraction=0.5)
    assert {*corpus.train.names, *corpus.test.names} == {
        "a.py",
        "os.py",
        "pack/b.py",
        "pack/deep/c.py",
    }
    assert "secret" not in corpus.words
    text.standard_library.cache_clear()
    again = text.standard_library(test_fraction=0.5)
    assert again.words == corpus.words and again.train.names == corpus.train.names
    np.testing.assert_array_equal(again.train.tokens, corpus.train.tokens)


def test_a_file_is_on_one_side_however_many_are_read():
    few, many = text.standard_library(40), text.standard_library(80)
    for part, whole in zip(few[1:], many[1:], strict=True):
        assert set(part.names) <= set(whole.names)
    assert len(few.train.names) + len(few.test.names) == 40


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"files": 1}, "files=1 leaves . files to train on and . to test on; raise files"),
        ({"test_fraction": 1.0}, "test_fraction must lie between 0 and 1, got 1.0"),
    ],
)
def test_a_library_with_an_empty_side(given, message):
    with pytest.raises(ValueError, match=message):
        text.standard_library(**given)


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


def prepare(where, name, version, splits, features, config=None):
    """Write a data set as `tfds build` would: splits of lists of examples."""

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def split_generators(self, _):
        return {split: self._generate_examples(rows) for split, rows in splits.items()}

    def examples(self, rows):
        yield from enumerate(rows)

    body = {
        # In a package, tfds would look for the code with a library that it does not install.
        "__module__": name,
        "VERSION": tfds.core.Version(version),
        "BUILDER_CONFIGS": [tfds.core.BuilderConfig(name=config)] if config else [],
        "_info": info,
        "_split_generators": split_generators,
        "_generate_examples": examples,
        "name": name,
    }
    builder = type(name, (tfds.core.GeneratorBasedBuilder,), body, skip_registration=True)
    builder(data_dir=where, file_format="array_record").download_and_prepare()


def test_prepared_ratings_are_read_in_the_order_of_time(tmp_path):
    rows = [("u2", "7", 3), ("u1", "9", 2), ("u2", "9", 1), ("u3", "5", 1), ("u2", "5", 4)]
    rows += [("u1", "7", 5), ("u1", "9", 6)]  # the last rates a film again
    features = {
        "user_id": tfds.features.Text(),
        "movie_id": tfds.features.Text(),
        "timestamp": tfds.features.Scalar(np.int64),
    }
    examples = [dict(zip(features, row, strict=True)) for row in rows]
    prepare(tmp_path, "movielens", "0.1.1", {"train": examples}, features, "100k-ratings")
    user, item, group = text.movielens(data_dir=str(tmp_path))
    # u3 rated one film: nothing is left to train on. Films by name: 5, 7, 9 are 0, 1, 2.
    np.testing.assert_array_equal(user, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(item, [2, 1, 2, 1, 0])
    assert len(group) == 2


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (text.CORPORA["lm1b"], "lm1b"),
        (text.CORPORA["wiki40b"], "wiki40b/en"),
        (text.movielens, "movielens/100k-ratings"),
    ],
)
def test_what_is_not_prepared_says_how_to_get_it(tmp_path, monkeypatch, read, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tensorflow" else found(name)
    )
    with pytest.raises(ValueError) as caught:
        read(data_dir=str(tmp_path))
    message = str(caught.value)
    assert str(tmp_path) in message and "tensorflow is not installed" in message
    assert f"tfds build {name} --file_format=array_record" in message and "\n" not in message


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
