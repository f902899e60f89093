"""Where the text of pre-training comes from: documents that are read one by
one, never all at once.
"""

import zlib

from examples.shared import byte_text

_HELD_OUT_SHARE = 0.1
_MOST_HELD_OUT = 1000  # documents: more than the held-out loss reads


def find(arguments):
    """The documents to train on and the held-out ones.

    Args:
        arguments: of the command line: `dataset` and what belongs to it, or
            `text`.
    """
    if arguments.dataset:
        return _of_dataset(
            arguments.dataset,
            arguments.dataset_config,
            arguments.data_files,
            arguments.text_column,
        )
    folder = arguments.text or byte_text.standard_library()
    train, held_out = byte_text.split_files(folder)
    return Files(train, folder), Files(held_out, folder)


def some(documents, most):
    """At most as many documents, evenly from all of them, one by one."""
    step = -(-len(documents) // most)
    return (documents[index] for index in range(0, len(documents), step))


class Files:
    """Text files; each is a document.

    Args:
        paths: of the files.
        folder: path of the folder that they are in.
    """

    def __init__(self, paths, folder):
        self.paths = paths
        self.folder = folder

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return byte_text.read_file(self.paths[index]).decode()

    def describe(self):
        """What a run that is resumed has to find again."""
        names = [
            f"{path.relative_to(self.folder).as_posix()} {path.stat().st_size}"
            for path in self.paths
        ]
        return {"documents": len(self), "checksum": _checksum(names)}


class Rows:
    """The rows of a dataset of Hugging Face; each is a document.

    Args:
        dataset: a `datasets.Dataset`, which maps its files into memory.
        column: name of the column of text.
    """

    def __init__(self, dataset, column):
        self.dataset = dataset.select_columns([column])
        self.column = column

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[int(index)][self.column]

    def describe(self):
        """What a run that is resumed has to find again."""
        some = [self[0], self[len(self) // 2], self[len(self) - 1]]
        return {"documents": len(self), "checksum": _checksum(some)}


def _checksum(texts):
    return zlib.crc32("\n".join(texts).encode("utf-8", errors="replace"))


def _of_dataset(name, config, data_files, column):
    import datasets  # slow to import, and needed for this alone

    splits = datasets.load_dataset(name, config, data_files=data_files)
    train = splits["train"]
    if column not in train.column_names:
        raise SystemExit(
            f"--text-column is expected to be one of {train.column_names}, "
            f"the columns of {name}. Received: {column}"
        )
    held_out = splits.get("validation", splits.get("test"))
    if held_out is None:
        parts = train.train_test_split(_num_held_out(len(train), name), seed=0)
        train, held_out = parts["train"], parts["test"]
    return Rows(train, column), Rows(held_out, column)


def _num_held_out(num_documents, name):
    if num_documents < 2:
        raise SystemExit(
            "At least two documents are expected in the dataset of --dataset. "
            f"Received: {num_documents} in {name}"
        )
    return min(_MOST_HELD_OUT, max(1, int(_HELD_OUT_SHARE * num_documents)))
