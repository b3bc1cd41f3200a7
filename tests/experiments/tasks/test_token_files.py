"""Documents packed into sequences on the disk, and read back as they were."""

import io
import pickle

import jax
import numpy as np
import optax
import pytest
import tensorflow_datasets as tfds

from algorithms import all_reduce
from experiments import pack_text, tasks
from experiments.tasks import sampling, sources, text
from runtimes.data_feed import Streamed
from runtimes.simulate import Simulator
from stragglers import delays
from tests import planned
from tests.experiments.tasks.test_text import prepare

TEXTS = ["one two two.", "two", "a longer text of more words than a sequence has", "end"]


def stream_of(tokeniser):
    """All tokens of TEXTS one after the other, as plain Python does it."""
    return [token for one in TEXTS for token in (*tokeniser.encode(one).tolist(), text.END)]


def as_text(tokens):
    return (tokens - len(text.SPECIAL)).astype(np.uint8).tobytes().decode()


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_sequences_are_the_text_and_overlap_by_a_token(monkeypatch, at_once, length):
    monkeypatch.setattr(text, "PACKED_AT_ONCE", at_once)
    tokeniser = text.of_bytes()
    parts = list(text.packed(TEXTS, tokeniser, length, "train"))
    found, expected = np.concatenate(parts), stream_of(tokeniser)
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


def test_a_prepared_data_set_is_packed_and_streamed(tmp_path):
    splits = {
        "train": [{"text": one} for one in TEXTS],
        "test": [{"text": one} for one in TEXTS[:2]],
    }
    prepare(tmp_path / "tfds", "lm1b", "1.1.0", splits, {"text": tfds.features.Text()})
    folder = tmp_path / "packed"
    counts = pack_text.pack(folder, "lm1b", 8, data_dir=str(tmp_path / "tfds"))
    dataset = text.token_files(str(folder))
    train = sources.stream().of(dataset.train)
    assert dataset.classes == 258 and len(train) == counts["train"]
    assert train.source.example.tokens.shape == (9,) and train.sample_bytes <= 36
    read = train.source.read(np.arange(len(train))).tokens
    whole = sources.memory().of(dataset.train).tokens
    np.testing.assert_array_equal(read, whole)
    assert np.isin(text.END, read) and read.dtype == whole.dtype
    # Preparing shuffles documents, so that only what they hold is compared.
    flat = np.concatenate([read[0, :1], read[:, 1:].ravel()])
    said = as_text(flat[flat > text.END])
    assert sum(one in said for one in TEXTS) >= len(TEXTS) - 1  # the end fills no sequence


LINES = "".join(f"line {number} of a play\n" for number in range(40))


def mine(split, times=1):
    """A corpus that is brought along."""
    return (one * times for one in TEXTS)


def odd(split):
    return iter([b"bytes"])


@pytest.mark.parametrize(
    "corpus", ["play.txt", "*.txt", "files(glob='pl?y.txt', test_fraction=0.1)"]
)
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


def test_a_corpus_is_brought_along(tmp_path):
    once, twice = (
        pack_text.pack(tmp_path / name, f"{__name__}:{call}", 4)
        for name, call in (("once", "mine"), ("twice", "mine(times=2)"))
    )
    assert once["train"] < twice["train"]


@pytest.mark.parametrize(
    ("corpus", "words"),
    [
        ("no_such.txt", "files: no file is called 'no_such.txt'"),
        ("latin.txt", "latin.txt cannot be read as text in UTF-8"),
        ("files(glob=*.txt)", r"quotes inside of the part, glob='\*.txt'"),
        ("files(glob='latin.txt', test_fraction=2)", "test_fraction must lie between 0 and 1"),
        ("wiki41b", "corpus: unknown name 'wiki41b'; did you mean 'wiki40b'"),
        (f"{__name__}:odd", "document 0 of the train part is bytes; let the corpus give texts"),
    ],
)
def test_a_corpus_that_is_none_is_one_sentence(tmp_path, monkeypatch, corpus, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 30)
    with pytest.raises(ValueError, match=words):
        pack_text.pack("packed", corpus, 8)


def test_what_cannot_be_packed_is_one_sentence(tmp_path):
    tokeniser = text.of_bytes()
    with pytest.raises(ValueError, match="document 1 of the train part is empty; leave"):
        list(text.packed(["a", ""], tokeniser, 1, "train"))
    with pytest.raises(ValueError, match="has 2 tokens, which fill no sequence of 10"):
        list(text.packed(["a"], tokeniser, 9, "test"))
    with pytest.raises(ValueError, match="length must be at least 1 token, got 0"):
        list(text.packed(["a"], tokeniser, 0, "test"))
    with pytest.raises(ValueError, match=r"train_tokens.npy: there is no such file; prepare"):
        text.token_files(str(tmp_path))


