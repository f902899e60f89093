"""Implementation x case x dtype, values and gradients, against the oracle."""

import pytest

from keras_sa.ops.windowed import looped
from keras_sa.ops.windowed import xla
from tests import testing

IMPLEMENTATIONS = ("portable", "native_block", "looped", "sdpa", "xla")
# XLA takes seconds to compile a case: those that the loop could get wrong.
# Other dtypes of loops: `test_xla.py` and `test_looped.py`.
XLA_CASES = (
    "sliding-one_token",
    "sliding-length_is_window_plus_1",
    "sliding-no_groups",
    "sliding-window_1",
    "sliding-left_sinks",
    "sliding-empty_cap",
    "sliding-mask_ragged",
    "sliding-dilated_mask",
    "sliding-dilated_hidden",
    "sliding-hidden_first_right",
    "window-hidden_first_causal",
    "window-hidden_windows",
    "block-hidden_first",
    "window-odd_window_causal",
    "window-per_head_left_causal",
    "window-per_head_shared",
    "window-exclude_local",
    "window-mask_sinks_cap",
    "window-empty_one_kv_head",
    "block-length_is_blocks_plus_1",
    "block-empty_sinks",
    "block-mask_exclude",
)


def is_wanted(index, case, implementation, dtype):
    if implementation in ("looped", "xla"):
        wanted = implementation == "looped" or case.name in XLA_CASES
        return wanted and dtype == "float32"
    # Half precision is a cast before and after: where each is compiled, one
    # case has one of them and the next the other.
    other = testing.DTYPES[1 + index % 2]
    return not (testing.IS_COMPILED and dtype == other)


RUNS = [
    pytest.param(
        case, implementation, dtype, id=f"{case}-{implementation}-{dtype}"
    )
    for index, case in enumerate(testing.CASES)
    for implementation in IMPLEMENTATIONS
    for dtype in testing.DTYPES
    if is_wanted(index, case, implementation, dtype)
    and testing.objection(case, implementation, dtype) is None
]


@pytest.mark.parametrize("case, implementation, dtype", RUNS)
def test_value_and_gradients(case, implementation, dtype, monkeypatch):
    # Few chunks in a step, so that there is more than one.
    for module in (looped, xla):
        small = dict.fromkeys(module.SCORE_BYTES, 2**11)
        monkeypatch.setattr(module, "SCORE_BYTES", small)
    testing.assert_case(case, implementation, dtype)
