"""Routing against plain numpy; values are in the shared cases."""

import numpy as np
import pytest
from keras import ops

from keras_sa import backend
from keras_sa.ops import block_routed_attention
from keras_sa.ops import dense_attention
from keras_sa.ops.routed.api import routed_blocks
from tests import testing


def to_numpy(x):
    return np.asarray(ops.convert_to_numpy(x))


@pytest.mark.parametrize(
    "case", testing.cases_of("block_routed_attention"), ids=str
)
def test_routes_equal_numpy(case):
    inputs = testing.make_inputs(case)
    expected = testing.reference_routes(case, inputs)
    mask = inputs.padding_mask

    def route(query, key):
        return routed_blocks(
            query,
            key,
            block_size=case.window,
            top_k=case.top_k,
            is_causal=case.is_causal,
            padding_mask=None if mask is None else ops.convert_to_tensor(mask),
        )

    routes = to_numpy(
        backend.compile(route)(
            ops.convert_to_tensor(inputs.query),
            ops.convert_to_tensor(inputs.key),
        )
    )
    real = np.ones(routes.shape[:2], bool) if mask is None else mask
    np.testing.assert_array_equal(routes[real], expected[real])
    assert np.all(routes[real].sum(axis=-1) <= case.top_k)


@pytest.mark.parametrize("is_causal", [False, True])
def test_differs_from_dense_unless_all_blocks_are_read(is_causal):
    case = testing.Case("plain", length=24, head_dim=4)
    inputs = testing.make_inputs(case)
    tensors = [
        ops.convert_to_tensor(x)
        for x in (inputs.query, inputs.key, inputs.value)
    ]
    everything = np.tril(np.ones((24, 24), bool)) if is_causal else None
    dense = to_numpy(
        backend.compile(lambda *x: dense_attention(*x, everything))(*tensors)
    )

    def run(top_k):
        attend = backend.compile(
            lambda *x: block_routed_attention(
                *x, block_size=4, top_k=top_k, is_causal=is_causal
            )
        )
        return to_numpy(attend(*tensors))

    difference = np.abs(run(2) - dense).max(axis=(0, 2, 3))
    hidden = np.arange(24) >= 8 if is_causal else np.full(24, True)
    assert np.all(difference[hidden] > 1e-3)
    for top_k in (6, 9):  # also more choices than blocks
        np.testing.assert_allclose(run(top_k), dense, rtol=0, atol=2**-19)


def test_the_choice_follows_the_query():
    """A query that points at a block's keys reads that block."""
    length, size = 12, 3
    key = np.zeros((1, length, 1, 4), "float32")
    for block in range(4):
        key[0, block * size : (block + 1) * size, 0, block] = 1
    query = np.zeros((1, length, 1, 4), "float32")
    query[..., 2] = 5
    routes = to_numpy(
        routed_blocks(
            ops.convert_to_tensor(query),
            ops.convert_to_tensor(key),
            block_size=size,
            top_k=2,
            is_causal=False,
        )
    )
    assert np.all(routes[0, :, 0, 2])
    for token in range(length):
        assert routes[0, token, 0, token // size]
    past = to_numpy(
        routed_blocks(
            ops.convert_to_tensor(query),
            ops.convert_to_tensor(key),
            block_size=size,
            top_k=4,
            is_causal=True,
        )
    )
    for token in range(length):
        expected = np.arange(4) <= token // size
        np.testing.assert_array_equal(past[0, token, 0], expected)
