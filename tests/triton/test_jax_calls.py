"""The Triton kernels as functions of JAX, in the interpreter."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_sa
from keras_sa.ops.neighbors import api as neighbors_api

pytestmark = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="functions of JAX"
)
SHAPES = ((2, 40, 4, 16), (2, 40, 2, 16), (2, 40, 2, 24))


def make_tensors():
    return [keras.random.normal(s, seed=i) for i, s in enumerate(SHAPES)]


def attend(query, key, value, order, implementation="triton", **arguments):
    return keras_sa.ops.stochastic_attention(
        query,
        key,
        value,
        order,
        window_size=8,
        is_causal=True,
        implementation=implementation,
        **arguments,
    )


def loss(*tensors, **arguments):
    return ops.sum(attend(*tensors, **arguments) ** 2)


def assert_trees_close(actual, expected):
    import jax

    for a, b in zip(*map(jax.tree.leaves, (actual, expected))):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_jit_and_grad():
    import jax

    order = keras_sa.ops.sample_permutation(40, seed=1)
    expected, actual = (
        jax.jit(
            jax.value_and_grad(
                functools.partial(loss, implementation=name), argnums=(0, 1, 2)
            )
        )(*make_tensors(), order)
        for name in ("portable", "triton")
    )
    assert_trees_close(actual, expected)


def test_one_trace_serves_every_permutation():
    import jax

    traces = []

    @jax.jit
    def run(*arguments):
        traces.append(None)
        return attend(*arguments)

    outputs = [
        run(*make_tensors(), keras_sa.ops.sample_permutation(40, seed=seed))
        for seed in (1, 2)
    ]
    assert len(traces) == 1
    assert not np.allclose(*outputs)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma):
    """Examples on the devices of a mesh."""
    import jax
    from jax.sharding import PartitionSpec

    mesh = jax.make_mesh(
        (2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    sharded, whole = PartitionSpec("batch"), PartitionSpec()
    order = keras_sa.ops.sample_permutation(40, seed=1)
    mapped = jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(sharded, sharded, sharded, whole),
        out_specs=sharded,
        check_vma=check_vma,
    )

    def mapped_loss(*tensors):
        return ops.sum(mapped(*tensors) ** 2)

    arguments = (*make_tensors(), order)
    expected, actual = (
        jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2)))(*arguments)
        for f in (loss, mapped_loss)
    )
    assert_trees_close(actual, expected)


@pytest.mark.parametrize("differentiated", [False, True])
def test_vmap_is_refused(differentiated):
    import jax

    function = jax.grad(loss) if differentiated else loss
    order = keras_sa.ops.sample_permutation(40, seed=1)
    tensors = [ops.stack([x, x]) for x in make_tensors()]
    with pytest.raises(ValueError, match="(?s)vmap.*batch.*Received"):
        jax.vmap(function, in_axes=(0, 0, 0, None))(*tensors, order)


def test_layers_train_with_it():
    """Fused gradients of a layer, sinks and gates apart, are the portable
    ones."""
    import jax

    from keras_sa.ops.windowed import triton as windowed_triton

    layer = keras_sa.SmallWorldAttention(
        num_heads=4, key_dim=16, window_size=8, num_key_value_heads=2, seed=3
    )
    x = keras.random.normal((2, 40, 32), seed=1)
    layer.build(x.shape, x.shape)

    def loss(variables):
        output, _ = layer.stateless_call(
            variables,
            [v.value for v in layer.non_trainable_variables],
            x,
            x,
            use_causal_mask=True,
        )
        return ops.sum(output**2)

    variables = [v.value for v in layer.trainable_variables]
    actual = jax.value_and_grad(loss)(variables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowed_triton, "why_not", lambda arguments: "not now.")
        expected = jax.value_and_grad(loss)(variables)
    assert_trees_close(actual, expected)


def test_step_of_decoding():
    query, key, value = make_tensors()
    rows = ops.arange(18, dtype="int32").reshape(2, 9) - 2
    expected, actual = (
        neighbors_api.neighbor_attention(
            query[:, :2],
            key,
            value,
            rows,
            scale=0.3,
            sinks=ops.ones(4),
            implementation=name,
        )
        for name in ("portable", "triton")
    )
    assert_trees_close(actual, expected)
