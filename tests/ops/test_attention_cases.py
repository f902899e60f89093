"""Implementation x case x dtype, values and gradients, against the oracle."""

import pytest

from keras_sa import testing

IMPLEMENTATIONS = ("portable", "native_block", "xla")
RUNS = [
    pytest.param(
        case, implementation, dtype, id=f"{case}-{implementation}-{dtype}"
    )
    for case in testing.CASES
    for implementation in IMPLEMENTATIONS
    for dtype in testing.DTYPES
    if testing.objection(case, implementation, dtype) is None
]


@pytest.mark.parametrize("case, implementation, dtype", RUNS)
def test_value_and_gradients(case, implementation, dtype):
    testing.assert_case(case, implementation, dtype)
