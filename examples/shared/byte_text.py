"""Text for the examples: a folder's files as sequences of bytes.

Letters: `N` sequences, `n` tokens of a sequence.
"""

import pathlib
import sysconfig
import zlib

import numpy as np

VOCABULARY_SIZE = 256  # a token is a byte: no tokenizer to download
SEPARATOR = b"\0"  # between files; hardly ever in a text
_TEXT_SUFFIXES = {".py", ".txt", ".md", ".rst"}
_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages"}
_SMALLEST_FILE = 1000  # bytes
_HELD_OUT_SHARE = 0.1


def standard_library():
    """The folder of the interpreter's own standard library."""
    return pathlib.Path(sysconfig.get_paths()["stdlib"])


def read_texts(folder):
    """Two arrays of bytes, from the files to train on and the held-out ones.

    See `split_files`.
    """
    return tuple(_join(paths) for paths in split_files(folder))


def split_files(folder):
    """Paths of the files to train on and of the held-out ones.

    Files are split, not their lines: nothing of a held-out file was seen in
    training. Which file is held out follows from the hash of its name, so the
    split is the same on every machine and for every seed.
    """
    paths = text_files(folder)
    if len(paths) < 2:
        raise SystemExit(
            f"At least two text files of {_SMALLEST_FILE} bytes or more are "
            f"expected in the folder of --text ({sorted(_TEXT_SUFFIXES)}). "
            f"Received: {len(paths)} in {folder}"
        )

    def order(path):
        name = path.relative_to(folder).as_posix()
        return zlib.crc32(name.encode()), name

    paths = sorted(paths, key=order)
    num_held_out = max(1, round(_HELD_OUT_SHARE * len(paths)))
    return paths[num_held_out:], paths[:num_held_out]


def text_files(folder):
    """Paths of the text files in a folder and below, in order."""
    paths = (path for path in folder.rglob("*") if _is_wanted(path, folder))
    return sorted(paths)


def _is_wanted(path, folder):
    parents = path.relative_to(folder).parts[:-1]
    return (
        path.suffix in _TEXT_SUFFIXES
        and not _SKIPPED_FOLDERS.intersection(parents)
        and path.is_file()
        and path.stat().st_size >= _SMALLEST_FILE
    )


def read_file(path):
    """The bytes of a text file, as UTF-8."""
    return path.read_text("utf-8", errors="replace").encode()


def _join(paths):
    joined = SEPARATOR.join(read_file(path) for path in paths)
    return np.frombuffer(joined, dtype="uint8")


def cut_sequences(text, num_sequences, length, rng):
    """int32 `[N, n]`: sequences that start at random places of a text."""
    if len(text) < length:
        raise SystemExit(
            f"The text is expected to have at least --length tokens, {length} "
            f"with the one to predict. Received: {len(text)} tokens"
        )
    start = rng.integers(0, len(text) - length + 1, size=num_sequences)
    index = start[:, None] + np.arange(length)  # [N, n]
    return text[index].astype("int32")


def as_examples(sequences):
    """Inputs of a KerasHub model and its targets: the byte that comes next."""
    tokens, targets = sequences[:, :-1], sequences[:, 1:]  # [N, n - 1]
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    return inputs, targets


def frequency_loss(train, targets, vocabulary_size=VOCABULARY_SIZE):
    """Nats per token of a model that knows how frequent each is, only."""
    count = np.bincount(train, minlength=vocabulary_size) + 1.0
    return float(-np.log(count / count.sum())[targets].mean())


def as_text(tokens):
    """Tokens as a string to print."""
    return bytes(np.asarray(tokens, dtype="uint8")).decode(
        "utf-8", errors="replace"
    )
