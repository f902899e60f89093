"""Where text comes from, and what the folder of a run keeps."""

import argparse
import json

import keras_hub
import numpy as np
import pytest
from example_runs import TINY_MODEL

from examples.pretrain import documents
from examples.pretrain import tokenizing
from examples.pretrain.model import build_model
from examples.pretrain.run_folder import RunFolder
from examples.pretrain.sizes import Shape
from keras_sa import hub
from keras_sa.patterns import Full
from keras_sa.patterns import Stochastic

SHAPE = Shape(**TINY_MODEL)


def arguments(**changes):
    given = {
        "text": None,
        "dataset": None,
        "dataset_config": None,
        "data_files": None,
        "text_column": "text",
        "steps": 3,
    }
    return argparse.Namespace(**{**given, **changes})


@pytest.fixture
def dataset(text_folder, tmp_path, monkeypatch):
    """Arguments for a dataset of one file; each row is a document."""
    cache = str(tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
    texts = [path.read_text() for path in sorted(text_folder.iterdir())]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"content": t}) for t in texts))
    return arguments(
        dataset="json", data_files=[str(file)], text_column="content"
    )


def texts_of(documents):
    return {documents[index] for index in range(len(documents))}


def check_split(train, held_out, text_folder):
    """Every document is in one of both."""
    texts = {path.read_text() for path in text_folder.iterdir()}
    assert texts_of(train) | texts_of(held_out) == texts
    assert not texts_of(train) & texts_of(held_out)
    assert len(held_out) == 1
    assert train.describe() != held_out.describe()


def test_files_are_documents(text_folder):
    train, held_out = documents.find(arguments(text=text_folder))
    check_split(train, held_out, text_folder)


def test_rows_are_documents(text_folder, dataset):
    train, held_out = documents.find(dataset)
    check_split(train, held_out, text_folder)
    again, _ = documents.find(dataset)
    assert again.describe() == train.describe()


def test_a_missing_column_is_explained(dataset):
    dataset.text_column = "text"
    with pytest.raises(SystemExit, match=r"one of \['content'\]"):
        documents.find(dataset)


@pytest.mark.parametrize("most, expected", [(4, 4), (5, 4), (12, 12)])
def test_some_documents_are_from_everywhere(most, expected):
    some = list(documents.some(range(12), most))
    assert len(some) == expected
    assert some[0] == 0 and some[-1] >= 8


def test_a_preset_has_the_byte_pairs(text_folder, dataset, tmp_path):
    run = RunFolder(tmp_path / "run")
    train, _ = documents.find(dataset)
    run.claim(dataset, train.describe())
    tokenizer = tokenizing.load_or_train(
        "bpe", 300, documents.some(train, 100), run.tokenizer
    )
    model = build_model(SHAPE, tokenizer.vocabulary_size, "float32")
    for pattern in (Full(), Stochastic(4)):
        if pattern != Full():
            hub.swap_attention(model, pattern)
        run.keep(model, tokenizer.preprocessor(8), {"attention": str(pattern)})
        assert (
            f"- attention: {pattern}" in (run.folder / "README.md").read_text()
        )
        loaded = keras_hub.models.CausalLM.from_preset(str(run.preset))
        text = "def window_1(token):"
        np.testing.assert_array_equal(
            loaded.preprocessor.tokenizer.tokenize(text), tokenizer.encode(text)
        )
    assert hub.current_swap(hub.from_preset(run.preset)) is not None


def test_other_arguments_are_refused(tmp_path):
    run = RunFolder(tmp_path)
    documents = {"documents": 2, "checksum": 1}
    run.claim(arguments(output=tmp_path / "a"), documents)
    run.claim(arguments(output=tmp_path / "b"), documents)
    run.claim(arguments(steps=2), documents)  # nothing is lost
    run.claim(arguments(), documents)
    run.checkpoints.mkdir()
    (run.checkpoints / "step_000000001.npz").touch()
    run.claim(arguments(), documents)
    with pytest.raises(SystemExit, match="steps: 3 before, 4 now"):
        run.claim(arguments(steps=4), documents)
    with pytest.raises(SystemExit, match="documents: 2 before, 3 now"):
        run.claim(arguments(), {**documents, "documents": 3})
