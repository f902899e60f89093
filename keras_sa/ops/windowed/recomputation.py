"""What windowed attentions share that go a few chunks at a time.

Their backward pass computes the scores again instead of keeping them.
"""

import dataclasses

# The arguments that may be tensors: with a gradient, and without. All others
# are constants of a compiled program.
_FLOATS = ("query", "key", "value", "scale", "sinks")
_OTHERS = ("permutation", "padding_mask", "attention_mask", "hidden_first")


def why_not(arguments, name):
    if arguments.dropout:
        return (
            f"`{name}` has no dropout: its backward pass computes the weights "
            "again and would draw others."
        )
    soft_cap = arguments.attn_logits_soft_cap
    if not isinstance(soft_cap, (int, float, type(None))):
        return (
            f"`{name}` has no attn_logits_soft_cap that is a tensor: pass a "
            "number."
        )
    return None


def split(arguments):
    """What is a tensor in the arguments, and what a program is compiled for.

    Returns:
        dict of the tensors that may have a gradient, dict of the others, and
        the arguments without them, which are hashable.
    """
    floats, others = _tensors(arguments, _FLOATS), _tensors(arguments, _OTHERS)
    static = dataclasses.replace(
        arguments, dropout_seed=None, **dict.fromkeys((*floats, *others))
    )
    return floats, others, static


def _tensors(arguments, names):
    values = {name: getattr(arguments, name) for name in names}
    constants = (int, float, type(None))
    return {k: v for k, v in values.items() if not isinstance(v, constants)}
