"""Implementation x case x dtype, values and gradients, against the oracle."""

import pytest

from keras_sa import testing
from keras_sa.ops.windowed import tensorflow_xla

IMPLEMENTATIONS = ("portable", "native_block", "xla")
RUNS = [
    pytest.param(
        case, implementation, dtype, id=f"{case}-{implementation}-{dtype}"
    )
    for case in testing.CASES
    for implementation in IMPLEMENTATIONS
    # XLA takes seconds a case; other dtypes: `test_tensorflow_xla.py`.
    for dtype in (testing.DTYPES if implementation != "xla" else ("float32",))
    if testing.objection(case, implementation, dtype) is None
]


@pytest.mark.parametrize("case, implementation, dtype", RUNS)
def test_value_and_gradients(case, implementation, dtype, monkeypatch):
    # Few chunks in a step, so that there is more than one.
    small = dict.fromkeys(tensorflow_xla.SCORE_BYTES, 2**11)
    monkeypatch.setattr(tensorflow_xla, "SCORE_BYTES", small)
    testing.assert_case(case, implementation, dtype)
