"""Random problems against the oracle.

The lists are short and the sizes few: every new shape costs a compilation.
"""

import hypothesis
from hypothesis import strategies as st

from tests import testing

EXAMPLES = 7 if testing.IS_COMPILED else 20
settings = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
PADDING = st.sampled_from(["none", "right", "left", "ragged", "empty"])
COMMON = {
    "name": st.just("random"),
    "batch": st.integers(1, 3),
    "length": st.integers(1, 40),
    "head_dim": st.integers(1, 6),
    "window": st.integers(1, 45),
    "is_causal": st.booleans(),
    "padding": PADDING,
    "attention_mask": st.just("none"),
    "scale": st.sampled_from([None, 0.3]),
    "attn_logits_soft_cap": st.sampled_from([None, 1.5]),
}


@st.composite
def cases(draw, **fixed):
    values = {
        name: draw(strategy) for name, strategy in (COMMON | fixed).items()
    }
    kv_heads = draw(st.integers(1, 3))
    values["kv_heads"] = kv_heads
    values["heads"] = kv_heads * draw(st.integers(1, 3))
    value_dim = draw(st.sampled_from([values["head_dim"], 7]))
    return testing.Case(value_dim=value_dim, **values)


def check(case):
    for implementation in ("portable", "native_block"):
        if testing.objection(case, implementation) is None:
            testing.assert_case(case, implementation, "float32")


@settings
@hypothesis.given(cases())
def test_sliding_window(case):
    check(case)


@settings
@hypothesis.given(
    cases(
        permutation=st.sampled_from(["shared", "per_example", "per_head"]),
        exclude_local=st.sampled_from([None, 1, 4]),
    )
)
def test_stochastic_window(case):
    check(case)


@settings
@hypothesis.given(
    cases(
        permutation=st.sampled_from(["shared", "per_example", "per_head"]),
        neighborhood=st.just("block"),
        attn_logits_soft_cap=st.just(None),
    )
)
def test_stochastic_block(case):
    check(case)


@settings
@hypothesis.given(cases(top_k=st.integers(1, 4), window=st.integers(1, 9)))
def test_block_routed(case):
    check(case)
