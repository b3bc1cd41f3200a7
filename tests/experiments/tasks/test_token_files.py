"""Documents packed into sequences on the disk, and read back as they were."""

import io

import numpy as np
import pytest
import tensorflow_datasets as tfds

from experiments import pack_text
from experiments.tasks import sources, text, token_files

TEXTS = ["one two two.", "two", "a longer text of more words than a sequence has", "end"]


def stream_of(tokeniser):
    """All tokens of TEXTS one after the other, as plain Python does it."""
    return [token for one in TEXTS for token in (*tokeniser.encode(one).tolist(), text.END)]


def as_text(tokens):
    return (tokens - len(text.SPECIAL)).astype(np.uint8).tobytes().decode()


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_sequences_are_the_text_and_overlap_by_a_token(monkeypatch, at_once, length):
    monkeypatch.setattr(token_files, "PACKED_AT_ONCE", at_once)
    tokeniser = token_files.of_bytes()
    parts = list(token_files.packed(TEXTS, tokeniser, length, "train"))
    found, expected = np.concatenate(parts), stream_of(tokeniser)
    assert len(found) == (len(expected) - 1) // length
    for i, sequence in enumerate(found):
        assert sequence.tolist() == expected[i * length : (i + 1) * length + 1]


def test_bytes_and_words_say_what_was_written():
    every = token_files.of_bytes()
    assert as_text(every.encode("é ")) == "é " and len(every.words) == 258
    words = token_files.of_words(TEXTS, vocabulary=5)
    assert words.words == (*text.SPECIAL, "two", "a", ".")[:5]
    assert words.encode("two three").tolist() == [2, text.UNKNOWN]
    with pytest.raises(ValueError, match="vocabulary must be from 3 to the 15 words"):
        token_files.of_words(TEXTS, vocabulary=2)


def prepared(folder, name, train, test):
    """A directory of TensorFlow Datasets with texts, as `tfds build` makes it."""
    kept = {"train": train, "test": test}

    class Texts(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        __module__ = name  # in a package, tfds would look for the code
        VERSION = tfds.core.Version("1.1.0")

        def _info(self):
            features = {"text": tfds.features.Text()}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, _):
            return {split: self._generate_examples(split) for split in kept}

        def _generate_examples(self, split):
            for number, one in enumerate(kept[split]):
                yield number, {"text": one}

    Texts.name = name
    Texts(data_dir=folder, file_format="array_record").download_and_prepare()


def test_a_prepared_data_set_is_packed_and_streamed(tmp_path):
    prepared(tmp_path / "tfds", "lm1b", TEXTS, TEXTS[:2])
    folder = tmp_path / "packed"
    counts = pack_text.pack(folder, "lm1b", 8, data_dir=str(tmp_path / "tfds"))
    dataset = token_files.token_files(str(folder))
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


def test_what_cannot_be_packed_is_one_sentence(tmp_path):
    tokeniser = token_files.of_bytes()
    with pytest.raises(ValueError, match="document 1 of the train part is empty; leave"):
        list(token_files.packed(["a", ""], tokeniser, 1, "train"))
    with pytest.raises(ValueError, match="has 2 tokens, which fill no sequence of 10"):
        list(token_files.packed(["a"], tokeniser, 9, "test"))
    with pytest.raises(ValueError, match="length must be at least 1 token, got 0"):
        list(token_files.packed(["a"], tokeniser, 0, "test"))
    with pytest.raises(ValueError, match=r"train_tokens.npy: there is no such file; prepare"):
        token_files.token_files(str(tmp_path))


def test_a_shard_that_was_cut_off_is_one_sentence(tmp_path):
    file = io.BytesIO()
    sequences = token_files.packed(TEXTS, token_files.of_bytes(), 4, "train")
    assert token_files.write(file, sequences, vocabulary=70_000) == 17
    for split in ("train", "test"):
        (tmp_path / f"{split}_tokens.npy").write_bytes(file.getvalue()[:-3])
    with pytest.raises(ValueError, match=r"train_tokens.npy cannot be mapped .* it is cut off"):
        token_files.token_files(str(tmp_path))
