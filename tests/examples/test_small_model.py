"""The model that is kept beside the examples is what it is said to be."""

import re

import numpy as np
import pytest

from examples.shared import byte_text
from examples.shared import small_model
from examples.shared.language_model import LanguageModel

LENGTH = 512  # what it was trained on
NUM_SEQUENCES = 4


@pytest.fixture(scope="module")
def kept():
    return LanguageModel(small_model.load())


def test_is_the_model_of_its_readme(kept):
    backbone = kept.causal_lm.backbone
    assert backbone.num_layers == 6
    assert backbone.vocabulary_size == byte_text.VOCABULARY_SIZE
    readme = (small_model.FOLDER / "README.md").read_text("utf-8")
    parameters = re.search(r"parameters: ([\d,]+)", readme).group(1)
    assert int(parameters.replace(",", "")) == kept.causal_lm.count_params()


def test_knows_the_standard_library(kept):
    train, held_out = byte_text.read_texts(byte_text.standard_library())
    examples = kept.draw(
        kept.encode_some(held_out, NUM_SEQUENCES * LENGTH),
        NUM_SEQUENCES,
        LENGTH,
        np.random.default_rng(0),
    )
    kept.compile(seed=0)
    loss = kept.loss(examples, batch_size=NUM_SEQUENCES)
    assert loss < 2.2  # nats per byte
    assert byte_text.frequency_loss(train, examples[1]) > 3.0
