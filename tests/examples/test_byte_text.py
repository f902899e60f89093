"""The text of the examples: whole files are held out, by their names."""

import numpy as np
import pytest

from examples.shared import byte_text


def test_files_are_held_out_by_name(text_folder):
    train, held_out = byte_text.split_files(text_folder)
    assert len(held_out) == 1  # a tenth of 12
    assert {*train, *held_out} == {*text_folder.iterdir()}
    assert not {*train} & {*held_out}


def test_unusable_text_is_explained(tmp_path):
    with pytest.raises(SystemExit, match="At least two text files"):
        byte_text.read_texts(tmp_path)


def test_frequencies_alone_are_the_entropy_of_their_text():
    text = np.repeat(np.arange(4), 100_000)
    loss = byte_text.frequency_loss(text, text[:10], vocabulary_size=4)
    assert loss == pytest.approx(np.log(4), rel=1e-4)
