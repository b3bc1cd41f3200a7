"""Pack a data set of text into token files, which a run then reads or streams.

    python -m experiments.pack_text --corpus=wiki40b --folder=DIR --length=1024
    python -m experiments.pack_text --corpus=input.txt --folder=DIR --length=256

See `experiments.tasks.text` for what the folder holds. Documents are read one by one, so
that a data set may be larger than the memory; --tokeniser="words(vocabulary=32768)" reads the
training part twice.
"""

import contextlib
import functools
import json
from pathlib import Path

from absl import app, flags

from experiments import files
from experiments.tasks import text


def pack(
    folder: str,
    corpus: str,
    length: int,
    tokeniser: str = "bytes",
    most: int | None = None,
    data_dir: str | None = None,
) -> dict[str, int]:
    """Write the token files of a corpus; returns how many sequences each part has.

    An error leaves an older packing as it was. Raises ValueError for a corpus that cannot be read,
    and `files.NotWritten`.
    """
    texts = functools.partial(text.documents, corpus, most=most, data_dir=data_dir)
    built = text.TOKENISER.build(tokeniser, texts=texts("train"))
    files.make(folder)
    counts, place = {}, Path(folder)
    with contextlib.ExitStack() as opened:
        for split in text.SPLITS:
            sequences = text.packed(texts(split), built, length, split)
            file = opened.enter_context(files.replacing(place / f"{split}_tokens.npy"))
            counts[split] = text.write(file, sequences, len(built.words))
        files.remove(place / text.WORDS)  # of older tokens, which are replaced next
    content = json.dumps({"tokeniser": tokeniser, "corpus": corpus, "words": list(built.words)})
    files.write(place / text.WORDS, content)
    return counts


def main(_) -> None:
    """Pack what the flags name, and print the number of sequences."""
    given = flags.FLAGS
    try:
        counts = pack(
            given.folder, given.corpus, given.length, given.tokeniser, given.documents,
            given.data_dir,
        )  # fmt: skip
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    for split, count in counts.items():
        print(f"{split}: {count} sequences of {given.length} targets")


if __name__ == "__main__":
    flags.DEFINE_string("corpus", None, "A text file, a corpus as DOCUMENTS, or a module:factory.")
    flags.DEFINE_string("folder", None, "Where the files go; made if need be.")
    flags.DEFINE_integer("length", 1024, "Targets of a sequence.")
    flags.DEFINE_string("tokeniser", "bytes", "A key of TOKENISERS and its parameters.")
    flags.DEFINE_integer("documents", None, "How many at most of either part; default all.")
    flags.DEFINE_string("data_dir", None, "Where the data set was prepared.")
    flags.mark_flags_as_required(["corpus", "folder"])
    app.run(main)
