"""What a run will take, by formula: nothing is built.

Letters: `L` layers, `F` features, `I` features within a feedforward network,
`H` query heads, `K` key/value heads, `D` head dim, `V` tokens of the
vocabulary, `n` tokens of a sequence, `B` sequences of a batch.
"""

import dataclasses

from examples.pretrain import attention_options

_BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}
_FORWARD_AND_BACKWARD = 3  # forward passes; the backward pass is worth two
_ADAM_MOMENTS = 2


def num_parameters(shape, vocabulary_size, num_gates=0):
    """As `count_params()` of the model that `build_model` makes.

    Args:
        shape: `sizes.Shape`.
        vocabulary_size: `V`; one matrix embeds tokens and predicts them.
        num_gates: gates of all layers, one for each term of a gated sum.
    """
    F, H = shape.hidden_dim, shape.num_query_heads
    norms = 2 * F + 2 * shape.head_dim  # the second pair: of queries and keys
    gate = (F + 1) * H
    return (
        vocabulary_size * F
        + shape.num_layers * (_matrices(shape) + norms)
        + F
        + num_gates * gate
    )


def _matrices(shape):
    """Parameters of the matrices of a layer."""
    F, D = shape.hidden_dim, shape.head_dim
    projections = 2 * shape.num_query_heads + 2 * shape.num_key_value_heads
    return F * D * projections + 3 * F * shape.intermediate_dim


def forward_flops_per_token(
    shape, vocabulary_size, keys_of_layers, num_gates=0
):
    """Multiplications and additions of all matrix products, for one token.

    Args: as in `num_parameters`, and
        keys_of_layers: the mean number of keys that a token attends to, in
            each layer.
    """
    F, H = shape.hidden_dim, shape.num_query_heads
    weights = (
        shape.num_layers * _matrices(shape)
        + vocabulary_size * F
        + num_gates * F * H
    )
    # Scores, and the sum of values.
    attention = 2 * H * shape.head_dim * sum(keys_of_layers)
    return 2 * (weights + attention)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on a device while it trains."""

    weights: int
    gradients: int
    optimizer: int
    activations_estimated: int

    @property
    def total(self):
        return sum(dataclasses.astuple(self))


def memory(shape, vocabulary_size, parameters, length, batch_size, **options):
    """The `Memory` of a training step.

    Args:
        shape: `sizes.Shape`.
        vocabulary_size: `V`.
        parameters: their number.
        length: `n`.
        batch_size: `B`, on one device.
        **options: `dtype`, and `accumulation`: the number of batches.
    """
    width = _BYTES[options["dtype"]]
    is_mixed = width < 4
    num_tokens = length * batch_size
    accumulated = options["accumulation"] > 1
    return Memory(
        weights=parameters * (4 + width * is_mixed),
        gradients=parameters * 4,
        optimizer=parameters * 4 * (_ADAM_MOMENTS + accumulated),
        activations_estimated=num_tokens
        * (_kept_bytes(shape, width) + _logit_bytes(vocabulary_size, width)),
    )


def _kept_bytes(shape, width):
    """What the layers keep of a token for the backward pass.

    An attention that keeps no scores is assumed: a fused kernel.
    """
    F, D = shape.hidden_dim, shape.head_dim
    queries, keys = shape.num_query_heads * D, shape.num_key_value_heads * D
    attention = 2 * queries + 2 * (queries + keys) + 2 * keys
    features = 4 * F + attention + 3 * shape.intermediate_dim
    in_float32 = 2 * F + shape.intermediate_dim  # norms, and the activation
    return shape.num_layers * (features * width + in_float32 * 4)


def _logit_bytes(vocabulary_size, width):
    """Logits in both precisions, and their gradient."""
    return vocabulary_size * (2 * 4 + width)


def report(arguments, shape, patterns, vocabulary_size):
    """Lines that tell what a run will take.

    Args:
        arguments: of the command line, with all defaults.
        shape: `sizes.Shape`.
        patterns: the `Pattern` of each layer.
        vocabulary_size: `V`.
    """
    keys_of_layers = [
        pattern.keys_per_token(arguments.length, is_causal=True)
        for pattern in patterns
    ]
    num_gates = sum(map(attention_options.num_gates, patterns))
    parameters = num_parameters(shape, vocabulary_size, num_gates)
    forward = forward_flops_per_token(
        shape, vocabulary_size, keys_of_layers, num_gates
    )
    training = _FORWARD_AND_BACKWARD * forward
    tokens = arguments.steps * tokens_per_step(arguments)
    keys = sum(keys_of_layers) / len(keys_of_layers)
    needed = memory(
        shape,
        vocabulary_size,
        parameters,
        arguments.length,
        arguments.batch_size,
        dtype=arguments.dtype,
        accumulation=arguments.accumulation,
    )
    return [
        f"parameters: {parameters:,}",
        f"tokens: {tokens:,} in {arguments.steps:,} steps of "
        f"{tokens_per_step(arguments):,}",
        f"visible keys per token, mean of the layers: {keys:.1f}; full "
        f"attention: {(arguments.length + 1) / 2:.1f}",
        f"FLOPs per token: {training:.4g}, of these {forward:.4g} forward "
        "(matrix products; attention by visible keys)",
        f"FLOPs in total: {training * tokens:.4g}",
        f"memory of one device: about {_in_words(needed.total)}",
        *(
            f"  {field.name}: {_in_words(getattr(needed, field.name))}"
            for field in dataclasses.fields(needed)
        ),
    ]


def tokens_per_step(arguments):
    """Of an update of the weights."""
    return arguments.length * arguments.batch_size * arguments.accumulation


def _in_words(num_bytes):
    gigabytes = num_bytes / 2**30
    if gigabytes >= 1:
        return f"{gigabytes:.1f} GiB"
    return f"{1024 * gigabytes:.1f} MiB"
