"""Bad input raises a ValueError that says what was expected and what came."""

import numpy as np
import pytest
from keras import ops

from keras_sa import _validation
from keras_sa import backend
from keras_sa.ops import block_routed_attention
from keras_sa.ops import sample_permutation
from keras_sa.ops import sliding_window_attention
from keras_sa.ops import stochastic_attention
from tests import testing

BATCH, LENGTH, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 2, 9, 6, 3, 4, 5
MESSAGE = "(?s)expected.*Received"


def about(name):
    return f"(?s){name}.*expected.*Received"


BAD_SIZES = [0, -3, 2.0, True, "4", None, np.float32(2)]


def zeros(*shape, dtype="float32"):
    return ops.zeros(shape, dtype=dtype)


def make_tensors():
    return {
        "query": zeros(BATCH, LENGTH, HEADS, HEAD_DIM),
        "key": zeros(BATCH, LENGTH, KV_HEADS, HEAD_DIM),
        "value": zeros(BATCH, LENGTH, KV_HEADS, VALUE_DIM),
    }


def call(path, **changes):
    tensors = {
        **make_tensors(),
        "permutation": np.arange(LENGTH, dtype="int32"),
    }
    return testing.PATHS[path](**{**tensors, **changes})


parametrize_path = pytest.mark.parametrize("path", testing.PATHS)

BAD = {
    "rank_of_query": {"query": np.zeros((LENGTH, HEADS, HEAD_DIM), "float32")},
    "rank_of_value": {"value": np.zeros((BATCH, LENGTH, VALUE_DIM), "float32")},
    "heads_do_not_divide": {
        "query": np.zeros((BATCH, LENGTH, 4, HEAD_DIM), "float32")
    },
    "heads_of_value": {
        "value": np.zeros((BATCH, LENGTH, 1, VALUE_DIM), "float32")
    },
    "head_dims_differ": {
        "query": np.zeros((BATCH, LENGTH, HEADS, 7), "float32")
    },
    "lengths_differ": {
        "query": np.zeros((BATCH, 8, HEADS, HEAD_DIM), "float32")
    },
    "batches_differ": {
        "value": np.zeros((1, LENGTH, KV_HEADS, VALUE_DIM), "float32")
    },
    "integers": {"query": np.zeros((BATCH, LENGTH, HEADS, HEAD_DIM), "int32")},
    "padding_batch": {"padding_mask": np.ones((1, LENGTH), bool)},
    "padding_length": {"padding_mask": np.ones((BATCH, 8), bool)},
    "padding_rank": {"padding_mask": np.ones((BATCH, 1, LENGTH), bool)},
    "padding_float": {"padding_mask": np.ones((BATCH, LENGTH), "float32")},
    "mask_rank": {"attention_mask": np.ones((LENGTH, LENGTH), bool)},
    "mask_rank_4": {
        "attention_mask": np.ones((BATCH, 1, LENGTH, LENGTH), bool)
    },
    "mask_batch": {"attention_mask": np.ones((3, LENGTH, LENGTH), bool)},
    "mask_length": {"attention_mask": np.ones((1, LENGTH, 8), bool)},
    "mask_float": {"attention_mask": np.ones((1, LENGTH, LENGTH), "float32")},
    "sinks": {"sinks": np.ones(KV_HEADS, "float32")},
    "scale": {"scale": 0.0},
    "negative_scale": {"scale": -1.0},
    "soft_cap": {"attn_logits_soft_cap": 0},
    "scale_bool": {"scale": True},
    "scale_numpy": {"scale": np.float32(-1)},
    "scale_array": {"scale": np.array(0.0)},
    "scale_vector": {"scale": np.ones(2)},
    "scale_infinite": {"scale": float("inf")},
    "scale_nan": {"scale": np.float64("nan")},
    "soft_cap_numpy": {"attn_logits_soft_cap": np.int64(-3)},
    "soft_cap_infinite": {"attn_logits_soft_cap": np.float32("inf")},
    "dropout_1": {"dropout": 1.0},
    "negative_dropout": {"dropout": -0.1},
    "dropout_bool": {"dropout": True},
}


@parametrize_path
@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments(path, bad):
    with pytest.raises(ValueError, match=MESSAGE):
        call(path, **BAD[bad])


@parametrize_path
def test_the_good_call_does_not_raise(path):
    changes = {}
    if path == "native_block":  # on JAX it needs equal head dims
        changes["value"] = np.zeros(
            (BATCH, LENGTH, KV_HEADS, HEAD_DIM), "float32"
        )
    output = backend.compile(lambda: call(path, **changes))()
    assert tuple(output.shape[:3]) == (BATCH, LENGTH, HEADS)


