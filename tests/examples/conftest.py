"""What the tests of the examples share."""

import sys

import numpy as np
import pytest
from example_runs import ROOT
from example_runs import TINY_MODEL

sys.path.insert(0, str(ROOT))  # of `examples`


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A few files of made-up code, with names that come back."""
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    words = ["window", "token", "permutation", "layer", "gate", "block"]
    for index in range(12):
        lines = [
            f"def {a}_{number}({b}):\n    return {b} + {number}\n"
            for a, b, number in zip(
                rng.choice(words, 60),
                rng.choice(words, 60),
                rng.integers(0, 100, 60),
            )
        ]
        (folder / f"file_{index}.py").write_text("\n".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_preset(tmp_path_factory):
    """A folder with a random model of bytes, which compiles fast."""
    from examples.shared import small_model

    folder = tmp_path_factory.mktemp("tiny") / "preset"
    causal_lm = small_model.build(**TINY_MODEL)
    causal_lm.save_to_preset(str(folder))
    return folder