@pytest.mark.parametrize(
    "tokens, words",
    [
        ([[0, 5], [2, 1]], r"test_tokens.npy has int64 tokens from 0 to 5 for the 5 words of"),
        ([[0, -1]], "tokens from -1 to 0 for the 5 words"),
        ([[0.0, 1.0]], "has float64 tokens"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(tmp_path, tokens, words):
    (tmp_path / "words.json").write_text('{"words": ["a", "b", "c", "d", "e"]}')
    for split, array in (("train", [[4, 0]]), ("test", tokens)):
        np.save(tmp_path / f"{split}_tokens.npy", np.array(array))
    with pytest.raises(ValueError, match=words):
        text.token_files(str(tmp_path))


def test_a_shard_that_was_cut_off_is_one_sentence(tmp_path):
    file = io.BytesIO()
    sequences = text.packed(TEXTS, text.of_bytes(), 4, "train")
    assert text.write(file, sequences, vocabulary=70_000) == 17
    for split in ("train", "test"):
        (tmp_path / f"{split}_tokens.npy").write_bytes(file.getvalue()[:-3])
    with pytest.raises(ValueError, match=r"train_tokens.npy cannot be mapped .* it is cut off"):
        text.token_files(str(tmp_path))


def test_flat_tokens_of_nanogpt_are_mapped_with_their_end_as_ours(tmp_path):
    """train.bin and val.bin of uint16, where token 7 closes a document, or none does."""
    tokens = np.array([3, 1, 7, 2, 1, 0, 7, 5], np.uint16)
    for split in ("train", "val"):
        tokens.tofile(tmp_path / f"{split}.bin")
    dataset = text.token_files(str(tmp_path), length=3, vocabulary=8, end=7)
    again = pickle.loads(pickle.dumps(dataset.train))
    assert dataset.classes == 8 and len(again) == 2
    assert again.read(np.array([1, 0])).tokens.tolist() == [
        [2, 7, 0, text.END],
        [3, 7, text.END, 2],
    ]
    dataset = text.token_files(str(tmp_path), length=7, vocabulary=8)
    assert dataset.classes == 9 and text.END not in dataset.test.read(np.array([0])).tokens
    streamed = f"packed_text(folder={str(tmp_path)!r}, model={GPT}, reading=stream, length=3, "
    task = tasks.build(f"{streamed}vocabulary=8, end=7)")
    losses = task.losses(task.init(jax.random.key(0)), tasks.take(task.train, slice(2)))
    assert losses.shape == (2,) and np.isfinite(losses).all()
    for given, words in (
        ({}, "give vocabulary"),
        ({"vocabulary": 7}, "tokens up to 7"),
        ({"vocabulary": 8, "end": 8}, "end=8 is no token of vocabulary=8"),
    ):
        with pytest.raises(ValueError, match=words):
            text.token_files(str(tmp_path), **given)


GPT = "gpt(layers=1, width=16, heads=2)"


@pytest.mark.slow
def test_training_on_streamed_sequences_is_training_in_memory(tmp_path):
    pack_text.pack(tmp_path, "generated", 12, "words(vocabulary=64)", most=40)
    streamed, held = (
        tasks.build(f"packed_text(folder={str(tmp_path)!r}, model={GPT}, reading={reading})")
        for reading in ("stream", "memory")
    )
    assert isinstance(streamed.train, Streamed)
    assert streamed.train.source.example.tokens.shape == (13,)
    ends = [trained(task) for task in (streamed, held)]
    for one, other in zip(*(jax.tree.leaves(end) for end in ends), strict=True):
        np.testing.assert_array_equal(one, other)
    before = tasks.evaluate(held, held.init(jax.random.key(0)))
    after = tasks.evaluate(streamed, ends[0])
    assert after["train_loss"] < before["train_loss"] - 0.1
    assert after["test_perplexity"] == pytest.approx(np.exp(after["test_loss"]))
    for task in (streamed, held):
        with pytest.raises(ValueError, match="packed text have no labels; use split=iid"):
            np.asarray(task.labels)


def trained(task):
    """The parameters after some updates of two workers."""
    shards = np.array_split(np.arange(tasks.count(task.train)), 2)
    samples = sampling.Sampler(shards, 4, 0)
    rule = planned.rule("barrier", delays.exponential(0.3), 2, 1, 3)
    runtime = Simulator(
        all_reduce(optax.adam(0.01)), task.losses, task.train, samples, rule, mini_batches=1
    )
    state, _ = runtime.advance(runtime.start(task.init(jax.random.key(0))), np.inf, 20)
    models = runtime.models(state)
    runtime.close()
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), models)