@pytest.mark.parametrize("size", BAD_SIZES)
def test_bad_sizes(size):
    tensors = make_tensors()
    order = np.arange(LENGTH, dtype="int32")
    with pytest.raises(ValueError, match=about("window_size")):
        sliding_window_attention(**tensors, window_size=size)
    with pytest.raises(ValueError, match=about("dilation")):
        sliding_window_attention(**tensors, window_size=2, dilation=size)
    with pytest.raises(ValueError, match=about("window_size")):
        stochastic_attention(**tensors, permutation=order, window_size=size)
    with pytest.raises(ValueError, match=about("block_size")):
        block_routed_attention(**tensors, block_size=size, top_k=2)
    with pytest.raises(ValueError, match=about("top_k")):
        block_routed_attention(**tensors, block_size=2, top_k=size)
    if size is not None:
        with pytest.raises(ValueError, match=about("exclude_local")):
            stochastic_attention(
                **tensors, permutation=order, window_size=2, exclude_local=size
            )


def test_numpy_integers_are_integers():
    sliding_window_attention(**make_tensors(), window_size=np.int64(3))


@pytest.mark.parametrize(
    "hidden_first",
    [-1, True, 1.5, np.ones(BATCH, "float32"), np.ones(BATCH + 1, "int32")],
    ids=str,
)
def test_bad_hidden_first(hidden_first):
    with pytest.raises(ValueError, match=about("hidden_first")):
        call("stochastic_window", hidden_first=hidden_first)


def test_unknown_neighborhood():
    with pytest.raises(ValueError, match=about("neighborhood")):
        call("stochastic_window", neighborhood="blocks")


@pytest.mark.parametrize(
    "path", ["sliding_window", "stochastic_window", "block_routed"]
)
def test_unknown_implementation(path):
    with pytest.raises(ValueError, match=about("implementation")):
        call(path, implementation="portible")


REFUSED = {
    "attn_logits_soft_cap": {"attn_logits_soft_cap": 2.0},
    "sinks": {"sinks": np.ones(HEADS, "float32")},
    "return_lse": {"return_lse": True},
    "exclude_local": {"exclude_local": 2},
    "hidden_first": {"hidden_first": 2},
    "attention_mask": {"attention_mask": np.ones((1, LENGTH, LENGTH), bool)},
    "dropout": {"dropout": 0.5},
    "scale": {"scale": np.full((), 0.5, "float32")},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_named_implementation_never_falls_back(name):
    with pytest.raises(ValueError, match=f"(?s)native_block.*{name}.*Received"):
        call("native_block", **REFUSED[name])


def test_native_block_refuses_a_window():
    with pytest.raises(ValueError, match="(?s)native_block.*block.*Received"):
        call("native_block", neighborhood="window")


@pytest.mark.parametrize("name", REFUSED)
def test_without_a_name_another_one_runs(name):
    call("native_block", **{"implementation": None, **REFUSED[name]})


BAD_PERMUTATIONS = {
    "twice": np.zeros(LENGTH, "int32"),
    "too_large": np.arange(1, LENGTH + 1, dtype="int32"),
    "negative": np.arange(-1, LENGTH - 1, dtype="int32"),
    "float": np.arange(LENGTH, dtype="float32"),
    "short": np.arange(LENGTH - 1, dtype="int32"),
    "scalar": np.zeros((), "int32"),
    "rank_4": np.tile(
        np.arange(LENGTH, dtype="int32"), (BATCH, KV_HEADS, 1, 1)
    ),
    "batch": np.tile(np.arange(LENGTH, dtype="int32"), (3, 1)),
    "query_heads": np.tile(np.arange(LENGTH, dtype="int32"), (BATCH, HEADS, 1)),
    "one_bad_row": np.stack([np.arange(LENGTH), np.zeros(LENGTH)]).astype(
        "int32"
    ),
}


@pytest.mark.parametrize("bad", BAD_PERMUTATIONS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_bad_permutations(bad, as_tensor):
    permutation = BAD_PERMUTATIONS[bad]
    if as_tensor:
        permutation = ops.convert_to_tensor(permutation)
    with pytest.raises(ValueError, match=about("permutation")):
        call("stochastic_window", permutation=permutation)


def test_a_traced_permutation_is_not_read():
    """Its values are not known; its shape and dtype still are."""
    attend = backend.compile(
        lambda order: call("stochastic_window", permutation=order)
    )
    order = sample_permutation(LENGTH, 3)
    assert tuple(attend(order).shape) == (BATCH, LENGTH, HEADS, VALUE_DIM)
    with pytest.raises(ValueError, match=about("permutation")):
        attend(ops.cast(order, "float32"))
    with pytest.raises(ValueError, match=about("permutation")):
        attend(order[:-1])


def test_attention_mask_beyond_int32_indices():
    length = 46_341
    mask = np.broadcast_to(np.True_, (1, length, length))  # takes no memory
    with pytest.raises(ValueError, match="(?s)expected.*int32.*Received"):
        _validation.check_attention_mask(mask, 1, length)
